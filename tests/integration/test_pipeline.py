"""Every stage through the real command line: the artefacts and the figures the contract promises."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import yaml
from pyarrow.parquet import read_table
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining, AutoModelForSequenceClassification, AutoTokenizer

from bertpre.commands.run import run
from bertpre.data.store import open_shards
from bertpre.finetuning.rows import Rows, read_rows
from bertpre.recipe import Finetune, load_recipe, to_yaml
from tests.forked import COMMAND, run_forked
from tests.helpers import copy_run, read_metrics, run_here, tiny_values, tree_hash, write_recipe

STEP_KEYS = {"stage", "split", "step", "tokens", "elapsed_seconds", "learning_rate"}
LEARNING_KEYS = {"grad_norm", "tokens_per_second", "data_wait_fraction", "peak_memory_mb", "seconds_left"}
PRETRAINING_KEYS = {"loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
RESULTS = {
    "prepare": {"documents", "sentences", "pairs", "tokens", "seconds"},
    "pretrain": {"steps", "tokens", "seconds", "validation", "unigram_entropy", "context_free_loss"},
    "finetune": {"seconds", "epochs"},
    "evaluate": {"accuracy", "f1", "examples"},
}


@pytest.fixture(scope="module")
def piecewise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run made command by command, then finished by `bertpre run`, which skips finished stages."""
    folder = tmp_path_factory.mktemp("pipeline")
    recipe = write_recipe(folder / "tiny.yaml", tiny_values(folder / "run"))
    for verb in ("prepare", "pretrain"):
        assert run_here(verb, recipe) == 0
    before = tree_hash(folder / "run" / "model") | tree_hash(folder / "run" / "data")
    done = run_forked(COMMAND, "run", recipe)
    assert done.returncode == 0, done.stderr
    assert "prepare: already finished, skipped\npretrain: already finished, skipped" in done.stdout
    assert tree_hash(folder / "run" / "model") | tree_hash(folder / "run" / "data") == before
    for artefact in ("report.html", "model", "finetuned", "tokenizer", "metrics.jsonl", "results.json"):
        assert str(folder / "run" / artefact) in done.stdout
    return folder / "run"


def test_verb_by_verb_and_all_in_one_leave_the_same(piecewise: Path, tiny_run: Path) -> None:
    for part in ("tokenizer", "data", "checkpoints", "model", "finetuned"):
        ours, theirs = tree_hash(piecewise / part), tree_hash(tiny_run / part)
        assert {name for name in ours if not name.endswith("state.json")}
        for name in ours.keys() | theirs.keys():
            if not name.endswith("state.json"):  # it holds seconds
                assert ours.get(name) == theirs.get(name), f"{part}/{name}"
    assert (piecewise / "predictions.parquet").read_bytes() == (tiny_run / "predictions.parquet").read_bytes()


