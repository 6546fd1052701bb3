"""`bertpre init`: a copy of a recipe, to edit."""

import re
import shlex
from pathlib import Path

from bertpre.console import program
from bertpre.errors import UserError, first_line
from bertpre.recipe import find_recipe, load_recipe, shipped_recipes, to_yaml
from bertpre.recipe.loading import is_of_a_run, read_yaml
from bertpre.recipe.yaml_core import write_yaml


def init(recipe: str, file: str) -> None:
    """Copy a recipe with its comments to a new file, and print what to do next.

    The copy has an output directory of its own, `runs/NAME`, and its first line names the schema that comes with this
    bertpre, for editors. Raises UserError for an unknown recipe, and where the file exists or cannot be written.
    """
    source, target = find_recipe(recipe), Path(file)
    if target.is_dir() or file.endswith("/"):
        raise UserError(f"{file}: is a folder; give a file, such as {target / 'my.yaml'}")
    if target.exists():
        raise UserError(f"{target}: exists already; give a new file")
    text = source.read_text(encoding="utf-8")
    if is_of_a_run(source, values := read_yaml(source)):
        text = to_yaml(load_recipe(recipe))  # with its paths where they are now
    schema = next(iter(shipped_recipes().values())).with_name("schema.json")
    text = text.replace("$schema=./schema.json", f"$schema={schema.resolve().as_uri()}")
    name, output_dir = shlex.quote(target.as_posix()), f"runs/{target.stem}"
    line = write_yaml({"output_dir": output_dir}).strip()
    text = re.sub(r"(?m)^output_dir:.*$", lambda _: line, text, count=1)
    text = re.sub(r"(?m)^#.*$", lambda comment: of_the_copy(comment[0], recipe, name, output_dir), text)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {first_line(error)}; give another file") from None
    print(f"{target} is a copy of the recipe {recipe}. Edit it, then:")
    steps = {
        "show": "every key, its value and its meaning",
        "prepare": "clean the text, learn the vocabulary, store the token ids",
        "doctor": "check the machine, the data and the time; writes nothing",
        "run": f"run it; results go to {output_dir}",
    }
    if values.get("corpus") is None:
        del steps["prepare"]
    if "suite" in values and source in shipped_recipes().values():
        steps = {"show": steps["show"], "suite": steps["run"]}
    width = max(map(len, steps))
    for command, does in steps.items():
        print(f"  {program()} {command} {name:<{len(name) + width - len(command)}}  {does}")


def of_the_copy(comment: str, recipe: str, name: str, output_dir: str) -> str:
    """A comment whose commands are for the copy: the argument `recipe` is its file, and `runs/recipe` its folder."""
    word = rf"{re.escape(recipe)}(?![\w./-])"
    comment = re.sub(rf"\bruns/{word}", lambda _: shlex.quote(output_dir), comment)
    return re.sub(rf"(bertpre \w+|bertpre\.pretrain|pretrain\.py) {word}", lambda found: f"{found[1]} {name}", comment)
