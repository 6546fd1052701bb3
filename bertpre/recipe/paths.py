"""Paths in a recipe: found from the current directory, kept absolute, and followed when a run directory moves."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BESIDE = ("held_out", "validation")  # keys that hold a split of the section's path, or a path
PATH_KEYS = ("path", "init", "validation_path", *BESIDE)  # keys that may hold a path on this machine
NAMES = ("", "sample", "pretrained", "random")  # their values that are never paths


def make_local_paths_absolute(values: dict[str, Any], stored: dict[str, Any] | None = None) -> dict[str, Any]:
    """Replace, in place, each relative path that exists by its absolute path; returns `values`.

    `~` becomes the home directory, since the shell leaves it alone after "=". Patterns stay patterns. Hub ids, names of
    splits and paths that do not exist stay as they are, unless `stored`, the recipe of the run directory, has an
    absolute path with the same end: the run was started in another directory.
    """
    known = {key: holder[name] for key, holder, name in paths_in(stored or {})}
    values["output_dir"] = os.path.expanduser(values["output_dir"])
    for key, holder, name in paths_in(values):
        holder[name] = os.path.expanduser(holder[name])
        given, before = holder[name], known.get(key, "")
        if os.path.isabs(given):
            continue
        if is_found(given):
            start = glob.escape(os.getcwd()) if is_pattern(given) else os.getcwd()
            holder[name] = os.path.normpath(os.path.join(start, given))
        elif os.path.isabs(before) and before.endswith(os.sep + os.path.normpath(given).replace("../", "")):
            holder[name] = before
    return values


def follow_move(values: dict[str, Any], folder: Path, prefer_near: bool = False) -> dict[str, Any]:
    """Adapt, in place, the recipe that a run directory holds to where the folder is now; returns `values`.

    `output_dir` becomes the folder. A path into the run follows it. Another path that is no longer there is looked for
    at the same place relative to the run, since a project may have moved as a whole; with `prefer_near`, there first.
    """
    old, new = str(values.get("output_dir", "")), os.path.abspath(folder)
    values["output_dir"] = new
    for _, holder, name in paths_in(values):
        given = holder[name]
        if not old or os.path.isabs(given) != os.path.isabs(old):
            continue
        from_run = os.path.relpath(given, old)
        near = os.path.normpath(os.path.join(new, from_run))
        is_inside = from_run.split(os.sep)[0] != os.pardir
        if is_found(near) and (is_inside or prefer_near or not is_found(given)):
            holder[name] = near
    return values


def paths_in(values: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """The dotted key of every value that may be a path, the mapping that holds it, and its name there."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for name, value in items:
        if name not in PATH_KEYS or not isinstance(value, str):
            yield from paths_in(value, f"{prefix}{name}.")
        elif value not in NAMES and not (name in BESIDE and is_split(value)):
            yield f"{prefix}{name}", values, name


def is_split(place: str) -> bool:
    """Whether texts beside others are the split of a dataset, whatever files there are of that name."""
    return not {"/", "\\"} & set(place) and not Path(place).suffix


def is_found(path: str) -> bool:
    """Whether a path or a pattern exists, seen from the current directory."""
    return os.path.exists(path) or (is_pattern(path) and next(glob.iglob(path, recursive=True), None) is not None)


def is_pattern(path: str) -> bool:
    """Whether a path has wildcards; a file whose name merely looks so has none."""
    return glob.has_magic(path) and not os.path.exists(path)