def test_labelled_texts_are_read_once(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(settings: Finetune, path: str, split: str, *others: object, **options: object) -> Rows:
        read.append(split)
        return read_rows(settings, path, split, *others, **options)

    for module in ("examples", "pseudo_labels"):
        monkeypatch.setattr(f"bertpre.finetuning.{module}.read_rows", counted)
    target = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    more = ["finetune.epochs=1", "finetune.unlabelled={path: sample, split: articles, limit: 20}"]
    run(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}", *more]))
    assert sorted(read) == ["articles", "test", "train"]


def test_the_run_directory_has_every_artefact_and_nothing_half_written(piecewise: Path) -> None:
    assert {path.name for path in piecewise.iterdir()} == {
        "recipe.yaml", "manifest.json", "tokenizer", "data", "checkpoints", "metrics.jsonl", "model", "finetuned",
        "results.json", "report.html", "predictions.parquet",
    }  # fmt: skip
    assert {path.name for path in (piecewise / "checkpoints").iterdir()} == {"step-00000005", "step-00000010"}
    assert not list(piecewise.rglob("*.partial"))


def test_the_recipe_in_the_run_loads_again_unchanged(piecewise: Path) -> None:
    text = (piecewise / "recipe.yaml").read_text()
    assert to_yaml(load_recipe(str(piecewise / "recipe.yaml"))) == text


def test_results_have_the_figures_of_every_stage(piecewise: Path) -> None:
    results = json.loads((piecewise / "results.json").read_text())
    assert set(results) == set(RESULTS)
    for stage, keys in RESULTS.items():
        assert keys <= set(results[stage]), stage
    assert {"mlm_loss", "mlm_accuracy", "nsp_accuracy"} <= set(results["pretrain"]["validation"])
    assert results["pretrain"]["steps"] == 10
    assert results["finetune"]["epochs"] == 2
    assert results["evaluate"]["examples"] == 40
    for fraction in (
        results["evaluate"]["accuracy"], results["evaluate"]["f1"], results["pretrain"]["validation"]["nsp_accuracy"],
    ):  # fmt: skip
        assert 0 <= fraction <= 1


def test_the_figures_agree_with_what_lies_on_disk(piecewise: Path) -> None:
    results = json.loads((piecewise / "results.json").read_text())
    shards = open_shards(piecewise / "data", "train") + open_shards(piecewise / "data", "validation")
    assert sum(len(shard.tokens) for shard in shards) == results["prepare"]["tokens"]
    assert sum(len(shard.sentences) - 1 for shard in shards) == results["prepare"]["sentences"]
    assert sum(len(shard.documents) - 1 for shard in shards) == results["prepare"]["documents"] == 240
    last = read_metrics(piecewise, "pretrain", "train")[-1]
    assert last["tokens"] == results["pretrain"]["tokens"]
    epoch = sum(len(shard.tokens) for shard in open_shards(piecewise / "data", "train"))
    assert results["pretrain"]["epochs"] == pytest.approx(last["tokens"] / epoch)
    validation = read_metrics(piecewise, "pretrain", "validation")[-1]
    assert validation["mlm_loss"] == pytest.approx(results["pretrain"]["validation"]["mlm_loss"], rel=1e-5)
    rows = read_table(piecewise / "predictions.parquet").to_pylist()
    right = sum((row["probability_positive"] > 0.5) == (row["label"] == "positive") for row in rows)
    assert right / len(rows) == results["evaluate"]["accuracy"]


def test_metrics_have_exactly_the_promised_keys(piecewise: Path) -> None:
    for split, steps in (("train", range(1, 11)), ("validation", (0, 5, 10))):
        rows = read_metrics(piecewise, "pretrain", split)
        assert [row["step"] for row in rows] == list(steps)
        for row in rows:
            expected = STEP_KEYS | PRETRAINING_KEYS | (LEARNING_KEYS if split == "train" else {"fillings"})
            assert set(row) - {"flops_utilization"} == expected
    for split, steps in (("train", range(1, 9)), ("validation", (4, 8))):
        rows = read_metrics(piecewise, "finetune", split)
        assert [row["step"] for row in rows] == list(steps)
        for row in rows:
            measured = {"loss", "accuracy"} | ({"f1", "matthews"} if split == "validation" else set())
            expected = STEP_KEYS | measured | (LEARNING_KEYS if split == "train" else set())
            assert set(row) - {"flops_utilization"} == expected


def test_metrics_hold_sensible_numbers(piecewise: Path) -> None:
    rows = read_metrics(piecewise)
    for stage in ("pretrain", "finetune"):
        tokens = [row["tokens"] for row in rows if row["stage"] == stage and row["split"] == "train"]
        assert tokens == sorted(set(tokens))
        seconds = [row["elapsed_seconds"] for row in rows if row["stage"] == stage]
        assert seconds == sorted(seconds)
    for row in rows:
        assert row["loss"] > 0
        if row["stage"] == "pretrain":
            assert row["loss"] == pytest.approx(row["mlm_loss"] + row["nsp_loss"], rel=1e-5)
        if row["split"] == "train":
            assert row["tokens_per_second"] > 0
            assert 0 <= row["data_wait_fraction"] <= 1
            assert row["grad_norm"] > 0


def test_the_pretrained_loss_falls(piecewise: Path) -> None:
    first, *_, last = read_metrics(piecewise, "pretrain", "validation")
    assert last["mlm_loss"] < first["mlm_loss"]


def test_models_and_tokenizer_load_as_hugging_face_folders(piecewise: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(piecewise / "model")
    inputs = tokenizer(["The film is a [MASK].", "A joy"], padding=True, return_tensors="pt")
    model = AutoModelForPreTraining.from_pretrained(piecewise / "model")
    classifier = AutoModelForSequenceClassification.from_pretrained(piecewise / "finetuned")
    with torch.no_grad():
        assert torch.isfinite(model(**inputs).prediction_logits).all()
        assert classifier(**inputs).logits.shape == (2, 2)
    assert {value.dtype for value in load_file(piecewise / "model" / "model.safetensors").values()} == {torch.float32}
    assert len(tokenizer) == model.config.vocab_size


def test_the_report_is_one_file_that_needs_nothing_else(piecewise: Path) -> None:
    page = (piecewise / "report.html").read_text()
    for part in ("<svg", "<ruby class=masked>", "Attention of layer 1, head 1", "Guesses for [MASK] through training"):
        assert part in page
    assert "cannot be shown" not in page
    for link in ("http://", "https://", "<script", "<link"):
        assert link not in page


def test_the_manifest_names_versions_and_hardware(piecewise: Path) -> None:
    manifest = json.loads((piecewise / "manifest.json").read_text())
    assert manifest["pretrain"]["versions"]["torch"] == version("torch")
    assert manifest["pretrain"]["hardware"]["processes"] == 1


def test_evaluating_again_gives_the_same_figures(piecewise: Path) -> None:
    before = json.loads((piecewise / "results.json").read_text())["evaluate"]
    assert run_here("evaluate", piecewise / "recipe.yaml") == 0
    after = json.loads((piecewise / "results.json").read_text())["evaluate"]
    assert (before["accuracy"], before["f1"], before["examples"]) == (after["accuracy"], after["f1"], after["examples"])


def test_a_modern_run_has_the_same_artefacts(tiny_modern_run: Path, piecewise: Path) -> None:
    assert {path.name for path in tiny_modern_run.iterdir()} == {path.name for path in piecewise.iterdir()}


def test_show_prints_a_recipe_and_the_figures_so_far(piecewise: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("show", piecewise / "recipe.yaml") == 0
    out = capsys.readouterr().out
    recipe = load_recipe(str(piecewise / "recipe.yaml"))
    assert yaml.safe_load(out.split("\n# ")[0]) == recipe.model_dump(mode="json")
    assert "# parameters: " in out
    assert "unigram entropy " in out and "  Test accuracy " in out
    figures = []
    for size in (4096, 4100):  # learned vocabularies are multiples of 64
        assert run_here("show", "quickstart", f"tokenizer.vocab_size={size}") == 0
        figures += [line for line in capsys.readouterr().out.splitlines() if line.startswith("# parameters: ")]
    assert len(figures) == 2 and figures[0] == figures[1]


def test_evaluation_in_small_batches_and_without_the_bag_of_words(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain", "finetune")
    assert run_here("evaluate", target, "evaluate.batch_size=3", "evaluate.bag_of_words=false") == 0
    assert "bag of words" not in capsys.readouterr().out
    ours, theirs = (json.loads((run / "results.json").read_text())["evaluate"] for run in (target, tiny_run))
    assert ours["accuracy"] == theirs["accuracy"]
    assert theirs.keys() - ours.keys() == {"bag_of_words"}
