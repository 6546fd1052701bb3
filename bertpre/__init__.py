"""bertpre: pretrain a BERT from raw text to a fine-tuned, Hub-ready encoder.

    run = bertpre.run("quickstart", output_dir="runs/first")    # every stage; or bertpre.open_run("runs/first")
    run.classifier(["A wonderful film."])

`bertpre.data` has the data pipeline and `bertpre.model` the models, for a loop of your own or transformers' Trainer.
Importing bertpre imports nothing heavy: the names below are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bertpre.model.registration import register_classes

if TYPE_CHECKING:
    from bertpre import data, model
    from bertpre.api import Run, TextClassifier, load_classifier, open_run, run
    from bertpre.errors import UserError
    from bertpre.recipe import Recipe, load_recipe

__version__ = "0.1.0"
__all__ = [
    "Recipe", "Run", "TextClassifier", "UserError", "data", "load_classifier", "load_recipe", "model", "open_run",
    "run",
]  # fmt: skip
MODULES = {
    "Recipe": "recipe", "Run": "api", "TextClassifier": "api", "UserError": "errors", "load_classifier": "api",
    "load_recipe": "recipe", "open_run": "api", "run": "api",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("data", "model"):
        return import_module(f"bertpre.{name}")
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bertpre.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_classes()
