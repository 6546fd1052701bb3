"""First weights with which "bert" attends to neighbouring tokens, so that its MLM loss leaves the plateau early.

`[MASK]` says nothing about the hidden word, so the loss stays at word frequencies until some head finds its neighbours.
Rotary positions make that easy; learned positions begin as noise, and each pair of positions has to be learned alone.
"""

import math

import torch
from torch import Tensor

from bertpre.model.modeling_bertpre import BertPreForPreTraining

OFFSETS = (-1, 1, -2, 2)  # the neighbours to which the heads of the first layer attend, in turn
AMPLITUDE = 2.0  # standard deviation of the positions, in `initializer_range`: of a token, they are then two thirds
SHARPNESS = 16.0  # the attention score of the neighbour, if a token were its position alone


@torch.no_grad()
def attend_to_neighbours(model: BertPreForPreTraining) -> None:
    """Replace the position embeddings (P, E) by waves, and queries and keys of the first layer by offsets between them.

    A position is E / 2 points on a circle, each turning at its own frequency, in a random basis. Keys read some of the
    points; queries read the same, turned by the head's offset d. The score of position i for j is then a sum of
    cos(f (i + d - j)), which is largest at j = i + d. Training leaves the positions unchanged: at the
    full rate the first steps, mostly noise, seem to erase the waves (docs/experiments.md, 2026-11-25).
    """
    config, embeddings = model.config, model.bert.embeddings.position_embeddings
    basis = wave_basis(config.hidden_size)  # (E / 2, 2, E)
    frequencies, fast = wave_frequencies(len(basis))
    turns = torch.arange(len(embeddings.weight)).unsqueeze(1) * frequencies  # (P, E / 2)
    points = torch.stack((turns.cos(), turns.sin()), -1).flatten(1) * math.sqrt(2)  # (P, E), standard deviation 1
    embeddings.weight.copy_(points @ basis.flatten(0, 1) * AMPLITUDE * config.initializer_range)
    attention, count = model.bert.encoder.layer[0].attention.self, config.head_dim // 2
    scale = math.sqrt(SHARPNESS * math.sqrt(config.head_dim) / max(1, count))
    for head in range(config.num_attention_heads):
        read = torch.arange(head * count, (head + 1) * count) % fast
        rows = slice(head * config.head_dim, head * config.head_dim + 2 * count)
        turned = turn(basis[read], frequencies[read] * OFFSETS[head % len(OFFSETS)])
        attention.query.weight[rows] = scale * turned.flatten(0, 1)
        attention.key.weight[rows] = scale * basis[read].flatten(0, 1)


def wave_basis(hidden_size: int) -> Tensor:
    """Random orthonormal vectors in pairs, (E / 2, 2, E)."""
    vectors, _ = torch.linalg.qr(torch.randn(hidden_size, hidden_size))
    return vectors[: hidden_size // 2 * 2].unflatten(0, (-1, 2))


def wave_frequencies(count: int) -> tuple[Tensor, int]:
    """Turns of each point from a position to the next, in radians, and how many of them, the first, tell neighbours.

    Those are drawn evenly from 0 to pi, which makes other offsets cancel out. The rest are slow, down to a thousandth,
    and tell far positions apart.
    """
    fast = (count + 1) // 2
    slow = 1000 ** -torch.linspace(0, 1, count - fast + 1)[: count - fast]
    return torch.cat((torch.rand(fast) * math.pi, slow)), fast


def turn(pairs: Tensor, angles: Tensor) -> Tensor:
    """The vectors (N, 2, E) that read from a point of each plane what `pairs` reads after a turn by `angles` (N,)."""
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    first, second = pairs.unbind(1)
    return torch.stack((cosine * first - sine * second, sine * first + cosine * second), 1)
