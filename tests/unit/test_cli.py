"""The command line: every row of the table calls what it says, and its help shows examples that parse."""

import importlib
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer

from bertpre import cli
from bertpre.cli import COMMANDS, Command, app
from bertpre.console import console
from bertpre.errors import UserError
from bertpre.launch import Launch
from bertpre.recipe import Phase, Recipe, differences, load_recipe, shipped_recipes
from bertpre.run_directory import claim
from tests.helpers import ROOT, run_here

every_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)


@every_command
def test_each_command_takes_the_arguments_that_its_function_takes(command: Command) -> None:
    module, _, name = command.function.partition(":")
    function = getattr(importlib.import_module(f"bertpre.commands.{module}"), name)
    parameters = inspect.signature(function).parameters
    given = set(inspect.signature(command.arguments).parameters) - {"overrides"}
    required = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    assert required <= given <= set(parameters)


@every_command
def test_each_help_text_shows_examples_that_parse(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(command.name, "--help") == 0
    help_text = capsys.readouterr().out
    assert len(command.examples) >= 2
    for example in command.examples:
        assert f"  bertpre {example}\n" in help_text
        name, *arguments = shlex.split(example)
        assert name == command.name
        typer.main.get_command(app).commands[name].make_context(name, arguments)  # raises a usage error


def test_the_list_of_commands_shows_each_whole_first_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    for command in COMMANDS:
        (line,) = [line for line in lines if line.startswith(f"  {command.name} ")]
        assert line.split(maxsplit=1)[1] == command.help.partition(". ")[0].removesuffix(".") + "."
    headings = [line for line in lines if re.fullmatch(r"[A-Z][a-z ]+:", line) and line != "Options:"]
    assert headings == ["Start:", "Data:", "Train:", "Measure:", "Use and share:"]


@pytest.mark.parametrize("arguments", [[], *([command.name] for command in COMMANDS)], ids="".join)
def test_h_is_help_everywhere(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for flag in ("-h", "--help"):
        assert run_here(*arguments, flag) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "-h, --help" in printed[0] and "--quiet" in printed[0]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["show"], ["show", "quickstart"]], ids=" ".join)
def test_a_command_that_only_prints_imports_little(arguments: list[str]) -> None:
    program = (
        "import sys; from bertpre.cli import main\n"
        f"sys.argv = ['bertpre', *{arguments}]\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0
    heavy = {"torch", "transformers", "numpy", "datasets", "huggingface_hub", "rich", "tqdm"}
    heavy |= {"pydantic"} if arguments == ["--version"] else set()
    assert heavy & set(done.stderr.split()) == set()


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, cli.SPINS), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "active"}, "30000000000")],
)
def test_threads_without_work_sleep_soon(given: dict[str, str], expected: str) -> None:
    program = "from bertpre import cli; cli.app = lambda *_, **__: __import__('torch'); cli.main()"
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True,
        env=kept | {"OMP_DISPLAY_ENV": "verbose"} | given,
    ).stderr  # fmt: skip
    if "GOMP_SPINCOUNT" not in said:
        pytest.skip("torch does not use GNU OpenMP here")
    assert f"GOMP_SPINCOUNT = '{expected}'" in said


