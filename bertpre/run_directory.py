"""The run directory: one folder per recipe, claimed before anything is written; it records finished stages.

A run can be used from any directory, and moved: the recipe in it has absolute paths, and loading it follows the move.
"""

import functools
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from bertpre.console import command_line, is_first_process
from bertpre.errors import UserError, first_line, reason
from bertpre.files import FolderInUse, file_checksum, locked, make_folder, refuse_unknown_model, write_text
from bertpre.recipe import (
    Recipe,
    differences,
    flatten,
    load_recipe,
    shipped_recipes,
    stored_recipe,
    to_yaml,
    with_absolute_paths,
)

ARTEFACTS = {
    "prepare": "data", "pretrain": "checkpoints", "finetune": "finetuned", "evaluate": "predictions.parquet",
    "suite": "glue",
}  # fmt: skip
FIRST_READER = {  # the first stage that reads a section: once it began, the section is fixed; `prepare` is never fixed
    "seed": "prepare", "corpus": "prepare", "tokenizer": "prepare", "pairs": "prepare",
    "model": "pretrain", "training": "pretrain",
    "finetune": "finetune", "evaluate": "evaluate",
}  # fmt: skip
SHAPING = ("corpus.", "tokenizer.", "pairs.validation_fraction")  # keys that the prepared data depends on
MANY_FILES = {"data", "data.partial", "checkpoints"}  # folders of a run directory
P = ParamSpec("P")
T = TypeVar("T")
Stage = Callable[Concatenate[Recipe, P], T]


def claim(recipe: Recipe) -> Path:
    """Create `output_dir` and write the recipe there; returns its path.

    Raises UserError for a folder that cannot be written, that is not a run directory, or that belongs to another
    recipe, and FolderInUse where the recipe has changed while another process works there. A key may change until the
    first stage that reads it begins; those of `recipe.loading.FREE` may always change.
    """
    recipe = with_absolute_paths(recipe)  # the run can then be used from any directory
    folder = Path(recipe.output_dir)
    try:
        make_folder(folder)
    except OSError as error:
        raise UserError(
            f"output_dir: {folder} cannot be written: {reason(error)}; give another folder with output_dir=FOLDER"
        ) from None
    kept = folder / "recipe.yaml"
    if kept.exists():
        refuse_other_recipe(recipe, kept)
    elif any(not file.name.startswith(kept.name) for file in folder.iterdir()):  # another job may be writing it
        raise UserError(
            f"output_dir: {folder} is neither empty nor a run directory; give an empty folder with output_dir=FOLDER"
        )
    text = to_yaml(recipe.model_copy(update={"output_dir": os.path.abspath(folder)}))
    if not kept.exists():
        write_text(kept, text)
    elif kept.read_text(encoding="utf-8") != text:
        with locked(folder):
            write_text(kept, text)
    return folder


@contextmanager
def undone_after_mistake(folder: Path) -> Iterator[None]:
    """Undo `claim` after a UserError, unless more was written: remove a new folder, or put the old recipe back.

    Where another process works in the folder, it is left alone: that process may have made it.
    """
    is_new, recipe, before = not folder.exists(), folder / "recipe.yaml", other_files(folder)
    old = recipe.read_text(encoding="utf-8") if recipe.is_file() else None
    try:
        yield
    except FolderInUse:
        raise
    except UserError:
        if is_first_process() and folder.is_dir() and other_files(folder) == before:
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            elif old is None:
                recipe.unlink(missing_ok=True)
            elif recipe.read_text(encoding="utf-8") != old:
                write_text(recipe, old)
        raise


def other_files(folder: Path) -> dict[Path, int]:
    """When each file of a run directory but its recipe was written, in nanoseconds.

    For a folder, which may have a hundred thousand files, the time when one was last added or removed.
    """
    found = {}
    for place, folders, files in os.walk(folder):
        large = MANY_FILES.intersection(folders) if Path(place) == folder else set[str]()
        folders[:] = [name for name in folders if name not in large]
        for file in (Path(place, name) for name in (*large, *files)):
            with suppress(FileNotFoundError):  # another process has removed it
                is_empty = file.name in large and not any(file.iterdir())
                if file.name != "recipe.yaml" and not is_empty:
                    found[file] = file.stat().st_mtime_ns
    return found


