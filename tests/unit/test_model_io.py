"""Saving and loading: the same logits, tied weights, Auto classes, backbones for new heads, custom code."""

import ast
import math
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers
from accelerate import FullyShardedDataParallelPlugin
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from bertpre.data.tokenizer import learn_tokenizer
from bertpre.errors import UserError
from bertpre.finetuning import loading
from bertpre.model import (
    BertPreConfig,
    BertPreForMaskedLM,
    BertPreForPreTraining,
    BertPreForSequenceClassification,
    BertPreModel,
    load_model,
    modeling_bertpre,
    save_model,
)
from bertpre.model.conversion import load_for_pretraining

pytestmark = pytest.mark.parametrize("architecture", ["bert", "modern"])

CODE = (
    "configuration_bertpre",
    "dropout_bertpre",
    "layers_bertpre",
    "losses_bertpre",
    "modeling_bertpre",
    "rows_bertpre",
)
VOCABULARY = 90


def tiny_config(architecture: str, **fields: object) -> BertPreConfig:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertPreConfig(
        architecture=architecture, intermediate_size=40, max_position_embeddings=16, **(sizes | fields)
    )


def first_output(model: PreTrainedModel) -> torch.Tensor:
    """The model's first output for fixed ids, some of them padding."""
    ids = torch.randint(5, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(12) < torch.tensor([[12], [7], [3]])).long()  # (3, 12)
    return model.eval()(ids, mask, return_dict=False)[0]


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Deterministic mode fills fresh memory with NaN, so an uninitialised buffer changes the outputs."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("model_class", "auto_name"),
    [(model_class, auto_name) for auto_name, model_class in modeling_bertpre.AUTO_CLASSES.items()],
)
def test_auto_class_restores_class_and_outputs(
    architecture: str, model_class: type[PreTrainedModel], auto_name: str, tmp_path: Path, deterministic: None
) -> None:
    model = model_class(tiny_config(architecture))
    model.save_pretrained(tmp_path)
    expected = first_output(model)
    for _ in range(2):
        loaded = getattr(transformers, auto_name).from_pretrained(tmp_path)
        assert type(loaded) is model_class
        # Not equal: the order in which kernels add depends on memory alignment.
        torch.testing.assert_close(first_output(loaded), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model_class", [BertPreForPreTraining, BertPreForMaskedLM])
def test_decoder_is_tied_after_loading(architecture: str, model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    model_class(tiny_config(architecture)).save_pretrained(tmp_path)
    loaded = model_class.from_pretrained(tmp_path)
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
    assert loaded.cls.predictions.decoder.bias is loaded.cls.predictions.bias


def test_resized_vocabulary_stays_tied(architecture: str) -> None:
    model = BertPreForPreTraining(tiny_config(architecture))
    model.resize_token_embeddings(VOCABULARY + 6)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert first_output(model).shape == (3, 12, VOCABULARY + 6)


def test_classifier_takes_the_backbone_of_pretraining(architecture: str, tmp_path: Path) -> None:
    pretrained = BertPreForPreTraining(tiny_config(architecture))
    pretrained.save_pretrained(tmp_path)
    classifier, report = BertPreForSequenceClassification.from_pretrained(
        tmp_path, num_labels=3, output_loading_info=True
    )
    assert set(report["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert not report["unexpected_keys"]  # the heads of pretraining are expected: nothing is reported about them
    ours, theirs = classifier.state_dict(), pretrained.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if not name.startswith("classifier"))
    assert any("cls.predictions.transform" in name for name in ours) == (architecture == "modern")
    assert classifier.classifier.weight.std() > 0.005 and not classifier.classifier.bias.any()


def test_bare_encoder_takes_the_backbone_of_pretraining(architecture: str, tmp_path: Path) -> None:
    pretrained = BertPreForPreTraining(tiny_config(architecture))
    pretrained.save_pretrained(tmp_path)
    encoder = BertPreModel.from_pretrained(tmp_path)
    torch.testing.assert_close(first_output(encoder), first_output(pretrained.bert), rtol=0, atol=0)


def test_initial_weights_follow_the_published_table(architecture: str) -> None:
    torch.manual_seed(0)
    config = BertPreConfig(
        architecture=architecture, vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=256, max_position_embeddings=128, num_labels=50,
    )  # fmt: skip
    weights = BertPreForPreTraining(config).state_dict()
    weights |= BertPreForSequenceClassification(config).state_dict()
    modern = architecture == "modern"
    cut = 0.8796  # standard deviation of a standard normal cut at 2
    residual = 0.02 / math.sqrt(2 * 2) * cut if modern else 0.02
    for name, weight in weights.items():
        if name.endswith(("bias", "second_segment")):
            assert not weight.any(), name
        elif "norm" in name.lower():
            assert (weight == 1).all(), name
        else:
            expected = 0.02 * cut if modern else 0.02
            if re.search(r"Wo\.weight|transform\.dense", name):
                expected = residual
            elif modern and name == "classifier.weight":
                expected = 128**-0.5 * cut
            # The tables of segments and of sentence order are too small to measure.
            tolerance = 0.05 if weight.numel() > 4000 else 0.25
            assert weight.std().item() == pytest.approx(expected, rel=tolerance), name
            assert not modern or weight.abs().max() <= 2 * expected / cut, name


def test_custom_code_is_five_files_that_do_not_import_bertpre(architecture: str, tmp_path: Path) -> None:
    BertPreForMaskedLM(tiny_config(architecture)).save_pretrained(tmp_path)
    copied = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert set(copied) == {f"{name}.py" for name in CODE}
    allowed = {"torch", "transformers", "huggingface_hub", "math", "os", "dataclasses", "collections", "typing"}
    for name, text in copied.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module.split(".")[0] in allowed, name
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1 and f"{node.module}.py" in copied, name


@pytest.mark.parametrize("model_class", sorted(set(modeling_bertpre.AUTO_CLASSES.values()), key=str))
def test_a_configuration_may_ask_for_tuples(architecture: str, model_class: type[PreTrainedModel]) -> None:
    model = model_class(tiny_config(architecture)).eval()
    ids = torch.randint(5, VOCABULARY, (2, 8))
    expected = model(ids)
    model.config.return_dict = False
    outputs = model(ids)
    assert isinstance(outputs, tuple)
    torch.testing.assert_close(outputs[0], expected.to_tuple()[0])
    torch.testing.assert_close(model(ids, return_dict=True).to_tuple()[0], outputs[0])


def test_any_model_is_saved_and_the_callers_tokenizer_stays_as_it_is(architecture: str, tmp_path: Path) -> None:
    tokenizer = learn_tokenizer(["a good film", "a bad film"], vocab_size=128)
    before = (tokenizer.model_max_length, list(tokenizer.model_input_names))
    for model_class in {BertPreModel, *modeling_bertpre.AUTO_CLASSES.values()}:
        model, folder = model_class(tiny_config(architecture)), tmp_path / model_class.__name__
        save_model(model, tokenizer, str(folder), 16)
        torch.testing.assert_close(first_output(load_model(str(folder))), first_output(model))
        modes = {file.name: file.stat().st_mode for file in folder.iterdir()}
        assert modes["model.safetensors"] == modes["config.json"]
    assert (tokenizer.model_max_length, list(tokenizer.model_input_names)) == before


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(architecture: str, tmp_path: Path) -> None:
    model, tokenizer = BertPreForMaskedLM(tiny_config(architecture)), learn_tokenizer(["a good film"], vocab_size=128)
    for longest in (0, 17):
        with pytest.raises(UserError, match=f"longest: {longest} is not from 1 to 16"):
            save_model(model, tokenizer, tmp_path / "model", longest)
    for strange in (12.5, True, "8"):
        with pytest.raises(UserError, match=f"longest: {strange!r} is not a whole number"):
            save_model(model, tokenizer, tmp_path / "model", strange)
    small = BertPreForMaskedLM(tiny_config(architecture, vocab_size=60))
    with pytest.raises(UserError, match="tokenizer: has 64 entries, but the model has 60 embeddings"):
        save_model(small, tokenizer, tmp_path / "model", 16)
    assert not (tmp_path / "model").exists()


def test_a_wrapped_model_is_refused(architecture: str, tmp_path: Path) -> None:
    class PeftModel(torch.nn.Module):  # it has the attributes of the model that it wraps
        def __init__(self, model: PreTrainedModel) -> None:
            super().__init__()
            self.config, self.save_pretrained = model.config, model.save_pretrained

    wrapped = PeftModel(BertPreForSequenceClassification(tiny_config(architecture)))
    with pytest.raises(UserError, match=r"model: a PeftModel .* merge the adapter first: model.merge_and_unload\(\)"):
        save_model(wrapped, learn_tokenizer(["a good film"], vocab_size=128), tmp_path / "model", None)
    assert not (tmp_path / "model").exists()


def test_without_a_length_the_tokenizer_cuts_where_the_model_ends(architecture: str, tmp_path: Path) -> None:
    for longest, expected in ((512, 16), (8, 8)):
        tokenizer = learn_tokenizer(["a good film"], vocab_size=128, max_length=longest)
        save_model(BertPreForMaskedLM(tiny_config(architecture)), tokenizer, tmp_path, None)
        assert transformers.AutoTokenizer.from_pretrained(tmp_path).model_max_length == expected


@pytest.mark.parametrize("name", ["Weighted", "FSDPBertPreForPreTraining"])
def test_a_subclass_is_saved_with_our_code_alone(architecture: str, name: str, tmp_path: Path) -> None:
    model = BertPreForPreTraining(tiny_config(architecture)).eval()
    torch.nn.init.normal_(model.cls.seq_relationship.bias)
    # As fully_shard makes a class, which is then torch's.
    model.__class__ = type(name, (BertPreForPreTraining,), {"__module__": "torch.distributed.fsdp"})
    model.save_pretrained(tmp_path / "alone")
    save_model(model, learn_tokenizer(["a good film"], vocab_size=128), tmp_path / "with_tokenizer", 16)
    for folder in ("alone", "with_tokenizer"):
        is_stock = architecture == "bert" and name.startswith("FSDP") and folder == "with_tokenizer"
        copied = {file.stem for file in (tmp_path / folder).glob("*.py")}
        assert copied == (set() if is_stock else set(CODE))
        config = transformers.AutoConfig.from_pretrained(tmp_path / folder)
        if not is_stock:
            assert {reference.split(".")[0] for reference in config.auto_map.values()} <= copied
        loaded = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / folder)
        torch.testing.assert_close(first_output(loaded), first_output(model), rtol=0, atol=1e-6)


def test_a_missing_folder_and_a_class_for_its_name_are_named(architecture: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=re.escape(f"there is no folder {tmp_path}/none")):
        load_model(f"{tmp_path}/none")
    with pytest.raises(UserError, match="auto_class: is <class .*give a name, such as 'AutoModelForMaskedLM'"):
        load_model(str(tmp_path), BertPreForMaskedLM)


def test_segments_that_a_classifier_has_learned_are_kept(architecture: str, tmp_path: Path) -> None:
    model = BertPreForSequenceClassification(tiny_config(architecture)).eval()
    if architecture == "modern":
        torch.nn.init.normal_(model.bert.embeddings.second_segment)
    save_model(model, learn_tokenizer(["a good film"], vocab_size=128), tmp_path, 16)
    inputs = {"input_ids": torch.randint(5, VOCABULARY, (2, 8)), "token_type_ids": torch.tensor([[0, 1] * 4] * 2)}
    torch.testing.assert_close(load_model(str(tmp_path))(**inputs).logits, model(**inputs).logits)
    read, reads = loading.load_with_tokenizer(str(tmp_path), None, "")
    torch.testing.assert_close(read(**inputs).logits, model(**inputs).logits)
    assert "token_type_ids" in reads.model_input_names


def test_a_head_that_has_learned_pairs_without_segments_is_kept(architecture: str, tmp_path: Path) -> None:
    model = BertPreForPreTraining(tiny_config(architecture)).eval()
    torch.nn.init.normal_(model.cls.seq_relationship.bias)
    save_model(model, learn_tokenizer(["a good film"], vocab_size=128), tmp_path, 16)
    inputs = torch.randint(5, VOCABULARY, (2, 8))
    read = load_model(str(tmp_path))
    torch.testing.assert_close(read(inputs).seq_relationship_logits, model(inputs).seq_relationship_logits)


def test_files_without_some_of_the_encoders_weights_are_refused(architecture: str, tmp_path: Path) -> None:
    model = BertPreForPreTraining(tiny_config(architecture))
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for gone, message in (("cls.", None), ("bert.encoder.layer.1.", "lack .* of the model's weights")):
        weights = {name: value for name, value in weights.items() if not name.startswith(gone)}
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=message) if message else nullcontext():
            load_for_pretraining(str(tmp_path))


def test_an_encoder_saved_without_its_pooler_is_read_again(architecture: str, tmp_path: Path) -> None:
    encoder = BertPreModel(tiny_config(architecture), add_pooling_layer=False).eval()
    encoder.save_pretrained(tmp_path / "alone")
    for auto_class in (None, "AutoModel"):
        again = load_model(str(tmp_path / "alone"), auto_class)
        assert again.pooler is None
        assert torch.equal(again(torch.tensor([[7, 8]]))[0], encoder(torch.tensor([[7, 8]]))[0])
    BertPreModel(tiny_config(architecture)).save_pretrained(tmp_path / "whole")
    assert load_model(str(tmp_path / "whole")).pooler is not None


@pytest.mark.parametrize("version", [1, 2])
def test_accelerates_fsdp_wraps_the_layers_that_a_model_has(architecture: str, version: int) -> None:
    model = BertPreForSequenceClassification(tiny_config(architecture))
    name = "ModernLayer" if architecture == "modern" else "BertLayer"
    assert set(model._no_split_modules) == {name}
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, auto_wrap_policy="transformer_based_wrap")
    plugin.set_auto_wrap_policy(model)  # raises where the model lacks a layer of that name
    assert {each.__name__ for each in plugin.auto_wrap_policy.keywords["transformer_layer_cls"]} == {name}


def test_a_class_that_bertpre_lacks_is_named(architecture: str) -> None:
    config = tiny_config(architecture, architectures=["ModernBertForQuestionAnswering"])
    with pytest.raises(ValueError, match="bertpre has no class for a ModernBertForQuestionAnswering"):
        load_model("anywhere", config=config)
