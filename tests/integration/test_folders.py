"""The folders `model/` and `finetuned/`: they load without bertpre, and bertpre reads its own classes from them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ModernBertForMaskedLM,
    PreTrainedModel,
)

from bertpre.commands.export import export
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.finetuning.loading import load_any_classifier, load_masked_lm
from bertpre.model import (
    BertPreConfig,
    BertPreForMaskedLM,
    BertPreForPreTraining,
    BertPreForSequenceClassification,
    BertPreForTokenClassification,
    folders,
    load_model,
    save_model,
)
from bertpre.model.folders import read_config
from tests.helpers import LIMIT, copy_run, run_process
from tests.parity.test_stock_bert import randomize

TEXTS, PAIR = ["The film was a [MASK].", "I loved every minute of it, and so did Mira."], ["Not so good.", "Yes."]
LABELS = {"id2label": {0: "bad", 1: "good", 2: "mixed"}, "label2id": {"bad": 0, "good": 1, "mixed": 2}}
HEADS = {  # the class, the Auto class and the pipeline of each folder
    "model": (BertPreForPreTraining, "AutoModelForMaskedLM", "fill-mask"),
    "texts": (BertPreForSequenceClassification, "AutoModelForSequenceClassification", "text-classification"),
    "pairs": (BertPreForSequenceClassification, "AutoModelForSequenceClassification", "text-classification"),
    "tokens": (BertPreForTokenClassification, "AutoModelForTokenClassification", "token-classification"),
}
CASES = [
    (architecture, kind, head) for architecture in ("bert", "modern") for kind in ("nsp", "none") for head in HEADS
]
WITHOUT_BERTPRE = """
import json, sys, tempfile
sys.modules["bertpre"] = None  # importing it fails, as where it is not installed
import torch, transformers
from transformers import AutoModel, AutoTokenizer, pipeline
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

folders, texts, pair = json.load(sys.stdin)
found = {}
for folder, (auto_class, task, trust) in folders.items():
    options = {"trust_remote_code": True} if trust else {}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    model = getattr(transformers, auto_class).from_pretrained(folder, **options).eval()
    batches = [tokenizer(*columns, padding=True, return_tensors="pt") for columns in ([texts], [texts, pair])]
    with torch.no_grad():
        logits = [model(**batch).logits for batch in batches]
    pipe = pipeline(task, model=folder, **options)
    answer = pipe(texts[0])
    encoder = AutoModel.from_pretrained(folder, **options)
    found[folder] = {
        "class": type(model).__name__, "piped": type(pipe.model).__name__, "encoder": type(encoder).__name__,
        "logits": [values.tolist() for values in logits], "answer": str(answer),
    }
    if trust:  # what is saved of it loads in the same way
        copied = tempfile.mkdtemp() + "/again"
        model.save_pretrained(copied)
        again = getattr(transformers, auto_class).from_pretrained(copied, **options).eval()
        assert all(again.state_dict()[name].equal(value) for name, value in model.state_dict().items())
        assert type(AutoModel.from_pretrained(copied, **options)).__name__ == type(encoder).__name__
        try:
            getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=False)
        except ValueError:
            pass
        else:
            raise AssertionError("code ran without leave")
assert not any(name.startswith("bertpre.") for name in sys.modules)

