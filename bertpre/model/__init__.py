"""The encoder, its heads, conversion to and from stock classes, and its cost in FLOPs.

The names below are imported on first use, so that reading a configuration does not load the models. Importing the
modeling file also registers the classes with transformers' Auto classes.
"""

from importlib import import_module
from typing import Any

__all__ = [  # noqa: F822 - `__getattr__` finds them
    "BertPreConfig",
    "BertPreForMaskedLM",
    "BertPreForPreTraining",
    "BertPreForSequenceClassification",
    "BertPreForTokenClassification",
    "BertPreModel",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file = "configuration_bertpre" if name == "BertPreConfig" else "modeling_bertpre"
    return getattr(import_module(f"{__name__}.{file}"), name)
