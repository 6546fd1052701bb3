"""Padding that is left out changes neither loss nor gradients, makes few shapes, and makes no CPU wait."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.library import register_kernel
from transformers import BertConfig, PreTrainedModel

from bertpre.compiler import prepare_compiler
from bertpre.model import BertPreConfig, BertPreForPreTraining, BertPreForSequenceClassification, rows_bertpre
from bertpre.model.modeling_bertpre import BertPreForTokenClassification
from bertpre.pretraining.build import freeze_pair_head
from bertpre.training import unpadding
from bertpre.training.unpadding import LEVELS, choose_unpadding, unpadded
from tests.unit.test_gradient_guard import NoSynchronisation
from tests.unit.test_model_last_layer import note_shapes

SEQUENCE, SLOTS, VOCABULARY, HIDDEN, HEADS = 24, 4, 90, 24, 2
LENGTHS = (24, 2, 5, 17, 9, 24, 11, 3)  # very different ones, full rows, and the shortest that there is

Batch = dict[str, torch.Tensor]
both_architectures = pytest.mark.parametrize("architecture", ["bert", "modern"])
both_pairs = pytest.mark.parametrize("pairs", [True, False])


def mask_of(lengths: tuple[int, ...], longest: int = SEQUENCE) -> torch.Tensor:
    return (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()


def config_of(
    architecture: str, attention_dropout: float = 0.0, hidden_size: int = HIDDEN, **others: Any
) -> BertPreConfig:
    """Weights so large that a wrong state cannot hide below a tolerance."""
    return BertPreConfig(
        architecture=architecture, vocab_size=VOCABULARY, hidden_size=hidden_size, num_hidden_layers=2,
        num_attention_heads=HEADS, intermediate_size=40, max_position_embeddings=SEQUENCE, initializer_range=0.3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=attention_dropout, **others,
    )  # fmt: skip


def pretraining_model(architecture: str, pairs: bool, kernel: str = "eager", **others: Any) -> BertPreForPreTraining:
    torch.manual_seed(0)
    model = BertPreForPreTraining(config_of(architecture, **others)).train()
    model.set_attn_implementation(kernel)
    if not pairs:
        freeze_pair_head(model)
    return model


def pretraining_batch(pairs: bool, lengths: tuple[int, ...] = LENGTHS) -> Batch:
    """Padded rows whose targets are among their tokens; the last slot is unused."""
    generator, rows = torch.Generator().manual_seed(len(lengths) + sum(lengths)), len(lengths)
    positions = (torch.rand(rows, SLOTS, generator=generator) * torch.tensor(lengths)[:, None]).long()
    positions[:, -1] = 0
    labels = torch.randint(5, VOCABULARY, (rows, SLOTS), generator=generator)
    labels[:, -1] = -100
    batch = {
        "input_ids": torch.randint(5, VOCABULARY, (rows, SEQUENCE), generator=generator),
        "attention_mask": mask_of(lengths),
        "token_type_ids": (torch.arange(SEQUENCE) >= 4).long().expand(rows, -1),
        "masked_positions": positions,
        "labels": labels,
    }
    return batch | ({"next_sentence_label": torch.arange(rows) % 2} if pairs else {})


def loss_and_gradients(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {
        name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None
    }


def assert_same(model: PreTrainedModel, batch: Batch, other: Batch) -> None:
    (loss, gradients), (expected, expected_gradients) = (loss_and_gradients(model, each) for each in (other, batch))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-5, atol=1e-5, msg=name)


# ---- what the collator adds ------------------------------------------------------------------------------------------


@example([1] * 29 + [10] * 3)  # as many unused slots as there can be
@given(st.integers(2, 40).flatmap(lambda longest: st.lists(st.integers(1, longest), min_size=1, max_size=40)))
def test_every_token_has_a_slot_and_every_slot_a_row(lengths: list[int]) -> None:
    longest = max(2, *lengths)
    mask = mask_of(tuple(lengths), longest)
    batch = unpadded({"attention_mask": mask})
    index, slots, bounds = (batch[name] for name in ("token_index", "token_slots", "row_bounds"))
    tokens, is_token = int(mask.sum()), mask.bool()
    assert torch.equal(index[:tokens], is_token.flatten().nonzero().flatten())
    assert torch.equal(slots[is_token], torch.arange(tokens))
    assert bounds.dtype == torch.int32 and bounds[0] == 0 and bounds[-1] == len(index)
    sizes = bounds.diff()
    assert sizes[: len(lengths)].tolist() == lengths
    assert sizes.min() >= 1 and sizes.max() <= longest
    full = unpadded({"attention_mask": torch.ones_like(mask)})
    assert len(bounds) == len(full["row_bounds"]) and len(index) <= len(full["token_index"])
    uses = torch.bincount(slots.flatten(), minlength=len(index))
    assert uses.max() <= -(-mask.numel() // len(index))


def test_there_are_few_shapes_and_little_is_unused() -> None:
    generator, sizes = torch.Generator().manual_seed(0), []
    for _ in range(300):
        fill = float(torch.rand((), generator=generator))
        mask = mask_of(tuple((2 + fill * torch.rand(32, generator=generator) * 126).int().tolist()), 128)
        slots = len(unpadded({"attention_mask": mask})["token_index"])
        assert slots - mask.sum() < 128 * 32 / LEVELS + 3  # a level, and a slot for each of three rows of unused ones
        sizes.append(slots)
    assert 5 < len(set(sizes)) <= LEVELS + 1


def test_rows_without_a_mask_stay_as_they_are() -> None:
    batch = {"input_ids": torch.ones(2, 3)}
    assert unpadded(batch) is batch


# ---- the model -------------------------------------------------------------------------------------------------------


@both_architectures
@both_pairs
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_pretraining_has_the_same_loss_and_gradients(architecture: str, pairs: bool, kernel: str) -> None:
    batch = pretraining_batch(pairs)
    assert_same(pretraining_model(architecture, pairs, kernel), batch, unpadded(batch))


@pytest.mark.parametrize(("architecture", "pooling"), [("bert", "cls"), ("modern", "cls"), ("modern", "mean")])
@pytest.mark.parametrize("kind", ["classes", "numbers", "words"])
def test_classifiers_have_the_same_loss_and_gradients(architecture: str, pooling: str, kind: str) -> None:
    torch.manual_seed(0)
    config = config_of(architecture, num_labels=1 if kind == "numbers" else 3, classifier_pooling=pooling)
    model = (BertPreForTokenClassification if kind == "words" else BertPreForSequenceClassification)(config).train()
    batch = {name: pretraining_batch(False)[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    labels = torch.arange(batch["input_ids"].numel()).view(batch["input_ids"].shape) % 3
    shaped = {"classes": labels[:, 0], "numbers": labels[:, 0].float() / 3}
    batch["labels"] = shaped.get(kind, labels.masked_fill(batch["attention_mask"] == 0, -100))
    assert_same(model, batch, unpadded(batch))


@both_architectures
def test_embeddings_can_be_given(architecture: str) -> None:
    model, batch = pretraining_model(architecture, True), pretraining_batch(True)
    embeddings = model.bert.embeddings.word_embeddings(batch.pop("input_ids")).detach()
    assert_same(model, batch | {"inputs_embeds": embeddings}, unpadded(batch) | {"inputs_embeds": embeddings})


@pytest.mark.parametrize(
    ("architecture", "pairs", "reads"), [("bert", True, 5), ("bert", False, 4), ("modern", False, 4)]
)
def test_the_last_layer_computes_what_is_read(architecture: str, pairs: bool, reads: int) -> None:
    model, batch = pretraining_model(architecture, pairs), unpadded(pretraining_batch(pairs))
    seen = note_shapes(model)
    model(**batch)
    rows, unused_rows = len(LENGTHS), len(batch["row_bounds"]) - 1 - len(LENGTHS)
    slots = len(batch["token_index"])
    assert slots < rows * SEQUENCE
    assert [shape[:2] for shape in seen] == [(1, slots), (1, rows * reads + unused_rows)]


@both_architectures
@both_pairs
def test_what_stands_in_padding_does_not_matter(architecture: str, pairs: bool) -> None:
    model, batch = pretraining_model(architecture, pairs), pretraining_batch(pairs)
    other = dict(batch)
    for name, value in (("input_ids", 7), ("token_type_ids", 1)):
        other[name] = torch.where(batch["attention_mask"] == 1, batch[name], (batch[name] + value) % 2)
    (loss, gradients), (expected, expected_gradients) = (
        loss_and_gradients(model, unpadded(each)) for each in (other, batch)
    )
    assert torch.equal(loss, expected)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-6, atol=1e-6)


@both_architectures
def test_a_row_that_is_too_long_is_refused(architecture: str) -> None:
    model = pretraining_model(architecture, True)
    batch = unpadded({"input_ids": torch.ones(2, SEQUENCE + 1).long(), "attention_mask": mask_of((9, 3), SEQUENCE + 1)})
    if architecture == "bert":
        with pytest.raises(ValueError, match="25 tokens exceeds max_position_embeddings=24"):
            model(**batch)
    else:
        assert model(**batch).prediction_logits.shape == (2, SEQUENCE + 1, VOCABULARY)


@both_architectures
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("reads", [True, False])
def test_documents_that_transformers_packs_do_not_see_each_other(architecture: str, kernel: str, reads: bool) -> None:
    model, ids = pretraining_model(architecture, False, kernel), pretraining_batch(False)["input_ids"][:1]
    bounds = torch.tensor([0, 9, SEQUENCE], dtype=torch.int32)
    rows = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 15, "max_length_k": 15}
    positions = torch.cat((torch.arange(9), torch.arange(15))).unsqueeze(0)
    read = {"masked_positions": torch.tensor([[2, 11]])} if reads else {}
    packed = model(ids, position_ids=positions, **rows, **read).prediction_logits
    alone = torch.cat((model(ids[:, :9]).prediction_logits, model(ids[:, 9:]).prediction_logits), dim=1)
    expected = alone[:, [2, 11]] if reads else alone
    torch.testing.assert_close(packed, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("missing", ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"])
def test_a_part_of_what_transformers_says_of_packed_rows_is_refused(missing: str) -> None:
    bounds = torch.tensor([0, 9, SEQUENCE], dtype=torch.int32)
    rows = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 15, "max_length_k": 15}
    del rows[missing]
    with pytest.raises(ValueError, match="packed rows need all of cu_seq_lens_q, "):
        pretraining_model("bert", False)(pretraining_batch(False)["input_ids"][:1], **rows)


# ---- the device ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("architecture", "pairs"), [("bert", True), ("modern", False)])
def test_one_program_serves_all_numbers_of_slots_without_a_break(architecture: str, pairs: bool) -> None:
    programs, sizes = [], set()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        programs.append(len(inputs))
        return graph.forward

    torch.compiler.reset()
    prepare_compiler()
    model = pretraining_model(architecture, pairs, "sdpa")
    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)  # a break is an error
    for most in (24, 23, 8, 22, 9, 10, 8, 24):
        batch = unpadded(pretraining_batch(pairs, tuple(range(most, most - 8, -1))))
        torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss, rtol=1e-5, atol=0)
        sizes.add(len(batch["token_index"]))
    assert (len(programs), len(sizes)) == (1, 4)


@both_architectures
def test_one_program_serves_all_lengths_in_fine_tuning(architecture: str) -> None:
    programs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        programs.append(len(inputs))
        return graph.forward

    torch.compiler.reset()
    prepare_compiler()
    torch.manual_seed(0)
    model = BertPreForSequenceClassification(config_of(architecture)).train()
    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    for longest, shortest in ((24, 3), (16, 9), (23, 23), (12, 2), (20, 11), (18, 4)):
        mask = mask_of(tuple(torch.linspace(longest, shortest, 6).int().tolist()), longest)
        ids = torch.randint(5, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(longest))
        batch = unpadded({"input_ids": ids, "attention_mask": mask})
        torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits)
    assert len(programs) == 1


@both_architectures
def test_a_compiled_backward_pass_has_the_same_gradients(architecture: str) -> None:
    torch.compiler.reset()
    model, batch = pretraining_model(architecture, True), pretraining_batch(True)
    expected = loss_and_gradients(model, batch)[1]
    model.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    for name, gradient in loss_and_gradients(model, unpadded(batch))[1].items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5)


class NoDataDependence(NoSynchronisation):
    """Fails, too, where an index is a mask: how many values it takes is known on the device alone."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("index", "index_put", "index_put_", "_index_put_impl_"):
            assert all(index is None or index.dtype != torch.bool for index in args[1])
        return super().__torch_dispatch__(func, types, args, kwargs)


