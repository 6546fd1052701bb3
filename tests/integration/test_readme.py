"""Everything that the README shows exists: commands, options, recipes, keys, make targets, files."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from bertpre.cli import app
from bertpre.recipe import known_keys, shipped_recipes
from tests.helpers import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
BLOCKS = [code for language, code in FENCED if language == "bash"]
LINES = [line.split(" #")[0].strip().removeprefix("$ ") for block in BLOCKS for line in block.splitlines()]
INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL))
GITHUB = [  # pages that GitHub finds beside the repository: the badge of a workflow
    "../../actions/workflows/tests.yml",
    "../../actions/workflows/tests.yml/badge.svg",
]
COMMANDS = [line for line in [*LINES, *INLINE] if line and "|" not in line]


def arguments_of(program: str) -> list[list[str]]:
    """The arguments of every command that starts a program, by whatever path."""
    split = [shlex.split(command) for command in COMMANDS if re.match(rf"(\S*/)?{program}\b", command)]
    return [words[1:] for words in split]


def parse(arguments: list[str]) -> dict[str, Any]:
    """Parse as the command line would, without running; raises its usage error."""
    verb, *rest = arguments
    commands = typer.main.get_command(app).commands
    assert verb in commands, verb
    return commands[verb].make_context(verb, rest).params


def check_recipe(arguments: list[str]) -> None:
    """A recipe is shipped or a placeholder; overrides set keys that exist."""
    recipe, *overrides = arguments
    assert recipe.isupper() or recipe.endswith(".yaml") or recipe in shipped_recipes(), recipe
    for override in overrides:
        key, equals, _ = override.partition("=")
        assert equals, override
        assert re.sub(r"\.\d+", "", key) in set(known_keys()), override


def test_every_bertpre_command_parses() -> None:
    commands = arguments_of("bertpre")
    assert commands
    for arguments in commands:
        if arguments and arguments != ["bertpre"] and not arguments[0].startswith("-"):
            parsed = parse(arguments)
            if parsed.get("recipe"):
                check_recipe([parsed["recipe"], *(parsed.get("overrides") or [])])


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError, match="fly"):
        parse(["fly", "RECIPE"])
    for arguments in (["export", "RUN_DIR", "--into", "bert"], ["push", "RUN_DIR"]):
        with pytest.raises(Exception, match="No such option|Missing"):  # of the click that typer carries
            parse(arguments)
    for arguments in (["imdb-maxi"], ["quickstart", "training.steps=3"]):
        with pytest.raises(AssertionError):
            check_recipe(arguments)


def test_every_launched_module_exists_and_parses() -> None:
    launched = [words for words in arguments_of("accelerate") if "-m" in words]
    assert launched
    for arguments in launched:
        place = arguments.index("-m") + 1
        module, rest = arguments[place], arguments[place + 1 :]
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
        parse([module.removeprefix("bertpre."), *rest])
        check_recipe(rest)


def test_every_make_target_exists() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [target for arguments in arguments_of("make") for target in arguments]
    assert {"quickstart", "test"} <= set(named)
    assert set(named) <= set(targets)


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", README):
        if not target.startswith("https://") and target not in GITHUB:
            assert (ROOT / target).exists(), target


def test_it_is_short_and_starts_with_what_to_do() -> None:
    assert len(README.split()) < 900
    first_screen = "\n".join(README.splitlines()[:30])
    assert "make quickstart" in first_screen
    assert "make test" in first_screen


def test_its_python_runs(tiny_modern_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "quickstart"):
        shutil.copytree(tiny_modern_run, f"runs/{name}")  # finished, so that the code takes no minutes
    first, second = (code for language, code in FENCED if language == "python")
    exec(first.replace('"quickstart"', repr(str(tiny_modern_run.parent / "tiny.yaml"))), {})
    seen: dict[str, Any] = {}
    exec(second, seen)
    assert set(seen["classify"]("A wonderful film.")[0]) == {"label", "score"}


def test_it_names_exactly_the_shipped_recipes() -> None:
    listed = re.search(r"shipped recipe:((?:\s*`[\w-]+`[,.])+)", README)
    assert listed, "the README lists the shipped recipes after `shipped recipe:`"
    assert sorted(re.findall(r"`([\w-]+)`", listed[1])) == sorted(shipped_recipes())
