"""`bertpre predict` agrees with `bertpre evaluate`, from a run, its folder or a stock classifier."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from pyarrow.parquet import read_table
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from bertpre.api import TextClassifier
from bertpre.errors import UserError
from bertpre.finetuning.loading import load_any_classifier
from bertpre.finetuning.prediction import as_examples
from bertpre.recipe import load_recipe
from tests.helpers import ROOT, run_here


def test_it_agrees_with_the_evaluation(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe(str(tiny_run / "recipe.yaml"))
    known = read_table(tiny_run / "predictions.parquet").to_pylist()
    texts = [row["text"] for row in known]
    (tmp_path / "texts.txt").write_text("\n\n".join(text.replace("\n", " ") for text in texts))
    assert run_here("predict", tiny_run, "--file", tmp_path / "texts.txt", "--json") == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == len(known) == recipe.evaluate.limit
    for line, row in zip(printed, known, strict=True):
        assert line["label"] == row["prediction"]
        assert line["probabilities"]["positive"] == pytest.approx(row["probability_positive"], abs=2e-5)
        assert line["probability"] == max(line["probabilities"].values()) == line["probabilities"][line["label"]]


def table(out: str) -> list[tuple[str, float, str]]:
    """Labels, probabilities and texts."""
    rows = [line.split("\t") for line in out.splitlines()]
    return [(label, float(probability), text) for label, probability, text in rows]


def assert_same(printed: list[tuple[str, float, str]], expected: list[tuple[str, float, str]]) -> None:
    """A folder alone does not say the precision, so bf16 may round the probabilities."""
    assert [(label, text) for label, _, text in printed] == [(label, text) for label, _, text in expected]
    assert [value for _, value, _ in printed] == pytest.approx([value for _, value, _ in expected], abs=5e-3)


def test_arguments_standard_input_and_a_stock_classifier(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_here("predict", tiny_modern_run, "A fine film.", "A dull one.") == 0
    printed = table(capsys.readouterr().out)
    assert [text for *_, text in printed] == ["A fine film.", "A dull one."]
    monkeypatch.setattr("sys.stdin", io.StringIO("A fine film.\n\nA dull one.\n"))
    assert run_here("predict", tiny_modern_run / "finetuned") == 0
    assert_same(table(capsys.readouterr().out), printed)
    assert run_here("export", tiny_modern_run, "--to", "modernbert", "--output-dir", tmp_path / "stock") == 0
    capsys.readouterr()
    assert run_here("predict", tmp_path / "stock" / "classifier", "A fine film.", "A dull one.") == 0
    assert_same(table(capsys.readouterr().out), printed)


def test_bytes_on_standard_input_that_are_not_utf_8_are_refused(
    tiny_modern_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"A fine f\xfclm.\n"), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", stream)
    assert run_here("predict", tiny_modern_run) == 2
    said = capsys.readouterr().err
    assert "standard input cannot be read as text: 'utf-8' codec can't decode byte 0xfc: invalid" in said
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("A fine Ünde.\n".encode()), encoding="cp1252"))
    assert run_here("predict", tiny_modern_run) == 0  # a program's output is UTF-8 in any locale
    assert capsys.readouterr().out.endswith("A fine Ünde.\n")


def test_a_copy_of_the_classifier_cuts_long_texts_as_the_run_does(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(["A fine film."] * 40 + ["A dull one, boring and long."] * 40)
    assert run_here("export", tiny_modern_run, "--to", "modernbert", "--output-dir", tmp_path / "stock") == 0
    own, _ = load_any_classifier(str(tiny_modern_run))
    copied, settings = load_any_classifier(str(tmp_path / "stock"))
    assert settings.truncation == own.truncation == "head_tail"
    capsys.readouterr()
    assert run_here("predict", tiny_modern_run, text, "A fine film.") == 0
    read = f"{own.max_length} tokens of each (truncation: head_tail)"
    assert capsys.readouterr().err == f"warning: 1 of 2 texts are longer; the classifier reads {read}\n"
    assert copied.max_length == own.max_length
    copied = replace(copied, precision=own.precision)
    examples = as_examples([text], own.task, has_pairs=False)
    np.testing.assert_allclose(copied.predict(examples), own.predict(examples), atol=1e-6)
    assert abs(replace(copied, truncation="head").predict(examples) - own.predict(examples)).max() > 1e-4


def test_tables_and_a_classifier_below_a_pretrained_model(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["A fine film.", "A dull one,\nin two lines."]
    (tmp_path / "more.csv").write_text('number,text\n1,A fine film.\n2,"A dull one,\nin two lines."\n')
    assert run_here("predict", tiny_modern_run, "--file", tmp_path / "more.csv", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == [" ".join(text.split()) for text in texts]
    (tmp_path / "named.csv").write_text((tmp_path / "more.csv").read_text().replace("number,text", "text,body"))
    named = ["--file", tmp_path / "named.csv", "--text-column", "body", "--json"]
    assert run_here("predict", tiny_modern_run, *named) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    assert run_here("export", tiny_modern_run, "--to", "modernbert", "--output-dir", tmp_path / "stock") == 0
    capsys.readouterr()
    assert run_here("predict", tmp_path / "stock", *texts, "--json") == 0  # as `push` lays them out
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in printed] == [row["label"] for row in rows]


def test_rows_without_text_are_left_out_and_counted(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more.csv").write_text("text,number\nA fine film.,1\n,2\n<br />,3\nA dull one.,4\n")
    assert run_here("predict", tiny_modern_run, "--file", tmp_path / "more.csv", "--json") == 0
    said = capsys.readouterr()
    printed = [json.loads(line) for line in said.out.splitlines()]
    assert [(row["row"], row["text"]) for row in printed] == [(1, "A fine film."), (4, "A dull one.")]
    assert said.err == (
        f"warning: --file {tmp_path}/more.csv: rows without text were left out: 2 (the first is row 2)\n"
    )
    paragraph = textwrap.fill("The film goes on and on, and nobody of us could say what it was about. " * 12, 60)
    (tmp_path / "wrapped.txt").write_text("\n\n".join([paragraph] * 3))
    assert run_here("predict", tiny_modern_run, "--file", tmp_path / "wrapped.txt") == 0
    assert "each line is read as a text, but lines are wrapped at a fixed width; give" in capsys.readouterr().err
    with gzip.open(tmp_path / "more.txt.gz", "wt") as stream:
        stream.write("A fine film.\n\n<br />\nA dull one.\n")
    assert run_here("predict", tiny_modern_run, "--file", tmp_path / "more.txt.gz", "--json") == 0
    said = capsys.readouterr()
    assert [json.loads(line)["text"] for line in said.out.splitlines()] == ["A fine film.", "A dull one."]
    assert "rows without text were left out: 2 (the first is row 2)" in said.err


def test_a_classifier_from_elsewhere_reads_pairs_if_the_first_text_is_one(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_run / "tokenizer")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), num_labels=3, initializer_range=1.0, **sizes)
    model = BertForSequenceClassification(config).eval()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "nli")
    with torch.no_grad():
        pair, joined = (
            model(**tokenizer(*texts, return_tensors="pt")).logits.softmax(-1)[0].tolist()
            for texts in (("A fine film.", "A dull one."), ("A fine film. A dull one.",))
        )
    assert max(abs(one - other) for one, other in zip(pair, joined, strict=True)) > 0.1
    (tmp_path / "pairs.jsonl").write_text('{"text": "A fine film.", "text_pair": "A dull one."}\n')
    (tmp_path / "named.csv").write_text("premise,text_pair,hypothesis\nA fine film.,no,A dull one.\n")
    named = ["--text-column", "premise", "--text-pair-column", "hypothesis"]
    for words in (
        ["A fine film.\tA dull one."],
        ["--file", tmp_path / "pairs.jsonl"],
        ["--file", tmp_path / "named.csv", *named],
    ):
        assert run_here("predict", tmp_path / "nli", *words, "--json") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert list(json.loads(line)["probabilities"].values()) == pytest.approx(pair, abs=0.03)  # in bf16
    assert run_here("predict", tiny_run, "--file", tmp_path / "named.csv", *named) == 2
    assert "--text-pair-column: this classifier reads single texts" in capsys.readouterr().err
    classify = TextClassifier(*load_any_classifier(str(tmp_path / "nli")))
    with pytest.raises(UserError, match="this classifier reads pairs"):
        classify([("a film", "a film"), "a film"])
    with pytest.raises(UserError, match="this classifier reads pairs, not 3 texts"):
        classify([("a film", "a film", "a film")])
    with pytest.raises(UserError, match="this classifier reads single texts"):
        classify(["a film", ("a film", "a film")])


class CountingHub(ThreadingHTTPServer):
    """A Hub without models; `asked` is what it was asked for."""

    asked: list[str]


class NotFound(BaseHTTPRequestHandler):
    """Answers that there is no such repository."""

    server: CountingHub

    def do_HEAD(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Keep the tests' output clean."""


