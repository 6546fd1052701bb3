"""Forward passes beyond parity with stock models: slots, losses, dtypes, recorded outputs, compilation."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from bertpre.model import (
    BertPreConfig,
    BertPreForMaskedLM,
    BertPreForPreTraining,
    BertPreForSequenceClassification,
    BertPreModel,
    modeling_bertpre,
)
from bertpre.model.layers_bertpre import BertSelfAttention, ModernAttention
from bertpre.pretraining.build import freeze_pair_head

BATCH, SEQUENCE, SLOTS, VOCABULARY, LAYERS = 3, 12, 4, 90, 2
LABELS = torch.tensor([0, 1, 1])

both_architectures = pytest.mark.parametrize("architecture", ["bert", "modern"])


def tiny_config(architecture: str, **fields: object) -> BertPreConfig:
    sizes = {"hidden_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 40}
    return BertPreConfig(
        architecture=architecture, vocab_size=VOCABULARY, max_position_embeddings=SEQUENCE, **sizes, **fields
    )


def pretraining_batch(pairs: bool = True) -> dict[str, torch.Tensor]:
    """Ids with padding, masked slots of which some are unused, and sentence labels if there are pairs."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    positions = torch.tensor([[1, 5, 8, 11], [2, 3, 0, 0], [1, 0, 0, 0]])
    labels = torch.randint(5, VOCABULARY, (BATCH, SLOTS), generator=generator)
    labels[positions == 0] = -100
    return {
        "input_ids": ids,
        "attention_mask": (torch.arange(SEQUENCE) < torch.tensor([[12], [7], [3]])).long(),
        "token_type_ids": (torch.arange(SEQUENCE) >= 4).long().expand(BATCH, -1),
        "masked_positions": positions,
        "labels": labels,
    } | ({"next_sentence_label": LABELS} if pairs else {})


@both_architectures
def test_logits_at_slots_are_the_full_logits_gathered(architecture: str) -> None:
    model = BertPreForPreTraining(tiny_config(architecture)).eval()
    batch = pretraining_batch()
    at_slots = model(**batch)
    positions, labels = batch.pop("masked_positions"), batch.pop("labels")
    full_labels = torch.full((BATCH, SEQUENCE), -100)
    used = labels != -100
    full_labels[torch.arange(BATCH)[:, None].expand_as(labels)[used], positions[used]] = labels[used]
    full = model(**batch, labels=full_labels)
    assert at_slots.prediction_logits.shape == (BATCH, SLOTS, VOCABULARY)
    gathered = full.prediction_logits[torch.arange(BATCH)[:, None], positions]
    torch.testing.assert_close(at_slots.prediction_logits, gathered, rtol=0, atol=1e-6)
    torch.testing.assert_close(at_slots.mlm_loss, full.mlm_loss, rtol=0, atol=1e-6)


@both_architectures
def test_untrained_losses_are_those_of_uniform_guesses_and_add_up(architecture: str) -> None:
    torch.manual_seed(0)
    output = BertPreForPreTraining(tiny_config(architecture)).eval()(**pretraining_batch())
    torch.testing.assert_close(output.loss, output.mlm_loss + output.nsp_loss)
    assert output.mlm_loss.item() == pytest.approx(math.log(VOCABULARY), abs=0.3)
    assert output.nsp_loss.item() == pytest.approx(math.log(2), abs=0.2)


@both_architectures
def test_loss_contains_only_the_requested_objectives(architecture: str) -> None:
    model = BertPreForPreTraining(tiny_config(architecture)).eval()
    batch = pretraining_batch()
    sentence_label = batch.pop("next_sentence_label")
    alone = model(**batch)
    assert alone.nsp_loss is None and torch.equal(alone.loss, alone.mlm_loss)
    batch["labels"] = None
    alone = model(**batch, next_sentence_label=sentence_label)
    assert alone.mlm_loss is None and torch.equal(alone.loss, alone.nsp_loss)


@pytest.mark.parametrize("num_items", [None, 0, torch.tensor(0)])
def test_batch_without_targets_gives_zero_loss_and_finite_gradients(num_items: torch.Tensor | int | None) -> None:
    model = BertPreForMaskedLM(tiny_config("bert"))
    batch = pretraining_batch()
    del batch["next_sentence_label"]
    batch["labels"] = torch.full_like(batch["labels"], -100)
    loss = model(**batch, num_items_in_batch=num_items).loss
    loss.backward()
    assert loss.item() == 0.0
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


