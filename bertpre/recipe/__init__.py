"""The recipe: one YAML file that says everything a run needs."""

from bertpre.recipe.loading import differences, flatten, known_keys, load_recipe, shipped_recipes, to_yaml
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
    "flatten",
    "known_keys",
    "load_recipe",
    "seconds",
    "shipped_recipes",
    "to_yaml",
]