def test_quiet_counts_before_and_after_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertpre.commands.init.init", lambda **arguments: console.say("copied"))
    file = tmp_path / "my.yaml"
    for arguments, printed in ((["init"], "copied\n"), (["--quiet", "init"], ""), (["init", "--quiet"], "")):
        assert run_here(*arguments, "quickstart", file) == 0
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("bertpre e", ["evaluate", "export"]),
        ("bertpre run imdb-", ["imdb-base", "imdb-mini-cpu", "imdb-small-gpu"]),
        ("bertpre run quickstart training.max_s", ["training.max_steps="]),
        ("bertpre run quickstart training.phases", [f"training.phases.0.{key}=" for key in Phase.model_fields]),
    ],
)
def test_the_shell_completes_commands_recipes_and_keys(
    words: str, found: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_BERTPRE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert run_here() == 0
    assert capsys.readouterr().out.split() == found


def test_show_alone_lists_the_shipped_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("show") == 0
    lines = capsys.readouterr().out.splitlines()
    for name in shipped_recipes():
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        purpose = line.split(maxsplit=1)[1]
        assert len(purpose) > 30 and "bertpre " not in purpose and not purpose.endswith((":", ",", " of the"))


def test_init_writes_a_copy_to_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_here("init", "own-text", "recipes/my.yaml") == 0
    assert "bertpre run recipes/my.yaml" in capsys.readouterr().out
    copy, shipped = load_recipe("recipes/my.yaml"), load_recipe("own-text")
    assert differences(copy, shipped) == ["output_dir"]
    assert copy.output_dir == "runs/my"
    lines = Path("recipes/my.yaml").read_text().splitlines()
    schema = lines[0].removeprefix("# yaml-language-server: $schema=file://")
    assert json.loads(Path(unquote(schema)).read_text())["title"] == "Recipe"
    assert any(line.startswith("#   bertpre run recipes/my.yaml ") for line in lines)
    original = shipped_recipes()["own-text"].read_text().splitlines()
    assert [line.partition("#")[0] for line in lines if "output_dir" not in line] == [
        line.partition("#")[0] for line in original if "output_dir" not in line
    ]


def test_the_commands_in_a_copys_comments_are_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in shipped_recipes():
        assert run_here("init", name, f"mine-{name}.yaml") == 0
        lines = Path(f"mine-{name}.yaml").read_text().splitlines()
        commands = [line for line in lines if line.startswith("#   ")]
        assert not [line for line in commands if re.search(rf"(?<!mine-){name}(?!\.yaml)\b", line)]
    text = Path("mine-imdb-base.yaml").read_text()
    assert "bertpre run mine-imdb-base.yaml" in text and "bertpre show mine-imdb-base.yaml" in text
    text = Path("mine-wikipedia-modern.yaml").read_text()
    assert "bertpre prepare mine-wikipedia-modern.yaml && bertpre pretrain mine-wikipedia-modern.yaml" in text
    assert "-m bertpre.pretrain mine-wikipedia-modern.yaml" in text
    assert "bertpre probe runs/mine-words-10m-cpu --pairs" in Path("mine-words-10m-cpu.yaml").read_text()


def test_the_copy_of_a_run_has_another_output_directory_and_the_paths_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = claim(load_recipe("own-text", [f"output_dir={'several words ' * 9}/run", "corpus.path=texts.txt"]))
    (run / "data.partial").mkdir()
    assert run_here("init", run, "the #1.yaml") == 0
    assert load_recipe("the #1.yaml").output_dir == "runs/the #1"
    run.parent.rename("moved")
    assert run_here("init", "moved/run", "after.yaml") == 0
    assert load_recipe("after.yaml").output_dir == "runs/after"
    assert differences(load_recipe("after.yaml"), load_recipe("moved/run")) == ["output_dir"]


def test_the_copy_of_a_run_that_fine_tunes_alone_names_no_step_of_pretraining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = claim(Recipe(output_dir=str(tmp_path / "run"), finetune={"path": "sample", "init": "a/model"}))
    (run / "results.json").write_text("{}")
    assert run_here("init", run, "mine.yaml") == 0
    printed = capsys.readouterr().out
    assert "bertpre run mine.yaml" in printed and "prepare" not in printed


def test_the_recipe_of_glue_is_for_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_here("init", "glue", "mine.yaml") == 0
    printed = capsys.readouterr().out
    assert "bertpre suite mine.yaml" in printed and "bertpre run" not in printed
    (tmp_path / "data" / "CoLA").mkdir(parents=True)
    for path in ("data", "nyu-mll/glue"):
        assert run_here("finetune", "mine.yaml", f"finetune.path={path}") == 2
        assert "is GLUE: run `bertpre suite`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "file", "message"),
    [
        ("own-text", "old.yaml", "old.yaml: exists already"),
        ("own-text", ".", ".: is a folder; give a file, such as my.yaml"),
        ("own-text", "new/", "new/: is a folder; give a file, such as new/my.yaml"),
        ("own-text", "old.yaml/my.yaml", "old.yaml/my.yaml: cannot be written"),
        ("own-txt", "my.yaml", "own-txt: there is no such recipe"),
    ],
)
def test_init_writes_over_nothing(
    recipe: str, file: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text("mine")
    assert run_here("init", recipe, file) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.yaml": "mine"}


def test_report_writes_the_report_of_each_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    for run in runs:
        run.mkdir()
        shutil.copy(shipped_recipes()["quickstart"], run / "recipe.yaml")
    (runs[0] / "results.json").write_text('{"finetune": {"epochs": 2, "examples": 1000, "seconds": 61.0}}')
    assert run_here("report", *runs) == 2
    assert f"{runs[1]}: there are no results yet" in capsys.readouterr().err
    assert not (runs[0] / "report.html").exists()
    shutil.copy(runs[0] / "results.json", runs[1])
    assert run_here("report", *runs) == 0
    printed = "".join(f"report: {run / 'report.html'}\n" for run in runs)
    out = capsys.readouterr().out
    assert out.startswith(printed) and out.endswith(f"comparison: {runs[0] / 'comparison.html'}\n")
    assert out.splitlines()[2:4] == [f"{'':16}        one        two", "time of finetune  1 min 1 s  1 min 1 s"]
    assert "<a href='../two/report.html'>two</a>" in (runs[0] / "comparison.html").read_text()
    assert run_here("report", runs[0]) == 0
    assert "comparison" not in capsys.readouterr().out
    assert "2 epochs on 1,000 texts, 1 min 1 s" in (runs[1] / "report.html").read_text()


def test_python_m_bertpre_is_the_same_as_bertpre() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bertpre", "--version"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "bertpre")


def test_arguments_reach_the_function_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    called = {}
    monkeypatch.setattr("bertpre.commands.prepare.prepare", lambda **arguments: called.update(arguments))
    assert run_here("prepare", "quickstart", "seed=3", "--shard", "2/8", "corpus.limit=7", "--merge") == 0
    assert (called["shard"], called["merge"], called["recipe"].seed, called["recipe"].corpus.limit) == (
        "2/8", True, 3, 7,
    )  # fmt: skip
    assert set(called) == {"recipe", "shard", "merge"}


def test_fractions_are_numbers_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    called = {}
    monkeypatch.setattr("bertpre.commands.curve.curve", lambda **arguments: called.update(arguments))
    assert run_here("curve", "quickstart", "--fractions", "0.02,1") == 0
    assert called["fractions"] == (0.02, 1.0)
    assert run_here("curve", "quickstart") == 0
    assert called["fractions"] == (0.004, 0.02, 0.1, 1.0)


def test_fractions_that_are_not_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("curve", "quickstart", "--fractions", "half") == 2
    assert capsys.readouterr().err.startswith("error: --fractions half: write fractions")


def test_a_mistake_in_the_recipe_shows_before_the_command_is_imported() -> None:
    program = (
        "import sys; from bertpre.cli import main; sys.argv = ['bertpre', 'pretrain', 'quickstart', 'sead=1']\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout.strip()) == (2, "False")
    assert "did you mean 'seed'?" in done.stderr


@pytest.mark.parametrize(("command", "expected"), [("prepare", b"\nprepare: done ?\n"), ("show", b"")])
def test_a_letter_that_the_output_cannot_show_ends_only_commands_that_print_data(
    command: str, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr(cli, "app", lambda arguments, prog_name: print(f"\n{arguments[0]}: done \u2581"))
    with pytest.raises(UnicodeEncodeError) if command == "show" else nullcontext():
        cli.call_app([command], "bertpre")
    sys.stdout.flush()
    assert shown.getvalue() == expected


@pytest.mark.parametrize(
    ("command", "said"),
    [("prepare", "prepare: stopped. Run the same command to resume\n"), ("doctor", "doctor: stopped\n")],
)
def test_a_command_that_is_interrupted_says_what_follows(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(**arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"bertpre.commands.{command}.{command}", interrupt)
    assert run_here(command, "quickstart") == 130
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("arguments", [["pretrain", "x"], ["--quiet", "finetune", "x"], ["show", "x"]])
def test_a_training_starts_the_processes_that_it_was_asked_for(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr("bertpre.launch.start_missing_processes", lambda: called.append("processes"))
    monkeypatch.setattr(cli, "app", lambda arguments, prog_name: called.append(arguments[-2]))
    cli.call_app(arguments, "bertpre")
    assert called == (["show"] if arguments[0] == "show" else ["processes", arguments[-2]])


@pytest.mark.parametrize("command", ["run quickstart", "push runs/a", "doctor quickstart"])
def test_other_commands_are_refused_where_a_launcher_has_started_several_processes(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["bertpre", *command.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    name = command.split()[0]
    assert f"error: {name} works in one process, but WORLD_SIZE=2 says" in capsys.readouterr().err


def test_accelerate_launch_gives_other_commands_all_cores_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    for processes, names_threads, expected in ((1, True, "1"), (1, False, None)):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr("bertpre.launch.find_launch", lambda: Launch(1, processes, 1, names_threads))  # noqa: B023
        cli.refuse_launcher("run")
        assert os.environ.get("OMP_NUM_THREADS") == expected
    monkeypatch.setattr("bertpre.launch.find_launch", lambda: Launch(1, 2, 1, False))
    cli.refuse_launcher("prepare")
    with pytest.raises(UserError, match="run works in one process, but `accelerate launch` was asked for 2: start it"):
        cli.refuse_launcher("run")


def test_the_usage_of_a_launched_module_is_a_command_that_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])
    with pytest.raises(SystemExit):
        cli.launched("pretrain")
    assert "Usage: python -m bertpre pretrain [OPTIONS]" in capsys.readouterr().err
