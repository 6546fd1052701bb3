"""The data pipeline: documents -> tokenizer -> store on disk -> segment pairs -> masked batches.

The names below are imported on first use. They need no recipe; docs/python.md shows them at work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertpre.data.datasets import SegmentPairDataset, SegmentPairIterableDataset
    from bertpre.data.masking import DataCollatorForPretraining
    from bertpre.data.raw_text import for_raw_texts
    from bertpre.data.sampler import Example
    from bertpre.data.texts import read_texts
    from bertpre.data.token_store import TokenStore
    from bertpre.data.tokenizer import learn_tokenizer, load_tokenizer

__all__ = [
    "DataCollatorForPretraining",
    "Example",
    "SegmentPairDataset",
    "SegmentPairIterableDataset",
    "TokenStore",
    "for_raw_texts",
    "learn_tokenizer",
    "load_tokenizer",
    "read_texts",
]
MODULES = {
    "DataCollatorForPretraining": "masking", "Example": "sampler", "SegmentPairDataset": "datasets",
    "SegmentPairIterableDataset": "datasets", "TokenStore": "token_store", "for_raw_texts": "raw_text",
    "learn_tokenizer": "tokenizer", "load_tokenizer": "tokenizer", "read_texts": "texts",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
