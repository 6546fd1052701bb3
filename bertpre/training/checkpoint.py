"""Checkpoints: safetensors and JSON, written beside and renamed, checked when read."""

import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed import ProcessGroup

from bertpre.errors import UserError, is_disk_full
from bertpre.files import file_checksum, write_text
from bertpre.training.agreement import broadcast_from_first, on_every_process
from bertpre.training.background import BackgroundWriter
from bertpre.training.sharding import gather_each, shard_like

logger = logging.getLogger(__name__)
FILES = ("model.safetensors", "optimizer.safetensors")
MEMORY = "memory.safetensors"
SKIPPED = "skipped.json"
PARTIAL = ".partial"  # the end of the name of a checkpoint that is being written or removed
ROOM = 2  # times the size of a snapshot: the free memory that it needs

Stamps = list[tuple[str, int, int]]  # of a checkpoint's files: name, size, time of the last change
Tensors = dict[str, dict[str, torch.Tensor]]  # by file and name


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a training is saved, and which checkpoints stay."""

    folder: Path
    every: int = 0  # steps; 0: only before the first step and after the last
    keep: int = 2  # the newest
    keep_every: float | None = None  # seconds of training; of the older ones, the first in each such stretch
    every_seconds: float | None = None  # save too where so many have passed since the last checkpoint
    # What this process found when it wrote or read a checkpoint: its files as they were, and whether it was whole.
    checked: dict[Path, tuple[Stamps, bool]] = field(default_factory=dict, init=False, compare=False)

    def is_whole(self, path: Path) -> bool:
        """Whether a checkpoint is whole; its files are read only where they have changed since the last time."""
        found = stamps(path)
        if path not in self.checked or self.checked[path][0] != found:
            self.checked[path] = found, read_state(path) is not None
        return self.checked[path][1]


class Memory(Protocol):
    """What evaluations remember from one to the next, such as the best weights so far; a checkpoint holds it."""

    def state(self) -> dict[str, Any]:
        """The part that is JSON."""
        ...

    def tensors(self) -> dict[str, torch.Tensor]:
        """The part that is tensors."""
        ...

    def load(self, state: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of both."""
        ...


def save_checkpoint(
    place: Checkpoints,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    state: dict[str, Any],
    memory: Memory | None = None,
    writes: bool = True,
    background: BackgroundWriter | None = None,
) -> None:
    """Write `step-XXXXXXXX`, whole or not at all, then remove what `outdated` names.

    `state` is JSON: the `step`, the position in the data, the seconds used. Weights are saved as they are held (fp32).
    Where weights are sharded, all processes call this and one `writes`. With `background`, which must be idle, a copy
    in the host's memory is written there while training continues; without the memory for one it is written at once.
    Raises UserError where the disk is full; earlier checkpoints stay as they are.
    """
    parts = {FILES[0]: dict(model.named_parameters()), FILES[1]: dict(optimizer_tensors(optimizers))}
    if memory is not None:
        parts[MEMORY], state = memory.tensors(), {**state, "memory": memory.state()}
    copies = background is not None and has_room(parts)
    tensors = {name: gather_each(values.items(), writes, copies) for name, values in parts.items()}
    state = deepcopy(state)
    if writes and background is not None and copies:
        background.start(lambda: write_checkpoint(place, tensors, state))
    elif writes:
        write_checkpoint(place, tensors, state)


def has_room(parts: Tensors) -> bool:
    """Whether twice the size of a copy is free, so that neither other programs nor the next step run out of memory."""
    size = sum(value.numel() * value.element_size() for values in parts.values() for value in values.values())
    return psutil.virtual_memory().available > ROOM * size


