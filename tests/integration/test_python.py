"""The Python interface to runs, and the code in docs/python.md, which runs (with less data)."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer

import bertpre
import bertpre.data
import bertpre.model
from bertpre.training.trainer import Trainer
from tests.helpers import LIMIT, copy_run

DOCS = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)


def test_the_three_paths_of_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    only_data, only_model, *_ = BLOCKS
    assert all(len(block.strip().splitlines()) < 15 for block in BLOCKS)
    seen: dict[str, Any] = {}
    exec(only_data.replace("limit=300", "limit=60").replace("range(2)", "range(1)"), seen)
    assert set(seen["batch"]) == {
        "input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label",
    }  # fmt: skip
    assert (tmp_path / "my-store/data/manifest.json").is_file()
    exec(only_model.replace("max_steps=20", "max_steps=2"), {})
    model = bertpre.model.BertPreForMaskedLM.from_pretrained(tmp_path / "my-model")
    assert model.config.architecture == "modern"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "my-model")
    assert tokenizer("<b>good</b>")["input_ids"] == tokenizer("good")["input_ids"]
    AutoTokenizer.from_pretrained(tmp_path / "trainer" / "checkpoint-2")


def test_a_whole_run_as_in_the_docs(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run, "runs/first")  # every stage is finished, so that the code takes no minutes
    code = BLOCKS[2].replace('"quickstart"', repr(str(tiny_run.parent / "tiny.yaml")))
    seen: dict[str, Any] = {}
    exec(code.replace('training={"budget": "5m"}', 'training={"log_every": 5}'), seen)
    out = capsys.readouterr().out
    assert "evaluate: already finished, skipped" in out
    assert sum(line.startswith(("positive", "negative")) for line in out.splitlines()) == 2
    assert len(seen["tokenizer"]) == seen["model"].config.vocab_size
    assert isinstance(seen["model"], bertpre.model.BertPreForPreTraining)
    assert seen["classifier"].config.num_labels == 2
    assert seen["run"].folder == tmp_path / "runs/first"
    assert "log_every: 5" in Path("runs/first/recipe.yaml").read_text()


def test_a_run_that_was_moved_is_opened_anywhere(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_run, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    run = bertpre.open_run("moved")
    monkeypatch.chdir("/")
    assert run.recipe.output_dir == str(run.folder) == str(tmp_path / "moved")
    assert {"prepare", "pretrain", "finetune", "evaluate"} == set(run.results)
    assert "evaluate" in repr(run)
    inputs = run.tokenizer("A fine [MASK].", return_tensors="pt")
    with torch.no_grad():
        assert torch.isfinite(run.model(**inputs).prediction_logits).all()
    assert not run.model.training


def test_the_classifier_answers_as_the_command_does(tiny_run: Path) -> None:
    classifier = bertpre.open_run(tiny_run).classifier
    assert isinstance(classifier, bertpre.TextClassifier)
    assert classifier.classes == ("negative", "positive")
    (one,) = classifier("A fine film.")
    assert set(one) == {"label", "probability", "probabilities"}
    assert one["probability"] == max(one["probabilities"].values())
    assert classifier(["Dull.", "A fine film."])[1]["probability"] == pytest.approx(one["probability"], abs=1e-5)
    assert classifier([]) == []


def test_what_is_no_text_is_refused(tiny_run: Path) -> None:
    from datasets import Dataset

    classifier, texts = bertpre.open_run(tiny_run).classifier, ["Dull.", "A fine film."]
    expected = classifier(texts)
    assert classifier(pd.Series(texts)) == classifier(np.array(texts)) == classifier(iter(texts)) == expected
    for table, words in (
        (pd.DataFrame({"text": texts}), "texts: is a DataFrame, not texts; give one of its columns"),
        ({"text": texts}, "texts: is a dict, not texts"),
        (Dataset.from_dict({"text": texts}), "texts: item 0 is {'text': 'Dull.'}, not a text"),
        (["Dull.", None], "texts: item 1 is None, not a text"),
        (Path("texts.txt"), r"texts: is PosixPath\('texts.txt'\), not texts; of a file, give"),
        (["Dull.", " <br />", ""], "texts: 2 have no text in them, the first is item 1"),
        ([[]], "texts: 1 have no text in them"),
        ([["Dull.", 3]], r"texts: item 0 is \['Dull.', 3\], not a text"),
    ):
        with pytest.raises(bertpre.UserError, match=words):
            classifier(table)


def test_parts_that_are_not_there_yet(tiny_run: Path, tmp_path: Path) -> None:
    run = bertpre.Run(copy_run(tiny_run, tmp_path / "run", "prepare"))
    for part, stage in (("model", "pretrain"), ("classifier", "finetune")):
        with pytest.raises(bertpre.UserError, match=f"yet; run `bertpre {stage} {tmp_path}/run`"):
            getattr(run, part)
    assert len(run.tokenizer) == 512
    run.recipe = run.recipe.model_copy(update={"corpus": None, "finetune": None})
    for part, section in (("model", "corpus"), ("classifier", "finetune")):
        with pytest.raises(bertpre.UserError, match=f"its recipe has no section {section}"):
            getattr(run, part)
    with pytest.raises(bertpre.UserError, match="is not a run directory"):
        bertpre.open_run(tmp_path)


def test_a_runs_folder_names_its_models(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"in {tiny_run}; give {tiny_run}/finetuned or {tiny_run}/model"):
        bertpre.model.load_model(str(tiny_run))
    with pytest.raises(OSError, match=f"there is no config.json in {tmp_path}$"):
        bertpre.model.load_model(str(tmp_path))


def test_a_run_keeps_its_recipe(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    recipe = bertpre.load_recipe(tiny_run)
    assert isinstance(recipe, bertpre.Recipe)
    assert recipe.output_dir == str(tiny_run)
    with pytest.raises(bertpre.UserError, match="another recipe, which differs in seed"):
        bertpre.run(recipe, {"seed": 9}, output_dir=tmp_path / "run")


@pytest.mark.parametrize(
    "arguments",
    [
        (["training.max_steps=9", "seed=3", "finetune=null"],),
        ({"training.max_steps": 9, "seed": 3, "finetune": None},),
        ({"training": {"max_steps": 9}, "seed": 3, "finetune": None},),
    ],
)
def test_overrides_are_lines_or_mappings(arguments: tuple[Any, ...]) -> None:
    recipe = bertpre.load_recipe("quickstart", *arguments)
    assert recipe == bertpre.load_recipe("quickstart", training={"max_steps": 9}, seed=3, finetune=None)
    assert (recipe.training.max_steps, recipe.seed, recipe.finetune) == (9, 3, None)
    assert recipe.training.learning_rate == bertpre.load_recipe("quickstart").training.learning_rate
    assert bertpre.load_recipe(recipe, seed=4).training == recipe.training
    with pytest.raises(bertpre.UserError, match="unknown key 'training.max_step'; did you mean 'training.max_steps'"):
        bertpre.load_recipe("quickstart", training={"max_step": 9})


@pytest.mark.parametrize("module", [bertpre, bertpre.data, bertpre.model], ids=lambda module: module.__name__)
def test_every_public_name_is_there_typed_for_editors_and_shown(module: Any) -> None:
    source = Path(module.__file__).read_text(encoding="utf-8").partition("if TYPE_CHECKING:")[2].partition("__all__")[0]
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
        assert re.search(rf"\b{name}\b", source), f"{name} is not imported for type checkers"
        assert re.search(rf"\b{name}\b", DOCS), f"{name} is not in docs/python.md"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_notebooks_complete_the_names() -> None:
    assert set(bertpre.__all__) <= set(dir(bertpre))
    assert set(bertpre.data.__all__) <= set(dir(bertpre.data))
    assert set(bertpre.model.__all__) <= set(dir(bertpre.model))


def test_type_checkers_read_the_types() -> None:
    package = Path(bertpre.__file__).parent
    assert (package / "py.typed").is_file()
    assert '"py.typed"' in (package.parent / "pyproject.toml").read_text()


def test_a_classifier_is_loaded_from_its_folder_alone(tiny_run: Path) -> None:
    texts = ["Dull.", "A fine film."]
    loaded = bertpre.load_classifier(tiny_run / "finetuned")
    assert loaded(texts) == bertpre.open_run(tiny_run).classifier(texts)
    with pytest.raises(bertpre.UserError, match="is not a fine-tuned text classifier"):
        bertpre.load_classifier(tiny_run / "model")


def test_one_of_several_processes_may_classify_alone(tiny_run: Path) -> None:
    program = """
