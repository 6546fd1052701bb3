"""The recipe for other people: what the model card, the Hub and wandb get of it."""

import re
from pathlib import Path
from typing import Any

from bertpre.recipe.paths import NAMES, PATH_KEYS
from bertpre.recipe.schema import Recipe

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # owner/name
MODEL_ID = re.compile(r"([\w-][\w.-]*/)?[\w.-]+")  # some old models, such as bert-base-uncased, have no owner
PATHS = (*PATH_KEYS, "output_dir")  # keys that may hold a path on this machine


def without_own_places(recipe: Recipe) -> Recipe:
    """The recipe for others: without its author's repository and project, and with the last part of each local path.

    That of a model is a folder and keeps a slash, which Hub ids without an owner, such as `bert-base-uncased`, lack.
    """

    def public(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: public(name, part) for name, part in value.items()}
        if isinstance(value, list):
            return [public(key, part) for part in value]
        if key not in PATHS or not isinstance(value, str) or is_public(key, value):
            return value
        return Path(value).name + ("/" if key == "init" else "")

    values = recipe.model_dump()
    del values["hub"], values["data"], values["training"]["wandb_project"]  # data.path: `prepare` makes the same again
    return Recipe.model_validate(public("", values))


def is_public(key: str, value: str) -> bool:
    """Whether the value of a key that may hold a path means the same on other machines."""
    named = MODEL_ID if key == "init" else HUB_ID
    return value in NAMES or (named.fullmatch(value) is not None and not Path(value).exists())
