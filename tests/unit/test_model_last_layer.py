"""The last layer computes what is read and nothing else, and nobody can tell by the results."""

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AttentionInterface, PreTrainedModel

from bertpre.model import BertPreConfig, BertPreForMaskedLM, BertPreForPreTraining, BertPreForSequenceClassification
from bertpre.model.flops import flops_per_token
from bertpre.pretraining.build import freeze_pair_head
from tests.parity.test_attention import varlen_attention

BATCH, SEQUENCE, SLOTS, VOCABULARY, HIDDEN, HEADS, INTERMEDIATE = 3, 12, 4, 90, 24, 2, 40

cases = pytest.mark.parametrize(
    ("architecture", "pairs"), [("bert", True), ("bert", False), ("modern", True), ("modern", False)]
)
kernels = pytest.mark.parametrize("kernel", ["eager", "sdpa"])


def build(architecture: str, pairs: bool, kernel: str = "eager", layers: int = 2) -> BertPreForPreTraining:
    """A model in training, without dropout, with weights so large that a wrong state cannot hide below a tolerance."""
    torch.manual_seed(0)
    config = BertPreConfig(
        architecture=architecture, vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=layers,
        num_attention_heads=HEADS, intermediate_size=INTERMEDIATE, max_position_embeddings=SEQUENCE,
        initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertPreForPreTraining(config)
    model.set_attn_implementation(kernel)
    if not pairs:
        freeze_pair_head(model)
    return model.train()


def batch(pairs: bool, padded: bool = True) -> dict[str, torch.Tensor]:
    """Rows with masked slots, some of them unused; rows of 12, 7 and 3 tokens if padded."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([[1, 5, 8, 11], [2, 3, 0, 0], [1, 0, 0, 0]])
    labels = torch.randint(5, VOCABULARY, (BATCH, SLOTS), generator=generator)
    inputs = {
        "input_ids": torch.randint(5, VOCABULARY, (BATCH, SEQUENCE), generator=generator),
        "token_type_ids": (torch.arange(SEQUENCE) >= 4).long().expand(BATCH, -1),
        "masked_positions": positions,
        "labels": labels.masked_fill(positions == 0, -100),
    }
    if padded:
        inputs["attention_mask"] = (torch.arange(SEQUENCE) < torch.tensor([[12], [7], [3]])).long()
    return inputs | ({"next_sentence_label": torch.tensor([0, 1, 1])} if pairs else {})


def with_full_labels(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same targets without masked_positions: labels (B, S), so every state of the last layer is computed."""
    full = {name: value for name, value in inputs.items() if name != "masked_positions"}
    labels = torch.full((BATCH, SEQUENCE), -100)
    row, slot = (inputs["labels"] != -100).nonzero(as_tuple=True)
    labels[row, inputs["masked_positions"][row, slot]] = inputs["labels"][row, slot]
    return full | {"labels": labels}


def note_shapes(model: PreTrainedModel) -> list[torch.Size]:
    """The shapes that each layer's feed-forward network is given from now on; hooks would see all positions."""
    seen: list[torch.Size] = []

    def noted(forward: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda states: seen.append(states.shape) or forward(states)

    for layer in model.bert.encoder.layer:
        part = layer.intermediate.dense if model.config.architecture == "bert" else layer.mlp
        part.forward = noted(part.forward)
    return seen


def computed_positions(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> list[int]:
    """How many positions each layer's feed-forward network sees."""
    seen = note_shapes(model)
    model(**inputs)
    return [shape[1] for shape in seen]


@cases
@kernels
def test_without_a_masked_slot_the_loss_is_zero(architecture: str, pairs: bool, kernel: str) -> None:
    model, inputs = build(architecture, pairs, kernel), batch(pairs)
    none = {"masked_positions": inputs["masked_positions"][:, :0], "labels": inputs["labels"][:, :0]}
    outputs = model(**inputs | none)
    assert outputs.mlm_loss == 0 and outputs.prediction_logits.shape == (BATCH, 0, VOCABULARY)
    outputs.loss.backward()


@cases
@kernels
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_loss_and_gradients_equal_those_of_all_positions(
    architecture: str, pairs: bool, kernel: str, padded: bool, layers: int
) -> None:
    model, inputs = build(architecture, pairs, kernel, layers), batch(pairs, padded)
    full = model(**with_full_labels(inputs))
    full.loss.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad}
    model.zero_grad()
    part = model(**inputs)
    part.loss.backward()
    torch.testing.assert_close(part.loss, full.loss, rtol=1e-6, atol=0)
    gathered = full.prediction_logits[torch.arange(BATCH)[:, None], inputs["masked_positions"]]
    torch.testing.assert_close(part.prediction_logits, gathered, rtol=1e-5, atol=1e-5)
    if pairs:
        torch.testing.assert_close(part.seq_relationship_logits, full.seq_relationship_logits, rtol=1e-5, atol=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "pairs", "last"),
    [("bert", True, 1 + SLOTS), ("bert", False, SLOTS), ("modern", True, SEQUENCE), ("modern", False, SLOTS)],
)
@kernels
def test_the_last_layer_sees_what_is_read(architecture: str, pairs: bool, last: int, kernel: str) -> None:
    assert computed_positions(build(architecture, pairs, kernel), batch(pairs)) == [SEQUENCE, last]


def test_masked_language_models_read_the_masked_positions() -> None:
    model = BertPreForMaskedLM(build("modern", pairs=False).config)
    inputs = batch(pairs=False)
    assert computed_positions(model, inputs) == [SEQUENCE, SLOTS]
    torch.testing.assert_close(model(**inputs).loss, model(**with_full_labels(inputs)).loss, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("architecture", "pooling", "last"), [("bert", "cls", 2), ("modern", "cls", 1), ("modern", "mean", SEQUENCE)]
)
@kernels
def test_classifiers_train_on_the_state_that_they_read(architecture: str, pooling: str, last: int, kernel: str) -> None:
    config = build(architecture, pairs=False).config
    config.classifier_pooling = pooling
    model = BertPreForSequenceClassification(config)
    model.set_attn_implementation(kernel)
    inputs = {name: batch(pairs=False)[name] for name in ("input_ids", "attention_mask")}
    inputs["labels"] = torch.tensor([0, 1, 1])
    gradients = []
    for training in (False, True):  # in evaluation the last layer computes all positions; there is no dropout
        model.train(training).zero_grad()
        model(**inputs).loss.backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-6)
    assert computed_positions(model.eval(), inputs) == [SEQUENCE, SEQUENCE]
    assert computed_positions(model.train(), inputs)[-1] == last


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_without_pairs_the_pooler_does_not_run(architecture: str) -> None:
    model, ran = build(architecture, pairs=False), []
    model.bert.pooler.register_forward_hook(lambda *_: ran.append(True))
    assert model(**batch(pairs=False)).seq_relationship_logits is None and not ran
    assert model(**with_full_labels(batch(pairs=False))).seq_relationship_logits.shape == (BATCH, 2) and ran


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_fewer_positions_cost_fewer_flops(architecture: str) -> None:
    model, matrices = build(architecture, pairs=False), 2 if architecture == "bert" else 3
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**batch(pairs=False))
    full = flops_per_token(model.config, SEQUENCE, SLOTS / SEQUENCE, training=False) * BATCH * SEQUENCE
    pooler_and_nsp = 2 * (HIDDEN**2 + 2 * HIDDEN) * BATCH
    query_product = HIDDEN**2 if architecture == "bert" else 0  # "modern" has one product for query, key and value
    linear = 2 * (query_product + HIDDEN**2 + matrices * HIDDEN * INTERMEDIATE)
    left_out = BATCH * (SEQUENCE - SLOTS) * (linear + 4 * SEQUENCE * HIDDEN)
    assert counter.get_total_flops() == full - pooler_and_nsp - left_out


