"""Models in shorter types."""

import copy
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def in_type(model: Model, dtype: torch.dtype) -> Model:
    """The model itself in fp32, else a copy with its weights in `dtype`."""
    return model if dtype == torch.float32 else cast_weights(copy.deepcopy(model), dtype)


def cast_weights(model: Model, dtype: torch.dtype) -> Model:
    """The same model with its weights in `dtype`, cast in place.

    What its files do not hold keeps its type, as in transformers' `from_pretrained`: rotary frequencies in bf16, which
    `model.to(dtype)` makes, turn two tokens that are 512 apart by up to half a radian too far.
    """
    saved = model.state_dict().keys()
    constants = [(name, buffer) for name, buffer in model.named_buffers() if name not in saved]
    model.to(dtype)
    for name, buffer in constants:
        module, _, last = name.rpartition(".")
        setattr(model.get_submodule(module), last, buffer)
    return model