def test_next_sentence_label_zero_rewards_the_first_logit() -> None:
    model = BertPreForPreTraining(tiny_config("bert")).eval()
    with torch.no_grad():
        model.cls.seq_relationship.bias.copy_(torch.tensor([9.0, 0.0]))
    ids = pretraining_batch()["input_ids"]
    assert model(ids, next_sentence_label=torch.zeros(BATCH, dtype=torch.long)).loss < 0.1
    assert model(ids, next_sentence_label=torch.ones(BATCH, dtype=torch.long)).loss > 5


@both_architectures
def test_segments_default_to_the_first(architecture: str) -> None:
    model = BertPreModel(tiny_config(architecture, initializer_range=0.5)).eval()
    if architecture == "modern":
        torch.nn.init.normal_(model.embeddings.second_segment)  # it starts at zero
    ids = pretraining_batch()["input_ids"]
    torch.testing.assert_close(model(ids)[0], model(ids, token_type_ids=torch.zeros_like(ids))[0])
    assert (model(ids)[0] - model(ids, token_type_ids=torch.ones_like(ids))[0]).abs().max() > 1e-3


def test_labels_of_the_wrong_shape_are_refused() -> None:
    batch = pretraining_batch()
    del batch["masked_positions"]
    with pytest.raises(ValueError, match=r"labels have shape \(3, 4\), but these logits need \(3, 12\)"):
        BertPreForPreTraining(tiny_config("bert"))(**batch)
    regression = BertPreForSequenceClassification(tiny_config("bert", num_labels=2, problem_type="regression"))
    with pytest.raises(ValueError, match=r"labels have shape \(3, 1\), but these logits need \(3, 2\)"):
        regression(batch["input_ids"], labels=torch.zeros(3))


def test_wrong_inputs_are_refused() -> None:
    model = BertPreModel(tiny_config("bert"))
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="exceeds max_position_embeddings=12"):
        model(torch.zeros(1, 13, dtype=torch.long))


@both_architectures
def test_embeddings_and_positions_may_be_given(architecture: str) -> None:
    model = BertPreForMaskedLM(tiny_config(architecture, initializer_range=0.5)).eval()
    ids = pretraining_batch()["input_ids"]
    expected = model(ids).logits
    embeddings = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embeddings).logits, expected)
    positions = torch.arange(SEQUENCE).expand(BATCH, -1)
    torch.testing.assert_close(model(ids, position_ids=positions).logits, expected)
    assert (model(ids, position_ids=positions.flip(1)).logits - expected).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("fields", "labels", "stock_loss"),
    [
        ({"num_labels": 3}, torch.tensor([0, 2, 1]), torch.nn.CrossEntropyLoss()),
        ({"num_labels": 3}, torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0]]), torch.nn.BCEWithLogitsLoss()),
        ({"num_labels": 1}, torch.tensor([[0.5], [-1.0], [2.0]]), torch.nn.MSELoss()),
        ({"num_labels": 3, "problem_type": "regression"}, torch.randn(3, 3), torch.nn.MSELoss()),
    ],
)
def test_classification_losses_are_torchs_means(
    fields: dict, labels: torch.Tensor, stock_loss: torch.nn.Module
) -> None:
    model = BertPreForSequenceClassification(tiny_config("bert", **fields)).eval()
    output = model(pretraining_batch()["input_ids"], labels=labels)
    torch.testing.assert_close(output.loss, stock_loss(output.logits, labels))
    halved = model(pretraining_batch()["input_ids"], labels=labels, num_items_in_batch=2 * labels.numel())
    torch.testing.assert_close(halved.loss, output.loss / 2)


def test_labels_of_classes_may_have_a_second_axis() -> None:
    model = BertPreForSequenceClassification(tiny_config("bert", num_labels=3)).eval()
    flat, column = (model(pretraining_batch()["input_ids"], labels=labels).loss for labels in (LABELS, LABELS[:, None]))
    assert torch.equal(flat, column)