def write_checkpoint(place: Checkpoints, tensors: Tensors, state: dict[str, Any]) -> None:
    """Write a checkpoint beside its place and publish it by renaming; then remove what is outdated."""
    folder, step = place.folder, state["step"]
    target = folder / f"step-{step:08d}"
    partial = folder / f"{target.name}{PARTIAL}"
    for left in folder.glob(f"*{PARTIAL}"):  # by a kill
        shutil.rmtree(left, ignore_errors=True)
    try:
        write_files(partial, tensors, state)
        if target.exists():  # damaged, and its step was trained again
            target.rename(free_name(folder / f"{target.name}.damaged"))
        partial.rename(target)
        sync_folder(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        remedy = "free some space" if is_disk_full(error) else "mend that"
        intact = "Earlier checkpoints are intact: " if list_checkpoints(folder) else ""
        raise UserError(
            f"{folder}: the checkpoint of step {step} cannot be written: {error}. {intact}{remedy} and run the same "
            "command to resume"
        ) from None
    place.checked[target] = stamps(target), True
    for old in outdated(place, target):
        remove(old)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint that is no longer needed; what cannot be removed now is not one, and goes with the next."""
    doomed = checkpoint.with_name(checkpoint.name + PARTIAL)
    with suppress(OSError):
        checkpoint.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def discard_first(folder: Path) -> None:
    """Remove the checkpoint of step 0 and unfinished ones, and the folder where no other is left in it."""
    for path in (folder / "step-00000000", *folder.glob(f"*{PARTIAL}")):
        shutil.rmtree(path, ignore_errors=True)
    if not any(folder.glob("step-*")):
        shutil.rmtree(folder, ignore_errors=True)


def write_files(partial: Path, tensors: Tensors, state: dict[str, Any]) -> None:
    """Write a checkpoint's files, and wait until they are on the disk."""
    partial.mkdir(parents=True)
    for name, values in tensors.items():
        save_file({key: value.contiguous() for key, value in values.items()}, partial / name)
    checksums = {name: file_checksum(partial / name) for name in tensors} | {"state": state_checksum(state)}
    (partial / "state.json").write_text(json.dumps({**state, "sha256": checksums}, indent=2) + "\n", encoding="utf-8")
    for name in (*tensors, "state.json"):
        with (partial / name).open("r+b") as stream:  # Windows refuses to flush what may only be read
            os.fsync(stream.fileno())
    sync_folder(partial)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's list of files is on the disk, where the file system can do that for folders."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def stamps(path: Path) -> Stamps:
    """What changes when a checkpoint's files are written to; their content is not read."""
    found = ((file.name, file.stat()) for file in sorted(path.glob("*")))
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]