def refuse_other_recipe(recipe: Recipe, kept: Path) -> None:
    """Raise UserError where a key has changed that a finished or begun stage has read."""
    # In a project that was copied with its run, a path may mean the original's file or the copy's.
    one, other = (differences(stored_recipe(kept.parent, prefer_near), recipe) for prefer_near in (False, True))
    changed = [key for key in one if key in other]
    binding = [key for key in changed if key.split(".")[0] in FIRST_READER]
    stages = list(ARTEFACTS)
    begun = [
        stage
        for stage, artefact in ARTEFACTS.items()
        if (kept.parent / artefact).exists() or is_finished(kept.parent, stage)  # checkpoints may have been deleted
    ]
    last = stages.index(begun[-1]) if begun else -1
    frozen = [key for key in binding if stages.index(FIRST_READER[key.split(".")[0]]) <= last]
    if frozen:
        run = kept.parent
        ways = ways_on(run)
        more = f"; to use what this run has in that one, add {' or '.join(ways)}" if ways else ""
        kept_values = flatten(stored_recipe(run, True).model_dump())
        few = len(frozen) <= 3 and all(key in kept_values for key in frozen)
        old = " ".join(as_override(key, kept_values[key]) for key in frozen) if few else ""
        raise UserError(
            f"output_dir: {run} was started with another recipe, which differs in {', '.join(frozen)}; nothing was "
            "changed; to use the run's own recipe, give its folder in place of another: "
            f"`{command_line('COMMAND', run)}`; else restore the old values{f' ({old})' if old else ''}, or give "
            f"another folder with output_dir=FOLDER{more}"
        )


def ways_on(run: Path) -> list[str]:
    """The keys by which another run uses what a run has, and what for."""
    ways = [f"data.path={run} (pretrain on its prepared data)"] if (run / "data").exists() else []
    if (run / "model").exists():
        same = f"data.path={run}, on other text tokenizer.path={run}" if ways else f"tokenizer.path={run}"
        return [
            *ways, f"finetune.init={run} (`bertpre finetune`: fine-tune its model again)",
            f"training.init={run} {same} (pretrain its model further)",
        ]  # fmt: skip
    if any((run / ARTEFACTS["pretrain"]).glob("step-*")):
        new = f"{run}-model"
        export = command_line("export", run, "--to", "bertpre", "--output-dir", new)
        ways.append(
            f"training.init={new} tokenizer.path={run} (pretrain the model of its last checkpoint further, which "
            f"`{export}` writes)"
        )
    return ways


def as_override(key: str, value: Any) -> str:
    """A key and its value as a shell takes them: JSON is YAML too."""
    return shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}")


def refuse_unknown_starts(recipe: Recipe) -> None:
    """Raise UserError where a model that a stage has yet to start from, pretraining or fine-tuning, does not exist."""
    run, starts = os.path.abspath(recipe.output_dir), dict[str, str | None]()
    if recipe.corpus is not None and not is_finished(Path(run), "pretrain"):
        starts["training.init"] = recipe.training.init
    if recipe.finetune is not None and not recipe.finetune.uses_recipe_model:
        starts["finetune.init"] = recipe.finetune.init
    for key, source in starts.items():
        if source is not None and os.path.abspath(source) not in (run, os.path.join(run, "model")):
            refuse_unknown_model(model_of(source), key)


def one_at_a_time(stage: Stage[P, T]) -> Stage[P, T]:
    """Decorate a stage so that only one process, or one group of processes, works in a run directory at a time.

    The main process of a group takes the lock. The stage raises FolderInUse where the lock is taken.
    """

    @functools.wraps(stage)
    def alone(recipe: Recipe, *arguments: P.args, **options: P.kwargs) -> T:
        if not is_first_process():
            return stage(recipe, *arguments, **options)
        with locked(claim(recipe)):
            return stage(recipe, *arguments, **options)

    return alone


def model_of(name: str, part: str = "model") -> str:
    """A name that transformers accepts: the folder of a run directory's model, and any other name as it is."""
    return str(Path(name) / part) if is_run(name) else name


def is_run(name: str | Path) -> bool:
    """Whether a name is that of a run directory; a copy of a pushed repository has a recipe too, beside its model."""
    return (Path(name) / "recipe.yaml").is_file() and not (Path(name) / "config.json").is_file()


def refuse_recipe(name: str | Path, place: str) -> None:
    """Raise UserError where a name is a recipe's instead of a run directory's or a model's, or empty."""
    if name == "":
        raise UserError(f"{place}: is empty; give a run directory, or where a model is expected, a folder or Hub id")
    path, shown = Path(name), os.path.relpath(name)
    if (path.is_file() and path.suffix in (".yaml", ".yml")) or (shown in shipped_recipes() and not path.exists()):
        output_dir = os.path.relpath(load_recipe(shown).output_dir)
        raise UserError(f"{place}: {shown} is a recipe; give its run directory, {output_dir}")