import sys, accelerate, torch, bertpre
accelerator = accelerate.Accelerator(cpu=True)
classify = bertpre.open_run(sys.argv[1]).classifier
if accelerator.is_main_process:
    print(len(classify(["Dull.", "A fine film.", "A third."])), "labels on one of", accelerator.num_processes)
accelerator.wait_for_everyone()
"""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--no-python"]
    command += [sys.executable, "-c", program, str(tiny_run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout == "3 labels on one of 2\n", done.stderr


def test_an_interrupted_run_interrupts_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_recipe: object, _after_step: object) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("bertpre.commands.run.run", stopped)
    status = 130
    with pytest.raises(KeyboardInterrupt):
        bertpre.run("quickstart", output_dir=str(tmp_path))
    status = 143
    with pytest.raises(SystemExit, match="143"):
        bertpre.run("quickstart", output_dir=str(tmp_path))


def test_the_early_stop_of_the_docs(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = bertpre.load_recipe(tiny_run.parent / "tiny.yaml", finetune=None)
    code = BLOCKS[3].replace('"quickstart"', "recipe").replace("< 4:", "< 6.24:")
    exec(code, {"recipe": recipe})
    (run,) = map(bertpre.open_run, Path("runs").iterdir())
    assert run.results["pretrain"]["steps"] == 5  # of ten; every fifth is followed by a validation


def test_a_callers_function_ends_pretraining_early(tiny_run: Path, tmp_path: Path) -> None:
    def stop(trainer: Trainer) -> None:
        if trainer.progress.step == 3:
            trainer.should_stop = lambda: True

    run = bertpre.run(tiny_run / "recipe.yaml", output_dir=str(tmp_path / "run"), finetune=None, after_step=stop)
    assert run.results["pretrain"]["steps"] == 3 and run.part("model").is_dir()


def test_a_home_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "corpus.txt").write_text("".join(f"This is text number {number}.\n" for number in range(40)))
    texts = bertpre.data.read_texts("~/corpus.txt")
    bertpre.data.TokenStore.build("~/store", texts, vocab_size=128, validation_fraction=0.2)
    store = bertpre.data.TokenStore("~/store")
    tokenizer = bertpre.data.load_tokenizer("~/store/tokenizer")
    assert store.folder == tmp_path / "store"
    assert tokenizer.get_vocab() == store.tokenizer.get_vocab()


def test_a_call_leaves_the_callers_training_and_settings_alone(tiny_run: Path) -> None:
    program = """
import sys, accelerate, torch, transformers, bertpre
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4, mixed_precision="bf16")
network = torch.nn.Linear(2, 1)
network, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=1.0))

def changes():
    count = 0
    for _ in range(8):
        before = network.weight.detach().clone()
        with accelerator.accumulate(network):
            accelerator.backward(network(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()
        count += not torch.equal(before, network.weight)
    return count

assert changes() == 2
bertpre.open_run(sys.argv[1]).classifier(["a text"])
assert changes() == 2
assert (accelerator.gradient_accumulation_steps, accelerator.mixed_precision) == (4, "bf16")
assert transformers.logging.get_verbosity() == transformers.logging.WARNING
print("untouched")
"""
    done = subprocess.run([sys.executable, "-c", program, tiny_run], capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout.endswith("untouched\n"), done.stderr
