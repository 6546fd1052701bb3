"""Rows of several lengths that stand one after the other as one row, so that no layer computes padding.

Shapes: B rows, padded to S; N rows in one, B and those of unused slots; T slots in all, Q queries, R positions that are
read; H heads, D head dim, E hidden.

This file and its siblings need only torch, transformers and each other, because saving a model with custom code copies
these files alone.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn = None

PACKED_ROWS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # transformers' arguments; all or none


def has_varlen_kernel(query: Tensor) -> bool:
    """Whether torch's kernel for rows of several lengths takes such queries."""
    return varlen_attn is not None and query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)


def attention_of_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    cu_seq_lens_q: Tensor,
    cu_seq_lens_k: Tensor,
    max_length_q: int,
    max_length_k: int,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention within each of N rows that stand one after the other: (1, H, Q, D), keys (1, H, T, D), to (1, Q, H, D).

    The arguments have transformers' names: `cu_seq_lens_q` and `cu_seq_lens_k` (N + 1,), int32, are where each row's
    queries and keys begin, and the end of all, Q and T: the gradients of slots outside all rows would be uninitialised
    (pytorch issue 176793). No row is longer than `max_length_q` and `max_length_k`. Without torch's kernel, which has
    no dropout, a mask of (Q, T) says the same to sdpa.
    """
    if has_varlen_kernel(query) and not dropout:
        parts = (part[0].transpose(0, 1) for part in (query, key, value))  # (1, H, T, D) -> (T, H, D)
        bounds = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        return varlen_attn(*parts, *bounds).unsqueeze(0), None  # scaled by D ** -0.5, as `scaling` is
    row_of_query, row_of_key = (
        torch.searchsorted(bounds, torch.arange(part.shape[2], device=part.device, dtype=bounds.dtype), right=True)
        for part, bounds in ((query, cu_seq_lens_q), (key, cu_seq_lens_k))
    )
    is_same_row = row_of_query[:, None] == row_of_key  # (Q, T)
    mixed = F.scaled_dot_product_attention(query, key, value, is_same_row, dropout, scale=scaling)
    return mixed.transpose(1, 2), None


# ---- shapes that depend on B and S alone, made ahead of time: bertpre/training/unpadding.py --------------------------


def take_tokens(inputs: Iterable[Tensor | None], token_index: Tensor) -> Iterator[Tensor | None]:
    """Each of the inputs (B, S, ...) at the flat positions (T,) of the tokens: (1, T, ...)."""
    return (None if each is None else each.flatten(0, 1)[token_index].unsqueeze(0) for each in inputs)


def encode_tokens(
    encoder: nn.Module,
    tokens: Tensor,
    position_ids: Tensor,
    token_slots: Tensor,
    row_bounds: Tensor,
    needed: Tensor | None,
    **kwargs: object,
) -> Tensor:
    """Tokens (1, T, E) to states (B, S, E), or to those at the positions (B, R) that are needed, (B, R, E).

    `token_slots` (B, S) say where each position's token is, `row_bounds` (N + 1,) where each row begins, and the end.
    The last layer's queries are those that are needed, and one of each row of unused slots: none is without a query.
    """
    rows, length = token_slots.shape
    kwargs |= {"cu_seq_lens_q": row_bounds, "cu_seq_lens_k": row_bounds}
    kwargs |= {"max_length_q": length, "max_length_k": length}
    if needed is None:
        return encoder(tokens, None, position_ids, **kwargs)[0][token_slots]
    count, number = needed.shape[1], torch.arange(len(row_bounds), device=tokens.device, dtype=row_bounds.dtype)
    queries = torch.cat((token_slots.gather(1, needed).flatten(), row_bounds[rows:-1].long())).unsqueeze(0)  # (1, Q)
    query_bounds = number.clamp(max=rows) * count + (number - rows).clamp(min=0)  # R queries in a row, then one
    read_rows = {"cu_seq_lens_q": query_bounds, "max_length_q": count}
    states = encoder(tokens, None, position_ids, queries, read_rows, **kwargs)  # (1, Q, E)
    return states[0, : rows * count].unflatten(0, (rows, count))


# ---- shapes that depend on the rows' lengths, which the CPU waits for ------------------------------------------------


def encode_unpadded(
    encoder: nn.Module, hidden_states: Tensor, attention_mask: Tensor, position_ids: Tensor, **kwargs: object
) -> Tensor:
    """Embeddings (B, S, E) to states (B, S, E), 0 at padding, by a kernel that takes transformers' packed rows."""
    is_token = attention_mask.bool()  # (B, S)
    lengths = is_token.sum(dim=1, dtype=torch.int32)  # (B,)
    bounds, longest = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), int(lengths.max())  # (B + 1,)
    rows = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
    positions = position_ids.expand_as(is_token)[is_token].unsqueeze(0)  # (1, T)
    tokens = encoder(hidden_states[is_token].unsqueeze(0), None, positions, **rows, **kwargs)  # (1, T, E)
    padded = tokens.new_zeros(hidden_states.shape)  # (B, S, E)
    padded[is_token] = tokens[0]
    return padded
