"""The recipe: one YAML file with everything a run needs."""

from bertpre.recipe.loading import (
    Overrides,
    binding_values,
    differences,
    fields,
    find_recipe,
    flatten,
    json_schema,
    known_keys,
    load_recipe,
    shipped_recipes,
    stored_recipe,
    to_yaml,
    type_parts,
    with_absolute_paths,
)
from bertpre.recipe.paths import PATH_KEYS
from bertpre.recipe.schema import METRICS, Finetune, Hub, Phase, Recipe, Section, Source, Training, seconds

__all__ = [
    "Finetune",
    "Hub",
    "METRICS",
    "Overrides",
    "PATH_KEYS",
    "Phase",
    "Recipe",
    "Section",
    "Source",
    "Training",
    "binding_values",
    "differences",
    "fields",
    "find_recipe",
    "flatten",
    "json_schema",
    "known_keys",
    "load_recipe",
    "seconds",
    "shipped_recipes",
    "stored_recipe",
    "to_yaml",
    "type_parts",
    "with_absolute_paths",
]
