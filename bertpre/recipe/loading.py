"""Find a recipe by name, apply overrides and check it; write it out again, and compare two."""

import difflib
import itertools
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bertpre.errors import UserError
from bertpre.recipe.paths import follow_move, make_local_paths_absolute
from bertpre.recipe.schema import Recipe, Section
from bertpre.recipe.yaml_core import read_yaml_text, write_yaml

MOST_VALUES, MOST_LEVELS = 100_000, 50  # of a recipe
NOT_YAML = (yaml.YAMLError, ValueError, KeyError, AttributeError)  # what PyYAML raises, also for `!!int abc`

LONGEST_SHOWN = 300  # characters of a value in a message
TRACES = ("results.json", "manifest.json", "metrics.jsonl", "data.partial", "data/manifest.json")  # what stages leave
PLAIN = {
    "Value error, ": "",
    "Input should": "must",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean, unable to interpret input": "true or false",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "List should have": "must have",
    " after validation": "",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
}
Overrides = Sequence[str] | Mapping[str, Any]


def load_recipe(name: str | os.PathLike[str] | Recipe, overrides: Overrides | None = None, /, **keys: Any) -> Recipe:
    """Read a recipe and apply overrides; paths of files and folders that exist become absolute.

    `name` is a path, the name of a shipped recipe, a run directory, or a recipe to change. A run directory works from
    anywhere, also after it was moved: `output_dir` is the directory itself. `overrides` are `section.key=value`, values
    in YAML, or a mapping of dotted keys or nested sections; keyword arguments are further ones: `seed=1,
    training={"max_steps": 100}`. Raises UserError for a missing file, an unknown key or a bad value.
    """
    if isinstance(name, Recipe):
        path, values = Path("recipe"), name.model_dump(mode="json")  # lists, as in YAML
    else:
        path = find_recipe(os.fspath(name))
        values = read_yaml(path)
        if is_of_a_run(path, values):
            values = follow_move(values, path.parent)
    overrides = [overrides] if isinstance(overrides, str) else overrides
    given = flatten(dict(overrides) if isinstance(overrides, Mapping) else {}) | flatten(keys)
    written = overrides if isinstance(overrides, Sequence) else ()
    for override in written:
        apply_override(values, override)
    for key, value in given.items():
        set_key(values, key, os.fspath(value) if isinstance(value, os.PathLike) else value)
    place = path.name if path in shipped_recipes().values() else str(path)
    overridden = {*given, *(override.partition("=")[0] for override in written)}
    return with_absolute_paths(validated(values, place, overridden))


def stored_recipe(folder: Path, prefer_near: bool = False) -> Recipe:
    """The recipe in a run directory, with its paths followed to where they are now, as in `follow_move`."""
    return validated(stored_values(folder, prefer_near), str(folder / "recipe.yaml"))


def stored_values(folder: Path, prefer_near: bool = False) -> dict[str, Any]:
    """The values of `stored_recipe`, unchecked: another version may have written them."""
    return make_local_paths_absolute(follow_move(read_yaml(folder / "recipe.yaml"), folder, prefer_near))


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with the absolute paths of its local files; those that its run directory knows need not be here."""
    folder = Path(recipe.output_dir).expanduser()
    stored = stored_values(folder) if (folder / "recipe.yaml").is_file() else None
    return Recipe.model_validate(make_local_paths_absolute(recipe.model_dump(), stored))


def is_of_a_run(path: Path, values: dict[str, Any]) -> bool:
    """Whether a file is the recipe that a run directory keeps, and not one that somebody wrote there."""
    here = path.parent
    if path.name != "recipe.yaml" or (here / "config.json").is_file():  # a pushed repository has a recipe, too
        return False
    is_at_home = os.path.abspath(str(values.get("output_dir"))) == os.path.abspath(here)
    return is_at_home or any((here / trace).exists() for trace in TRACES)


def validated(values: dict[str, Any], place: str, overridden: Collection[str] = ()) -> Recipe:
    """The recipe of these values; raises UserError, which names the keys, and the place of those not overridden."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [line if is_about(line, overridden) else f"{place}: {line}" for line in explain(error)]
        raise UserError("\n".join(lines)) from None


