"""The encoder, its heads, conversion to and from stock classes, folders, export, and the cost in FLOPs.

The names below are imported on first use, so that reading a configuration does not load the models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .configuration_bertpre import BertPreConfig
    from .folders import load_model, save_model
    from .modeling_bertpre import (
        BertPreForMaskedLM,
        BertPreForPreTraining,
        BertPreForSequenceClassification,
        BertPreForTokenClassification,
        BertPreModel,
    )

__all__ = [
    "BertPreConfig",
    "BertPreForMaskedLM",
    "BertPreForPreTraining",
    "BertPreForSequenceClassification",
    "BertPreForTokenClassification",
    "BertPreModel",
    "load_model",
    "save_model",
]
FILES = {"BertPreConfig": "configuration_bertpre", "load_model": "folders", "save_model": "folders"}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{FILES.get(name, 'modeling_bertpre')}"), name)
