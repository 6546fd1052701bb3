"""Every task through the real verbs: fine-tuned, evaluated, asked; from this run's model and from a stock one."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow.parquet import read_table
from transformers import AutoConfig, BertConfig, BertForMaskedLM

from bertpre.data.tokenizer import load_tokenizer
from tests.helpers import read_metrics, run_here
from tests.unit.test_labelled import write_rows

NAMES = ("mira", "oda", "tom", "ben")


def rows_of(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Made-up rows with something to learn for every task."""
    rows = []
    for number in range(start, start + count):
        good, name, genre = number % 2, NAMES[number % 4], ("war", "love", "sea")[number % 3]
        rows.append(
            {
                "text": f"{name} thought it was {'a fine' if good else 'a dull'} {genre} film, number {number}",
                "other": f"{name if number % 3 else 'nobody'} saw it",
                "verdict": ["bad", "good", "mixed"][number % 3],
                "grade": good + number % 3 / 2,
                "kinds": [["war"], ["love", "war"], []][number % 3],
                "words": [name, "saw", "oslo"],
                "tags": ["B-PER", "O", "B-LOC"],
            }
        )
    return rows


TASKS = {
    "classes": {"label_column": "verdict", "class_weights": "balanced", "label_smoothing": 0.1},
    "pairs": {"label_column": "verdict", "text_pair_column": "other", "metric": "matthews"},
    "regression": {"task": "regression", "label_column": "grade"},
    "sets": {"task": "multi_label", "label_column": "kinds"},
    "words": {"task": "tokens", "text_column": "words", "label_column": "tags"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A training and a test file."""
    folder = tmp_path_factory.mktemp("rows")
    return write_rows(folder / "train.jsonl", rows_of(60)), write_rows(folder / "test.jsonl", rows_of(24, 60))


def write_recipe(folder: Path, data: tuple[str, str], init: str, **finetune: Any) -> Path:
    """A recipe that fine-tunes alone."""
    values = {
        "output_dir": str(folder / "run"),
        "training": {"precision": "fp32", "compile": False, "log_every": 1},
        "finetune": {
            "path": data[0], "init": init, "epochs": 8, "batch_size": 8, "max_length": 32, "learning_rate": 2e-3,
            "dropout": 0, "encoder_dropout": 0,
            "validation_fraction": 0.2, **finetune,
        },
        "evaluate": {"path": data[1], "split": "train"},
    }  # fmt: skip
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


@pytest.fixture(scope="module")
def stock(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stock BERT with its tokenizer, as it lies on the Hub."""
    folder = tmp_path_factory.mktemp("stock")
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("source", ["own", "stock"])
def test_every_task(
    kind: str, source: str, data: tuple[str, str], stock: str, tiny_modern_run: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    own = {"init": str(tiny_modern_run), "pooling": "mean" if kind != "words" else "cls"}
    recipe = write_recipe(tmp_path, data, **(own if source == "own" else {"init": stock}), **TASKS[kind])
    assert run_here("finetune", recipe) == 0, capsys.readouterr().err
    assert run_here("evaluate", recipe) == 0, capsys.readouterr().err
    run = tmp_path / "run"
    results = json.loads((run / "results.json").read_text())
    losses = [row["loss"] for row in read_metrics(run, "finetune", "train")]
    assert sum(losses[-4:]) < sum(losses[:4])
    table = read_table(run / "predictions.parquet")
    assert table.num_rows == results["evaluate"]["examples"] == 24
    config = AutoConfig.from_pretrained(run / "finetuned")
    expected = {
        "classes": ["bad", "good", "mixed"], "pairs": ["bad", "good", "mixed"], "regression": ["grade"],
        "sets": ["love", "war"], "words": ["B-LOC", "B-PER", "O"],
    }[kind]  # fmt: skip
    assert list(config.id2label.values()) == expected
    assert config.model_type == ("bertpre" if source == "own" else "bert")
    capsys.readouterr()
    text = "mira saw oslo" + ("\tmira saw it" if kind == "pairs" else "")
    assert run_here("predict", run, text, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() >= {
        "classes": {"label", "probabilities"}, "pairs": {"label"}, "regression": {"value"},
        "sets": {"labels", "probabilities"}, "words": {"tags"},
    }[kind]  # fmt: skip