@pytest.mark.parametrize("kind", ["model", "tokenizer"])
def test_a_models_own_code_is_not_run_whatever_the_texts_say(kind: str, tiny_run: Path, tmp_path: Path) -> None:
    """transformers asks on standard input whether it may, where the texts come from."""
    shutil.copytree(tiny_run / "finetuned", tmp_path / "theirs")
    (tmp_path / "theirs" / "code_of_theirs.py").write_text("open('it_ran', 'w').close()\n")
    file = tmp_path / "theirs" / ("config.json" if kind == "model" else "tokenizer_config.json")
    values = json.loads(file.read_text())
    if kind == "model":
        values |= {"model_type": "theirs", "auto_map": {"AutoConfig": "code_of_theirs.Config"}}
    else:
        names = ["code_of_theirs.Tokenizer", "code_of_theirs.Tokenizer"]
        values |= {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": names}}
    file.write_text(json.dumps(values))
    command = [sys.executable, "-m", "bertpre", "predict", str(tmp_path / "theirs")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input="yes\n" * 9, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "run the custom code" not in done.stdout and not (tmp_path / "it_ran").exists()
    assert done.returncode == (2 if kind == "model" else 0), done.stderr  # tokenizer.json suffices for a tokenizer


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("predict nowhere hi", "nowhere"),
        ("probe nobody/nowhere", "nobody/nowhere"),
        ("prepare own-text corpus.path=texts/all", "texts/all"),  # a folder's name that looks like a Hub id
    ],
)
@pytest.mark.parametrize("is_reachable", [True, False])
def test_a_missing_model_is_looked_for_here_and_once_on_the_hub(
    command: str,
    name: str,
    is_reachable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with CountingHub(("127.0.0.1", 0), NotFound) as hub:
        hub.asked = []
        Thread(target=hub.serve_forever, daemon=True).start()
        nobody_listens = "http://127.0.0.1:9"
        endpoint = f"http://127.0.0.1:{hub.server_port}" if is_reachable else nobody_listens
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert run_here(*command.split()) == 2
        hub.shutdown()
    said = capsys.readouterr().err
    assert f"there is no folder {name!r}, and the Hub " in said
    assert ("of this name (status 404)" if is_reachable else "cannot be reached") in said
    assert len(hub.asked) == is_reachable


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "--file", "/no/such/file"], "cannot be read as text"),
        (["{run}", "--file", "/dev/null"], "--file: /dev/null holds no text"),
        (["/no/such/model", "text"], "there is no folder '/no/such/model', and that is not a Hub id"),
        (["{run}/tokenizer", "text"], "is not a fine-tuned text classifier"),
        (["{run}/model", "text"], "its files lack 2 of the model's weights, classifier.bias among them"),
    ],
)
def test_a_mistake_is_one_message(
    arguments: list[str], words: str, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here("predict", *(argument.format(run=tiny_run) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