def test_an_unknown_problem_type_is_refused() -> None:
    ours, of_hub = "problem_type: .multi_label. is not .*", "Validation error for field .problem_type.(.|\n)*"  # 1.5
    with pytest.raises(Exception, match=f"({ours}|{of_hub})multi_label_classification"):
        model = BertPreForSequenceClassification(tiny_config("bert", num_labels=3, problem_type="multi_label"))
        model(pretraining_batch()["input_ids"], labels=torch.zeros(BATCH, 3))


def test_regression_labels_may_have_one_axis() -> None:
    model = BertPreForSequenceClassification(tiny_config("bert", num_labels=1)).eval()
    labels = torch.tensor([0.5, -1.0, 2.0])
    output = model(pretraining_batch()["input_ids"], labels=labels)
    torch.testing.assert_close(output.loss, ((output.logits[:, 0] - labels) ** 2).mean())


@pytest.mark.parametrize(
    ("model_class", "logits"),
    [(BertPreForSequenceClassification, "logits"), (BertPreForPreTraining, "seq_relationship_logits")],
)
def test_mean_pooling_ignores_padding(model_class: type[PreTrainedModel], logits: str) -> None:
    model = model_class(tiny_config("modern", classifier_pooling="mean", initializer_range=0.5)).eval()
    ids = pretraining_batch()["input_ids"][:1]
    mask = (torch.arange(SEQUENCE) < 7).long()[None]
    padded, cut, full = (model(*inputs)[logits] for inputs in ((ids, mask), (ids[:, :7],), (ids,)))
    torch.testing.assert_close(padded, cut, rtol=0, atol=1e-5)
    assert (padded - full).abs().max() > 1e-3
    beside = model(torch.cat((ids, ids)), torch.cat((mask, mask * 0)))[logits]  # a row of padding alone
    torch.testing.assert_close(beside[:1], padded, rtol=0, atol=1e-5)
    assert beside.isfinite().all()


@both_architectures
@pytest.mark.parametrize(
    ("model_class", "labels"),
    [
        (BertPreForPreTraining, {"labels": torch.ones(BATCH, SEQUENCE).long(), "next_sentence_label": LABELS}),
        (BertPreForMaskedLM, {"labels": torch.ones(BATCH, SEQUENCE).long()}),
        (BertPreForSequenceClassification, {"labels": LABELS}),
    ],
)
def test_every_weight_has_a_gradient(architecture: str, model_class: type[PreTrainedModel], labels: dict) -> None:
    # DistributedDataParallel needs a gradient for every weight, also for single texts, which have no token types.
    model = model_class(tiny_config(architecture))
    model(pretraining_batch()["input_ids"], **labels).loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


@both_architectures
def test_hidden_states_and_attentions_on_request(architecture: str) -> None:
    model = BertPreForPreTraining(tiny_config(architecture)).eval()
    model.set_attn_implementation("eager")
    output = model(**pretraining_batch(), output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in output.hidden_states] == [(BATCH, SEQUENCE, 24)] * (LAYERS + 1)
    assert [tuple(weights.shape) for weights in output.attentions] == [(BATCH, 2, SEQUENCE, SEQUENCE)] * LAYERS
    padded = pretraining_batch()["attention_mask"] == 0
    assert not output.attentions[0].transpose(1, 3)[padded].any()  # (B, S keys, S, H)
    torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(BATCH, 2, SEQUENCE))
    default = model(**pretraining_batch())
    assert default.hidden_states is None and default.attentions is None


@both_architectures
@pytest.mark.parametrize("pairs", [True, False])
def test_activation_checkpointing_changes_no_gradient(architecture: str, pairs: bool) -> None:
    model = BertPreForPreTraining(tiny_config(architecture, hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    if not pairs:
        freeze_pair_head(model)
    model(**pretraining_batch(pairs)).loss.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad}
    model.zero_grad()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()  # the new name, the old
    passes: list[object] = []
    for part in model.modules():
        if isinstance(part, BertSelfAttention | ModernAttention):
            part.register_forward_pre_hook(lambda *call: passes.append(call))
    model.train()(**pretraining_batch(pairs)).loss.backward()
    assert len(passes) == 2 * model.config.num_hidden_layers  # each is computed again for its gradient
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=0, atol=1e-6)


