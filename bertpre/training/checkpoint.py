"""Checkpoints: safetensors and JSON, written beside and renamed, checked when read."""

import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bertpre.data.store import file_checksum

logger = logging.getLogger(__name__)
FILES = ("model.safetensors", "optimizer.safetensors")


def save_checkpoint(
    folder: Path, step: int, model: nn.Module, optimizers: list[torch.optim.Optimizer], state: dict[str, Any], keep: int
) -> Path:
    """Write `step-XXXXXXXX` into `folder`, whole or not at all, and remove all but the newest `keep`.

    `state` is JSON: the position in the data, the seconds used. Weights are saved as they are held (fp32).
    """
    target = folder / f"step-{step:08d}"
    partial = folder / f"{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights = {name: value.detach().contiguous() for name, value in model.named_parameters()}
    save_file(weights, partial / FILES[0])
    save_file(optimizer_tensors(optimizers), partial / FILES[1])
    state = {"step": step, **state}
    checksums = {name: file_checksum(partial / name) for name in FILES} | {"state": state_checksum(state)}
    (partial / "state.json").write_text(json.dumps({**state, "sha256": checksums}, indent=2) + "\n")
    shutil.rmtree(target, ignore_errors=True)  # only ever a damaged one, of a step that was trained again
    partial.rename(target)
    up_to_here = [path for path in list_checkpoints(folder) if path.name <= target.name]  # damaged ones may lie ahead
    for old in up_to_here[:-keep]:
        shutil.rmtree(old)
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit())


def load_checkpoint(folder: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any] | None:
    """Restore the newest checkpoint that is whole; returns its state, or None where there is none.

    A damaged one is reported and left where it is.
    """
    for path in reversed(list_checkpoints(folder)):
        state = read_state(path)
        if state is None:
            logger.warning("checkpoint %s is damaged; going back to the one before", path)
            continue
        weights = load_file(path / FILES[0])
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(weights[name])
        restore_optimizers(optimizers, load_file(path / FILES[1]))
        return state
    return None


def read_state(path: Path) -> dict[str, Any] | None:
    """A checkpoint's state, or None where a file is missing or differs from its checksum."""
    try:
        state = json.loads((path / "state.json").read_text())
        checksums = state.pop("sha256")
        found = {name: file_checksum(path / name) for name in FILES} | {"state": state_checksum(state)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return state if found == checksums else None


def state_checksum(state: dict[str, Any]) -> str:
    """The SHA-256 of a state's content, however it is laid out in the file."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def optimizer_tensors(optimizers: list[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    """The optimizers' states under flat names: number of the optimizer, of the parameter, name of the state."""
    return {
        f"{number}.{parameter}.{name}": torch.as_tensor(value).contiguous()
        for number, optimizer in enumerate(optimizers)
        for parameter, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def restore_optimizers(optimizers: list[torch.optim.Optimizer], tensors: dict[str, torch.Tensor]) -> None:
    """The inverse of `optimizer_tensors`; learning rates are not state, they follow from progress."""
    states: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in optimizers]
    for key, value in tensors.items():
        number, parameter, name = key.split(".", 2)
        states[int(number)].setdefault(int(parameter), {})[name] = value
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
