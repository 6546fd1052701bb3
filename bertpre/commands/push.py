"""`bertpre push`: a run's models, card, recipe and results on the Hugging Face Hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from safetensors import SafetensorError

from bertpre.console import command_line, console
from bertpre.errors import UserError, first_line, is_disk_full
from bertpre.hub.folder import write_checkpoint, write_run
from bertpre.hub.upload import CARD, NEW_CARD, Target, upload
from bertpre.model.export import refuse_unknown_format
from bertpre.recipe import Recipe
from bertpre.recipe.schema import check_language, check_repo_id
from bertpre.run_directory import load_run
from bertpre.runtime import quiet_transformers
from bertpre.training.checkpoint import list_checkpoints


def push(
    run_dir: str,
    repo_id: str,
    to: str | None = None,
    private: bool = False,
    license: str | None = None,
    language: str | None = None,
    only: str | None = None,
    revision: str | None = None,
    commit_message: str = "Push a bertpre run",
    create_pr: bool = False,
    checkpoints: bool = False,
    overwrite_card: bool = False,
) -> None:
    """Upload the run's models, with card, recipe, results and curves, to the Hub repository `repo_id` in one commit.

    The pretrained model goes to the root and the classifier to `classifier/`; with `only`, `encoder` or `classifier`,
    that one goes to the root, where `pipeline` looks for it. `to` is a format of `export`; without it each model has
    its stock class. A missing repository is created. Files of an earlier push that this one lacks are removed unless
    somebody has changed them since; a README.md that was edited by hand is kept unless `overwrite_card`. With
    `checkpoints`, each checkpoint of the pretraining goes to a branch, such as `step-00001000`. `license` and
    `language` are the card's; what is not given here, `private` too, is as in the recipe's section `hub`.
    Raises UserError for a run without a model, a bad repository id, and where the Hub refuses or cannot be reached.
    """
    refuse_bad_options(repo_id, to, only, revision, commit_message, create_pr, checkpoints, license, language)
    run, recipe = load_run(run_dir)
    given = {"license": license, "language": language, "private": private or None}
    hub = recipe.hub.model_copy(update={name: value for name, value in given.items() if value is not None})
    recipe = recipe.model_copy(update={"hub": hub})
    saved = list_checkpoints(run / "checkpoints") if checkpoints else []
    if checkpoints and not saved:
        raise UserError(f"--checkpoints: {run} has none; leave it out")
    quiet_transformers()
    target = Target(repo_id, revision, hub.private, commit_message, create_pr, overwrite_card)
    with temporary_folder("run") as folder:
        write_run(run, recipe, folder, repo_id, to, only, revision)
        push_folder(folder, target)
    for checkpoint in saved:
        with temporary_folder("checkpoint") as folder:
            write_checkpoint(checkpoint, run, recipe, folder, repo_id, to)
            message = f"{commit_message}, {checkpoint.name}"
            push_folder(folder, replace(target, revision=checkpoint.name, commit_message=message))
    if hub.license == "unknown":
        console.show("push: its card says `license: unknown`: set it with --license, e.g. --license mit")


def push_result(recipe: Recipe) -> None:
    """Push the run to the recipe's `hub.repo_id`, if it names one; a failure is reported, never raised."""
    settings = recipe.hub
    if settings.repo_id is None:
        return
    try:
        push(recipe.output_dir, settings.repo_id)
    except (UserError, OSError, RuntimeError, SafetensorError) as error:
        again = command_line("push", recipe.output_dir, settings.repo_id)
        console.show(f"push: failed: {first_line(error)}. The run is whole; push it later with `{again}`")


def refuse_bad_options(
    repo_id: str, to: str | None, only: str | None, revision: str | None, commit_message: str, create_pr: bool,
    checkpoints: bool, license: str | None, language: str | None,
) -> None:  # fmt: skip
    """Raise UserError for values that do not exist or exclude each other."""
    try:
        check_repo_id(repo_id)
    except ValueError as error:
        raise UserError(f"REPO_ID: {error}") from None
    if license == "":
        raise UserError("--license: is empty; name the licence, e.g. mit, or leave it out")
    try:
        check_language("en" if language is None else language)
    except ValueError as error:
        raise UserError(f"--language: {error}") from None
    if not commit_message.strip():
        raise UserError("--commit-message: is empty; say what is pushed, or leave it out")
    refuse_unknown_format(to, only)
    if revision == "":
        raise UserError("--revision: is empty; name a branch, or leave it out")
    if create_pr and (revision is not None or checkpoints):
        raise UserError("--create-pr opens a pull request against main: leave --revision and --checkpoints out")
    if checkpoints and to == "onnx":
        raise UserError(
            "--checkpoints: checkpoints are for further training and are not pushed as ONNX; leave --to out"
        )


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """A place for a folder that is uploaded; raises UserError, which names the disk, where that is full."""
    try:
        with TemporaryDirectory() as temporary:
            yield Path(temporary) / name
    except (OSError, SafetensorError) as error:
        if not is_disk_full(error):
            raise
        raise UserError(
            f"the disk of {gettempdir()}, where the upload is prepared, is full: make room, or set TMPDIR to a folder "
            "on another disk"
        ) from None


def push_folder(folder: Path, target: Target) -> None:
    """Upload a folder, and say where it went and what became of an earlier push."""
    megabytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    console.say(f"push: uploading {megabytes:,.1f} MB")
    pushed = upload(folder, target)
    console.show(f"push: {pushed.url}")
    if pushed.removed:
        console.show(f"push: removed {', '.join(pushed.removed)}, files of another push that this one has not")
    if pushed.kept:
        console.show(f"push: kept {', '.join(pushed.kept)}, which an earlier push had and somebody has changed since")
    if pushed.replaced:
        console.show(
            f"push: replaced {', '.join(pushed.replaced)}, which somebody had changed since an earlier push; the "
            "repository's history has that version"
        )
    if pushed.kept_card:
        console.show(
            f"push: {CARD} was edited on the Hub and is kept; the new card is {NEW_CARD}; --overwrite-card replaces it"
        )
