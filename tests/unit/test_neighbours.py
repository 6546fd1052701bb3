"""First weights with which heads attend to neighbouring tokens."""

import pytest
import torch
from torch import Tensor

from bertpre.model import BertPreConfig, BertPreForPreTraining
from bertpre.pretraining.neighbours import OFFSETS, attend_to_neighbours


def model_of(**sizes: int) -> BertPreForPreTraining:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 16} | sizes
    return BertPreForPreTraining(BertPreConfig(vocab_size=500, **sizes)).eval()


@torch.no_grad()
def attention(model: BertPreForPreTraining) -> Tensor:
    """Attention of the first layer (H, S, S), the mean over random texts as long as the model can read."""
    model.set_attn_implementation("eager")
    ids = torch.randint(5, 500, (4, 512), generator=torch.Generator().manual_seed(1))
    return model.bert(ids, output_attentions=True).attentions[0].mean(0)


def offset_weights(head: Tensor) -> dict[int, float]:
    return {offset: head.diagonal(offset).mean().item() for offset in range(-6, 7)}


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_each_head_attends_to_its_neighbour_at_every_position(heads: int) -> None:
    model = model_of(num_attention_heads=heads)
    uniform = 1 / 512
    assert max(max(offset_weights(head).values()) for head in attention(model)) < 2 * uniform
    attend_to_neighbours(model)
    for head, offset in zip(attention(model), OFFSETS * 2, strict=False):
        weights = offset_weights(head)
        nearest = weights.pop(offset)
        assert nearest > 10 * uniform
        assert nearest > 4 * max(weights.values())
        assert head.diagonal(offset)[-64:].mean() > 10 * uniform  # also at the last positions


def test_only_positions_and_the_first_queries_and_keys_change() -> None:
    model, plain = model_of(), model_of()
    attend_to_neighbours(model)
    before = plain.state_dict()
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    first = "bert.encoder.layer.0.attention.self."
    positions = "bert.embeddings.position_embeddings.weight"
    assert changed == {positions, f"{first}query.weight", f"{first}key.weight"}
    assert model.state_dict()[positions].std().item() == pytest.approx(0.04, rel=0.05)


def test_the_seed_decides() -> None:
    weights = []
    for _ in range(2):
        model = model_of()
        attend_to_neighbours(model)
        weights.append(model.state_dict())
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


@pytest.mark.parametrize(("hidden_size", "heads"), [(9, 3), (8, 1), (5, 5)])
def test_odd_sizes_are_taken(hidden_size: int, heads: int) -> None:
    model = model_of(hidden_size=hidden_size, num_attention_heads=heads)
    attend_to_neighbours(model)
    assert all(value.isfinite().all() for value in model.state_dict().values())
