"""The command line: a table of commands; each command is imported when it is called."""

import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from bertpre.console import SIZES, console, is_one_of_several
from bertpre.errors import UserError
from bertpre.guard import guarded

PATH_OPTIONS = {"file", "output_dir", "texts", "pairs"}  # arguments of commands that are paths of options
SPINS = "10000"
RESUMING = ("quickstart", "run", "prepare", "pretrain", "finetune", "curve", "suite")
PRINT_DATA = ("show", "predict", "fill")  # a letter that the output cannot show is an error there


def parse_fractions(text: str) -> tuple[float, ...]:
    """The numbers in `0.02,0.1,1`; raises UserError where one is not a number."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--fractions {text}: write fractions separated by commas, e.g. 0.02,0.1,1") from None


def complete_recipe(incomplete: str) -> Iterator[str]:
    """The names of shipped recipes, for the shell's completion, which completes files itself."""
    from bertpre.recipe import shipped_recipes

    return (name for name in shipped_recipes() if name.startswith(incomplete))


def complete_override(incomplete: str) -> Iterator[str]:
    """The recipe's keys, for the shell's completion."""
    from bertpre.recipe import known_keys

    keys = [key.replace("phases.", "phases.0.") for key in known_keys()]  # a list: its first entry stands for all
    sections = {key.rpartition(".")[0] for key in keys} | {"training.phases"}
    return (f"{key}=" for key in keys if key.startswith(incomplete) and key not in sections)


def be_quiet(wanted: bool) -> None:
    """Leave progress out, where `--quiet` is given."""
    console.is_quiet |= wanted


RECIPE: Any = typer.Argument(
    metavar="RECIPE",
    help="A recipe file, a run directory, or the name of a shipped recipe.",
    autocompletion=complete_recipe,
)
RecipeName = Annotated[str, RECIPE]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Recipe keys to set: training.max_steps=100", autocompletion=complete_override
    ),
]
RunDirectory = Annotated[str, typer.Argument(metavar="RUN_DIR", help="The directory of a finished run.")]
Format = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="bert, modernbert, bertpre or onnx. Default: the stock class.")
]
Only = Annotated[str | None, typer.Option(help="encoder or classifier. Default: both.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only warnings, errors and results.", callback=be_quiet)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]  # `guarded` reads it


def everywhere(quiet: Quiet = False, debug: Debug = False) -> None:
    """Declares the options that every command takes."""


# Each signature declares the arguments of one or more commands; `caller` passes them to the function by name.
def an_output_dir(
    output_dir: Annotated[str, typer.Option(help="A new folder for the run.")] = "runs/quickstart",
) -> None: ...


def a_recipe(recipe: RecipeName, overrides: Overrides = None) -> None: ...


def a_recipe_or_none(recipe: Annotated[str | None, RECIPE] = None, overrides: Overrides = None) -> None: ...


def a_recipe_and_a_file(
    recipe: RecipeName, file: Annotated[str, typer.Argument(metavar="FILE", help="The new file: my.yaml.")]
) -> None: ...


def a_recipe_and_other_texts(
    recipe: RecipeName,
    overrides: Overrides = None,
    file: Annotated[
        str | None, typer.Option(help="Other labelled texts to measure a finished run on. Nothing is written.")
    ] = None,
) -> None: ...


def a_recipe_in_jobs(
    recipe: RecipeName,
    overrides: Overrides = None,
    shard: Annotated[
        str | None, typer.Option(metavar="JOB/JOBS", help="Do this job's share of the work: 2/8 is job 2 of 8.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Run the steps that need every job's output, after each of the two rounds of shards."
        ),
    ] = False,
) -> None: ...


def a_recipe_and_fractions(
    recipe: RecipeName,
    overrides: Overrides = None,
    fractions: Annotated[
        Any,
        typer.Option(parser=parse_fractions, metavar="NUMBERS", help="Fractions of the labels, separated by commas."),
    ] = "0.004,0.02,0.1,1",
) -> None: ...


def a_model_and_texts(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run directory, or any text classifier.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT", help="Texts. A tab separates the two texts of a pair. Default: lines of standard input."
        ),
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Texts: one per line, or CSV, TSV, JSON lines, Parquet; words: also CoNLL.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="The column with the texts in a table. Default: the recipe's, else text.")
    ] = None,
    text_pair_column: Annotated[
        str | None, typer.Option(help="The column of second texts in pairs. Default: the recipe's, else text_pair.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per text, with its row and all probabilities.")
    ] = False,
) -> None: ...