@both_architectures
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bfloat16_is_near_float32_with_a_float32_loss(architecture: str, attention: str) -> None:
    model = BertPreForPreTraining(tiny_config(architecture)).eval()
    model.set_attn_implementation(attention)
    expected = model(**pretraining_batch()).loss.item()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**pretraining_batch())
    output.loss.backward()
    assert output.prediction_logits.dtype == torch.bfloat16
    for loss in (output.loss, model.to(torch.bfloat16)(**pretraining_batch()).loss):
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected, abs=0.05)


class ScalarReads(TorchDispatchMode):
    """Counts reads of a tensor's value by Python, each of which makes the CPU wait for a GPU."""

    count = 0

    def __torch_dispatch__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@both_architectures
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_no_value_is_read_back_during_a_training_step(architecture: str, attention: str) -> None:
    model = BertPreForPreTraining(tiny_config(architecture))
    model.set_attn_implementation(attention)
    with ScalarReads() as reads:
        model(**pretraining_batch()).loss.backward()
    assert reads.count == 0


@both_architectures
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_with_a_causal_mask_no_token_sees_a_later_one(architecture: str, attention: str) -> None:
    model = BertPreForPreTraining(tiny_config(architecture)).eval()
    model.set_attn_implementation(attention)
    ids = torch.randint(5, 60, (2, 12))
    sees = torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
    with torch.no_grad():
        logits = model(ids, sees).prediction_logits
        for place in range(12):
            changed = ids.clone()
            changed[:, place] = 60
            other = model(changed, sees).prediction_logits
            torch.testing.assert_close(other[:, :place], logits[:, :place], rtol=0, atol=1e-6)
            assert (other[:, place:] - logits[:, place:]).abs().amax((0, 2)).min() > 1e-6


@both_architectures
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_rows_without_padding_have_no_mask_with_any_transformers(
    architecture: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 5.23 its helper makes one of ones under torch.compile, which does not fit the last layer's queries."""
    monkeypatch.setattr(modeling_bertpre, "create_bidirectional_mask", pytest.fail)
    model = BertPreForPreTraining(tiny_config(architecture))
    model.set_attn_implementation(attention)
    batch = pretraining_batch(pairs=False)
    del batch["attention_mask"]
    loss = model(**batch).loss
    loss.backward()
    assert loss.isfinite()


@both_architectures
@pytest.mark.parametrize(
    ("attention", "has_mask", "pairs"),  # each two of them in all combinations; sdpa as GPUs have it
    [("sdpa", True, True), ("sdpa", False, False), ("eager", True, False), ("eager", False, True)],
)
def test_one_graph_holds_a_training_step(architecture: str, attention: str, has_mask: bool, pairs: bool) -> None:
    torch.compiler.reset()  # programs of earlier tests count towards a limit
    config = tiny_config(architecture, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    model = BertPreForPreTraining(config)
    model.set_attn_implementation(attention)
    if not pairs:
        freeze_pair_head(model)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    batch = pretraining_batch(pairs) | {"num_items_in_batch": torch.tensor(9), "num_pairs_in_batch": torch.tensor(5)}
    if not has_mask:
        del batch["attention_mask"]
    expected = model(**batch).loss
    expected.backward()
    gradients = [weight.grad.clone() for weight in weights]
    model.zero_grad()
    # fullgraph turns any graph break into an error; aot_eager traces backward too, without waiting for a C++ compiler.
    model.compile(fullgraph=True, backend="aot_eager")
    loss = model(**batch).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for weight, gradient in zip(weights, gradients, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("architecture", "classifier"), [("bert", 0.01), ("modern", 256**-0.5)])
def test_a_new_classifier_is_drawn_as_the_stock_class_draws_it(architecture: str, classifier: float) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": 64, "num_labels": 64}
    config = BertPreConfig(architecture=architecture, num_attention_heads=2, initializer_range=0.01, **sizes)
    model = BertPreForSequenceClassification(config)
    assert model.classifier.weight.std().item() == pytest.approx(
        classifier, rel=0.15
    )  # cut at two of them, so 0.88 of it
    assert model.bert.embeddings.word_embeddings.weight.std().item() == pytest.approx(0.01, rel=0.15)