del sys.modules["bertpre"]  # from here on it can be imported, after transformers and the copies of its code
import bertpre
found["bertpre"] = type(transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1])).__module__
print(json.dumps(found))
"""


def tiny_model(architecture: str, kind: str, head: str, vocab_size: int) -> PreTrainedModel:
    """A model with all weights perturbed; only pretraining on pairs has trained what "modern" has for them.

    Fine-tuning begins without a second segment.
    """
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    labels = LABELS if head != "model" else {}
    config = BertPreConfig(
        architecture=architecture, vocab_size=vocab_size, max_position_embeddings=64, hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.1, rope_theta=500.0 if architecture == "modern" else 10_000.0,
        classifier_pooling="mean" if architecture == "modern" and head == "pairs" else "cls", **sizes, **labels,
    )  # fmt: skip
    model = randomize(HEADS[head][0](config))
    if architecture == "modern" and (kind == "none" or head != "model"):
        torch.nn.init.zeros_(model.bert.embeddings.second_segment)
        if head == "model":
            torch.nn.init.zeros_(model.cls.seq_relationship.bias)
    return model


def needs_code(architecture: str, kind: str, head: str) -> bool:
    return (architecture, kind, head) == ("modern", "nsp", "model")


@pytest.fixture(scope="module")
def saved(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, tuple[PreTrainedModel, Path]]:
    """A model of every case and the folder it is saved in."""
    folder, found = tmp_path_factory.mktemp("folders"), {}
    for case in CASES:
        tokenizer = load_tokenizer(tiny_run / "tokenizer")
        model = tiny_model(*case, vocab_size=len(tokenizer))
        save_model(model, tokenizer, folder / "-".join(case), longest=64)
        found[case] = (model, folder / "-".join(case))
    return found


def logits(model: PreTrainedModel, inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        outputs = model.eval()(**inputs)
    return outputs["prediction_logits"] if "prediction_logits" in outputs else outputs["logits"]


def assert_same_logits(of_folder: dict[str, Any], folder: str | Path, model: PreTrainedModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for texts, computed in zip(([TEXTS], [TEXTS, PAIR]), of_folder["logits"], strict=True):
        inputs = tokenizer(*texts, padding=True, return_tensors="pt")
        torch.testing.assert_close(torch.tensor(computed), logits(model, inputs), rtol=0, atol=1e-5)


def load_without_bertpre(folders: dict[str, Any], old: Path, modules: Path) -> dict[str, Any]:
    """What transformers finds in each folder without bertpre; `bertpre` is the module of the model `old` with it."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BERTPRE, str(old)], input=json.dumps([folders, TEXTS, PAIR]),
        capture_output=True, text=True, timeout=LIMIT, cwd=modules.parent, check=False,
        env=os.environ | {"HF_MODULES_CACHE": str(modules)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_folder_loads_without_bertpre_and_gives_the_same_logits(
    saved: dict[Any, tuple[PreTrainedModel, Path]], tiny_run: Path, tiny_modern_run: Path, tmp_path: Path
) -> None:
    folders = {str(folder): (*HEADS[case[2]][1:], needs_code(*case)) for case, (_, folder) in saved.items()}
    runs = [
        (run / part, head)
        for run in (tiny_run, tiny_modern_run)
        for part, head in (("model", "model"), ("finetuned", "texts"))
    ]
    folders |= {str(folder): (*HEADS[head][1:], folder == tiny_modern_run / "model") for folder, head in runs}
    model, folder = saved["bert", "nsp", "model"]
    own = tmp_path / "own"  # as transformers saves it
    model.save_pretrained(own)
    AutoTokenizer.from_pretrained(folder).save_pretrained(own)
    folders[str(own)] = (*HEADS["model"][1:], True)
    old = tmp_path / "old"  # as an earlier version saved it
    model.save_pretrained(old)
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name != "auto_map"}))
    found = load_without_bertpre(folders, old, tmp_path / "modules")
    assert found.pop("bertpre") == "bertpre.model.modeling_bertpre"

    stock = {"bert": "Bert", "modern": "ModernBert"}
    for (architecture, kind, head), (model, folder) in saved.items():
        of_folder = found.pop(str(folder))
        prefix = "BertPre" if needs_code(architecture, kind, head) else stock[architecture]
        class_name = prefix + HEADS[head][1].removeprefix("AutoModel")
        assert (of_folder["class"], of_folder["piped"], of_folder["encoder"]) == (
            class_name,
            class_name,
            f"{prefix}Model",
        )
        names = AutoTokenizer.from_pretrained(folder).model_input_names
        assert ("token_type_ids" in names) == (prefix != "ModernBert")
        assert_same_logits(of_folder, folder, model)
        named = LABELS["label2id"] if head in ("texts", "pairs", "tokens") else ("token_str",)
        assert any(name in of_folder["answer"] for name in named)
    for folder, of_folder in found.items():
        ours = load_model(folder)
        assert type(ours).__module__ == "bertpre.model.modeling_bertpre"
        assert_same_logits(of_folder, folder, ours)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_bertpre_reads_its_own_classes_bit_for_bit(
    case: tuple[str, str, str], saved: dict[Any, tuple[PreTrainedModel, Path]], tmp_path: Path
) -> None:
    model, folder = saved[case]
    assert not list(folder.glob("*.bin")) and (folder / "model.safetensors").is_file()
    assert bool(list(folder.glob("*.py"))) == needs_code(*case)
    config = read_config(str(folder))
    fields = set(model.config.to_dict()) - {"_name_or_path", "auto_map", "architectures", "dtype"}
    assert {name: config.to_dict().get(name) for name in fields} == {
        name: model.config.to_dict()[name] for name in fields
    }
    ours = load_model(str(folder))
    is_cut = case == ("modern", "none", "model")  # its head for pairs was never trained
    assert type(ours) is (BertPreForMaskedLM if is_cut else type(model))
    assert config.architectures == [type(ours).__name__]
    weights = ours.state_dict()
    for name, weight in model.state_dict().items():
        if case[0] == "modern" and case[2] != "model" and name.endswith("second_segment"):
            assert not weights[name].any()  # no classifier reads it
        elif name in weights:
            assert torch.equal(weights[name], weight), name
        else:
            assert is_cut and name.startswith(("bert.pooler.", "cls.seq_relationship.")), name

    ours.save_pretrained(tmp_path / "again")  # in its own form, with its code
    again = type(ours).from_pretrained(tmp_path / "again")
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in weights.items())


