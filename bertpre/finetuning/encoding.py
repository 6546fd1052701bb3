"""Labelled examples as a network reads them: token ids with special tokens, cut to a length, in padded batches."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertpre.data.encoder import Encoder
from bertpre.data.pairs import IGNORE_INDEX
from bertpre.finetuning.examples import Examples

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase

    from bertpre.recipe import Finetune

Tokens = tuple[list[np.ndarray], list[np.ndarray] | None]  # ids (T,) of texts, and of second texts
FEW_TEXTS = 256  # for so few it does not pay to import pyarrow, which Encoder needs: 0.2 s


@dataclass(frozen=True)
class EncodedExamples:
    """Token ids of examples, their segments (0 or 1) if they are pairs, and their labels.

    If words are labelled, `labels` has an array (S,) for each text: a label at each word's first token, IGNORE_INDEX
    elsewhere. The first `num_pseudo_labelled` examples have pseudo-labels. `num_cut` texts were longer.
    """

    ids: list[np.ndarray]
    segments: list[np.ndarray] | None
    labels: Any
    num_pseudo_labelled: int = 0
    num_cut: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each example."""
        return np.array([len(row) for row in self.ids])


def whole_backend(tokenizer: "PreTrainedTokenizerBase") -> "Tokenizer":
    """The backend tokenizer with the truncation and padding of its file switched off: the recipe decides on both."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return backend


@dataclass(frozen=True)
class Template:
    """The special tokens that a tokenizer puts before, between and after the texts, and the segment of each text."""

    parts: list[list[int]]
    segments: list[int]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase", pairs: bool) -> "Template":
        """Find them by letting the tokenizer encode one letter, or a pair of letters."""
        encoding = whole_backend(tokenizer).encode("a", "a" if pairs else None)
        parts: list[list[int]] = [[]]
        segments = []
        for token, text, segment in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True):
            if text is None:
                parts[-1].append(token)
            elif len(parts) == text + 1:
                parts.append([])
                segments.append(segment)
        return cls(parts, segments)

    @property
    def length(self) -> int:
        """The number of special tokens."""
        return sum(map(len, self.parts))

    def fill(self, *texts: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and segments of one example; a special token belongs to the text before it."""
        first, *others = self.parts
        pieces = [first, *chain.from_iterable(zip(texts, others, strict=True))]
        ids = np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])
        lengths = [len(text) + len(after) for text, after in zip(texts, others, strict=True)]
        lengths[0] += len(first)
        return ids, np.repeat(self.segments, lengths)


def encode_examples(
    tokenizer: "PreTrainedTokenizerBase",
    examples: Examples,
    max_length: int,
    truncation: str = "head",
    tokens: Tokens | None = None,
) -> EncodedExamples:
    """Token ids of each example with special tokens, at most `max_length`; in a pair the longer text is cut first.

    `head` keeps the start of a long text and `tail` the end; `head_tail` takes a quarter from the start and the rest
    from the end (Sun et al. 2019, section 5.3.1, found both ends best on IMDB). Labelled words are cut at the end.
    Pass `tokens`, the result of `tokenize`, to encode the same examples at several lengths.
    """
    template = Template.of(tokenizer, examples.pairs is not None)
    room = max_length - template.length
    if examples.texts and isinstance(examples.texts[0], list):
        return encode_words(tokenizer, examples, template, room)
    first, second = tokens or tokenize(tokenizer, examples)
    if second is None:
        rows = [template.fill(cut(ids, room, truncation))[0] for ids in first]
        return EncodedExamples(rows, None, examples.labels, num_cut=sum(len(ids) > room for ids in first))
    filled = []
    for one, other in zip(first, second, strict=True):
        half = (room + (len(other) >= len(one))) // 2  # fast tokenizers give an odd token to the longer text too
        share = min(len(other), max(half, room - len(one)))
        filled.append(template.fill(cut(one, room - share, truncation), cut(other, share, truncation)))
    has_segments = "token_type_ids" in tokenizer.model_input_names
    segments = [segments for _, segments in filled] if has_segments else None
    num_cut = sum(len(one) + len(other) > room for one, other in zip(first, second, strict=True))
    return EncodedExamples([ids for ids, _ in filled], segments, examples.labels, num_cut=num_cut)


def cut_text(settings: "Finetune", which: str, num_cut: int, count: int) -> str:
    """How many of some texts are cut, and to what."""
    truncation = "head" if settings.task == "tokens" else settings.truncation  # as many words as fit
    kept = f"finetune.max_length={settings.max_length} tokens (truncation: {truncation})"
    return f"{num_cut:,} of the {count:,} {which} texts are cut to {kept}"


def tokenize(tokenizer: "PreTrainedTokenizerBase", examples: Examples) -> Tokens:
    """The token ids of uncut texts and second texts, without special tokens."""
    backend = whole_backend(tokenizer)
    return token_ids(backend, examples.texts), None if examples.pairs is None else token_ids(backend, examples.pairs)


