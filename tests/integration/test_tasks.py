"""Every task through the real commands: finetune, evaluate, predict; from a run's model and from a stock BERT."""

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pyarrow.parquet import read_table
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from bertpre.data.tokenizer import load_tokenizer
from bertpre.finetuning.splits import read_parts, read_test
from bertpre.model.export import export_run
from bertpre.recipe import load_recipe
from bertpre.reporting.card_facts import Published
from bertpre.reporting.model_card import model_card
from tests.helpers import read_metrics, run_here
from tests.unit.test_examples import write_rows

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
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("epochs", "rate"), [(1, 2e-3), (16, 0)])
def test_a_fine_tuning_shorter_than_its_warm_up_trains(
    epochs: int, rate: float, data: tuple[str, str], stock: str, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, data, stock, **TASKS["classes"] | {"epochs": epochs, "batch_size": 64})
    assert run_here("finetune", recipe) == 0
    rows = read_metrics(tmp_path / "run", "finetune", "train")
    assert (len(rows), rows[0]["learning_rate"]) == (epochs, rate)


@pytest.fixture(scope="module")
def fine_tuned(
    data: tuple[str, str], stock: str, tiny_modern_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """Gives the recipe of a task's finished classifier, made once, from the encoder of a run or a stock BERT."""

    @cache
    def recipe_of(source: str, kind: str) -> Path:
        pooling = {"pooling": "mean" if kind != "words" else "cls"} if source == "own" else {}
        init = {"own": str(tiny_modern_run), "stock": stock}[source]
        recipe = write_recipe(tmp_path_factory.mktemp(kind), data, init, **pooling, **TASKS[kind])
        assert run_here("finetune", recipe) == 0
        assert run_here("evaluate", recipe) == 0
        return recipe

    return recipe_of


EVERY_TASK = pytest.mark.parametrize(
    ("source", "kind"),
    [
        *(("own", kind) for kind in TASKS),
        *(pytest.param("stock", kind, marks=[] if kind == "words" else pytest.mark.slow) for kind in TASKS),
    ],
)


def predicted(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[Any]:
    """What `bertpre predict ARGUMENTS --json` prints."""
    capsys.readouterr()
    assert run_here("predict", *arguments, "--json") == 0
    return list(map(json.loads, capsys.readouterr().out.splitlines()))


@EVERY_TASK
def test_every_task_is_learnt_and_measured(source: str, kind: str, fine_tuned: Callable[[str, str], Path]) -> None:
    run = fine_tuned(source, kind).parent / "run"
    losses = [row["loss"] for row in read_metrics(run, "finetune", "train")]
    assert sum(losses[-4:]) < sum(losses[:4])
    evaluated = json.loads((run / "results.json").read_text())["evaluate"]
    assert all(set(row) >= {"id", "text", "label", "prediction"} for row in evaluated["mistakes"])
    assert bool(evaluated["mistakes"]) == (evaluated.get("accuracy", 0) < 1)  # in a regression, all are wrong
    assert read_table(run / "predictions.parquet").num_rows == evaluated["examples"] == 24
    config = AutoConfig.from_pretrained(run / "finetuned")
    assert list(config.id2label.values()) == {
        "classes": ["bad", "good", "mixed"], "pairs": ["bad", "good", "mixed"], "regression": ["grade"],
        "sets": ["love", "war"], "words": ["B-LOC", "B-PER", "O"],
    }[kind]  # fmt: skip
    assert config.model_type == ("modernbert" if source == "own" else "bert")


def test_tags_have_baselines_of_their_own(fine_tuned: Callable[[str, str], Path]) -> None:
    recipe = fine_tuned("own", "words")
    assert run_here("baseline", recipe) == 0
    rows = json.loads((recipe.parent / "run" / "results.json").read_text())["baseline"]
    assert rows["majority tag per word"]["f1"] < rows["word features"]["f1"] == 1.0


def test_a_folder_alone_knows_that_its_classifier_reads_pairs(
    fine_tuned: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fine_tuned("own", "pairs").parent / "run"
    alone = shutil.copytree(run / "finetuned", tmp_path / "alone")
    one, other = (predicted(capsys, place, "mira saw oslo\tmira saw it")[0] for place in (run, alone))
    assert one["label"] == other["label"]
    # In the recipe's precision, and in auto.
    assert one["probability"] == pytest.approx(other["probability"], abs=0.01)
    assert run_here("predict", alone, "mira saw oslo") == 2
    assert "this classifier reads pairs" in capsys.readouterr().err
    (tmp_path / "table.txt").write_text("1\tmira saw oslo\tmira saw it\t5\n")
    assert run_here("predict", run, "--file", tmp_path / "table.txt") == 2
    assert "reads pairs, not 4 texts such as ['1', 'mira saw oslo'" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "text"), [("pairs", "mira\tsaw oslo\tmira saw it"), ("words", "mira saw oslo 7")])
def test_a_text_may_have_a_tab_and_a_word_a_space(
    kind: str, text: str, fine_tuned: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fine_tuned("own", kind).parent / "run"
    row = {"text": "mira\tsaw oslo", "other": "mira saw it", "words": ["mira saw", "oslo", "7"]}
    file = write_rows(tmp_path / "more.jsonl", [row])
    (printed,) = predicted(capsys, run, "--file", file)
    assert printed["text"] == text
    assert predicted(capsys, run / "finetuned", "--file", file) == [printed]
    assert kind == "pairs" or (printed["words"] == ["mira saw", "oslo", "7"] and None not in printed["tags"])


def test_words_may_have_tags_already(
    fine_tuned: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tagged.conll").write_text("mira B-PER\nsaw O\noslo B-LOC\n\n")
    run = fine_tuned("own", "words").parent / "run"
    (printed,) = predicted(capsys, run, "--file", tmp_path / "tagged.conll")
    assert printed["words"] == ["mira", "saw", "oslo"]
    assert all(0.3 < value <= 1 for value in printed["probabilities"])


@EVERY_TASK
def test_the_code_of_the_card_classifies_as_predict_does(
    source: str, kind: str, fine_tuned: Callable[[str, str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    recipe = fine_tuned(source, kind)
    run = recipe.parent / "run"
    first = "mira-oda saw oslo" if kind == "words" else "mira saw oslo"  # the pre-tokenizer splits the first word
    second = "mira saw it" if kind == "pairs" else ""
    text = f"{first}\t{second}" if second else first
    (printed,) = predicted(capsys, run, text)
    # What would be pushed, in the folder that the repository's name leads to.
    export_run(run, None, tmp_path / "someone" / "tiny")
    model_type = AutoConfig.from_pretrained(tmp_path / "someone" / "tiny").model_type
    assert model_type == ("modernbert" if source == "own" else "bert")
    results = json.loads((run / "results.json").read_text())
    card = model_card(load_recipe(str(recipe)), results, {}, Published("someone/tiny", model_type))
    assert model_type in yaml.safe_load(card.split("---\n")[1])["tags"] and str(tmp_path) not in card
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", card, re.DOTALL))
    scope: dict[str, Any] = {}
    capsys.readouterr()
    exec(code.replace("Anne-Marie saw Oslo .", text), scope)
    if kind == "words":
        labelled = zip(printed["words"], printed["tags"], strict=True)
        assert capsys.readouterr().out.splitlines() == [f"{word} {tag}" for word, tag in labelled]
        return
    answers = scope["classify"]({"text": first, "text_pair": second} if second else first)
    answer = answers[0] if isinstance(answers, list) else answers
    assert {
        "classes": lambda: answer["label"] == printed["label"],
        "pairs": lambda: (answer["label"], answer["score"]) == (printed["label"], near(printed["probability"])),
        "regression": lambda: answer["score"] == near(printed["value"]),
        "sets": lambda: {each["label"]: near(each["score"]) for each in answer} == printed["probabilities"],
    }[kind]()
    if kind != "pairs":
        read_long_texts(scope, run, kind, capsys)


def read_long_texts(scope: dict[str, Any], run: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare the code of a card for long texts with `bertpre predict`; it cleans, and keeps both ends.

    The tokenizer by itself keeps the end.
    """
    long = "<p>mira saw oslo</p>" + "it is bad &amp; bad " * 40 + "mira <b>saw</b> it"
    (printed,) = predicted(capsys, run, long)
    logits = scope["read"](long)
    whole = scope["model"](**scope["tokenizer"](long, truncation=True, return_tensors="pt")).logits[0]
    assert not torch.equal(logits, whole)
    assert scope["tokenizer"].decode(scope["tokenizer"](long, truncation=True)["input_ids"]).endswith("saw it [SEP]")
    expected = [printed["value"]] if kind == "regression" else [*printed["probabilities"].values()]
    computed = {"classes": logits.softmax(0), "sets": logits.sigmoid(), "regression": logits}[kind]
    assert computed.tolist() == near(expected)


@pytest.mark.slow  # torch traces the graph for half a minute
def test_the_card_of_a_graph_classifies_pairs_as_predict_does(
    data: tuple[str, str], tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip("onnxruntime")
    settings = TASKS["pairs"] | {"pooling": "mean", "truncation": "head", "epochs": 1}
    recipe = write_recipe(tmp_path, data, init=str(tiny_modern_run), **settings)
    assert run_here("finetune", recipe) == 0, capsys.readouterr().err
    assert run_here("export", tmp_path / "run", "--to", "onnx", "--output-dir", tmp_path / "graph") == 0
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", Path("graph/README.md").read_text(encoding="utf-8"), re.DOTALL)
    for second in ("I like it.", "I like it. " * 50):
        scope: dict[str, Any] = {}
        exec(code.replace("I like it.", second), scope)
        (logits,) = scope["session"].run(None, dict(scope["inputs"]))
        capsys.readouterr()
        assert run_here("predict", tmp_path / "run", f"It is good.\t{second}", "--json") == 0
        expected = json.loads(capsys.readouterr().out)["probabilities"].values()
        assert torch.tensor(logits[0]).softmax(0).tolist() == near([*expected])


def near(value: float) -> Any:  # noqa: ANN401
    return pytest.approx(value, abs=1e-4)


def test_a_regression_may_have_two_values(stock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": f"t {number}", "label": number % 2} for number in range(20)])
    recipe = load_recipe(str(write_recipe(tmp_path, (path, path), init=stock, task="regression")))
    assert len(read_parts(recipe).validation) == 4


@pytest.mark.parametrize(
    ("finetune", "words"),
    [
        ({"label_column": "stars"}, "finetune.label_column: {train} has no column 'stars'"),
        ({"label_column": "verdict", "label_names": ["bad", "good"]}, "label outside the classes (bad, good): 'mixed'"),
        ({"label_column": "verdict", "validation_fraction": 0.001}, "leaves nothing to measure on"),
        (
            {"label_column": "verdict", "class_weights": [1, 2]},
            "class_weights: 2 weights for 3 classes (bad, good, mix",
        ),
        ({"label_column": "verdict", "max_length": 128}, "finetune.max_length is 128, but the model"),
        ({"label_column": "verdict", "pooling": "mean"}, "finetune.pooling is mean, but this bert has its own head"),
        ({"label_column": "verdict", "init": "{bare}"}, "'{bare}' is not an encoder: it has no tokenizer"),
        (
            {"label_column": "verdict", "init": "/no/such/model"},
            "there is no folder '/no/such/model'",
        ),
        ({"label_column": "verdict", "init": "{left}"}, "'{left}' is not an encoder: its tokenizer pads on the left"),
        ({"label_column": "verdict", "init": "{tokenizer}"}, "is not an encoder: "),
        ({"label_column": "verdict", "init": "{partial}"}, "lack 1 of the model's weights, bert.embeddings.word_emb"),
        ({"label_column": "verdict", "batch_size": 8, "path": "{nothing}"}, "is empty"),
    ],
)
def test_a_mistake_is_one_message_before_any_training(
    finetune: dict[str, Any], words: str, data: tuple[str, str], stock: str, tiny_run: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    places = {"train": data[0], "bare": tmp_path / "bare", "nothing": tmp_path / "nothing.jsonl"}
    places["tokenizer"] = tiny_run / "tokenizer"
    BertForMaskedLM.from_pretrained(stock).save_pretrained(places["bare"])
    places["nothing"].write_text("")
    places["left"], places["partial"] = tmp_path / "left", tmp_path / "partial"
    shutil.copytree(stock, places["left"])
    settings = json.loads((places["left"] / "tokenizer_config.json").read_text())
    (places["left"] / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}))
    shutil.copytree(stock, places["partial"])
    weights = load_file(places["partial"] / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "word_embeddings" not in name and "decoder" not in name}
    save_file(kept, places["partial"] / "model.safetensors", metadata={"format": "pt"})
    chosen = {key: value.format(**places) if isinstance(value, str) else value for key, value in finetune.items()}
    recipe = write_recipe(tmp_path, data, **({"init": stock} | chosen))
    capsys.readouterr()
    assert run_here("finetune", recipe) == 2
    error = capsys.readouterr().err
    assert words.format(**places) in error
    assert len([line for line in error.splitlines() if line]) == 1, error
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_roberta_reads_fewer_tokens_than_it_has_positions(
    tiny_run: Path, data: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=34, pad_token_id=tokenizer.pad_token_id, type_vocab_size=2,
        **sizes,
    )  # fmt: skip
    assert tokenizer.pad_token_id == 0  # so 33 are left
    RobertaForMaskedLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    recipe = write_recipe(tmp_path, data, init=str(tmp_path / "model"), label_column="verdict", epochs=1)
    assert run_here("finetune", recipe, "finetune.max_length=34") == 2
    assert "finetune.max_length is 34, but the model in" in (error := capsys.readouterr().err)
    assert "reads 33" in error
    assert run_here("finetune", recipe, "finetune.max_length=33") == 0, capsys.readouterr().err
    assert run_here("predict", tmp_path / "run" / "finetuned", "a fine film " * 50) == 0


def test_a_decoder_whose_configuration_has_no_padding_is_given_the_tokenizers(
    tiny_run: Path, data: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    recipe = write_recipe(tmp_path, data, init=str(tmp_path / "model"), label_column="verdict", epochs=1)
    assert run_here("finetune", recipe, "finetune.max_length=32", "training.max_steps=2") == 0, capsys.readouterr().err
    assert "warning: training.max_steps limits pretraining alone" in capsys.readouterr().out
    assert AutoConfig.from_pretrained(tmp_path / "run" / "finetuned").pad_token_id == tokenizer.pad_token_id


def test_several_seeds_are_reported_with_their_spread(
    data: tuple[str, str], tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = write_rows(tmp_path / "more.jsonl", [{"text": f"{row['text']} again"} for row in rows_of(8)])
    data = write_rows(tmp_path / "train.jsonl", rows_of(60)), data[1]
    settings = {"label_column": "verdict", "pooling": "mean", "seeds": 3, "epochs": 2, "unlabelled": {"path": more}}
    recipe = write_recipe(tmp_path, data, init=str(tiny_modern_run), **settings)
    assert run_here("run", recipe) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count("NB-SVM labelled 8 texts") == 1
    run = tmp_path / "run"
    results = json.loads((run / "results.json").read_text())
    each = [figures["validation"]["accuracy"] for figures in results["finetune"]["seeds"]]
    assert [figures["seed"] for figures in results["finetune"]["seeds"]] == [0, 1, 2]
    assert results["finetune"]["validation"]["accuracy"] == max(each)
    assert results["finetune"]["spread"]["accuracy"]["mean"] == pytest.approx(sum(each) / 3)
    tested = results["evaluate"]["seeds"]["accuracy"]["values"]
    best = results["finetune"]["seed"]
    assert results["evaluate"]["accuracy"] == tested[best]
    kept = (run / "finetuned" / "model.safetensors").read_bytes()
    assert kept == (run / "seeds" / str(best) / "model.safetensors").read_bytes()
    page = (run / "report.html").read_text()
    for word in ("over 3 seeds", "Expected calibration error", "mixed"):
        assert word in page
    assert ("Worst mistakes" in page) == (results["evaluate"]["accuracy"] < 1)
    gone = run / "seeds" / str((best + 1) % 3)
    shutil.move(gone, tmp_path / "aside")
    assert run_here("evaluate", recipe) == 2
    assert f"the classifier of seed {(best + 1) % 3} is gone from {gone}; run `bertpre fine" in capsys.readouterr().err
    shutil.move(tmp_path / "aside", gone)
    assert run_here("finetune", recipe) == 0
    assert capsys.readouterr().out.count("is finished") == 3
    write_rows(tmp_path / "train.jsonl", rows_of(50))  # texts that have changed: no seed and no test result stays
    assert run_here("finetune", recipe, "finetune.epochs=2") == 0
    assert "is finished" not in capsys.readouterr().out
    assert list(json.loads((run / "results.json").read_text())) == ["finetune"]


def test_unlabelled_texts_are_trained_on_too(
    data: tuple[str, str], tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = write_rows(tmp_path / "more.jsonl", [{"text": row["text"]} for row in rows_of(40, 50)])  # 10 are known
    settings = {
        "label_column": "verdict",
        "epochs": 2,
        "unlabelled": {"path": more, "max_length": 8},
        "optimizer": "muon",
    }
    recipe = write_recipe(tmp_path, data, init=str(tiny_modern_run), **settings)
    assert run_here("finetune", recipe) == 0, capsys.readouterr().err
    assert "NB-SVM labelled 30 texts" in capsys.readouterr().out
    assert read_metrics(tmp_path / "run", "finetune", "train")[-1]["step"] == 2 * (4 + 6)  # a part's batches are full
    figures = json.loads((tmp_path / "run" / "results.json").read_text())["finetune"]
    assert (figures["examples"], figures["unlabelled"], figures["validation"]["examples"]) == (78, 30, 12)
    assert run_here("finetune", recipe, "finetune.unlabelled.path=nowhere.jsonl", f"output_dir={tmp_path}/other") == 2
    assert "'nowhere.jsonl' is neither a file or folder" in capsys.readouterr().err
    assert run_here("show", recipe, "finetune.task=regression") == 2
    assert "finetune.unlabelled: is for classification, not for regression" in capsys.readouterr().err
    assert run_here("show", recipe, "finetune.max_length=8", "finetune.unlabelled.max_length=9") == 2
    assert "finetune.unlabelled.max_length: must not be above max_length (8)" in capsys.readouterr().err
    assert run_here("show", recipe, "finetune.layer_decay=0.9") == 2
    assert "finetune.layer_decay: is for adamw only" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["classes", "words"])
def test_the_micro_batch_size_changes_no_metric(
    kind: str, data: tuple[str, str], tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = []
    for size in (8, 2):
        settings = TASKS[kind] | {"epochs": 1, "micro_batch_size": size}
        (tmp_path / str(size)).mkdir()
        recipe = write_recipe(tmp_path / str(size), data, init=str(tiny_modern_run), **settings)
        assert run_here("finetune", recipe) == 0, capsys.readouterr().err
        logged.append(read_metrics(tmp_path / str(size) / "run", "finetune", "train"))
    for row, expected in zip(*logged, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], abs=2e-5)
        assert row["accuracy"] == pytest.approx(expected["accuracy"])
        assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)


def test_training_stops_without_improvement(
    data: tuple[str, str], tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"label_column": "verdict", "epochs": 6, "patience": 1, "learning_rate": 1e-9}
    recipe = write_recipe(tmp_path, data, init=str(tiny_modern_run), **settings)
    assert run_here("finetune", recipe) == 0, capsys.readouterr().err
    assert len(read_metrics(tmp_path / "run", "finetune", "validation")) == 2
    figures = json.loads((tmp_path / "run" / "results.json").read_text())["finetune"]
    assert (figures["best_epoch"], figures["epochs"]) == (1, 2)


def test_a_validation_file_is_used_and_all_examples_train(
    data: tuple[str, str], tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"label_column": "verdict", "validation_path": data[1], "epochs": 1, "min_steps": 20}
    recipe = write_recipe(tmp_path, data, init=str(tiny_modern_run), **settings)
    assert run_here("finetune", recipe) == 0, capsys.readouterr().err
    figures = json.loads((tmp_path / "run" / "results.json").read_text())["finetune"]
    assert (figures["examples"], figures["validation"]["examples"]) == (60, 24)
    assert figures["epochs"] == 3  # 8 steps each
    assert "finetune: 3 epochs instead of 1, as finetune.min_steps=20" in capsys.readouterr().out
    folder = Path(data[1]).parent
    elsewhere = f"{folder}/../{folder.name}/test.jsonl"  # the same place, written otherwise
    optimistic = (f"output_dir={tmp_path / 'optimistic'}", f"evaluate.path={elsewhere}")
    assert run_here("finetune", recipe, *optimistic) == 0
    assert run_here("evaluate", recipe, *optimistic) == 0, capsys.readouterr().err
    assert "warning: the best epoch was selected on this test set" in capsys.readouterr().out


def test_every_word_has_its_own_tag(
    stock: str, data: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mira", "\u200b", "saw", "oslo"]  # the second one is nothing to the tokenizer
    recipe = write_recipe(tmp_path, data, init=stock, **TASKS["words"])
    assert run_here("finetune", recipe) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run_here("predict", tmp_path / "run", " ".join(words), "--json") == 0
    tags = json.loads(capsys.readouterr().out)["tags"]
    assert None not in tags and len(tags) == 4
    assert (tags[0], tags[3]) == ("B-PER", "B-LOC")
    file = write_rows(tmp_path / "marks.jsonl", [{"words": ["<br>", "&nbsp;"]}, {"words": []}, {"words": ["mira"]}])
    assert run_here("predict", tmp_path / "run", "--file", file, "--json") == 0
    printed = capsys.readouterr()  # marks are words too, since words are not cleaned
    assert [json.loads(line)["row"] for line in printed.out.splitlines()] == [1, 3]
    assert "rows without text were left out: 1 (the first is row 2)" in printed.err
    assert run_here("predict", tmp_path / "run", "mira saw oslo " * 50) == 0
    assert "tokens of each (truncation: head)" in capsys.readouterr().err  # words are always cut at the end


def test_large_numbers_are_learned_and_predicted(
    stock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"grade": 4000 + 30 * row["grade"]} for row in rows_of(84)]
    data = (write_rows(tmp_path / "train.jsonl", rows[:60]), write_rows(tmp_path / "test.jsonl", rows[60:]))
    options = {"training": {"precision": "bf16", "compile": False, "log_every": 1}}
    file = write_recipe(tmp_path, data, init=stock, metric="loss", epochs=16, **TASKS["regression"])
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | options))
    assert run_here("finetune", file) == 0, capsys.readouterr().err
    assert run_here("evaluate", file) == 0, capsys.readouterr().err
    measured = json.loads((tmp_path / "run" / "results.json").read_text())["evaluate"]
    assert measured["pearson"] > 0.8
    assert measured["rmse"] < 20  # with the mean alone 20; a head that must find 4,000 first is off by thousands
    predicted = read_table(tmp_path / "run" / "predictions.parquet")["prediction"].to_pylist()
    assert len(set(predicted)) > 12  # bf16 has a number in 16 or 32 here


def test_changed_texts_are_mentioned(stock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write_rows(tmp_path / name, rows_of(24)) for name in ("train.jsonl", "test.jsonl")]
    recipe = write_recipe(tmp_path, (files[0], files[1]), init=stock, **TASKS["classes"])
    assert run_here("run", recipe) == 0, capsys.readouterr().err
    Path(files[1]).touch()
    assert run_here("run", recipe) == 0
    assert "have changed" not in capsys.readouterr().out
    write_rows(Path(files[1]), rows_of(24)[1:])
    assert run_here("run", recipe) == 0
    assert "warning: the test texts have changed since they were measured" in capsys.readouterr().out
    assert run_here("evaluate", recipe) == 0
    assert run_here("run", recipe) == 0
    assert "have changed" not in capsys.readouterr().out
    write_rows(Path(files[0]), rows_of(24)[1:])
    assert run_here("evaluate", recipe) == 0
    assert "warning: the labelled texts have changed since the classifier was trained" in capsys.readouterr().out


def test_one_file_is_enough_if_a_part_is_set_aside(
    stock: str, data: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_recipe(tmp_path, data, init=stock, **TASKS["classes"])
    values = yaml.safe_load(file.read_text())
    del values["evaluate"]
    file.write_text(yaml.safe_dump(values))
    assert run_here("finetune", file) == 0
    assert run_here("evaluate", file) == 2  # not on what it was trained on
    assert f"the classifier is trained on {data[0]}; give other texts" in capsys.readouterr().err

    given = (f"output_dir={tmp_path / 'aside'}", "finetune.test_fraction=0.25")
    assert run_here("doctor", file, *given) == 0
    assert "36 training, 9 validation and 15 test examples" in capsys.readouterr().out
    assert run_here("run", file, *given) == 0, capsys.readouterr().err
    results = json.loads((tmp_path / "aside" / "results.json").read_text())
    assert results["evaluate"]["examples"] == 15
    assert (tmp_path / "aside" / "report.html").is_file()
    Path(data[0]).rename(tmp_path / "kept")
    turned = rows_of(60)
    turned[0]["verdict"], turned[1]["verdict"] = turned[1]["verdict"], turned[0]["verdict"]
    write_rows(Path(data[0]), turned)
    capsys.readouterr()
    assert run_here("run", file, *given) == 0
    assert "warning: the labelled texts have changed since the classifier was trained" in capsys.readouterr().out
    rows = [row | {"text": f"{row['text']}, again"} for row in rows_of(60)]
    write_rows(Path(data[0]), rows)
    assert run_here("evaluate", file, *given) == 2
    assert "finetune.test_fraction: another part is set aside now" in capsys.readouterr().err
    (tmp_path / "kept").rename(data[0])
    recipe = load_recipe(str(file), list(given))
    parts = read_parts(recipe)
    test = read_test(recipe, parts)
    assert sorted(parts.training.ids + parts.validation.ids + test.ids) == sorted(
        f"train/{number}" for number in range(60)
    )
