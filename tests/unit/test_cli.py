"""The command line: every row of the table calls what it says, and its help shows examples that parse."""

import importlib
import inspect
import shlex
import subprocess
import sys

import pytest
import typer

from bertpre import cli
from bertpre.cli import COMMANDS, Command, app, guarded
from bertpre.errors import UserError
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
    assert command.examples
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


def test_only_mistakes_and_a_full_disk_become_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bertpre"])

    def fail(error: Exception) -> None:
        raise error

    for error, message in ((UserError("key: wrong"), "key: wrong"), (OSError(28, "No space left"), "the disk is full")):
        with pytest.raises(SystemExit) as end:
            guarded(lambda _, error=error: fail(error))
        assert end.value.code == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
    for error in (OSError(5, "Input/output error"), ValueError("a bug")):
        with pytest.raises(type(error)):
            guarded(lambda _, error=error: fail(error))


def test_the_main_process_reports_a_mistake_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bertpre"])
    waited: list[float] = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)

    def mistake(arguments: list[str]) -> None:
        raise UserError("wrong")

    for rank, expected in (("0", []), ("1", [cli.SECONDS_FOR_MAIN_PROCESS])):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            guarded(mistake)
        assert waited == expected