def token_ids(backend: "Tokenizer", texts: list[str]) -> list[np.ndarray]:
    """The token ids (T,) of texts; a special token that is written in a text is one.

    Where there are many and the tokenizer is BERT's, each distinct word is encoded once. Texts with a special token in
    them are left to the tokenizer, since `Encoder` reads it as text.
    """

    def by_tokenizer(some: list[str]) -> list[np.ndarray]:
        encodings = backend.encode_batch_fast(some, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    if len(texts) <= FEW_TEXTS or not Encoder.serves(backend):
        return by_tokenizer(texts)
    encoder = Encoder(backend)
    ids, offsets = encoder.encode(texts)
    rows = np.split(ids, offsets[1:-1])
    special = [number for number, text in enumerate(texts) if encoder.special.search(text)]
    for number, row in zip(special, by_tokenizer([texts[number] for number in special]), strict=True):
        rows[number] = row
    return rows


def encode_words(
    tokenizer: "PreTrainedTokenizerBase", examples: Examples, template: Template, room: int
) -> EncodedExamples:
    """Token ids of lists of words; each word's label is at its first token."""
    rows, labels, num_cut = [], [], 0
    for encoding, tags in zip(encodings_of_words(tokenizer, examples.texts), examples.labels, strict=True):
        words = np.array(encoding.word_ids[:room], dtype=np.int64)
        is_first = np.diff(words, prepend=-1) != 0
        row = template.fill(encoding.ids[:room])[0]
        label = np.full(len(row), IGNORE_INDEX)
        start = len(template.parts[0])
        label[start : start + len(words)][is_first] = np.asarray(tags)[words[is_first]]
        rows.append(row)
        labels.append(label)
        num_cut += len(encoding.ids) > room
    return EncodedExamples(rows, None, labels, num_cut=num_cut)


def without_cut_words(tokenizer: "PreTrainedTokenizerBase", examples: Examples, max_length: int) -> Examples:
    """Examples of the task `tokens` without the words that `encode_examples` cuts off."""
    encoded = encode_examples(tokenizer, examples, max_length)
    counts = [int((row != IGNORE_INDEX).sum()) for row in encoded.labels]
    texts = [words[:count] for words, count in zip(examples.texts, counts, strict=True)]
    return replace(examples, texts=texts, labels=[row[:n] for row, n in zip(examples.labels, counts, strict=True)])


def encodings_of_words(tokenizer: "PreTrainedTokenizerBase", texts: list[list[str]]) -> list["Encoding"]:
    """The tokens of lists of words; each word has at least one.

    Words are brought into Unicode NFC, as all texts are. Every word but the first is preceded by a space, so that
    byte-level tokenizers do not join it to the one before. A word that gives no token, such as a lone zero-width space,
    is read as "?".
    """

    def encode(words: list[str]) -> "Encoding":
        words = [unicodedata.normalize("NFC", word) for word in words]
        spaced = [word if place == 0 else f" {word}" for place, word in enumerate(words)]
        return tokenizer.backend_tokenizer.encode(spaced, is_pretokenized=True, add_special_tokens=False)

    encodings = list(map(encode, texts))
    for number, (words, encoding) in enumerate(zip(texts, encodings, strict=True)):
        if len(seen := set(encoding.word_ids)) < len(words):
            encodings[number] = encode([word if place in seen else "?" for place, word in enumerate(words)])
    return encodings


def cut(ids: np.ndarray, room: int, truncation: str) -> np.ndarray:
    """A text (T,) cut to `room` tokens."""
    if len(ids) <= room:
        return ids
    from_start = {"head": room, "tail": 0, "head_tail": room // 4}[truncation]
    return np.concatenate([ids[:from_start], ids[len(ids) - (room - from_start) :]])


def collate(
    encoded: EncodedExamples, indices: Sequence[int] | np.ndarray, length: int, pad_token_id: int
) -> dict[str, torch.Tensor]:
    """A padded batch: input_ids, attention_mask and for pairs token_type_ids, all (B, S = length); labels (B, ...)."""
    ids = padded([encoded.ids[index] for index in indices], length, pad_token_id)
    mask = padded([np.ones_like(encoded.ids[index]) for index in indices], length, 0)
    batch = {"input_ids": ids, "attention_mask": mask}
    if encoded.segments is not None:
        batch["token_type_ids"] = padded([encoded.segments[index] for index in indices], length, 0)
    is_array = isinstance(encoded.labels, np.ndarray)
    labels = encoded.labels[indices] if is_array else padded([encoded.labels[i] for i in indices], length, IGNORE_INDEX)
    return {name: torch.from_numpy(array) for name, array in (batch | {"labels": labels}).items()}


def padded(rows: list[np.ndarray], length: int, value: int) -> np.ndarray:
    """Rows of numbers as one array (B, S = length), filled up with `value`."""
    array = np.full((len(rows), length), value, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array


def in_slices(count: int, size: int) -> Iterator[slice]:
    """Consecutive slices of `size` that cover `count` items."""
    return (slice(start, start + size) for start in range(0, count, size))


def slices_by_tokens(lengths: np.ndarray, size: int, tokens: int | None) -> Iterator[slice]:
    """Consecutive slices of `size` items at most, and of `tokens` tokens at most, padding included; of one at least.

    The lengths (N,) ascend, so that the last of a slice is its longest.
    """
    start = 0
    while start < len(lengths):
        stop = start + 1
        while stop < min(start + size, len(lengths)) and (
            tokens is None or (stop + 1 - start) * lengths[stop] <= tokens
        ):
            stop += 1
        yield slice(start, stop)
        start = stop