@cases
@pytest.mark.parametrize("by_config", [False, True])
def test_states_and_weights_are_full_on_request(architecture: str, pairs: bool, by_config: bool) -> None:
    model, inputs = build(architecture, pairs), batch(pairs)
    plain = model(**inputs)
    for name, shape in (
        ("hidden_states", (BATCH, SEQUENCE, HIDDEN)),
        ("attentions", (BATCH, HEADS, SEQUENCE, SEQUENCE)),
    ):
        request = {f"output_{name}": True}
        if by_config:
            model.config.update(request)
        output = model(**inputs, **({} if by_config else request))
        model.config.update({f"output_{name}": False})
        assert tuple(output[name][-1].shape) == shape
        torch.testing.assert_close(output.loss, plain.loss, rtol=1e-6, atol=0)
    # transformers' own hooks stay behind; they read nothing now
    assert computed_positions(model, inputs)[-1] == (SEQUENCE if architecture == "modern" and pairs else SLOTS + pairs)


@cases
def test_a_hook_sees_all_states(architecture: str, pairs: bool) -> None:
    model, inputs = build(architecture, pairs), batch(pairs)
    states = model(**inputs, output_hidden_states=True).hidden_states[-1]
    last = model.bert.encoder.layer[-1]
    feed_forward = last.output if architecture == "bert" else last.mlp
    for module in (feed_forward, model.bert.encoder, last):
        seen: list[torch.Tensor] = []
        handle = module.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output))
        model(**inputs)
        handle.remove()
        assert seen[0].shape == states.shape
    assert architecture == "modern" or torch.equal(seen[0], states)  # "modern" has a norm after the last layer


