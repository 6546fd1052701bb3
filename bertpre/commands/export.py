"""`bertpre export`: a run's models as Hugging Face folders that load where bertpre is not installed."""

from pathlib import Path
from tempfile import TemporaryDirectory

from bertpre.errors import UserError, reason
from bertpre.files import make_folder, new_folder
from bertpre.hub.folder import results_for, results_of_a_checkpoint, save_checkpoint_model, unfinished_step
from bertpre.model.export import export_run, refuse_unknown_format
from bertpre.reporting.curves import read_metrics
from bertpre.reporting.model_card import write_card
from bertpre.run_directory import load_run, read_manifest, refuse_unfinished_classifier
from bertpre.runtime import quiet_transformers
from bertpre.training.checkpoint import list_checkpoints, read_state


def export(run_dir: str, to: str | None, output_dir: str | None, only: str | None = None) -> Path:
    """Write the run's models as a Hugging Face folder and check that they compute the same; returns its path.

    `run_dir` may be one of the run's checkpoints. `to` is `bert` or `modernbert`, the stock classes, of which None
    takes the one that fits; `bertpre`, which contains its own code and needs `trust_remote_code=True`; or `onnx`,
    graphs of the masked language model and of the classifier. The folder, by default `RUN_DIR/export-TO`, or
    `RUN_DIR/export` for None, holds the pretrained model and, in `classifier/`, the fine-tuned one; a single model is
    written to the folder itself. `only`, `encoder` or `classifier`, writes one of the two. Of a pretraining that has
    not ended, the model of the newest checkpoint is written. The folder has a model card, `README.md`, with a picture
    of the curves. ModernBERT has neither segments nor a head for next sentence prediction: for single texts it is the
    same model.
    Raises UserError for an unknown `to` or `only`, another architecture's format, a run without such a model or with
    one whose fine-tuning began again, and a folder in use.
    """
    refuse_unknown_format(to, only)
    given = given_checkpoint(Path(run_dir).absolute())
    if given is not None and only == "classifier":
        raise UserError(f"--only classifier: {run_dir} is a checkpoint of the encoder; leave it out, or give the run")
    run, recipe = load_run(run_dir if given is None else given.parent.parent)
    name = ("export" if to is None else f"export-{to}") + (f"-{given.name}" if given else "")
    folder = Path(output_dir).absolute() if output_dir else run / name  # "." has no name
    check_writable(folder)
    if given is None and only != "encoder":
        refuse_unfinished_classifier(run)
    quiet_transformers()
    has_wanted = (run / "model").is_dir() or (only != "encoder" and (run / "finetuned").is_dir())
    checkpoint = given or (None if has_wanted or only == "classifier" else last_checkpoint(run))
    step = None if checkpoint is None else int(checkpoint.name.removeprefix("step-"))
    with new_folder(folder) as written, TemporaryDirectory() as temporary:
        source = run
        if checkpoint is not None:
            source, only = Path(temporary), "encoder"
            save_checkpoint_model(checkpoint, run, recipe, source / "model")
        difference = export_run(source, to, written, only)
        results = results_for(run, only) if checkpoint is None else results_of_a_checkpoint(run)
        unfinished = None if step is None else unfinished_step(run, step)
        write_card(written, recipe, results, read_manifest(run), read_metrics(run), folder.name, step=unfinished)
    if step is not None and given is None:
        print(f"export: {run} has no model of a whole pretraining; this is the one of its checkpoint after step {step}")
    print(f"export: {folder}; the logits differ from the run's by at most {difference:.1e}")
    return folder


def given_checkpoint(place: Path) -> Path | None:
    """The place, where it is a run's checkpoint; raises UserError for a damaged one."""
    if place.parent.name != "checkpoints" or not place.name.startswith("step-"):
        return None
    if read_state(place) is None:
        raise UserError(f"{place}: is not an intact checkpoint; give another one of {place.parent}")
    return place


def last_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of a pretraining that is intact; None without one."""
    newest_first = reversed(list_checkpoints(run / "checkpoints"))
    return next((checkpoint for checkpoint in newest_first if read_state(checkpoint) is not None), None)


def check_writable(folder: Path) -> None:
    """Make the folder's parent; raises UserError where that fails, or where the folder is a file or not empty."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists and is not empty; remove it, or give a new folder with --output-dir")
        make_folder(folder.parent)
    except OSError as error:
        raise UserError(
            f"--output-dir: {folder} cannot be written: {reason(error)}; give another folder with --output-dir"
        ) from None
