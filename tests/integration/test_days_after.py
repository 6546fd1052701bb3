"""The days after the first run: files are deleted, models move, more training follows, and nothing is lost by it."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bertpre.run_directory import read_results
from tests.helpers import copy_run, run_here, tree_hash


@pytest.fixture
def finished(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, which a test may damage."""
    return Path(shutil.copytree(tiny_run, tmp_path / "finished"))


def test_where_the_model_is_gone_the_earlier_classifier_and_its_results_stay(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(finished / "model")
    before = read_results(finished)
    assert run_here("finetune", finished) == 2
    assert "finetune.init: no pretrained model in" in capsys.readouterr().err
    assert read_results(finished) == before and before.keys() >= {"finetune", "evaluate"}


def test_keys_stay_fixed_where_the_files_of_a_finished_stage_are_deleted(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = copy_run(tiny_run, tmp_path / "finished", "prepare", "pretrain")
    shutil.rmtree(finished / "checkpoints")
    recipe = (finished / "recipe.yaml").read_text()
    assert run_here("run", finished, "training.max_steps=500") == 2
    refused = capsys.readouterr().err
    assert "differs in training.max_steps" in refused and "training.max_steps=10" in refused
    assert f"training.init={finished} data.path={finished}" in refused
    assert (finished / "recipe.yaml").read_text() == recipe
    assert run_here("pretrain", finished) == 2
    assert f"add training.init={finished}" in capsys.readouterr().err
    shutil.rmtree(finished / "model")
    assert run_here("pretrain", finished) == 2
    assert "training.init" not in capsys.readouterr().err


def test_a_run_that_starts_from_another_model_does_not_pretrain(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    assert run_here("run", tiny_run / "recipe.yaml", f"output_dir={new}", f"finetune.init={tiny_run}") == 0
    assert "prepare, pretrain: left out" in capsys.readouterr().out
    assert read_results(new).keys() == {"finetune", "evaluate"}
    assert not (new / "data").exists() and not (new / "model").exists()


def test_deleted_data_is_prepared_again(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare")
    shutil.rmtree(run / "data")
    assert run_here("prepare", run) == 0
    assert tree_hash(run / "data") == tree_hash(tiny_run / "data")
    assert run_here("prepare", run) == 2  # it is there
    shutil.rmtree(run / "data")
    (run / "checkpoints").mkdir()
    results = read_results(run)
    results["prepare"]["data_sha256"] = "of other texts"
    (run / "results.json").write_text(json.dumps(results))
    capsys.readouterr()
    assert run_here("prepare", run) == 2
    assert "the data that this run has begun to train on is gone" in capsys.readouterr().err


def test_a_model_is_trained_further_on_the_same_data_or_on_other_text(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, start = tiny_run / "recipe.yaml", f"training.init={tiny_run}"
    on_same = (f"data.path={tiny_run}", f"tokenizer.path={tiny_run}")  # of which the second says nothing new
    assert run_here("prepare", recipe, f"output_dir={tmp_path / 'same'}", start, *on_same) == 0
    assert not (tmp_path / "same" / "data").exists()
    assert "warning: seed" not in capsys.readouterr().out
    other = (f"output_dir={tmp_path / 'other'}", start, f"tokenizer.path={tiny_run}")
    assert run_here("prepare", recipe, *other, "seed=5") == 0
    assert f"warning: seed of {tiny_run} differ: it has trained on documents" in capsys.readouterr().out
    other = (f"output_dir={tmp_path / 'named'}", start, f"tokenizer.path={tiny_run}")
    assert run_here("prepare", recipe, *other, "seed=5", "corpus.validation=test") == 0
    assert "warning: seed" not in capsys.readouterr().out  # no document is drawn


def test_every_checkpoint_can_be_exported(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = finished / "checkpoints" / "step-00000005"
    assert run_here("export", checkpoint, "--to", "bertpre", "--output-dir", tmp_path / "five") == 0
    exported, weights = load_file(tmp_path / "five" / "model.safetensors"), load_file(checkpoint / "model.safetensors")
    assert exported.keys() <= weights.keys() and len(exported) > 30
    assert all(weight.equal(weights[name]) for name, weight in exported.items())
    card = (tmp_path / "five" / "README.md").read_text()
    assert "A checkpoint at step 5" in card and "| MLM loss |" not in card and "model-index:" not in card
    last = max((finished / "checkpoints").iterdir())
    assert run_here("export", last, "--to", "bertpre", "--output-dir", tmp_path / "last") == 0
    assert "had not ended" not in (tmp_path / "last" / "README.md").read_text()
    assert run_here("export", checkpoint, "--only", "classifier") == 2
    assert "is a checkpoint of the encoder" in capsys.readouterr().err
    assert run_here("export", checkpoint, "--to", "bert") == 0
    assert (finished / "export-bert-step-00000005" / "config.json").is_file()
    (checkpoint / "model.safetensors").write_bytes(b"damaged")
    assert run_here("export", checkpoint, "--to", "bert", "--output-dir", tmp_path / "damaged") == 2
    assert "is not an intact checkpoint" in capsys.readouterr().err


def test_an_earlier_classifier_is_named_as_one(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run_here("predict", finished, "A fine film.") == 0
    assert "earlier fine-tuning" not in caplog.text
    results = read_results(finished)
    del results["finetune"], results["evaluate"]  # as a fine-tuning leaves them that was interrupted
    (finished / "results.json").write_text(json.dumps(results))
    assert run_here("predict", finished, "A fine film.") == 0
    assert "is of an earlier fine-tuning; the last one has not ended" in caplog.text


def test_other_labels_in_a_file_with_an_old_date_are_noticed(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"A {word} film number {number}.,{word}" for number in range(40) for word in ("good", "bad")]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["text,label", *texts]))
    new = (f"output_dir={tmp_path / 'new'}", f"finetune.init={finished}", f"finetune.path={labels}")
    arguments = ("run", finished / "recipe.yaml", *new, "finetune.test_fraction=0.2", "finetune.epochs=1")
    assert run_here(*arguments) == 0
    capsys.readouterr()
    assert run_here(*arguments) == 0
    assert "have changed" not in capsys.readouterr().out
    labels.write_text("\n".join(["text,label", *texts[:60]]))
    os.utime(labels, (0, 0))
    assert run_here(*arguments) == 0
    assert "warning: the labelled texts have changed since the classifier was trained" in capsys.readouterr().out


def test_a_finished_classifier_is_measured_on_other_texts(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "newer.csv"
    file.write_text("text,label\nA wonderful film.,positive\nA dull film.,negative\nThe acting was fine.,positive\n")
    before = tree_hash(finished)
    assert run_here("evaluate", finished, "--file", file) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"accuracy (0.0000|0.3333|0.6667|1.0000) .* on 3 texts of {file}; nothing is written", printed)
    folder = tmp_path / "months"
    folder.mkdir()
    shutil.copy(file, folder / "march.csv")
    assert run_here("evaluate", finished, "--file", folder) == 0
    assert f"on 3 texts of {folder}; nothing is written" in capsys.readouterr().out
    file.write_text("text,label\nA wonderful film.,splendid\n")
    assert run_here("evaluate", finished, "--file", file) == 2
    assert "splendid" in capsys.readouterr().err
    file.write_text("text,lable\nA wonderful film.,positive\n")
    assert run_here("evaluate", finished, "--file", file) == 2
    assert "has no column 'label'; its columns are text, lable; rename the one with the labels to 'label'" in (
        capsys.readouterr().err
    )
    assert run_here("evaluate", finished, "finetune.max_length=40", "--file", file) == 2
    assert "differs in finetune.max_length" in capsys.readouterr().err
    assert tree_hash(finished) == before


def test_a_finished_run_needs_its_labels_no_more(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.csv"
    texts = [f"A {word} film number {number}.,{word}" for number in range(20) for word in ("good", "bad")]
    labels.write_text("\n".join(["text,label", *texts]))
    new = (f"output_dir={tmp_path / 'new'}", f"finetune.init={finished}", f"finetune.path={labels}")
    arguments = ("run", finished / "recipe.yaml", *new, "finetune.test_fraction=0.2", "finetune.epochs=1")
    assert run_here(*arguments) == 0
    labels.unlink()
    assert run_here("run", tmp_path / "new") == 0, capsys.readouterr().err