def is_about(line: str, keys: Collection[str]) -> bool:
    """Whether a mistake's line begins with one of the keys, or with a section or an entry of one."""
    found = re.match(r"(?:(?:unknown )?key ')?([\w.]+)", line)
    mistaken = f"{found[1]}." if found else ""
    return any(mistaken.startswith(f"{key}.") or f"{key}.".startswith(mistaken) for key in keys)


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with bertpre, by name."""
    package = Path(__file__).parent.parent
    installed, checkout = package / "recipes", package.parent / "recipes"
    folder = installed if installed.is_dir() else checkout
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def find_recipe(name: str) -> Path:
    """The file that `name` refers to: a path, else a run directory's own recipe, else a shipped recipe."""
    path = Path(name).expanduser()
    for file in (path, path / "recipe.yaml"):
        if file.is_file():
            return file
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name, [*shipped, *map(str, Path().glob("*.yaml"))], n=1)
    hint = f"did you mean {near[0]}? Or " if near else ""
    wrong = "is a folder without recipe.yaml, so no run directory" if path.is_dir() else "there is no such recipe"
    raise UserError(f"{name}: {wrong}; {hint}give a file, a run directory or a shipped recipe ({', '.join(shipped)})")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping from a file."""
    try:
        values = read_yaml_text(path.read_text(encoding="utf-8"))
    except (*NOT_YAML, OSError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe must be a mapping of keys to values; see `bertpre show quickstart`")
    return unshared(values, path)


def unshared(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """A copy in which nothing occurs twice: an override of what an alias repeats would change both places.

    Raises UserError where a few aliases stand for more than a recipe ever has, or for themselves.
    """
    count = itertools.count()

    def copy(value: Any, depth: int) -> Any:
        if next(count) > MOST_VALUES or depth > MOST_LEVELS:
            raise UserError(f"{path}: its aliases (*) repeat each other without end; write the values out")
        if isinstance(value, dict):
            return {key: copy(each, depth + 1) for key, each in value.items()}
        return [copy(each, depth + 1) for each in value] if isinstance(value, list) else value

    copied: dict[str, Any] = copy(values, 0)
    return copied


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set one `section.key=value` in place, the value in YAML; that of a key for text is the text as it is written."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"override {override!r}: write key=value, e.g. training.max_steps=100")
    try:
        value = read_yaml_text(text)
    except NOT_YAML:
        value = text
    is_quoted = text.lstrip()[:1] in ("'", '"')
    is_list = isinstance(value, list) and key == "finetune.label_column"  # the one key that takes a text or a list
    is_null = value is None and not text.lstrip().startswith("#")
    if not (is_null or is_quoted or is_list) and re.sub(r"\.\d+", "", key) in TEXT_KEYS:
        value = text.strip()  # in YAML, "Issue #" would lose its end, "#1 String" be nothing and 2026 a number
    set_key(values, key, value)


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key in place; a number selects from a list (`training.phases.0.max_length`)."""
    *parents, last = key.split(".")
    target: Any = values
    for place, part in enumerate(parents, start=1):
        if isinstance(target, list) and part.isdecimal():
            if int(part) >= len(target):
                raise too_few(key, ".".join(parents[: place - 1]), target)
            target = target[int(part)]
        elif isinstance(target, dict):
            if target.get(part) is None:
                target[part] = default_list(".".join(parents[:place])) if ([*parents, last][place]).isdecimal() else {}
            target = target[part]
        else:
            raise UserError(f"{key}: {part!r} is not a section")
    if isinstance(target, list) and last.isdecimal() and int(last) < len(target):
        target[int(last)] = value
    elif isinstance(target, dict):
        target[last] = value
    else:
        section = ".".join(parents)
        if isinstance(target, list) and last.isdecimal():
            raise too_few(key, section, target)
        raise UserError(f"{key}: {section!r} is not a section; if it is a list, write {section}.0.{last}")


def too_few(key: str, section: str, entries: list[Any]) -> UserError:
    """The error for a number beyond the entries of a list."""
    return UserError(f"{key}: {section!r} has {len(entries)} entries, counted from 0; give the whole list")


def default_list(key: str) -> Any:
    """What a key holds by default if that is a list, so that one of its entries can be changed; else no keys."""
    field = FIELDS.get(key)
    default = field.get_default(call_default_factory=True) if field is not None else None
    if not isinstance(default, list | tuple):
        return {}
    return [entry.model_dump() if isinstance(entry, Section) else entry for entry in default]