def test_gathered_weights_of_a_sharded_model_are_saved(
    saved: dict[Any, tuple[PreTrainedModel, Path]], tmp_path: Path
) -> None:
    model, folder = saved["bert", "nsp", "model"]
    sharded = tiny_model("bert", "nsp", "model", model.config.vocab_size)
    sharded.__class__ = type(f"FSDP{type(model).__name__}", (type(model),), {})  # as fully_shard does
    torch.nn.init.zeros_(sharded.bert.pooler.dense.weight)  # the process's own part
    save_model(sharded, AutoTokenizer.from_pretrained(folder), tmp_path / "model", 64, weights=model.state_dict())
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "model" / file).read_bytes() == (folder / file).read_bytes()


def test_a_stock_model_from_elsewhere_keeps_its_class(
    saved: dict[Any, tuple[PreTrainedModel, Path]], tmp_path: Path
) -> None:
    _, folder = saved["modern", "none", "model"]
    elsewhere = ModernBertForMaskedLM.from_pretrained(folder)
    del elsewhere.config.bertpre
    save_model(elsewhere, AutoTokenizer.from_pretrained(folder), tmp_path / "elsewhere", longest=64)
    assert type(load_model(str(tmp_path / "elsewhere"))) is ModernBertForMaskedLM
    assert type(load_masked_lm(str(tmp_path / "elsewhere"))[0]) is ModernBertForMaskedLM
    assert type(load_masked_lm(str(folder))[0]) is BertPreForMaskedLM
    with pytest.raises(ValueError, match="load it with bertpre.model.load_model"):
        BertPreForMaskedLM.from_pretrained(folder)


def test_a_model_that_has_changed_since_it_was_saved_is_the_stock_one(
    saved: dict[Any, tuple[PreTrainedModel, Path]], tmp_path: Path
) -> None:
    _, folder = saved["modern", "none", "pairs"]
    changed = AutoModelForSequenceClassification.from_pretrained(folder, mlp_dropout=0.3, classifier_bias=True)
    save_model(changed, AutoTokenizer.from_pretrained(folder), tmp_path / "changed", longest=64)
    classifier, _ = load_any_classifier(str(tmp_path / "changed"))
    assert type(classifier.model) is type(changed)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_converted_model_does_not_name_the_folder_whose_configuration_is_another(
    case: tuple[str, str, str], saved: dict[Any, tuple[PreTrainedModel, Path]]
) -> None:
    folder = saved[case][1]
    model = load_model(str(folder))
    if model.name_or_path:  # peft reads the configuration again in this way when it saves an adapter
        assert type(model.config).from_pretrained(model.name_or_path).vocab_size == model.config.vocab_size
    assert model.name_or_path == model.config.name_or_path == (str(folder) if needs_code(*case) else "")


