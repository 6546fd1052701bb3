"""Exported folders give the logits of the run's models, in a process without bertpre."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    pipeline,
)

from bertpre.commands.export import export
from bertpre.commands.pretrain import pretrain
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.model import export as model_export
from bertpre.model import load_model, modeling_bertpre, onnx
from bertpre.model.folders import give_segments
from bertpre.recipe import load_recipe
from bertpre.run_directory import drop_results, refuse_unknown_starts, write_manifest
from tests.forked import COMMAND, run_forked
from tests.helpers import LIMIT, at_step, copy_run, run_here, run_process, tree_hash

MASKED = "The film was [MASK]."
TEXTS = ["I loved every minute of it.", "Not once did I feel that the Café's script was clever, and I wanted out."]
WITHOUT_BERTPRE = """
import json, sys
sys.modules["bertpre"] = None  # importing it fails, as where it is not installed
from transformers import pipeline

folder, trust, masked, texts = sys.argv[1], sys.argv[2] == "True", sys.argv[3], sys.argv[4:]
fill_mask = pipeline("fill-mask", model=folder, trust_remote_code=trust)
classify = pipeline("text-classification", model=folder + "/classifier", trust_remote_code=trust)
guesses = {guess["token"]: guess["score"] for guess in fill_mask(masked, top_k=5)}
classes = [{answer["label"]: answer["score"] for answer in answers} for answers in classify(texts, top_k=None)]
assert not any(name.startswith("bertpre.") for name in sys.modules)
print(json.dumps([[type(fill_mask.model).__name__, type(classify.model).__name__], guesses, classes]))
"""


def pipelines_without_bertpre(folder: Path, trust_remote_code: bool = False) -> tuple[list[str], dict, list[dict]]:
    """Class names, guesses for MASKED and class probabilities of TEXTS, from stock pipelines in a clean process."""
    arguments = (str(folder), str(trust_remote_code), MASKED, *TEXTS)
    # Where the code goes is read when transformers is imported.
    modules = {"HF_MODULES_CACHE": str(folder.parent / "modules")} if trust_remote_code else {}
    done = run_process([sys.executable, "-c", WITHOUT_BERTPRE, *arguments], **modules)
    assert done.returncode == 0, done.stderr
    names, guesses, classes = json.loads(done.stdout.splitlines()[-1])
    return names, {int(token): score for token, score in guesses.items()}, classes


@torch.no_grad()
def check_against_run(run: Path, guesses: dict[int, float], classes: list[dict[str, float]]) -> None:
    """The same probabilities as the run's own models give."""
    tokenizer = load_tokenizer(run / "model")
    inputs = tokenizer(MASKED, return_tensors="pt")
    logits = load_model(str(run / "model"))(**inputs).prediction_logits
    probabilities = logits[inputs["input_ids"] == tokenizer.mask_token_id][0].softmax(-1)
    assert guesses == pytest.approx({token: probabilities[token].item() for token in guesses}, rel=1e-4)
    assert min(guesses.values()) >= probabilities.topk(5).values.min().item() * (1 - 1e-4)
    classifier = load_model(str(run / "finetuned"))
    for text, answer in zip(TEXTS, classes, strict=True):
        expected = classifier(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
        assert answer == pytest.approx(
            {name: p.item() for name, p in zip(("negative", "positive"), expected, strict=True)}, rel=1e-4
        )


def test_a_pretraining_that_was_stopped_exports_its_last_checkpoint(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare")
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={run}"])
    with pytest.raises(SystemExit):
        pretrain(recipe, at_step(7, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    again = [f"output_dir={tmp_path / 'again'}", f"tokenizer.path={run}"]
    assert run_here("prepare", tiny_run / "recipe.yaml", *again, f"training.init={run}") == 2
    assert f"write the model of its last checkpoint with `bertpre export {run} --to bertpre`" in capsys.readouterr().err
    assert run_here("export", run, "--to", "bertpre", "--output-dir", tmp_path / "seven") == 0
    assert "this is the one of its checkpoint after step 7" in capsys.readouterr().out
    exported = load_file(tmp_path / "seven" / "model.safetensors")
    weights = load_file(run / "checkpoints" / "step-00000007" / "model.safetensors")
    assert exported.keys() <= weights.keys() and len(exported) > 30
    assert all(weight.equal(weights[name]) for name, weight in exported.items())
    assert "A checkpoint at step 7" in (tmp_path / "seven" / "README.md").read_text()
    for stage in ("prepare", "pretrain"):
        assert run_here(stage, tiny_run / "recipe.yaml", *again, f"training.init={tmp_path / 'seven'}") == 0
    shutil.rmtree(tmp_path / "seven")
    refuse_unknown_starts(load_recipe(str(tmp_path / "again")))  # it is needed no more


def test_bert_loads_without_bertpre(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "bert"
    done = run_forked(COMMAND, "export", tiny_run, "--to", "bert", "--output-dir", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"export: {folder}; the logits differ from the run's by at most ")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")  # no progress bars, no report of weights
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    assert [path.name for path in folder.parent.iterdir()] == ["bert"]
    names, guesses, classes = pipelines_without_bertpre(folder)
    assert names == ["BertForMaskedLM", "BertForSequenceClassification"]
    check_against_run(tiny_run, guesses, classes)
    positions = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    saved = [tiny_run / name for name in ("tokenizer", "model", "finetuned")] + [folder, folder / "classifier"]
    for place in saved:
        assert AutoTokenizer.from_pretrained(place).model_max_length <= positions
        assert (place / "vocab.txt").read_text() == (tiny_run / "tokenizer" / "vocab.txt").read_text()


def test_modernbert_loads_without_bertpre(tiny_modern_run: Path, tmp_path: Path) -> None:
    folder = export(str(tiny_modern_run), "modernbert", str(tmp_path / "modernbert"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert 'pipeline("fill-mask", model="modernbert")' in card and "](curves.png)" in card
    assert (folder / "curves.png").is_file() and str(tmp_path) not in card and str(tiny_modern_run.parent) not in card
    # The stock model takes no token_type_ids: a tokenizer that made them would break every pipeline.
    for part in (folder, folder / "classifier"):
        written = json.loads((part / "tokenizer_config.json").read_text())
        assert written["model_input_names"] == ["input_ids", "attention_mask"]
    names, guesses, classes = pipelines_without_bertpre(folder)
    assert names == ["ModernBertForMaskedLM", "ModernBertForSequenceClassification"]
    check_against_run(tiny_modern_run, guesses, classes)


def test_bertpre_carries_its_code(tiny_modern_run: Path, tmp_path: Path) -> None:
    folder = export(str(tiny_modern_run), "bertpre", str(tmp_path / "bertpre"))
    assert json.loads((folder / "config.json").read_text())["auto_map"].keys() > modeling_bertpre.AUTO_CLASSES.keys()
    names, guesses, classes = pipelines_without_bertpre(folder, trust_remote_code=True)
    assert names == ["BertPreForMaskedLM", "BertPreForSequenceClassification"]
    check_against_run(tiny_modern_run, guesses, classes)


SENTENCES_WITHOUT_BERTPRE = """
import json, sys
sys.modules["bertpre"] = None
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

encoder = Transformer(sys.argv[1])
model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_word_embedding_dimension(), "mean")])
print(json.dumps(model.encode(sys.argv[2:]).tolist()))
"""


@pytest.mark.parametrize(
    ("run_name", "to"),
    [pytest.param("tiny_run", "bert", marks=pytest.mark.slow), ("tiny_modern_run", "modernbert")],
)
def test_sentence_transformers_take_the_encoder(
    run_name: str, to: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    run = request.getfixturevalue(run_name)
    folder = export(str(run), to, str(tmp_path / to))
    command = [sys.executable, "-W", "ignore", "-c", SENTENCES_WITHOUT_BERTPRE, str(folder), *TEXTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tokenizer, encoder = load_tokenizer(run / "model"), load_model(str(run / "model"), "AutoModel")
    for text, vector in zip(TEXTS, json.loads(done.stdout.splitlines()[-1]), strict=True):
        expected = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).detach()
        torch.testing.assert_close(torch.tensor(vector), expected, rtol=0, atol=1e-5)


ONNX_WITHOUT_TORCH = """
import json, sys
sys.modules["bertpre"] = sys.modules["torch"] = None
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

folder, masked, texts = sys.argv[1], sys.argv[2], sys.argv[3:]

def logits(part, text):
    tokenizer = Tokenizer.from_file(part + "/tokenizer.json")
    encoding, session = tokenizer.encode(text), InferenceSession(part + "/model.onnx")
    known = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "token_type_ids": encoding.type_ids}
    inputs = {entry.name: np.array([known[entry.name]]) for entry in session.get_inputs()}
    return encoding, session.run(["logits"], inputs)[0][0]

def softmax(row):
    return (np.exp(row - row.max()) / np.exp(row - row.max()).sum()).tolist()

encoding, scores = logits(folder, masked)
probabilities = softmax(scores[encoding.tokens.index("[MASK]")])
best = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])[:5]
classes = [softmax(logits(folder + "/classifier", text)[1]) for text in texts]
print(json.dumps([{token: probabilities[token] for token in best}, classes]))
"""


@pytest.mark.parametrize("run_name", [pytest.param("tiny_run", marks=pytest.mark.slow), "tiny_modern_run"])
def test_onnx_needs_neither_bertpre_nor_torch(run_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    load_graph = pytest.importorskip("onnx").load
    run = request.getfixturevalue(run_name)
    folder = export(str(run), "onnx", str(tmp_path / "onnx"))
    command = [sys.executable, "-c", ONNX_WITHOUT_TORCH, str(folder), MASKED, *TEXTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    guesses, classes = json.loads(done.stdout)
    named = [dict(zip(("negative", "positive"), row, strict=True)) for row in classes]
    check_against_run(run, {int(token): p for token, p in guesses.items()}, named)
    graphs = b"".join(file.read_bytes() for file in folder.rglob("*.onnx"))
    assert b".py" not in graphs and b"stack_trace" not in graphs  # no path of this machine
    for graph in (load_graph(file).graph for file in folder.rglob("*.onnx")):
        assert graph.node and not graph.value_info  # onnxruntime's quantization would find some of the shapes wrong
    architecture = json.loads((folder / "config.json").read_text())["model_type"]
    assert architecture == {"tiny_run": "bert", "tiny_modern_run": "modernbert"}[run_name]

    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)  # the card's
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    likeliest = pipeline("fill-mask", str(run / "model"))("It is [MASK].", top_k=3)
    assert ast.literal_eval(done.stdout) == [each["token_str"] for each in likeliest]


def test_onnx_without_its_packages(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"exporting to onnx needs onnx, onnxruntime, onnxscript: pip install 'bertpre\[export\]'"
    ):
        export(str(tiny_run), "onnx", str(tmp_path / "onnx"))
    assert not list(tmp_path.iterdir())


def test_label_names_are_kept(tiny_run: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain", "finetune")
    file = run / "finetuned" / "config.json"
    named = {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    file.write_text(json.dumps(json.loads(file.read_text()) | named))
    folder = export(str(run), "bert", None)
    assert folder == run / "export-bert"
    assert json.loads((folder / "classifier" / "config.json").read_text()).items() >= named.items()


def test_run_without_classifier(tiny_run: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    (tmp_path / "empty").mkdir()
    folder = export(str(run), "bert", str(tmp_path / "empty"))  # an empty folder is as good as none
    assert (folder / "model.safetensors").is_file() and not (folder / "classifier").exists()


def test_classifier_of_a_stock_model_is_copied_unchanged(tiny_run: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    config = BertConfig(vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    BertForSequenceClassification(config).save_pretrained(run / "finetuned")
    model_files = tree_hash(run / "finetuned")
    (run / "finetuned" / ".env").write_text("TOKEN=secret")
    (run / "finetuned" / "vocab.txt").symlink_to(run / "recipe.yaml")
    (run / "finetuned" / "notes").mkdir()
    folder = export(str(run), "bert", None)
    assert tree_hash(folder / "classifier") == model_files
    with pytest.raises(UserError, match="fine-tuned from a stock bert and cannot become bertpre: it loads"):
        export(str(run), "bertpre", None)
    assert not (run / "export-bertpre").exists()


@pytest.mark.parametrize(
    "model_type",
    ["distilbert", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bert", "modernbert", "roberta"))],
)
def test_a_classifier_of_another_model_becomes_onnx(model_type: str, tiny_run: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare")
    ids = {"pad_token_id": 0, "cls_token_id": None, "sep_token_id": None, "bos_token_id": None, "eos_token_id": None}
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 16}
    if model_type == "distilbert":
        ids, sizes = {}, {"dim": 8, "n_layers": 2, "n_heads": 1, "hidden_dim": 16}
    tokenizer = AutoTokenizer.from_pretrained(tiny_run / "finetuned")
    config = AutoConfig.for_model(
        model_type, vocab_size=len(tokenizer), architectures=["x"], num_labels=3, **ids, **sizes
    )
    model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(run / "finetuned")
    wanted = model_type == "bert"
    give_segments(tokenizer, wanted).save_pretrained(run / "finetuned")
    pytest.importorskip("onnxruntime")
    folder = export(str(run), "onnx", None)
    inputs = tokenizer(["mira saw oslo", "no"], ["it", "all"], padding=True, return_tensors="pt")
    assert ("token_type_ids" in inputs) == wanted
    with torch.no_grad():
        torch.testing.assert_close(onnx.run_onnx(folder / "model.onnx", inputs), model.eval()(**inputs).logits)


def test_a_run_with_a_classifier_of_a_stock_model_alone(tiny_run: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare")
    config = BertConfig(vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    BertForSequenceClassification(config).save_pretrained(run / "finetuned")
    folder = export(str(run), "bert", None)
    assert (folder / "model.safetensors").read_bytes() == (run / "finetuned" / "model.safetensors").read_bytes()
    assert (folder / "README.md").is_file()


def test_one_of_two_models(tiny_run: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain", "finetune")
    config = BertConfig(vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    BertForSequenceClassification(config).save_pretrained(run / "finetuned")
    encoder = export(str(run), "bertpre", str(tmp_path / "encoder"), "encoder")
    assert json.loads((encoder / "config.json").read_text())["architectures"] == ["BertPreForPreTraining"]
    assert not (encoder / "classifier").exists() and "classifier/" not in (encoder / "README.md").read_text()
    classifier = export(str(run), "bert", str(tmp_path / "classifier"), "classifier")
    assert json.loads((classifier / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]
    with pytest.raises(UserError, match="--only head: choose one of encoder, classifier"):
        export(str(run), "bert", None, "head")


def test_mistakes_are_named_and_nothing_is_written(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    unfinished = copy_run(tiny_run, tmp_path / "unfinished", "prepare")
    again = copy_run(tiny_run, tmp_path / "again", "prepare", "pretrain", "finetune")
    write_manifest(again, "finetune", {})
    drop_results(again, "finetune")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    before = tree_hash(tmp_path)
    mistakes = [
        (run, "gguf", None, "--to gguf: choose one of bert, modernbert, bertpre, onnx"),
        (run, "modernbert", None, "architecture bert cannot become modernbert; export it to bert or bertpre"),
        (unfinished, "bert", None, "run `bertpre pretrain"),
        (again, "bert", None, "is of an earlier fine-tuning, and the last one has not ended"),
        (tmp_path / "used", "bert", None, "is not a run directory"),
        (run, "bert", tmp_path / "used", "not empty"),
        (run, "bert", tmp_path / "used" / "file", "not empty"),
        (run, "bert", tmp_path / "used" / "file" / "below", "cannot be written"),
    ]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert export(str(run), "bert", ".").name == "here"
    shutil.rmtree(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    for run_dir, to, output_dir, message in mistakes:
        with pytest.raises(UserError, match=message):
            export(str(run_dir), to, output_dir and str(output_dir))
    assert tree_hash(tmp_path) == before


def test_export_with_other_logits_is_refused(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: PreTrainedModel) -> PreTrainedModel:
        stock = convert(model)
        stock.bert.encoder.layer[1].output.dense.weight.data[3, 5] += 0.1
        return stock

    convert = model_export.to_stock_bert
    monkeypatch.setattr(model_export, "to_stock_bert", spoil)
    with pytest.raises(RuntimeError, match="logits differ"):
        export(str(tiny_run), "bert", str(tmp_path / "export"))
    assert not list(tmp_path.iterdir())