def explain(error: ValidationError) -> Iterator[str]:
    """One line for each key with a mistake: the dotted key, what is wrong with it, and the nearest known key."""
    known = list(known_keys())
    for key, group in itertools.groupby(error.errors(), key_of):
        mistakes = list(group)  # several where a value may be of several types, and is of none
        mistake = mistakes[0]
        if mistake["type"] == "extra_forbidden":
            yield f"unknown key {key!r}; {nearest_to(key, known)}"
        elif mistake["type"] == "model_type":
            given = "null" if mistake["input"] is None else shortened(repr(mistake["input"]))
            yield f"{key}: is a section, not a single value; set its keys: {key}.KEY=VALUE (given: {given})"
        elif mistake["type"] == "missing" and re.search(r"\.\d+$", key):
            yield f"{key.rpartition('.')[0]}: has too few entries; give the whole list"
        elif mistake["type"] == "missing":
            yield f"key {key!r} is missing; set it in the file or with {key}=..."
        elif mistake["type"] == "value_error" and isinstance(mistake["input"], dict | Section):
            section = f"{key}." if key else ""  # the message of a validator over several keys starts with one of them
            yield section + str(mistake["ctx"]["error"])
        else:
            value = mistake["input"]
            shown = "null" if value is None else shortened(repr(value))
            given = "" if isinstance(value, dict) else f" (given: {shown})"
            is_bare = isinstance(value, bool | int | float) and any("string" in each["type"] for each in mistakes)
            words = dict.fromkeys(in_plain_words(each["msg"]) for each in mistakes)
            problem = " or ".join(words).replace(" or must be ", " or ")
            is_list = isinstance(value, str) and mistake["type"] in ("list_type", "tuple_type")
            advice = "; put it in quotes" if is_bare else f"; write {key}='[{value}]'" if is_list else ""
            if key.endswith(".path") and not isinstance(value, dict | str | bool | int | float | None):
                advice = "; write the texts to a file, and give its name"  # a table or a list, from Python
            yield f"{key}: {problem}{given}{advice}"


def shortened(text: str) -> str:
    """The text, or its start: a whole table may have been given in place of a value."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def key_of(mistake: Mapping[str, Any]) -> str:
    """The dotted key of one of pydantic's mistakes, without the types that it tried."""
    types = ("bool", "str", "constrained-int")
    parts = (str(part) for part in mistake["loc"])
    return ".".join(part for part in parts if not part.startswith(("literal[", "list[")) and part not in types)


def nearest_to(key: str, known: Sequence[str]) -> str:
    """What an unknown key may have been meant for."""
    if key.startswith("training.") and "epoch" in key:
        return "did you mean 'training.max_epochs'?"
    near = difflib.get_close_matches(re.sub(r"\.\d+", "", key), known, n=1, cutoff=0.5)
    if not near:
        return f"known keys: {', '.join(Recipe.model_fields)}"
    number = next(iter(re.findall(r"phases\.(\d+)", key)), "0")
    return f"did you mean {near[0].replace('phases.', f'phases.{number}.')!r}?"


def in_plain_words(message: str) -> str:
    """What pydantic says of a value, in fewer words: `must be at least 1`."""
    for long, short in PLAIN.items():
        message = message.replace(long, short)
    return message


def known_keys() -> Iterator[str]:
    """Every dotted key of the schema."""
    return (key for key, _ in fields(Recipe))


def fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every dotted key of the schema, with its field."""
    for name, field in section.model_fields.items():
        yield prefix + name, field
        for part in type_parts(field.annotation):
            if isinstance(part, type) and issubclass(part, Section):
                yield from fields(part, f"{prefix}{name}.")


def type_parts(annotation: Any) -> Iterator[Any]:
    """The parts of a type, outermost first, down to the values of a Literal."""
    yield annotation
    for part in get_args(annotation):
        yield from type_parts(part)


FIELDS = dict(fields(Recipe))
TEXT_KEYS = {key for key, field in FIELDS.items() if str in (field.annotation, *get_args(field.annotation))}


def to_yaml(recipe: Recipe, unused: Collection[str] = ()) -> str:
    """The resolved recipe, every default written out; loads again unchanged. `unused` are sections to leave out."""
    return write_yaml(recipe.model_dump(exclude=set(unused)))


def json_schema() -> str:
    """The recipe's JSON schema, for editors; `make schema` writes it to `recipes/schema.json`."""
    return json.dumps(Recipe.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


# What may change between runs of one recipe, as pydantic leaves it out. It does not affect the trained weights, but for
# torch.compile and the sizes of micro-batches, which change the rounding and dropout's draws. Pretraining checks the
# data of data.path.
FREE: Any = {
    "training": {
        **dict.fromkeys(("log_every", "eval_every", "wandb_project", "tensorboard", "price_per_hour", "compile"), True),
        "phases": {"__all__": {"micro_batch_size": True}},
    },
    "checkpoint": dict.fromkeys(("every", "keep", "keep_every"), True),
    "data": {"path": True},
    "finetune": {"micro_batch_size": True},
}


def binding_values(recipe: Recipe, sections: set[str] | None = None) -> dict[str, Any]:
    """The values of all keys that may not change between runs, or of those in some sections, by dotted key."""
    return flatten(recipe.model_dump(include=sections, exclude=FREE))


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The dotted keys whose values differ between two recipes; those that may change between runs do not count."""
    one, other = binding_values(old), binding_values(new)
    changed = {key for key in one.keys() & other.keys() if one[key] != other[key]}
    for few, many in ((one, other), (other, one)):  # a section that is null in one of them
        changed |= {key for key in few.keys() - many.keys() if any(name.startswith(f"{key}.") for name in many)}
    return sorted(changed)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat
