"""The command line: `bertpre VERB RECIPE key=value ...`; each verb is imported when it is called."""

import errno
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from bertpre.errors import UserError

app = typer.Typer(
    help="Pretrain a BERT from raw text to a fine-tuned, Hub-ready encoder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
SECONDS_TO_SPEAK = 10
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's file, or the name of a shipped one.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="E.g. training.max_steps=100")]


@app.callback()
def options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """Options of every verb; `main` reads --debug itself, wherever it stands."""


@app.command()
def quickstart(output_dir: Annotated[str, typer.Option(help="A new folder for the run.")] = "runs/quickstart") -> None:
    """Every stage on the embedded corpus: minutes on two cores, no network."""
    from bertpre.commands.run import quickstart

    quickstart(output_dir)


@app.command()
def prepare(
    recipe: RecipeName,
    overrides: Overrides = None,
    shard: Annotated[str | None, typer.Option(help="JOB/JOBS, e.g. 2/8: this job's share, for array jobs.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="What needs the shares of all jobs.")] = False,
) -> None:
    """Corpus -> tokenizer -> store of token ids."""
    from bertpre.commands.prepare import prepare
    from bertpre.recipe import load_recipe

    prepare(load_recipe(recipe, overrides), shard, merge)


@app.command()
def pretrain(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Store -> pretrained model; goes on from the last checkpoint."""
    from bertpre.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)  # before torch is imported: a mistake in the recipe shows at once
    from bertpre.commands.pretrain import pretrain

    pretrain(loaded)


@app.command()
def finetune(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Pretrained model + labelled texts -> classifier."""
    from bertpre.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    from bertpre.commands.finetune import finetune

    finetune(loaded)


@app.command()
def evaluate(recipe: RecipeName, overrides: Overrides = None) -> None:
    """The classifier on the test split."""
    from bertpre.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    from bertpre.commands.evaluate import evaluate

    evaluate(loaded)


@app.command()
def baseline(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Bags of words and the network without pretraining, on the same examples, in one table."""
    from bertpre.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    from bertpre.commands.baseline import baseline

    baseline(loaded)


@app.command()
def curve(
    recipe: RecipeName,
    overrides: Overrides = None,
    fractions: Annotated[str, typer.Option(help="Shares of the labels, with commas.")] = "0.004,0.02,0.1,1",
) -> None:
    """Accuracy with few labels and with all, pretrained and not."""
    from bertpre.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    from bertpre.commands.curve import curve

    try:
        shares = tuple(float(share) for share in fractions.split(","))
    except ValueError:
        raise UserError(f"--fractions {fractions}: write shares with commas, e.g. 0.02,0.1,1") from None
    curve(loaded, shares)


@app.command()
def suite(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Every task of GLUE, with the official figures and their average."""
    from bertpre.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    from bertpre.commands.suite import suite

    suite(loaded)


@app.command()
def probe(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run directory, or any masked language model.")],
    texts: Annotated[str | None, typer.Option(help="A file with one text a line; a run's held-out text.")] = None,
    pairs: Annotated[str | None, typer.Option(help="BLiMP's JSONL: a file or a folder.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many texts.")] = 100,
    max_length: Annotated[int, typer.Option(min=8, help="Tokens of each text.")] = 128,
) -> None:
    """Pseudo-perplexity, accuracy by word frequency, acceptability of sentence pairs."""
    from bertpre.commands.probe import probe

    probe(model, texts, pairs, limit, max_length)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run directory, or any text classifier.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="By default lines of stdin.")] = None,
    file: Annotated[str | None, typer.Option(help="A file with one text a line.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a text, with all probabilities.")] = False,
) -> None:
    """Label and probability of texts."""
    from bertpre.commands.predict import predict

    predict(model, texts or [], file, as_json)


@app.command()
def run(recipe: RecipeName, overrides: Overrides = None) -> None:
    """prepare -> pretrain -> finetune -> evaluate -> report; finished stages are skipped."""
    from bertpre.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    from bertpre.commands.run import run

    run(loaded)


@app.command()
def show(recipe: RecipeName, overrides: Overrides = None) -> None:
    """The resolved recipe with every default, the model's size, and the figures of the run so far."""
    from bertpre.commands.show import show
    from bertpre.recipe import load_recipe

    show(load_recipe(recipe, overrides))


@app.command()
def doctor(recipe: RecipeName, overrides: Overrides = None) -> None:
    """What this machine can do, and whether the prepared data is whole and sound; changes nothing."""
    from bertpre.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    from bertpre.commands.doctor import doctor

    doctor(loaded)


@app.command()
def export(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR")],
    to: Annotated[str, typer.Option(help="bert, modernbert, bertpre or onnx.")],
    output_dir: Annotated[str | None, typer.Option(help="A new folder; by default RUN_DIR/export-TO.")] = None,
) -> None:
    """Write the run's models as stock Hugging Face folders, or as ONNX."""
    from bertpre.commands.export import export

    export(run_dir, to, output_dir)


@app.command()
def push(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR")],
    repo_id: Annotated[str, typer.Argument(metavar="REPO_ID")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
    license: Annotated[str, typer.Option(help="The card's licence, e.g. mit.")] = "unknown",
    only: Annotated[str | None, typer.Option(help="encoder or classifier; by default both.")] = None,
) -> None:
    """Push the stock export and a model card to the Hub."""
    from bertpre.commands.push import push

    push(run_dir, repo_id, private, license, only)


def main() -> None:
    """Entry point: a user's mistake is one message and exit status 2; `--debug` shows the traceback."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    guarded(lambda: app(arguments), debug)


def launched(verb: str) -> None:
    """Entry point of `pretrain.py` and `finetune.py`, which `accelerate launch` starts once a process."""
    from bertpre.launch import start_missing_processes

    def call() -> None:
        start_missing_processes()
        app([verb, *arguments], prog_name=f"{verb}.py")

    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    guarded(call, debug)


def guarded(call: Callable[[], object], debug: bool) -> None:
    """Run `call`; turn a UserError, or a full disk, into one message, from the main process where all met it."""
    try:
        call()
    except (UserError, OSError) as error:
        is_full = getattr(error, "errno", None) == errno.ENOSPC
        if debug or not (is_full or isinstance(error, UserError)):
            raise
        full = "the disk is full; make room and run the same command again: it goes on with what is finished"
        if os.environ.get("RANK", "0") != "0":
            time.sleep(SECONDS_TO_SPEAK)  # the main process ends before, and the launcher then ends this one
        print(f"error: {full if is_full else error}", file=sys.stderr)
        sys.exit(2)
