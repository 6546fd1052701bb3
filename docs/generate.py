"""Write docs/recipe.md from the recipe's schema and docs/commands.md from the command line.

`make docs` runs this. Both files are committed; tests/integration/test_docs.py checks that they are current.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from bertpre.cli import SECTIONS, app
from bertpre.recipe import Recipe, Section, fields, type_parts

DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py: change the source, then run `make docs`. -->"


def recipe_page() -> str:
    """A table of keys for each section of the recipe."""
    rows: dict[str, list[str]] = {"": []}
    titles = {"": ""}
    for key, field in fields(Recipe):
        section, _, name = key.rpartition(".")
        parts = [part for part in type_parts(field.annotation) if inspect.isclass(part) and issubclass(part, Section)]
        if parts:
            rows[key], titles[key] = [], " ".join((field.description or inspect.getdoc(parts[0]) or "").split())
        if not parts or field.description:
            rows[section].append(f"| `{name}` | {kind(field)} | {default(field)} | {cell(field.description or '')} |")
    lines = [NOTE, "", "# Recipe keys", "", INTRODUCTION]
    for section, keys in rows.items():
        if not keys:
            continue
        lines += ["", f"## `{section}`" if section else "## At the top", ""]
        if titles[section]:
            lines += [titles[section], ""]
        lines += ["| key | values | default | meaning |", "|---|---|---|---|", *keys]
    return "\n".join(lines) + "\n"


INTRODUCTION = """A recipe is a YAML 1.2 file with these keys. Every key can also be set on the command line, as in
`training.max_steps=100`; `training.phases.0.max_length=64` sets an entry of a list. Unknown keys and bad values are
refused before anything runs. `bertpre show RECIPE` prints a recipe with the meaning of each key, and
`recipes/schema.json` lets editors complete and check recipes.

A recipe needs `output_dir`. One that pretrains needs `corpus.path` and a limit: `training.max_steps`,
`training.max_tokens`, `training.max_epochs` or `training.budget`. One that only fine-tunes needs `finetune.path` and
an existing model in `finetune.init`."""


WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def kind(field: FieldInfo) -> str:
    """The values that a key takes: its choices, or a word for its type."""
    parts = list(type_parts(field.annotation))
    if any(inspect.isclass(part) and issubclass(part, Section) for part in parts):
        return "list of sections" if list in [getattr(part, "__origin__", None) for part in parts] else "section"
    return ", ".join(dict.fromkeys(words_of(field.annotation)))


def words_of(annotation: Any) -> Iterator[str]:
    """The choices in a type, then words for its other parts."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        yield from (f"`{part}`" for part in parts)
    elif origin is Annotated:
        yield from words_of(parts[0])
    elif origin in (Union, UnionType):
        words = [word for part in parts for word in words_of(part)]
        yield from sorted(words, key=lambda word: not word.startswith("`"))
    elif origin in (list, tuple):
        words = list(dict.fromkeys(word for part in parts for word in words_of(part)))
        yield "list of " + ", ".join(f"{word}s" if word.endswith("number") else word for word in words)
    elif annotation in WORDS:
        yield WORDS[annotation]


def default(field: FieldInfo) -> str:
    """A key's default, as YAML writes it."""
    if field.default is PydanticUndefined:
        return "required"
    value: Any = field.default
    if isinstance(value, list) and value and isinstance(value[0], Section):
        return "one phase"
    if value is None or isinstance(value, bool):
        return f"`{str(value).lower().replace('none', 'null')}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`".replace("'", "")


def cell(text: str) -> str:
    """A text in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def commands_page() -> str:
    """Every command with its arguments, options and examples, in the sections of `bertpre --help`."""
    lines = [NOTE, "", "# Commands", "", COMMANDS_INTRODUCTION]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for title, section in SECTIONS.items():
        lines += ["", f"## {title}"]
        for command in section:
            lines += ["", f"### `bertpre {command.name}`", "", command.help, ""]
            lines += ["| argument | meaning |", "|---|---|", *parameters(commands[command.name])]
            lines += ["", "<!-- parsed, not run: the help's examples, which name files and runs that a reader has -->"]
            lines += ["```bash", *(f"bertpre {example}" for example in command.examples), "```"]
    return "\n".join(lines) + "\n"


COMMANDS_INTRODUCTION = """`bertpre COMMAND -h` prints the same. RECIPE is a file, a run directory or a shipped
recipe's name. Every command also takes `--quiet` (print only warnings, errors and results) and `--debug` (show the
traceback of an error). A mistake in a recipe or a file is one message with exit status 2, and nothing is overwritten.
`python -m bertpre` is the same as `bertpre`; `bertpre --install-completion` completes commands, recipes and keys in the
shell.

On several processes, `accelerate launch -m bertpre.pretrain` and `-m bertpre.finetune` take the arguments of `bertpre
pretrain` and `bertpre finetune` ([GPUs](how-to/gpus.md))."""


def parameters(command: Any) -> Iterator[str]:
    """A row for each argument and option of a command, without those that every command takes."""
    for parameter in command.params:
        if parameter.name in ("quiet", "debug", "help"):
            continue
        is_option = parameter.param_type_name == "option"
        name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
        if is_option and not parameter.is_flag:
            name += f" {parameter.metavar or 'VALUE'}"
        text = cell(parameter.help or "")
        if is_option and not parameter.is_flag and parameter.default is not None and "Default" not in text:
            text += f" Default: `{parameter.default}`."
        yield f"| `{re.sub(r'[|]', '', name)}` | {text} |"


if __name__ == "__main__":
    (DOCS / "recipe.md").write_text(recipe_page(), encoding="utf-8")
    (DOCS / "commands.md").write_text(commands_page(), encoding="utf-8")