def a_model_and_masked_texts(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run directory, or any masked language model.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Each with [MASK] in the place of a word.")],
    top_k: Annotated[int, typer.Option(min=1, help="Number of guesses for each [MASK].")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")] = False,
) -> None: ...


def a_model_to_probe(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run directory, or any masked language model.")],
    texts: Annotated[
        str | None, typer.Option(help="A file with one text per line. Default: the run's held-out text.")
    ] = None,
    pairs: Annotated[str | None, typer.Option(help="Sentence pairs in BLiMP's JSONL: a file or a folder.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of texts.")] = 100,
    max_length: Annotated[int, typer.Option(min=8, help="Maximum number of tokens per text.")] = 128,
    causal: Annotated[
        bool, typer.Option("--causal", help="Score pairs from left to right, for a model with mixed phases.")
    ] = False,
) -> None: ...


def some_runs(
    run_dirs: Annotated[list[str], typer.Argument(metavar="RUN_DIR...", help="The directories of runs.")],
) -> None: ...


def a_run_to_export(
    run_dir: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="The directory of a run. If it was stopped: its newest checkpoint.")
    ],
    to: Format = None,
    only: Only = None,
    output_dir: Annotated[
        str | None, typer.Option(help="A new folder. Default: RUN_DIR/export, or RUN_DIR/export-FORMAT.")
    ] = None,
) -> None: ...


def a_run_to_push(
    run_dir: RunDirectory,
    repo_id: Annotated[str, typer.Argument(metavar="REPO_ID", help="The repository on the Hub: you/your-model.")],
    to: Format = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create it as private; an existing public one is refused.")
    ] = False,
    license: Annotated[
        str | None, typer.Option(help="The licence on the model card, e.g. mit. Default: hub.license.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="The language on the model card, e.g. en. Default: hub.language.")
    ] = None,
    only: Only = None,
    revision: Annotated[
        str | None, typer.Option(metavar="BRANCH", help="The branch to push to. Default: main.")
    ] = None,
    commit_message: Annotated[str, typer.Option(metavar="TEXT", help="The commit's message.")] = "Push a bertpre run",
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request instead.")] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also push each checkpoint, to a branch such as step-00001000.")
    ] = False,
    overwrite_card: Annotated[
        bool, typer.Option("--overwrite-card", help="Replace a README.md that was edited on the Hub.")
    ] = False,
) -> None: ...


class Command(NamedTuple):
    """A row of the table: the command's name, its function, its arguments and its help."""

    name: str
    function: str  # module:function in bertpre.commands
    arguments: Callable[..., None]
    help: str
    examples: tuple[str, ...]


