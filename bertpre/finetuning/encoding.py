"""Labelled examples as a network reads them: token ids with special tokens, cut to a length, in padded batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertpre.data.pairs import IGNORE_INDEX
from bertpre.finetuning.examples import Examples

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase

Tokens = tuple[list[list[int]], list[list[int]] | None]  # of texts, and of second texts


@dataclass(frozen=True)
class Encoded:
    """Token ids of examples, with their segments (0 or 1) where there are pairs, and labels as arrays.

    Where words are labelled, a label (S,) stands at each word's first token and IGNORE_INDEX elsewhere.
    The first `taught` examples have their labels from a teacher.
    """

    ids: list[np.ndarray]
    segments: list[np.ndarray] | None
    labels: Any
    taught: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each example."""
        return np.array([len(row) for row in self.ids])


def whole_backend(tokenizer: "PreTrainedTokenizerBase") -> "Tokenizer":
    """What turns texts into tokens, neither cut nor padded, whatever its file says: that is the recipe's to say."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return backend


@dataclass(frozen=True)
class Template:
    """The special tokens that a tokenizer puts before, between and behind the texts, and the segment of each part."""

    parts: list[list[int]]
    segments: list[int]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase", pairs: bool) -> "Template":
        """Read off what the tokenizer itself does with one letter, or two."""
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

    def fill(self, *texts: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and segments of one example; a special token belongs to the text before it."""
        ids, segments = list(self.parts[0]), [self.segments[0]] * len(self.parts[0])
        for text, after, segment in zip(texts, self.parts[1:], self.segments, strict=True):
            ids += [*text, *after]
            segments += [segment] * (len(text) + len(after))
        return np.array(ids), np.array(segments)


def encode_examples(
    tokenizer: "PreTrainedTokenizerBase",
    examples: Examples,
    max_length: int,
    truncation: str = "head",
    tokens: Tokens | None = None,
) -> Encoded:
    """Token ids of each example with its special tokens, at most `max_length`; of a pair the longer text is cut first.

    `head` and `tail` keep the start and the end of a long text; `head_tail` a quarter from the start and the rest from
    the end (Sun et al. 2019, section 5.3.1, who found both ends best on IMDB). Of labelled words the first are kept.
    `tokens` are what `tokenize` makes of the examples, for who needs them at several lengths.
    """
    template = Template.of(tokenizer, examples.pairs is not None)
    room = max_length - template.length
    if examples.texts and isinstance(examples.texts[0], list):
        return encode_words(tokenizer, examples, template, room)
    first, second = tokens or tokenize(tokenizer, examples)
    if second is None:
        rows = [template.fill(cut(ids, room, truncation))[0] for ids in first]
        return Encoded(rows, None, examples.labels)
    filled = []
    for one, other in zip(first, second, strict=True):
        share = min(len(other), max(room // 2, room - len(one)))
        filled.append(template.fill(cut(one, room - share, truncation), cut(other, share, truncation)))
    has_segments = "token_type_ids" in tokenizer.model_input_names
    segments = [segments for _, segments in filled] if has_segments else None
    return Encoded([ids for ids, _ in filled], segments, examples.labels)


def tokenize(tokenizer: "PreTrainedTokenizerBase", examples: Examples) -> Tokens:
    """The tokens of whole texts and of second texts, without special ones."""

    def tokens_of(texts: list[str]) -> list[list[int]]:
        encodings = whole_backend(tokenizer).encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    return tokens_of(examples.texts), None if examples.pairs is None else tokens_of(examples.pairs)


def encode_words(tokenizer: "PreTrainedTokenizerBase", examples: Examples, template: Template, room: int) -> Encoded:
    """Token ids of lists of words; a word's label stands at its first token."""
    rows, labels = [], []
    for encoding, tags in zip(encodings_of_words(tokenizer, examples.texts), examples.labels, strict=True):
        words = np.array(encoding.word_ids[:room], dtype=np.int64)
        is_first = np.diff(words, prepend=-1) != 0
        row = template.fill(encoding.ids[:room])[0]
        label = np.full(len(row), IGNORE_INDEX)
        start = len(template.parts[0])
        label[start : start + len(words)][is_first] = np.asarray(tags)[words[is_first]]
        rows.append(row)
        labels.append(label)
    return Encoded(rows, None, labels)


def encodings_of_words(tokenizer: "PreTrainedTokenizerBase", texts: list[list[str]]) -> list["Encoding"]:
    """The tokens of lists of words; each word has one at least.

    Behind the first word each begins with a space, which tells byte-level tokens that it is no part of the word before.
    A word that a tokenizer makes nothing of, such as a lone zero-width space, is read as "?".
    """

    def encode(words: list[str]) -> "Encoding":
        spaced = [word if place == 0 else f" {word}" for place, word in enumerate(words)]
        return tokenizer.backend_tokenizer.encode(spaced, is_pretokenized=True, add_special_tokens=False)

    encodings = list(map(encode, texts))
    for number, (words, encoding) in enumerate(zip(texts, encodings, strict=True)):
        if len(seen := set(encoding.word_ids)) < len(words):
            encodings[number] = encode([word if place in seen else "?" for place, word in enumerate(words)])
    return encodings


def cut(ids: list[int], room: int, truncation: str) -> list[int]:
    """At most `room` tokens of a text."""
    if len(ids) <= room:
        return ids
    from_start = {"head": room, "tail": 0, "head_tail": room // 4}[truncation]
    return ids[:from_start] + ids[len(ids) - (room - from_start) :]


def collate(encoded: Encoded, indices: Sequence[int], length: int, pad_token_id: int) -> dict[str, torch.Tensor]:
    """A padded batch: input_ids, attention_mask, perhaps token_type_ids, (B, S = length); labels (B, ...)."""
    ids = padded([encoded.ids[index] for index in indices], length, pad_token_id)
    mask = padded([np.ones_like(encoded.ids[index]) for index in indices], length, 0)
    batch = {"input_ids": ids, "attention_mask": mask}
    if encoded.segments is not None:
        batch["token_type_ids"] = padded([encoded.segments[index] for index in indices], length, 0)
    is_array = isinstance(encoded.labels, np.ndarray)
    labels = encoded.labels[indices] if is_array else padded([encoded.labels[i] for i in indices], length, IGNORE_INDEX)
    return {name: torch.from_numpy(array) for name, array in (batch | {"labels": labels}).items()}


def padded(rows: list[np.ndarray], length: int, value: int) -> np.ndarray:
    """Rows of numbers as one array (B, S = length)."""
    array = np.full((len(rows), length), value, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array


def in_slices(count: int, size: int) -> Iterator[slice]:
    """Consecutive slices of `size` that cover `count` items."""
    return (slice(start, start + size) for start in range(0, count, size))