def test_the_encoder_alone_of_a_stock_modernbert_has_no_pooler(
    saved: dict[Any, tuple[PreTrainedModel, Path]], tmp_path: Path
) -> None:
    _, folder = saved["modern", "none", "model"]
    alone = tmp_path / "alone"
    stock = AutoModel.from_pretrained(folder).eval()
    stock.save_pretrained(alone)
    with pytest.raises(ValueError, match='ModernBertModel; .* with auto_class="AutoModel"'):
        load_model(str(alone))
    inputs = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    for place in (folder, alone):
        encoder = load_model(str(place), "AutoModel")
        assert encoder.pooler is None
        torch.testing.assert_close(encoder(**inputs)[0], stock(**inputs)[0], rtol=0, atol=1e-5)
    assert load_model(str(saved["modern", "nsp", "model"][1]), "AutoModel").pooler is not None
    stock.layers = stock.layers[:1]
    stock.save_pretrained(tmp_path / "damaged")
    with pytest.raises(ValueError, match="its files lack .* encoder.layer.1"):
        load_model(str(tmp_path / "damaged"), "AutoModel", config=read_config(str(alone)))


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_a_classifier_of_bert_alone_reads_segments(
    architecture: str, saved: dict[Any, tuple[PreTrainedModel, Path]], tmp_path: Path
) -> None:
    model, folder = saved[architecture, "none", "pairs"]
    tokenizer = AutoTokenizer.from_pretrained(saved["modern", "none", "pairs"][1])  # which gives no segments
    save_model(model, tokenizer, tmp_path / "pairs", longest=64)
    assert ("token_type_ids" in AutoTokenizer.from_pretrained(tmp_path / "pairs")("a", "b")) == (architecture == "bert")
    classifier, _ = load_any_classifier(str(folder))
    assert ("token_type_ids" in classifier.tokenizer.model_input_names) == (architecture == "bert")


@pytest.mark.parametrize("run_name", ["tiny_run", "tiny_modern_run"])
def test_missing_weights_are_an_error_though_nothing_is_reported(
    run_name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = copy_run(request.getfixturevalue(run_name), tmp_path / "run", "prepare", "pretrain", "finetune")
    file = run / "finetuned" / "model.safetensors"
    save_file(
        {name: value for name, value in load_file(file).items() if "classifier" not in name}, file, {"format": "pt"}
    )
    with pytest.raises(UserError, match="lack 2 of the model's weights, classifier.bias among them"):
        export(str(run), "bertpre", str(tmp_path / "export"))
    assert not (tmp_path / "export").exists()


def test_a_new_head_is_new_though_the_source_has_one(tiny_modern_run: Path) -> None:
    source = str(tiny_modern_run / "finetuned")
    old, models = load_model(source).state_dict(), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(load_model(source, "AutoModelForSequenceClassification", new_head=True).state_dict())
    heads = [old["classifier.weight"], *(each["classifier.weight"] for each in models)]
    assert not any(torch.equal(heads[one], heads[other]) for one, other in ((0, 1), (0, 2), (1, 2)))
    assert not models[0]["classifier.bias"].any()
    assert all(torch.equal(value, models[0][name]) for name, value in old.items() if not name.startswith("classifier"))


FIRST = [
    "transformers.models.bert.modeling_bert",
    "bertpre.model.layers_bertpre",  # a layer alone, as in a notebook
    pytest.param("transformers.modeling_layers", marks=pytest.mark.slow),
    pytest.param("transformers.models.auto.modeling_auto", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("first", FIRST)
def test_any_module_of_transformers_or_ours_can_be_imported_after_bertpre(first: str) -> None:
    code = f"""
import bertpre
import {first}
from transformers import AutoConfig, AutoModelForMaskedLM
print(type(AutoModelForMaskedLM.from_config(AutoConfig.for_model("bertpre"))).__name__)
"""
    done = run_process([sys.executable, "-c", code])
    assert done.stdout == "BertPreForMaskedLM\n", done.stderr


def test_importing_bertpre_registers_its_classes_without_importing_transformers(tmp_path: Path) -> None:
    code = """
import sys, bertpre
assert not {"torch", "transformers"} & sys.modules.keys()
from transformers import AutoConfig
config = AutoConfig.for_model("bertpre", vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
assert "bertpre.model.modeling_bertpre" not in sys.modules
from transformers import AutoModelForMaskedLM
print(type(AutoModelForMaskedLM.from_config(config)).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (0, "BertPreForMaskedLM\n"), done.stderr
    assert AutoModelForMaskedLM._model_mapping[BertPreConfig] is BertPreForMaskedLM  # here transformers came first


@pytest.mark.parametrize("run", ["tiny_run", "tiny_modern_run"])
def test_an_encoder_that_automodel_has_saved_is_fine_tuned(
    run: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    whole = str(request.getfixturevalue(run) / "finetuned")
    encoder = str(tmp_path / "encoder")
    AutoModel.from_pretrained(whole).save_pretrained(encoder)
    weights = []
    for source in (encoder, whole):
        config = folders.read_config(source)
        model = folders.load_model(source, "AutoModelForSequenceClassification", config=config, new_head=True)
        weights.append({name: value for name, value in model.state_dict().items() if name.startswith("bert.")})
    assert weights[0].keys() == weights[1].keys()
    assert len(weights[0]) > 10
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
