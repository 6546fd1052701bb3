"""Attention sees every token and no padding, whichever kernel computes it."""

import pytest
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available

from bertpre.model import BertPreConfig, BertPreModel

BATCH, SEQUENCE, VOCABULARY = 3, 12, 90
LENGTHS = torch.tensor([[12], [7], [3]])

pytestmark = pytest.mark.parametrize("architecture", ["bert", "modern"])


def build(architecture: str, attention: str) -> BertPreModel:
    """A model with weights so large that a missing token cannot hide below the tolerance."""
    torch.manual_seed(0)
    config = BertPreConfig(
        architecture=architecture, vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=40, max_position_embeddings=16, initializer_range=0.3,
    )  # fmt: skip
    model = BertPreModel(config).eval()
    model.set_attn_implementation(attention)
    return model


def random_ids() -> torch.Tensor:
    return torch.randint(5, VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(0))


def padding_mask() -> torch.Tensor:
    return (torch.arange(SEQUENCE) < LENGTHS).long()


@pytest.mark.parametrize("padded", [False, True])
def test_eager_equals_sdpa(architecture: str, padded: bool) -> None:
    mask = padding_mask() if padded else None
    eager, sdpa = (build(architecture, attention)(random_ids(), mask)[0] for attention in ("eager", "sdpa"))
    torch.testing.assert_close(eager, sdpa, rtol=0, atol=1e-5)


@pytest.mark.slow  # compiles the kernel
def test_flex_attention_equals_eager(architecture: str) -> None:
    flex, eager = build(architecture, "flex_attention"), build(architecture, "eager")
    for mask in (None, padding_mask()):
        kept = padding_mask().bool() if mask is not None else slice(None)
        with torch.no_grad():
            torch.testing.assert_close(flex(random_ids(), mask)[0][kept], eager(random_ids(), mask)[0][kept])


@pytest.mark.skipif(not is_flash_attn_2_available(), reason="needs a GPU and the package flash_attn")
def test_flash_attention_is_near_eager(architecture: str) -> None:
    models = [build(architecture, attention).to("cuda", torch.bfloat16) for attention in ("flash_attention_2", "eager")]
    ids, kept = random_ids().cuda(), padding_mask().bool()
    flash, eager = (model(ids, padding_mask().cuda())[0].cpu()[kept].float() for model in models)
    torch.testing.assert_close(flash, eager, rtol=0.05, atol=0.05)


def varlen_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float, cu_seq_lens_q: torch.Tensor, **_: object,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """What a kernel for variable lengths does with one packed row (1, H, N, D)."""
    assert attention_mask is None and query.shape[0] == 1
    bounds = cu_seq_lens_q.tolist()
    rows = [slice(start, end) for start, end in zip(bounds, bounds[1:], strict=False)]
    parts = [(query[0, :, r] @ key[0, :, r].mT * scaling).softmax(-1) @ value[0, :, r] for r in rows]  # (H, n, D)
    return torch.cat(parts, dim=1).transpose(0, 1).unsqueeze(0), None  # (1, N, H, D)


def test_padding_is_left_out_where_the_kernel_takes_variable_lengths(
    architecture: str,
) -> None:
    AttentionInterface.register("flash_reference", varlen_attention)
    model, eager = build(architecture, "eager"), build(architecture, "eager")
    model.config._attn_implementation = "flash_reference"  # the public setter would look for a package of this name
    seen = []
    model.encoder.layer[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:2]))
    mask = padding_mask()
    ours, theirs = model(random_ids(), mask), eager(random_ids(), mask)
    assert seen == [(1, int(mask.sum()))]
    torch.testing.assert_close(ours[0][mask.bool()], theirs[0][mask.bool()], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=1e-5)
    assert (ours[0][~mask.bool()] == 0).all()
    ours[1].sum().backward(), theirs[1].sum().backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_changed_padding_changes_nothing(architecture: str, attention: str) -> None:
    model, ids, mask = build(architecture, attention), random_ids(), padding_mask()
    other_ids = torch.where(mask == 1, ids, (ids + 7) % VOCABULARY)
    kept = mask.bool()
    before, after = model(ids, mask)[0], model(other_ids, mask)[0]
    torch.testing.assert_close(before[kept], after[kept], rtol=0, atol=1e-6)
    assert (before[~kept] - after[~kept]).abs().max() > 1e-2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("masked", [False, True])
def test_changed_last_token_changes_the_first_position(architecture: str, attention: str, masked: bool) -> None:
    model, ids = build(architecture, attention), random_ids()
    mask = torch.ones_like(ids) if masked else None
    other_ids = ids.clone()
    other_ids[:, -1] = (ids[:, -1] + 7) % VOCABULARY
    difference = (model(ids, mask)[0] - model(other_ids, mask)[0])[:, 0].abs().amax(dim=-1)  # (B,)
    assert (difference > 1e-3).all()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_full_mask_equals_no_mask(architecture: str, attention: str) -> None:
    model, ids = build(architecture, attention), random_ids()
    torch.testing.assert_close(model(ids, torch.ones_like(ids))[0], model(ids)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_documents_do_not_see_each_other(architecture: str, attention: str) -> None:
    model, ids = build(architecture, attention), random_ids()
    document = (torch.arange(SEQUENCE) >= 5).long()  # two documents a row, of 5 and 7 tokens
    same_document = (document[:, None] == document[None, :]).expand(BATCH, 1, -1, -1)  # (B, 1, S, S)
    positions = torch.cat((torch.arange(5), torch.arange(7))).expand(BATCH, -1)
    packed = model(ids, same_document, position_ids=positions)[0]
    torch.testing.assert_close(packed[:, :5], model(ids[:, :5])[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(packed[:, 5:], model(ids[:, 5:])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_an_additive_mask_equals_a_boolean_one(architecture: str, attention: str) -> None:
    model, ids = build(architecture, attention), random_ids()
    is_seen = padding_mask().bool()[:, None, None, :].expand(-1, 1, SEQUENCE, -1)  # (B, 1, S, S)
    added = torch.zeros(is_seen.shape).masked_fill(~is_seen, torch.finfo(torch.float32).min)
    torch.testing.assert_close(model(ids, added)[0], model(ids, is_seen)[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(model(ids, is_seen.long())[0], model(ids, is_seen)[0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_has_no_weight_and_a_row_of_padding_alone_is_finite(architecture: str, dtype: torch.dtype) -> None:
    model, mask = build(architecture, "eager").to(dtype), padding_mask()
    mask[-1] = 0
    for name, parameter in model.named_parameters():  # "bert": scores of -693, too low to add fp16's lowest number
        if "self.query" in name or "self.key" in name:
            value = 0.0 if name.endswith("weight") else 20.0 if "query" in name else -10.0
            nn.init.constant_(parameter, value)
    found = model(random_ids(), mask, output_attentions=True)
    assert found.last_hidden_state.isfinite().all()
    for weights in found.attentions:
        assert weights.isfinite().all()
        assert (weights[:-1].transpose(1, 3)[mask[:-1] == 0] == 0).all()
