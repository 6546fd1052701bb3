"""The run directory: one folder, one recipe; it is claimed before anything is written, and remembers what was done."""

import json
import os
import platform
import uuid
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from bertpre.errors import UserError
from bertpre.recipe import Recipe, differences, load_recipe, to_yaml

LOCK = ".lock"
STAGES = ("prepare", "pretrain", "finetune", "evaluate")
ARTEFACTS = {"prepare": "data", "pretrain": "checkpoints", "finetune": "finetuned", "evaluate": "predictions.csv"}
FIRST_READER = {  # the first stage that reads a section; from then on it cannot change; `prepare` changes no result
    "seed": "prepare", "corpus": "prepare", "tokenizer": "prepare", "pairs": "prepare",
    "model": "pretrain", "training": "pretrain", "checkpoint": "pretrain",
    "finetune": "finetune", "evaluate": "evaluate",
}  # fmt: skip


# What changes no number of a training: these may differ when it goes on.
FREE = (
    "training.log_every", "training.wandb_project", "training.tensorboard", "training.price_per_hour",
    "checkpoint.every", "checkpoint.keep", "checkpoint.keep_every",
)  # fmt: skip
LOCKS: dict[Path, IO] = {}  # of the folders this process works in, held until it ends


def claim(recipe: Recipe) -> Path:
    """Make `output_dir` ready for this recipe; returns its path.

    Raises UserError where it cannot be written, holds something else, another process is at work there, or another
    recipe has begun there. A key that only a stage not yet begun reads may still be changed, and so may one of `FREE`.
    """
    folder = Path(recipe.output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError
    except OSError as error:
        reason = type(error).__name__
        raise UserError(
            f"output_dir: {folder} cannot be written ({reason}); give another with output_dir=FOLDER"
        ) from None
    lock(folder)
    kept = folder / "recipe.yaml"
    if kept.exists():
        refuse_other_recipe(recipe, kept)
    elif any(path.name != LOCK for path in folder.iterdir()):
        raise UserError(
            f"output_dir: {folder} holds something else than a run; give an empty folder with output_dir=FOLDER"
        )
    write_text(kept, to_yaml(recipe))
    return folder


def refuse_other_recipe(recipe: Recipe, kept: Path) -> None:
    """Raise UserError where a finished or begun stage read a key that is different now."""
    changed = differences(load_recipe(str(kept), [f"output_dir={json.dumps(recipe.output_dir)}"]), recipe)
    binding = [key for key in changed if key.split(".")[0] in FIRST_READER and key not in FREE]
    frozen = [key for key in binding if (kept.parent / ARTEFACTS[FIRST_READER[key.split(".")[0]]]).exists()]
    if frozen:
        raise UserError(
            f"output_dir: {kept.parent} was begun with another recipe, which differs in {', '.join(frozen)}; "
            "nothing was changed; give another folder with output_dir=FOLDER, or the old values "
            f"(what may change in a training: {', '.join(FREE)})"
        )


def lock(folder: Path) -> None:
    """Hold a folder for this process alone until it ends, however it ends; raises UserError where another has it."""
    if folder.absolute() in LOCKS or fcntl is None:
        return
    file = (folder / LOCK).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise UserError(
            f"output_dir: another process ({file.read().strip() or 'unknown'}) is at work in {folder}; wait for it, or "
            "give another folder with output_dir=FOLDER"
        ) from None
    except OSError:  # a file system without locks
        return
    file.truncate(0)
    file.write(f"{os.getpid()} on {platform.node()}")
    file.flush()
    LOCKS[folder.absolute()] = file


def load_run(folder: str | Path) -> tuple[Path, Recipe]:
    """An existing run's folder and recipe; raises UserError where it is none."""
    folder = Path(folder)
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder} is no run directory: it has no recipe.yaml")
    return folder, load_recipe(str(folder / "recipe.yaml"))


def read_results(folder: Path) -> dict[str, Any]:
    """The figures of the stages so far."""
    file = folder / "results.json"
    return json.loads(file.read_text()) if file.exists() else {}


def write_results(folder: Path, stage: str, figures: dict[str, Any]) -> None:
    """Set one stage's figures."""
    results = read_results(folder) | {stage: figures}
    write_text(folder / "results.json", json.dumps(results, indent=2) + "\n")


def is_finished(folder: Path, stage: str) -> bool:
    """Whether a stage has left its figures."""
    return stage in read_results(folder)


def write_text(file: Path, text: str) -> None:
    """Replace a file whole: a killed process leaves the old one or the new one, and so do several at once."""
    partial = file.with_name(f"{file.name}.{uuid.uuid4().hex[:8]}.partial")
    content = text.encode()
    try:
        partial.write_bytes(content)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def write_manifest(folder: Path, stage: str, facts: dict[str, Any]) -> None:
    """Set what one stage was run with, in `manifest.json`."""
    file = folder / "manifest.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    write_text(file, json.dumps(known | {stage: facts}, indent=2) + "\n")
