"""The Python code in docs/data.md runs unchanged, and the recipes in docs/finetuning.md load."""

import re
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForPreTraining

from bertpre.commands.prepare import prepare
from bertpre.recipe import load_recipe

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The code blocks of docs/data.md; the current folder holds a small quickstart run."""
    monkeypatch.chdir(tmp_path)
    prepare(load_recipe("quickstart", ["corpus.limit=200", "tokenizer.vocab_size=1024"]))
    return re.findall(r"```python\n(.*?)```", (DOCS / "data.md").read_text(), re.DOTALL)


def test_the_store_is_read_with_numpy_alone(blocks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("runs/quickstart")
    seen: dict = {}
    exec(blocks[0], seen)
    sentences = seen["sentences"]
    assert len(seen["third_sentence"]) == sentences[3] - sentences[2] > 0
    assert len(seen["first_document"]) > len(seen["third_sentence"])


def test_the_batches_fit_a_stock_model(blocks: list[str]) -> None:
    seen: dict = {}
    exec(blocks[1], seen)
    batch, tokenizer = seen["batch"], seen["tokenizer"]
    is_target = batch["labels"] != -100
    assert is_target.sum(1).min() >= 1
    assert not is_target[:, 0].any()
    assert seen["position"].offset == 64
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    loss = BertForPreTraining(config)(**batch).loss
    assert torch.isfinite(loss)


@pytest.mark.parametrize("file", [DOCS.parent / "README.md", DOCS / "architecture.md"], ids=lambda file: file.name)
def test_the_layout_shows_every_folder(file: Path) -> None:
    tree = file.read_text(encoding="utf-8").partition("    bertpre/\n")[2]
    shown = re.findall(r"^      (\w+)/", tree, re.MULTILINE)
    package = DOCS.parent / "bertpre"
    assert sorted(shown) == sorted(folder.parent.name for folder in package.glob("*/__init__.py"))


def test_the_recipes_of_the_docs_load(tmp_path: Path) -> None:
    recipes = re.findall(r"```yaml\n(.*?)```", (DOCS / "finetuning.md").read_text(), re.DOTALL)
    assert len(recipes) == 2
    for text in recipes:
        (tmp_path / "recipe.yaml").write_text(text)
        assert load_recipe(str(tmp_path / "recipe.yaml")).corpus is None