SECTIONS = {  # of `bertpre --help`
    "Start": (
        Command("quickstart", "run:quickstart", an_output_dir,
                "Run every stage on the embedded corpus. Takes minutes on two cores and needs no network.",
                ("quickstart", "quickstart --output-dir runs/first")),
        Command("run", "run:run", a_recipe,
                "Run every stage of a recipe, then write the report. Finished stages are skipped.",
                ("run imdb-mini-cpu", "run own-text corpus.path='notes/**/*.txt' finetune.path=labels.csv")),
        Command("show", "show:show", a_recipe_or_none,
                "Print the shipped recipes, or every key of one. "
                "With a recipe, also prints the model's size and the run's results so far.",
                ("show", "show imdb-base training.max_steps=1000", "show runs/quickstart")),
        Command("init", "init:init", a_recipe_and_a_file,
                "Copy a shipped recipe to a new file, to edit it.",
                ("init own-text my.yaml", "init imdb-base recipes/reviews.yaml")),
        Command("doctor", "doctor:doctor", a_recipe,
                "Check the machine, the labels and the prepared data. "
                "With prepared data also memory and time. Writes nothing.",
                ("doctor imdb-base", "doctor my.yaml training.global_batch_size=128")),
    ),
    "Data": (
        Command("prepare", "prepare:prepare", a_recipe_in_jobs,
                "Clean the corpus, learn the tokenizer, store the token ids.",
                ("prepare imdb-base", "prepare imdb-base --shard 1/8", "prepare imdb-base --merge")),
    ),
    "Train": (
        Command("pretrain", "pretrain:pretrain", a_recipe,
                "Pretrain the model on the prepared data. An interrupted run resumes from its last checkpoint.",
                ("pretrain imdb-base", "pretrain quickstart training.budget=5m")),
        Command("finetune", "finetune:finetune", a_recipe,
                "Fine-tune the pretrained model on labelled texts.",
                ("finetune imdb-base", "finetune own-text finetune.init=runs/own-text output_dir=runs/again")),
    ),
    "Measure": (
        Command("evaluate", "evaluate:evaluate_run_or_file", a_recipe_and_other_texts,
                "Measure the fine-tuned model on the test split.",
                ("evaluate imdb-base", "evaluate runs/quickstart --file newer.csv")),
        Command("baseline", "baseline:baseline", a_recipe,
                "Train baselines on the same examples. "
                "Compares bag-of-words models and the same network without pretraining.",
                ("baseline imdb-mini-cpu", "baseline runs/quickstart")),
        Command("curve", "curve:curve", a_recipe_and_fractions,
                "Measure accuracy with few labels and with all. Compares the model with and without pretraining.",
                ("curve imdb-mini-cpu",
                 "curve imdb-mini-cpu output_dir=runs/curve finetune.init=runs/imdb-mini-cpu "
                 "tokenizer.path=runs/imdb-mini-cpu finetune.seeds=3")),
        Command("suite", "suite:suite", a_recipe,
                "Fine-tune on every GLUE task. Reports the official metrics and their average.",
                ("suite glue finetune.init=RUN_DIR", "suite glue suite.tasks=[mrpc,rte]")),
        Command("probe", "probe:probe", a_model_to_probe,
                "Measure a masked language model. "
                "Reports pseudo-perplexity, accuracy by word frequency, and acceptability of sentence pairs.",
                ("probe runs/quickstart", "probe google-bert/bert-base-uncased --texts texts.txt --limit 500")),
        Command("report", "report:report", some_runs,
                "Write the report of finished runs again. "
                "Of several runs, also prints a table and writes comparison.html in the first one's folder.",
                ("report runs/quickstart", "report runs/first runs/second")),
    ),
    "Use and share": (
        Command("predict", "predict:predict", a_model_and_texts,
                "Print the label and its probability for each text.",
                ('predict runs/quickstart "A wonderful film."', "predict runs/quickstart --file reviews.csv --json")),
        Command("fill", "fill:fill", a_model_and_masked_texts,
                "Print a masked language model's guesses for [MASK].",
                ('fill runs/quickstart "The film was [MASK]."',
                 'fill google-bert/bert-base-uncased "Paris is the [MASK] of [MASK]." --top-k 3')),
        Command("export", "export:export", a_run_to_export,
                "Convert a run to stock Hugging Face folders or ONNX.",
                ("export runs/quickstart --to modernbert", "export runs/quickstart --to onnx --output-dir onnx")),
        Command("push", "push:push", a_run_to_push,
                "Push a run's models, model card, recipe and results to the Hub. A failed push can be repeated.",
                ("push runs/quickstart you/your-model --license mit",
                 "push runs/quickstart you/films --only classifier --create-pr")),
    ),
}  # fmt: skip
COMMANDS = tuple(command for section in SECTIONS.values() for command in section)


def caller(command: Command) -> Callable[..., None]:
    """A function with the command's signature that imports the command and calls it."""

    def call(quiet: bool, debug: bool, **arguments: Any) -> None:
        for name in PATH_OPTIONS & arguments.keys():  # the shell leaves ~ alone after "="
            given = arguments[name]
            arguments[name] = os.path.expanduser(given) if isinstance(given, str) else given
        if "model" in arguments:  # before torch is imported: a wrong name shows at once
            from bertpre.files import refuse_unknown_model
            from bertpre.run_directory import refuse_recipe

            refuse_recipe(arguments["model"], "MODEL")
            refuse_unknown_model(arguments["model"], "MODEL")
        overrides = arguments.pop("overrides", None)
        has_recipe = takes_overrides(command) and arguments["recipe"] is not None
        try:
            with recipe_loaded(arguments, overrides or []) if has_recipe else nullcontext():
                module, _, function = command.function.partition(":")
                getattr(importlib.import_module(f"bertpre.commands.{module}"), function)(**arguments)
        except KeyboardInterrupt:
            console.erase()
            resume = ". Run the same command to resume" if command.name in RESUMING else ""
            sys.stderr.write(f"{command.name}: stopped{resume}\n")
            raise

    own, common = inspect.signature(command.arguments), inspect.signature(everywhere)
    vars(call)["__signature__"] = own.replace(parameters=[*own.parameters.values(), *common.parameters.values()])
    call.__annotations__ = command.arguments.__annotations__ | everywhere.__annotations__
    return call


def takes_overrides(command: Command) -> bool:
    """Whether a command takes a recipe and `key=value`."""
    return "overrides" in inspect.signature(command.arguments).parameters


class Sections(TyperGroup):
    """The list of commands, under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list."""
        width = max(len(command.name) for command in COMMANDS)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(each.name.ljust(width), first_sentence(each.help)) for each in commands])


