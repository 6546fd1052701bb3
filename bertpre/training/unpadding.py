"""Micro-batches whose padding is not computed: their tokens form one row, whose length is one of a few.

Lengths and indices are made here, on the CPU and ahead of time. So the device is never waited for, and shapes repeat:
at most LEVELS + 1 numbers of slots for one shape of rows. One compiled program serves them all.
"""

import numpy as np
import torch
from transformers import PreTrainedConfig

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.rows_bertpre import varlen_attn
from bertpre.training.metrics import Batch

LEVELS = 16  # numbers of slots: sixteenths of the padded rows, so on average a thirty-second of them is unused
LARGEST_HEAD, HEAD_MULTIPLE, FIRST_CAPABILITY = 192, 8, (8, 0)  # of torch's flash kernel and its backward pass


def choose_unpadding(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether padded rows train without their padding: where torch's kernel for rows of several lengths can do it.

    It runs on NVIDIA's GPUs from Ampere on, in bf16 and fp16, and has no dropout of attention probabilities. Elsewhere
    padding is computed, and masked.
    """
    if device.type != "cuda" or varlen_attn is None or not isinstance(config, BertPreConfig):
        return False
    has_kernel = torch.backends.cuda.is_flash_attention_available() and torch.version.hip is None
    takes_heads = config.head_dim % HEAD_MULTIPLE == 0 and config.head_dim <= LARGEST_HEAD
    is_new = has_kernel and torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY
    return is_new and takes_heads and dtype != torch.float32 and config.attention_probs_dropout_prob == 0


def unpadded(batch: Batch) -> Batch:
    """A batch, on the CPU, with what a BertPre model needs to leave its padding out; without a mask, as it is.

    The tokens of all B rows stand one after the other in T slots, then come some padding positions as unused slots:
    token_index (T,), the position, row * S + column, of each slot; token_slots (B, S), the slot of each position, of
    padding without one any slot; row_bounds (N + 1,), int32, where each row begins, and the end. The last N - B rows
    are made of unused slots, since a kernel leaves slots outside all rows uninitialised. Each has at least one slot
    and at most S. N depends on B and S alone.
    """
    if "attention_mask" not in batch:
        return batch
    is_token = batch["attention_mask"].numpy() > 0
    places, longest = is_token.size, is_token.shape[1]
    step = -(-places // LEVELS)
    unused_rows = -(-step // max(longest - 1, 1))  # enough for what rounding up and a slot for each of them leave over
    ends = is_token.sum(axis=1).cumsum()
    tokens = ends[-1]
    slots = min(-(-(tokens + unused_rows) // step) * step, places + unused_rows)
    unused_ends = tokens + (slots - tokens) * np.arange(1, unused_rows + 1) // unused_rows
    order = np.argsort(~is_token, axis=None, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(places)
    added = {
        "token_index": np.resize(order, slots),
        # Spread evenly: the gradients, 0, of many positions at one slot would be added up one after the other.
        "token_slots": (rank % slots).reshape(is_token.shape),
        "row_bounds": np.concatenate([[0], ends, unused_ends]).astype(np.int32),
    }
    return {**batch, **{name: torch.from_numpy(array) for name, array in added.items()}}