KINDS_OF_HOOKS = ("forward", "forward_pre", "full_backward", "full_backward_pre")


@cases
@pytest.mark.parametrize("kind", KINDS_OF_HOOKS)
def test_a_hook_of_any_kind_sees_all_positions(architecture: str, pairs: bool, kind: str) -> None:
    model, inputs = build(architecture, pairs), batch(pairs)
    last, seen = model.bert.encoder.layer[-1], list[torch.Size]()
    module = last.output.dense if architecture == "bert" else last.mlp
    register = getattr(module, f"register_{kind}_hook")
    # Of what it is given after the module, the last is a forward hook's output, the first is another's input.
    register(lambda _, *given: seen.append((given[-1] if kind == "forward" else given[0][0]).shape))
    model(**inputs).loss.backward()
    assert [shape[:2] for shape in seen] == [(BATCH, SEQUENCE)]


@cases
def test_a_hook_on_the_encoder_sees_its_last_states(architecture: str, pairs: bool) -> None:
    model, inputs, seen = build(architecture, pairs), batch(pairs), []
    model.bert.register_forward_hook(lambda _, __, output: seen.append(output.last_hidden_state.shape))
    model(**inputs)
    assert seen == [(BATCH, SEQUENCE, HIDDEN)]


@pytest.mark.parametrize("library", ["torch.distributed.fsdp", "transformers.utils", "accelerate.hooks"])
@pytest.mark.parametrize("kind", KINDS_OF_HOOKS)
def test_hooks_of_the_libraries_that_train_read_no_states(library: str, kind: str) -> None:
    model = build("bert", pairs=True)

    def hook(*_: object) -> None: ...

    hook.__module__ = library
    for module in (model.bert, model.bert.encoder.layer[-1].output.dense):
        getattr(module, f"register_{kind}_hook")(hook)
    assert computed_positions(model, batch(pairs=True)) == [SEQUENCE, 1 + SLOTS]


@cases
@kernels
def test_a_mask_with_a_row_for_each_query_is_kept(architecture: str, pairs: bool, kernel: str) -> None:
    model, inputs = build(architecture, pairs, kernel), batch(pairs)
    document = torch.arange(SEQUENCE) >= 5
    inputs["attention_mask"] = (document[:, None] == document).expand(BATCH, 1, -1, -1)
    part, full = model(**inputs), model(**with_full_labels(inputs))
    torch.testing.assert_close(part.loss, full.loss, rtol=1e-6, atol=0)


@cases
def test_packed_rows_are_computed_in_full(architecture: str, pairs: bool) -> None:
    AttentionInterface.register("flash_reference", varlen_attention)
    model, inputs = build(architecture, pairs), batch(pairs)
    expected = model(**inputs)
    model.config._attn_implementation = "flash_reference"
    packed = model(**inputs)
    torch.testing.assert_close(packed.loss, expected.loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(packed.prediction_logits, expected.prediction_logits, rtol=1e-4, atol=1e-4)
