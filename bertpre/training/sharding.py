"""Weights, gradients and optimizer states sharded over the processes (FSDP2), and gathered again to be saved."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard_model(model: nn.Module, dtype: torch.dtype) -> None:
    """Shard the weights over all processes, in place; a layer's weights are gathered, in `dtype`, while it computes.

    Each process keeps its share in fp32 and sums gradients in fp32, so a working copy is not needed.
    """
    # Inputs stay as they are: rounded to bf16, the counts of targets would be wrong.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def is_sharded(model: nn.Module) -> bool:
    """Whether the weights are sharded."""
    return isinstance(model, FSDPModule)


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, or its shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_full(tensor: Tensor) -> Tensor:
    """The full tensor; where it is sharded, every process has to call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_each(tensors: Iterable[tuple[str, Tensor]], keeps: bool, copies: bool = False) -> dict[str, Tensor]:
    """Full tensors by name on the process that `keeps` them, none on the others.

    With `copies` they are all copies on the CPU, which later steps do not change.

    Where they are sharded, every process has to call this; one is gathered after the other and moved to the CPU, so no
    GPU holds more than one of them.
    """
    kept = {}
    for name, tensor in tensors:
        full = gather_full(tensor.detach())
        if keeps and copies:
            kept[name] = full.to("cpu", copy=True)
        elif keeps:
            kept[name] = full.cpu() if isinstance(tensor, DTensor) else full
        del full  # before the next one is gathered
    return kept


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A full tensor, sharded as another one is."""
    if not isinstance(other, DTensor) or tensor.shape != other.shape:
        return tensor
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