def load_run(folder: str | Path) -> tuple[Path, Recipe]:
    """A run's folder and its recipe, wherever it is now; raises UserError where it is not a run directory."""
    folder = Path(folder)
    if not (folder / "recipe.yaml").is_file():
        refuse_recipe(folder, "RUN_DIR")
        raise UserError(f"{folder}: is not a run directory, it has no recipe.yaml")
    return folder, load_recipe(str(folder / "recipe.yaml"))


def data_folder(recipe: Recipe) -> Path:
    """The prepared data that a recipe trains on: its own run's, or that of `data.path`, which may have it from another.

    Raises UserError where `data.path` is not a run directory, or was prepared with other keys, or is not the data that
    this run has read before.
    """
    own = Path(recipe.output_dir)
    if recipe.data.path is None:
        return own / "data"
    try:
        other, its_recipe = load_run(recipe.data.path)
    except UserError as error:
        raise UserError(f"data.path: {error}") from None
    changed = [key for key in differences(its_recipe, recipe) if key.startswith(SHAPING)]
    if has_tokenizer_of(recipe, other):
        changed = [key for key in changed if not key.startswith("tokenizer.")]
    if changed:
        raise UserError(
            f"data.path: {other} was prepared with another {', '.join(changed)}; give the same values, or leave "
            "data.path out to prepare this run's own data"
        )
    folder = other / "data" if its_recipe.data.path is None else data_folder(its_recipe)
    if not (folder / "manifest.json").is_file():
        raise UserError(f"data.path: {other} has no prepared data; run `{command_line('prepare', other)}` first")
    known = read_results(own).get("prepare", {}).get("data_sha256")
    if known not in (None, file_checksum(folder / "manifest.json")):
        raise UserError(f"data.path: {folder} is not the data that this run began with; its checksum differs")
    return folder


def has_tokenizer_of(recipe: Recipe, run: Path) -> bool:
    """Whether `tokenizer.path` is the tokenizer of a run, perhaps in another place."""
    given = recipe.tokenizer.path and Path(model_of(recipe.tokenizer.path, "tokenizer")) / "tokenizer.json"
    own = run / "tokenizer" / "tokenizer.json"
    return bool(given and given.is_file() and own.is_file() and file_checksum(given) == file_checksum(own))


def is_prepared(recipe: Recipe) -> bool:
    """Whether a run's data is prepared; it may have been deleted since, which matters only until it is trained on."""
    run = Path(recipe.output_dir)
    has_data = recipe.data.path is not None or (run / ARTEFACTS["prepare"]).exists()
    return is_finished(run, "prepare") and (has_data or is_finished(run, "pretrain"))


def read_results(folder: Path) -> dict[str, Any]:
    """The results of the finished stages, by stage."""
    return read_json(folder / "results.json")


def write_results(folder: Path, stage: str, results: dict[str, Any] | list[dict[str, Any]] | str) -> None:
    """Set one stage's results."""
    write_text(folder / "results.json", json.dumps(read_results(folder) | {stage: results}, indent=2) + "\n")


def drop_results(folder: Path, *stages: str) -> None:
    """Remove the results of these stages, which no longer hold."""
    results = read_results(folder)
    if results.keys() & set(stages):
        kept = {stage: value for stage, value in results.items() if stage not in stages}
        write_text(folder / "results.json", json.dumps(kept, indent=2) + "\n")


def is_finished(folder: Path, stage: str) -> bool:
    """Whether a stage has written its results; without its folder a classifier cannot be used, and is not finished."""
    return stage in read_results(folder) and (stage != "finetune" or (folder / ARTEFACTS[stage]).is_dir())


def is_of_earlier_finetuning(folder: Path) -> bool:
    """Whether a fine-tuning began again and has not ended: no result describes the classifier there."""
    has_classifier = (folder / ARTEFACTS["finetune"]).is_dir()
    return has_classifier and "finetune" in read_manifest(folder) and not is_finished(folder, "finetune")


def refuse_unfinished_classifier(folder: Path) -> None:
    """Raise UserError for a classifier of an earlier fine-tuning."""
    if is_of_earlier_finetuning(folder):
        raise UserError(
            f"{folder}/{ARTEFACTS['finetune']} is of an earlier fine-tuning, and the last one has not ended; run "
            f"`{command_line('finetune', folder)}` to its end, or remove that folder"
        )


def write_manifest(folder: Path, stage: str, facts: dict[str, Any]) -> None:
    """Set the versions, commit and hardware that one stage ran with."""
    write_text(folder / "manifest.json", json.dumps(read_manifest(folder) | {stage: facts}, indent=2) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The versions, commit and hardware that the stages ran with, by stage."""
    return read_json(folder / "manifest.json")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is no file. Raises UserError where it is damaged."""
    try:
        values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
        return values
    except ValueError as error:
        raise UserError(f"{file} is damaged ({first_line(error)}): restore it from a copy") from None
