"""The encoder, its heads, conversion to and from stock classes, and its cost in FLOPs.

The names below are imported on first use, so that reading a configuration does not load the models. Importing the
modeling file also registers the classes with transformers' Auto classes.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "BertPreConfig": "configuration_bertpre",
    "BertPreModel": "modeling_bertpre",
    "BertPreForPreTraining": "modeling_bertpre",
    "BertPreForMaskedLM": "modeling_bertpre",
    "BertPreForNextSentencePrediction": "modeling_bertpre",
    "BertPreForSequenceClassification": "modeling_bertpre",
    "BertPreForTokenClassification": "modeling_bertpre",
    "BertPreForQuestionAnswering": "modeling_bertpre",
    "BertPreForMultipleChoice": "modeling_bertpre",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