def first_sentence(text: str) -> str:
    """The text up to its first full stop."""
    return text.partition(". ")[0].removesuffix(".") + "."


@contextmanager
def recipe_loaded(arguments: dict[str, Any], overrides: list[str]) -> Iterator[None]:
    """Put the recipe, with its overrides, in place of its name; after a mistake leave no new run directory behind."""
    from bertpre.recipe import load_recipe  # before torch is imported: a mistake in the recipe shows at once
    from bertpre.run_directory import undone_after_mistake

    refuse_options([arguments["recipe"], *overrides])
    arguments["recipe"] = load_recipe(arguments["recipe"], overrides)
    with undone_after_mistake(Path(arguments["recipe"].output_dir)):
        yield


def refuse_options(words: list[str]) -> None:
    """Raise UserError for words with leading dashes: an unknown option, or a recipe key written as one."""
    from bertpre.recipe import Recipe

    for word, following in zip(words, [*words[1:], "VALUE"], strict=True):
        if not word.startswith("-"):
            continue
        key, equals, value = word.lstrip("-").partition("=")
        key = key.replace("-", "_")
        if key.split(".")[0] in Recipe.model_fields:
            wanted = f"{key}={value if equals else following}"
            raise UserError(f"{word}: recipe keys are written without dashes: {wanted}")
        raise UserError(f"{word}: there is no such option; --help lists the options of a command")


def print_version(wanted: bool) -> None:
    """Print the installed version and end, where `--version` is given."""
    if wanted:
        print(f"bertpre {metadata.version('bertpre')}")
        raise typer.Exit


def options(
    quiet: Quiet = False,
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Pretrain a BERT from raw text to a fine-tuned, Hub-ready encoder."""


app = typer.Typer(
    cls=Sections,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="""\b
First steps:       bertpre quickstart
Help and examples: bertpre COMMAND -h""",
)
app.callback()(options)
for row in COMMANDS:
    settings = {"ignore_unknown_options": takes_overrides(row)}  # see refuse_options
    examples = "\n".join(["\b", "Examples:", *(f"  bertpre {example}" for example in row.examples)])
    app.command(row.name, help=row.help, epilog=examples, context_settings=settings)(caller(row))


def main() -> None:
    """Entry point of `bertpre` and of `python -m bertpre`."""
    guarded(lambda arguments: call_app(arguments, "bertpre"))


def launched(name: str) -> None:
    """Entry point of `bertpre.pretrain` and `bertpre.finetune`, which `accelerate launch` starts once per process."""
    guarded(lambda arguments: call_app([name, *arguments], "python -m bertpre"))


def spin_briefly() -> None:
    """Let threads without work sleep sooner; before torch is imported, and unless the environment has its own number.

    Those of GNU OpenMP look for work 300,000 times before they sleep. Beside another program that computes they so keep
    a processor from the thread that has the work: steps took twice as long and more (docs/results.md).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def call_app(arguments: list[str], name: str) -> None:
    """Run a command.

    `pretrain` and `finetune` first start the processes that `accelerate launch` was asked for, and leave the group at
    the end.
    """
    spin_briefly()
    command = next((each for each in arguments if not each.startswith("-")), None)
    if command not in PRINT_DATA and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a line of progress must not end hours of work
    if command not in ("pretrain", "finetune"):
        refuse_launcher(command)
        app(arguments, prog_name=name)
        return
    from bertpre.launch import start_missing_processes

    start_missing_processes()
    try:
        app(arguments, prog_name=name)
    except SystemExit as end:  # typer ends so without an error too; after one the others may not be there to part
        if not end.code and "torch" in sys.modules:
            from bertpre.runtime import leave_processes

            leave_processes()
        raise


def refuse_launcher(command: str | None) -> None:
    """Raise UserError where a launcher has started several processes, or should: each would report, write and push.

    One that `accelerate launch` has started has all cores.
    """
    if command in (None, "prepare"):  # `prepare --shard` works in several
        return
    why = None
    if is_one_of_several():
        size = next(name for name in SIZES.values() if name in os.environ)
        why = f"{size}={os.environ[size]} says that a launcher has started several"
    elif "ACCELERATE_MIXED_PRECISION" in os.environ:
        from bertpre.launch import find_launch, use_all_cores

        launch = find_launch()
        if launch and launch.processes > 1:
            why = f"`accelerate launch` was asked for {launch.processes}"
        elif launch and not launch.names_threads:
            use_all_cores(1)
    if why:
        raise UserError(
            f"{command} works in one process, but {why}: start it without a launcher; `accelerate launch` and torchrun "
            "are for -m bertpre.pretrain and -m bertpre.finetune"
        )