def free_name(path: Path) -> Path:
    """The path, with a number added where it is taken."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return path if not path.exists() else next(other for other in others if not other.exists())


def outdated(place: Checkpoints, newest: Path) -> list[Path]:
    """The checkpoints to remove: those before `newest`, except the last `keep` and the first of each `keep_every`.

    A damaged checkpoint is never removed, and neither is one after `newest`: it may be all that is left of another run.
    """
    candidates = [path for path in list_checkpoints(place.folder) if path.name <= newest.name][: -place.keep]
    kept = first_of_each(candidates, place.keep_every) if place.keep_every else []
    return [path for path in candidates if path not in kept and place.is_whole(path)]


def first_of_each(paths: list[Path], seconds: float) -> list[Path]:
    """The first checkpoint in each stretch of `seconds` of training."""
    first: dict[int, Path] = {}
    for path in paths:
        try:
            stretch = int(json.loads((path / "state.json").read_text(encoding="utf-8"))["elapsed"] // seconds)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        first.setdefault(stretch, path)
    return list(first.values())


def read_skipped(folder: Path) -> dict[int, list[str]]:
    """The steps that are left out since their gradients were not finite, with the documents of each."""
    file = folder / SKIPPED
    if not file.exists():
        return {}
    try:
        return {int(step): documents for step, documents in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError):
        raise UserError(f"{file} is damaged; remove it: the steps that it lists are then tried once more") from None


def write_skipped(folder: Path, skipped: dict[int, list[str]]) -> None:
    """Record all steps that are left out, before the training goes back."""
    write_text(folder / SKIPPED, json.dumps(skipped, indent=2) + "\n")


def list_checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit())


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    memory: Memory | None = None,
    group: ProcessGroup | None = None,
) -> dict[str, Any] | None:
    """Restore the newest checkpoint that is whole; returns its state, or None where there is none.

    The first process of a group chooses, the others restore the same one. A damaged checkpoint is reported and stays
    where it is. Raises UserError for a checkpoint of another model, and, on every process, where one of them cannot
    read what the first one can.
    """
    chosen = broadcast_from_first(lambda: newest_whole(folder), group)
    if chosen is None:
        return None
    path, state = folder / chosen[0], chosen[1]
    is_checked = group is None or torch.distributed.get_rank(group) == 0
    tensors = on_every_process(lambda: read_tensors(path, state, is_checked), group)
    if shapes_of(tensors[FILES[0]].items()) != shapes_of(model.named_parameters()):
        raise UserError(
            f"{path}: this checkpoint is of a model of another size or kind, so of another training; move it away and "
            "run the same command again"
        )
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(shard_like(tensors[FILES[0]][name], value))
    restore_optimizers(optimizers, tensors[FILES[1]])
    if memory is not None:
        memory.load(state["memory"], tensors[MEMORY])
    return state


def shapes_of(weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Size]:
    """The shapes of weights by name."""
    return {name: value.shape for name, value in weights}


def newest_whole(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """The name and the state of the newest checkpoint that is whole, or None where there is none."""
    damaged = 0
    for path in reversed(list_checkpoints(folder)):
        state = read_state(path)
        if state is not None:
            return path.name, state
        damaged += 1
        logger.warning("checkpoint %s is damaged; trying the one before it", path)
    if damaged:
        logger.warning("no checkpoint in %s is whole: the training starts again at its first step", folder)
    return None


def read_tensors(path: Path, state: dict[str, Any], is_checked: bool) -> Tensors:
    """A checkpoint's tensors by file; raises UserError where it is not the whole one that has this state."""
    own = state if is_checked else read_state(path)
    if own is None or state_checksum(own) != state_checksum(state):  # NaN, which a metric may be, equals nothing
        raise UserError(
            f"{path}: this checkpoint, which the first process resumes from, is missing, damaged or another one here; "
            "all processes must see the same files: check the shared file system and run the same command again"
        )
    return {name: load_file(path / name) for name in (*FILES, *((MEMORY,) if "memory" in state else ()))}


def read_state(path: Path) -> dict[str, Any] | None:
    """A checkpoint's state, or None where a file is missing or differs from its checksum."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        checksums = state.pop("sha256")
        names = (*FILES, MEMORY) if MEMORY in checksums else FILES
        found = {name: file_checksum(path / name) for name in names} | {"state": state_checksum(state)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return state if found == checksums else None


def state_checksum(state: dict[str, Any]) -> str:
    """The SHA-256 of a state's content, independent of its layout in the file."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def optimizer_tensors(optimizers: list[torch.optim.Optimizer]) -> Iterator[tuple[str, torch.Tensor]]:
    """The optimizers' states with flat names: optimizer number, parameter number, name of the state."""
    for number, optimizer in enumerate(optimizers):
        for parameter, values in optimizer.state_dict()["state"].items():
            for name, value in values.items():
                yield f"{number}.{parameter}.{name}", torch.as_tensor(value)


def restore_optimizers(optimizers: list[torch.optim.Optimizer], tensors: dict[str, torch.Tensor]) -> None:
    """The inverse of `optimizer_tensors`; learning rates are not restored, because they follow from progress.

    Raises UserError where the states are of weights in another order, as an older version of bertpre had them.
    """
    states: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in optimizers]
    held = [[value for group in optimizer.param_groups for value in group["params"]] for optimizer in optimizers]
    for key, value in tensors.items():
        number, parameter, name = key.split(".", 2)
        place = int(number), int(parameter)
        fits = place[1] < len(held[place[0]]) and value.shape in ((), held[place[0]][place[1]].shape)
        if not fits:
            raise UserError(
                "the optimizer's state in this checkpoint was written by another version of bertpre, which ordered the "
                "weights otherwise: finish the training with that version, or start anew in an empty output_dir"
            )
        states[place[0]].setdefault(place[1], {})[name] = shard_like(value, held[place[0]][place[1]])
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