@both_architectures
@both_pairs
def test_neither_pass_waits_for_the_device(architecture: str, pairs: bool) -> None:
    model, batch = pretraining_model(architecture, pairs, "sdpa"), unpadded(pretraining_batch(pairs))
    with NoDataDependence():
        model(**batch).loss.backward()
    with pytest.raises(AssertionError), NoDataDependence():  # the test would see one
        batch["row_bounds"][batch["row_bounds"] > 3].sum()


def rows_of(bounds: torch.Tensor, longest: int, *states: torch.Tensor) -> list[slice]:
    """The slots of each row; refuses what torch's kernel refuses."""
    assert all(each.ndim == 3 and each.stride(-1) == 1 for each in states)
    assert bounds.dtype == torch.int32 and bounds.is_contiguous()
    assert int(bounds.diff().min()) >= 1 and int(bounds.diff().max()) <= longest
    return [slice(int(start), int(end)) for start, end in zip(bounds, bounds[1:], strict=False)]


def weights_of(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5).softmax(-1)


def kernel_like_torchs(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds_q: torch.Tensor, bounds_k: torch.Tensor,
    max_q: int, max_k: int, *_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention row by row; slots outside all rows are left as they were, here NaN."""
    mixed = torch.full_like(query, float("nan"))
    for q, k in zip(rows_of(bounds_q, max_q, query), rows_of(bounds_k, max_k, key, value), strict=True):
        mixed[q] = torch.einsum("hqk,khd->qhd", weights_of(query[q], key[k]), value[k])
    return mixed, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


def gradients_like_torchs(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: torch.Tensor,
    __: torch.Tensor, bounds_q: torch.Tensor, bounds_k: torch.Tensor, max_q: int, max_k: int, *___: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradients of query, key and value, likewise."""
    scale, found = query.shape[-1] ** -0.5, [torch.full_like(each, float("nan")) for each in (query, key, value)]
    for q, k in zip(rows_of(bounds_q, max_q, gradient), rows_of(bounds_k, max_k), strict=True):
        weights, grad = weights_of(query[q], key[k]), torch.einsum("qhd,khd->hqk", gradient[q], value[k])
        scores = weights * (grad - (weights * grad).sum(-1, keepdim=True)) * scale
        found[0][q] = torch.einsum("hqk,khd->qhd", scores, key[k])
        found[1][k] = torch.einsum("hqk,qhd->khd", scores, query[q])
        found[2][k] = torch.einsum("hqk,qhd->khd", weights, gradient[q])
    return tuple(found)


@pytest.fixture
def cpu_has_torchs_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Give torch's operator for rows of several lengths a kernel on the CPU; lists the longest rows of its calls."""
    calls: list[int] = []

    def forward(*arguments: Any) -> tuple[torch.Tensor, ...]:
        calls.append(arguments[5])
        return kernel_like_torchs(*arguments)

    register_kernel("torch_attn::_varlen_attn", "cpu", forward)
    register_kernel("torch_attn::_varlen_attn_backward", "cpu", gradients_like_torchs)
    monkeypatch.setattr(rows_bertpre, "has_varlen_kernel", lambda query: True)
    yield calls


@both_architectures
@both_pairs
def test_torchs_kernel_gets_what_it_needs(architecture: str, pairs: bool, cpu_has_torchs_kernel: list[int]) -> None:
    batch = pretraining_batch(pairs)
    assert_same(pretraining_model(architecture, pairs), batch, unpadded(batch))
    last = SEQUENCE if architecture == "modern" and pairs else SLOTS + pairs
    assert cpu_has_torchs_kernel == [SEQUENCE, last]


def test_the_kernel_without_dropout_is_not_asked_for_dropout(cpu_has_torchs_kernel: list[int]) -> None:
    model, batch = pretraining_model("bert", True, attention_dropout=0.5), unpadded(pretraining_batch(True))
    torch.manual_seed(0)
    losses = [model(**batch).loss for _ in range(2)]
    assert not cpu_has_torchs_kernel
    assert losses[0] != losses[1]


def test_it_works_where_torch_has_no_such_kernel() -> None:
    program = """
import sys
sys.modules["torch.nn.attention.varlen"] = None  # as in torch 2.9
from bertpre.model import rows_bertpre
from bertpre.training.unpadding import unpadded
from tests.unit.test_model_last_layer import batch, build
assert rows_bertpre.varlen_attn is None
model, inputs = build("modern", True), batch(True)
assert abs(model(**unpadded(inputs)).loss - model(**inputs).loss) < 1e-4
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.float32}, False),
        ({"device": "cpu"}, False),
        ({"capability": (7, 5)}, False),
        ({"is_built": False}, False),
        ({"hip": "6.4"}, False),
        ({"kernel": None}, False),
        ({"config": config_of("bert", hidden_size=32)}, True),
        ({"config": config_of("bert", hidden_size=32, attention_dropout=0.1)}, False),
        ({"config": config_of("bert", hidden_size=24)}, False),
        ({"config": config_of("bert", hidden_size=400)}, False),
        ({"config": BertConfig(attention_probs_dropout_prob=0.0)}, False),
    ],
)
def test_it_is_chosen_where_the_kernel_runs(
    change: dict[str, Any], chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"config": config_of("modern", hidden_size=32), "dtype": torch.bfloat16, "kernel": len}
    case = own | {"device": "cuda", "capability": (8, 0), "is_built": True, "hip": None} | change
    monkeypatch.setattr(unpadding, "varlen_attn", case["kernel"])
    monkeypatch.setattr(torch.version, "hip", case["hip"])
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: case["is_built"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: case["capability"])
    assert choose_unpadding(case["config"], case["dtype"], torch.device(case["device"])) is chosen
