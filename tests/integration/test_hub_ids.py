"""Data and models by their Hub ids: the real clients against a Hub on loopback, in processes with an empty cache."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertpre import data
from tests.helpers import run_process, tiny_values, tree_hash, write_recipe
from tests.hub_server import Fault, HubServer, running_hub

ARTICLES, REVIEWS, ENCODER = "someone/articles", "someone/reviews", "someone/encoder"
CARD = """---
configs:
- config_name: 2026.en
  default: true
  data_files:
  - split: train
    path: 2026.en/train-*
---
"""


@pytest.fixture(scope="module")
def hub(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A Hub with articles in two files of a configuration, as Wikipedia has them, labelled reviews, and an encoder."""
    from datasets import ClassLabel, Dataset, Features, Value

    folder = tmp_path_factory.mktemp("hub")
    articles, reviews = folder / "articles" / "2026.en", folder / "reviews" / "plain_text"
    articles.mkdir(parents=True)
    reviews.mkdir(parents=True)
    (folder / "articles" / "README.md").write_text(CARD)
    for number, part in enumerate((texts()[:150], texts()[150:])):
        Dataset.from_dict({"text": part}).to_parquet(articles / f"train-{number:05}-of-00002.parquet")
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    for split in ("train", "test"):
        rows = {"text": [f"{'Good' if n % 2 else 'Bad'} film {split} {n}." for n in range(80)], "label": [0, 1] * 40}
        Dataset.from_dict(rows, features).to_parquet(reviews / f"{split}-00000-of-00001.parquet")
    with running_hub() as server:
        server.add_folder(ARTICLES, folder / "articles", "datasets")
        server.add_folder(REVIEWS, folder / "reviews", "datasets")
        server.add_folder(ENCODER, tiny_run / "model")
        yield server


def texts() -> list[str]:
    """What the articles hold."""
    return list(data.read_texts("sample", split="train+articles", limit=120))


def run_recipe(
    hub: HubServer, folder: Path, name: str, values: dict[str, Any], verb: str = "run", **environment: str
) -> Path:
    """`bertpre VERB` in a process whose cache is `folder/cache`; returns the run directory."""
    recipe = write_recipe(folder / f"{name}.yaml", tiny_values(folder / name) | values)
    command = [sys.executable, "-m", "bertpre", verb, str(recipe)]
    done = run_process(command, **(hub.environment(folder / "cache") | environment))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / name


@pytest.mark.parametrize(
    ("status", "overrides", "message"),
    [
        (403, ["corpus.streaming=true"], "(status 403); accept its terms on its page, and log in with `hf auth login`"),
        (403, [], "(status 403); accept its terms on its page, and log in with `hf auth login`"),
        (
            None,
            ["corpus.streaming=true", "corpus.split=train[:10%]"],
            "a slice of a split needs corpus.streaming=false",
        ),
    ],
)
def test_what_the_hub_does_not_give_out_is_said(
    status: int | None, overrides: list[str], message: str, hub: HubServer, tmp_path: Path
) -> None:
    hub.faults = [Fault("resolve/.*parquet", status)] if status else []
    recipe = write_recipe(tmp_path / "hub.yaml", tiny_values(tmp_path / "run") | {"corpus": {"path": ARTICLES}})
    command = [sys.executable, "-m", "bertpre", "prepare", str(recipe), *overrides]
    done = run_process(command, **hub.environment(tmp_path / "cache"))
    hub.faults = []
    assert done.returncode == 2
    assert message in done.stderr


@pytest.fixture
def values() -> dict[str, Any]:
    """Sections of a recipe with nothing but Hub ids."""
    tiny = tiny_values(Path())
    return {
        "corpus": {"path": ARTICLES, "name": "2026.en"},
        "tokenizer": {"path": ENCODER},
        "training": tiny["training"] | {"init": ENCODER},
        "finetune": tiny["finetune"] | {"path": REVIEWS},
    }


def test_corpus_labels_tokenizer_and_encoder_from_the_hub(
    hub: HubServer, tmp_path: Path, values: dict[str, Any]
) -> None:
    run = run_recipe(hub, tmp_path, "first", values)
    results = json.loads((run / "results.json").read_text())
    assert results["prepare"]["documents"] == len(texts()) and results["evaluate"]["examples"] == 40
    assert (run / "tokenizer" / "vocab.txt").read_bytes() == hub.model(ENCODER).files()["vocab.txt"]
    labels = json.loads((run / "finetuned" / "config.json").read_text())["id2label"]
    assert set(labels.values()) == {"neg", "pos"}

    asked = len(hub.log)
    again = run_recipe(hub, tmp_path, "offline", values, HF_HUB_OFFLINE="1")  # from the cache
    assert len(hub.log) == asked and tree_hash(again / "model") == tree_hash(run / "model")


def test_a_streamed_corpus_gives_the_same_data(hub: HubServer, tmp_path: Path, values: dict[str, Any]) -> None:
    runs = []
    for name, streaming in (("copied", False), ("streamed", True)):
        corpus = values["corpus"] | {"streaming": streaming}
        run = run_recipe(hub, tmp_path, name, {"corpus": corpus, "finetune": None}, verb="prepare")
        runs.append(tree_hash(run / "data"))
    assert runs[0] == runs[1]


# One process for all: it starts the command once for each override.
IN_TURN = """
import sys
from bertpre.cli import main

recipe, *overrides = sys.argv[1:]
for override in overrides:
    sys.argv = ["bertpre", "run", recipe, override]
    try:
        main()
    except SystemExit as end:
        print("exit status", end.code)
"""


def test_what_the_hub_lacks_is_one_message(hub: HubServer, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", tiny_values(tmp_path / "run"))
    keys = ("corpus.path", "training.init", "finetune.path")
    command = [sys.executable, "-c", IN_TURN, str(recipe), *(f"{key}=someone/nothing" for key in keys)]
    done = run_process(command, **hub.environment(tmp_path / "cache"))
    for key in keys:
        assert f"{key}: there is no folder 'someone/nothing', and the Hub does not" in done.stderr
    assert done.stdout.count("exit status 2") == 3 and "Traceback" not in done.stderr
