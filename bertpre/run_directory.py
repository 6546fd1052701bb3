"""The run directory: one folder, one recipe; it is claimed before anything is written, and remembers what was done."""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from bertpre.errors import UserError
from bertpre.files import write_text
from bertpre.recipe import Recipe, differences, load_recipe, to_yaml

STAGES = ("prepare", "pretrain", "finetune", "evaluate")
ARTEFACTS = {
    "prepare": "data", "pretrain": "checkpoints", "finetune": "finetuned", "evaluate": "predictions.parquet",
    "suite": "glue",
}  # fmt: skip
FIRST_READER = {  # the first stage that reads a section; from it on none can change; `prepare` changes no result
    "seed": "prepare", "corpus": "prepare", "tokenizer": "prepare", "pairs": "prepare",
    "model": "pretrain", "training": "pretrain", "checkpoint": "pretrain",
    "finetune": "finetune", "evaluate": "evaluate",
}  # fmt: skip


# What changes no number of a training: these may differ when it goes on.
FREE = (
    "training.log_every", "training.wandb_project", "training.tensorboard", "training.price_per_hour",
    "checkpoint.every", "checkpoint.keep", "checkpoint.keep_every",
)  # fmt: skip
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")  # torchrun's, then MPI's
P = ParamSpec("P")
T = TypeVar("T")
Stage = Callable[Concatenate[Recipe, P], T]


def claim(recipe: Recipe) -> Path:
    """Make `output_dir` ready for this recipe; returns its path.

    Raises UserError where it cannot be written, holds something else, or another recipe has begun there. A key that
    only a stage not yet begun reads may still be changed, and so may one of `FREE`.
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
    kept = folder / "recipe.yaml"
    if kept.exists():
        refuse_other_recipe(recipe, kept)
    elif any(not file.name.startswith(kept.name) for file in folder.iterdir()):  # another job may be writing it now
        raise UserError(
            f"output_dir: {folder} holds something else than a run; give an empty folder with output_dir=FOLDER"
        )
    write_text(kept, to_yaml(recipe))
    return folder


def refuse_other_recipe(recipe: Recipe, kept: Path) -> None:
    """Raise UserError where a finished or begun stage read a key that is different now."""
    changed = differences(load_recipe(str(kept), [f"output_dir={json.dumps(recipe.output_dir)}"]), recipe)
    binding = [key for key in changed if key.split(".")[0] in FIRST_READER and key not in FREE]
    stages = list(ARTEFACTS)
    begun = [stage for stage, artefact in ARTEFACTS.items() if (kept.parent / artefact).exists()]
    last = stages.index(begun[-1]) if begun else -1
    frozen = [key for key in binding if stages.index(FIRST_READER[key.split(".")[0]]) <= last]
    if frozen:
        raise UserError(
            f"output_dir: {kept.parent} was begun with another recipe, which differs in {', '.join(frozen)}; "
            "nothing was changed; give the old values, or another folder with output_dir=FOLDER, which may begin with "
            f"this run's model: finetune.init={kept.parent} to fine-tune it anew, or training.init={kept.parent} "
            f"tokenizer.path={kept.parent} to pretrain it further "
            f"(what may change in a training: {', '.join(FREE)})"
        )


def one_at_a_time(stage: Stage[P, T]) -> Stage[P, T]:
    """Let a stage work only where no other process does; of several processes of one training the first one asks.

    The lock is the folder's own, leaves no file and goes with the process. Raises UserError where it is taken.
    """

    @functools.wraps(stage)
    def alone(recipe: Recipe, *arguments: P.args, **options: P.kwargs) -> T:
        folder = Path(recipe.output_dir)
        is_first = all(os.environ.get(name, "0") == "0" for name in RANKS)
        if not is_first or fcntl is None or not folder.is_dir():
            return stage(recipe, *arguments, **options)
        handle = os.open(folder, os.O_RDONLY)
        try:
            take_lock(handle, folder)
            return stage(recipe, *arguments, **options)
        finally:
            os.close(handle)

    return alone


def take_lock(handle: int, folder: Path) -> None:
    """Lock an open folder; raises UserError where another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"output_dir: another process trains in {folder}; wait for it, or give another folder with "
            "output_dir=FOLDER"
        ) from None
    except OSError:
        pass  # a file system without locks


def model_of(place: str, part: str = "model") -> str:
    """A model's place as transformers takes it: of a run directory the folder in it, else as it is."""
    return str(Path(place) / part) if (Path(place) / "recipe.yaml").is_file() else place


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


def write_manifest(folder: Path, stage: str, facts: dict[str, Any]) -> None:
    """Set what one stage was run with, in `manifest.json`."""
    write_text(folder / "manifest.json", json.dumps(read_manifest(folder) | {stage: facts}, indent=2) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the stages were run with."""
    file = folder / "manifest.json"
    return json.loads(file.read_text()) if file.exists() else {}
