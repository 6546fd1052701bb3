"""One head of attention with its own queries, keys and values; many heads, wide and narrow."""

import torch
from torch import Tensor, nn

from .dot_product import scaled_dot_product_attention


class AttentionHead(nn.Module):
    """One head: states become queries, keys and values by a matrix each (Vaswani et al. 2017, section 3.2.1).

    States (B, S, E) give (B, S, value_size) and the weights (B, S, T). Keys and values come from `memory` (B, T, E)
    where it is given (cross-attention), else from the states themselves (self-attention).
    """

    def __init__(self, hidden_size: int, key_size: int, value_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, key_size, bias=False)
        self.key = nn.Linear(hidden_size, key_size, bias=False)
        self.value = nn.Linear(hidden_size, value_size, bias=False)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        source = hidden_states if memory is None else memory
        return scaled_dot_product_attention(self.query(hidden_states), self.key(source), self.value(source), mask)


class MultiHeadAttention(nn.Module):
    """Several heads at once, joined and projected (Vaswani et al. 2017, section 3.2.2).

    States (B, S, E) give (B, S, E) and the weights (B, H, S, T); `mask` broadcasts to the weights. By default the heads
    are narrow, `head_dim` = E / H, as in every BERT; with `head_dim` = E each head is as wide as the states, and the
    output projection brings H * E numbers back to E. `memory` is as in `AttentionHead`.
    Raises ValueError where narrow heads do not divide E.
    """

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int | None = None, bias: bool = True) -> None:
        super().__init__()
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}")
        self.head_dim = head_dim or hidden_size // num_heads
        inner = num_heads * self.head_dim
        self.query = nn.Linear(hidden_size, inner, bias=bias)
        self.key = nn.Linear(hidden_size, inner, bias=bias)
        self.value = nn.Linear(hidden_size, inner, bias=bias)
        self.output = nn.Linear(inner, hidden_size, bias=bias)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        source = hidden_states if memory is None else memory
        query, key, value = (
            self.split(project(states))
            for project, states in ((self.query, hidden_states), (self.key, source), (self.value, source))
        )
        mixed, weights = scaled_dot_product_attention(query, key, value, mask)  # (B, H, S, D), (B, H, S, T)
        return self.output(mixed.transpose(1, 2).flatten(2)), weights  # (B, S, H, D) -> (B, S, H * D) -> (B, S, E)

    def split(self, states: Tensor) -> Tensor:
        """(B, S, H * D) to (B, H, S, D)."""
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


@torch.no_grad()
def copy_from_torch(attention: MultiHeadAttention, source: nn.MultiheadAttention) -> None:
    """Copy the weights of torch's module, which stacks queries, keys and values in one matrix, into ours."""
    for part, weight in zip(("query", "key", "value"), source.in_proj_weight.chunk(3), strict=True):
        getattr(attention, part).weight.copy_(weight)
    attention.output.weight.copy_(source.out_proj.weight)
    if source.in_proj_bias is not None:
        for part, bias in zip(("query", "key", "value"), source.in_proj_bias.chunk(3), strict=True):
            getattr(attention, part).bias.copy_(bias)
        attention.output.bias.copy_(source.out_proj.bias)
