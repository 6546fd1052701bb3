"""The recipe: one YAML file with everything a run needs."""

from bertpre.recipe.loading import (
    differences,
    fields,
    find_recipe,
    flatten,
    json_schema,
    known_keys,
    load_recipe,
    shipped_recipes,
    to_yaml,
    type_parts,
)
from bertpre.recipe.schema import METRICS, Finetune, Phase, Recipe, Section, Source, Training, seconds

__all__ = [
    "Finetune",
    "METRICS",
    "Phase",
    "Recipe",
    "Section",
    "Source",
    "Training",
    "differences",
    "fields",
    "find_recipe",
    "flatten",
    "json_schema",
    "known_keys",
    "load_recipe",
    "seconds",
    "shipped_recipes",
    "to_yaml",
    "type_parts",
]
