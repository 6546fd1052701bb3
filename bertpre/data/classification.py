"""Labelled texts for fine-tuning: cleaned, encoded, cut to length, in padded batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import read_documents
from bertpre.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertpre.recipe import Finetune


@dataclass(frozen=True)
class LabelledTexts:
    """Cleaned texts and their labels, 0 to number of classes - 1."""

    texts: list[str]
    labels: np.ndarray

    def subset(self, indices: np.ndarray) -> "LabelledTexts":
        """Some of them, in the order of `indices`."""
        return LabelledTexts([self.texts[index] for index in indices], self.labels[indices])


def read_labelled(source: "Finetune", split: str, limit: int | None = None) -> LabelledTexts:
    """Read a labelled split into memory; a limited one is drawn evenly from the whole, which may be sorted by label.

    Raises UserError where there is no text, a label is missing or no integer from 0 on, or there is one class only.
    """
    documents = list(
        read_documents(source.path, source.name, split, source.text_column, source.label_column, key="finetune")
    )
    if limit is not None and limit < len(documents):
        documents = [documents[index] for index in np.linspace(0, len(documents) - 1, limit).astype(int)]
    where = f"finetune: {source.path} (split {split})"
    if not documents:
        raise UserError(f"{where} holds no text")
    for document in documents:
        if not isinstance(document.label, int) or document.label < 0:
            raise UserError(f"{where}: the label of text {document.id} is {document.label!r}; labels are 0, 1, 2, ...")
    labels = np.array([document.label for document in documents])
    if len(set(labels.tolist())) < 2:
        raise UserError(f"{where} has one class only ({labels[0]}); a classifier needs two")
    return LabelledTexts([clean_text(document.text) for document in documents], labels)


def encode_texts(
    tokenizer: "PreTrainedTokenizerBase", texts: list[str], max_length: int, truncation: str
) -> list[np.ndarray]:
    """Token ids `[CLS] text [SEP]` of each text, at most `max_length`.

    `head` and `tail` keep the start and the end of a long text; `head_tail` a quarter from the start and the rest from
    the end (Sun et al. 2019, section 5.3.1, who found both ends best on IMDB).
    """
    room = max_length - 2
    from_start = {"head": room, "tail": 0, "head_tail": room // 4}[truncation]
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    rows = []
    for encoding in encodings:
        ids = encoding.ids
        if len(ids) > room:
            ids = ids[:from_start] + ids[len(ids) - (room - from_start) :]
        rows.append(np.array([tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]))
    return rows


def collate_texts(
    rows: list[np.ndarray], labels: np.ndarray, max_length: int, pad_token_id: int
) -> dict[str, torch.Tensor]:
    """A padded batch: input_ids and attention_mask (B, S = max_length), labels (B,)."""
    ids = np.full((len(rows), max_length), pad_token_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels.astype(np.int64)}
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def in_slices(count: int, size: int) -> Iterator[slice]:
    """Consecutive slices of `size` that cover `count` items."""
    return (slice(start, start + size) for start in range(0, count, size))
