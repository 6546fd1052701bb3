"""Labelled examples of every task: read, checked before any training, encoded, in padded batches."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import Table, open_table
from bertpre.data.masking import IGNORED
from bertpre.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase

    from bertpre.recipe import Finetune

Tokens = tuple[list[list[int]], list[list[int]] | None]  # of texts, and of second texts

NO_VALUE = {"na", "n/a", "#n/a", "<na>", "null", "none"}  # written, in lower case, where a number is missing
BINARY = {0: 0.0, 1: 1.0}  # True and False are equal to these


@dataclass(frozen=True)
class Examples:
    """Texts (lists of words, where words are labelled), second texts if there are, and their labels.

    `labels` are class numbers (N,), or where a teacher gave them probabilities of the classes (N, C); numbers (N,); 0
    or 1 for each of several classes (N, C); or a list of class numbers for each list of words. `classes` names the
    classes, or the column where the labels are numbers; `places` are as `places_of` gives them.
    """

    ids: list[str]
    texts: list[Any]
    pairs: list[str] | None
    labels: Any
    classes: tuple[str, ...]
    places: list[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, indices: Sequence[int]) -> "Examples":
        """Some of them, in the order of `indices`."""
        labels = self.labels[indices] if isinstance(self.labels, np.ndarray) else [self.labels[i] for i in indices]
        return replace(
            self,
            ids=[self.ids[index] for index in indices],
            texts=[self.texts[index] for index in indices],
            pairs=None if self.pairs is None else [self.pairs[index] for index in indices],
            labels=labels,
        )


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_examples(
    settings: "Finetune",
    split: str,
    limit: int | None = None,
    path: str | None = None,
    like: Examples | None = None,
) -> Examples:
    """Read a labelled split into memory; a limited one is drawn evenly from the whole, which may be sorted by label.

    `path` stands in for the recipe's; `like` are examples of the training split, which say what the classes are.
    Raises UserError, which names the first example, where there is none, a text is empty, a label is missing, no number
    or outside the classes, or there is one class only.
    """
    source = path or settings.path
    where = f"finetune: {source} (split {split})"
    several = isinstance(settings.label_column, list)
    label_columns = settings.label_column if several else [settings.label_column]
    ids, texts, pairs, values, names = read_texts(settings, source, split, limit, label_columns)
    values = values if several else [value for (value,) in values]
    refuse_other_kind(settings.task, values, where)
    missing = [is_missing(value) or any(map(is_missing, single(settings.task, [value]))) for value in values]
    complain(missing, ids, f"{where}: %s no label; leave such examples out")
    if like is None:
        refuse_other_names(settings, names, where)
        values, names = unfold_bits(settings, values, names, where)
        classes, places = find_classes(settings, values, names, where), places_of(settings, values, names)
    else:
        classes, places = like.classes, places_of(settings, values, names) if names else like.places
        values, _ = unfold_bits(settings, values, list(classes), where)
    labels = read_labels(settings.task, values, classes, places, ids, texts, where)
    examples = Examples(ids, texts, pairs, labels, classes, places)
    if path is None and split == settings.split:
        check_variety(settings.task, examples, where)
    return examples


def read_texts(
    settings: "Finetune", path: str, split: str, limit: int | None, label_columns: list[str]
) -> tuple[list[str], list[Any], list[str] | None, list[tuple[Any, ...]], list[str] | None]:
    """Names, texts, second texts, labels as they are written, and the dataset's own class names."""
    where = f"finetune: {path} (split {split})"
    ids, rows, names = read_rows(settings, path, split, label_columns)
    if limit is not None and limit < len(rows):
        kept = np.linspace(0, len(rows) - 1, limit).astype(int)
        ids, rows = [ids[index] for index in kept], [rows[index] for index in kept]
    if not rows:
        raise UserError(f"{where} holds no text")
    has_pairs, is_words = settings.text_pair_column is not None, settings.task == "tokens"
    read = words_in if is_words else clean
    texts = [read(row[0], where, "text_column") for row in rows]
    pairs = [clean(row[1], where, "text_pair_column") for row in rows] if has_pairs else None
    empty = [not text and not (pairs and pairs[index]) for index, text in enumerate(texts)]
    complain(empty, ids, f"{where}: %s no text in it; leave such examples out")
    return ids, texts, pairs, [row[1 + has_pairs :] for row in rows], names


def read_rows(
    settings: "Finetune", path: str, split: str, label_columns: list[str]
) -> tuple[list[str], list[tuple[Any, ...]], list[str] | None]:
    """Names and values (text, perhaps a second one, label or labels) of all rows, and the dataset's own class names."""
    columns = [("text_column", settings.text_column), ("text_pair_column", settings.text_pair_column)]
    columns = [(of, column) for of, column in columns if column is not None]
    columns += [("label_column", column) for column in label_columns]
    ids, rows, names = [], [], None
    for part in split.split("+"):
        table: Table = open_table(path, settings.name, part, "finetune")
        part_rows = list(table.rows(columns))
        ids += [f"{part}/{number}" for number in range(len(part_rows))]
        rows += part_rows
        if label_columns:
            names = label_columns if len(label_columns) > 1 else table.class_names(label_columns[0])
    return ids, rows, names


def clean(text: Any, where: str, of: str) -> str:
    """A cleaned text; raises UserError where it is none."""
    if not isinstance(text, str | None):
        raise UserError(f"{where}: {of} holds {type(text).__name__}, not text")
    return clean_text(text or "")


def words_in(value: Any, where: str, of: str) -> list[str]:
    """The words of one example; raises UserError where there are none in it, but a number."""
    if not isinstance(value, str | list | None):
        raise UserError(f"{where}: {of} holds {type(value).__name__}, not words")
    return words_of(value)


def words_of(value: Any) -> list[Any]:
    """The words, or their labels, of one example: a list as it is, a string cut at its spaces."""
    return value.split() if isinstance(value, str) else list(value or [])


def refuse_other_kind(task: str, values: list[Any], where: str) -> None:
    """Raise UserError where labels are lists and the task has one for each text, or the other way round."""
    wants_lists = task in ("multi_label", "tokens")
    for value in values:
        is_list = isinstance(value, list | tuple)
        if wants_lists and not isinstance(value, list | tuple | str | None) and not is_missing(value):
            raise UserError(f"{where}: label_column holds {type(value).__name__}, and finetune.task={task} needs lists")
        if is_list and not wants_lists:
            raise UserError(
                f"{where}: label_column holds lists, which are for finetune.task=multi_label, or tokens where they are "
                "the tags of words"
            )


def refuse_other_names(settings: "Finetune", names: list[str] | None, where: str) -> None:
    """Raise UserError where the recipe keeps some of the dataset's own class names and changes others.

    Its own ones may be put in another order; new ones, in the dataset's order, are other names for the same numbers.
    """
    wanted = settings.label_names
    if names and wanted and set(wanted) & set(names) and set(wanted) - set(names):
        raise UserError(
            f"{where}: finetune.label_names ({', '.join(wanted[:20])}) are partly the dataset's own "
            f"({', '.join(names[:20])}): give these, in any order, or as many new ones in this order"
        )


def unfold_bits(
    settings: "Finetune", values: list[Any], names: list[str] | None, where: str
) -> tuple[list[Any], list[str] | None]:
    """Lists of 0 and 1, one for each class, as if each class had a column of its own; other labels as they are.

    Such lists are all of one length, and one of them holds a number twice, which no list of classes does.
    """
    if settings.task != "multi_label" or not all(isinstance(value, list) for value in values):
        return values, names
    (length, *others), numbers = {len(value) for value in values}, {each for value in values for each in value}
    if others or not numbers <= BINARY.keys() or not any(len(set(value)) < length for value in values):
        return values, names
    names = settings.label_names or names or list(map(str, range(length)))
    if len(names) != length:
        raise UserError(f"{where}: labels are {length} numbers of 0 and 1, and there are {len(names)} classes")
    return [tuple(value) for value in values], names


def complain(is_bad: list[bool], ids: list[str], message: str) -> None:
    """Raise UserError where an example is bad; `%s` in the message becomes which it is, and how many."""
    if count := sum(is_bad):
        first = ids[is_bad.index(True)]
        who = f"example {first} has" if count == 1 else f"{count} examples (the first is {first}) have"
        raise UserError(message.replace("%s", who))


def is_missing(value: Any) -> bool:
    """Whether there is no label: None, an empty text or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def single(task: str, values: list[Any]) -> list[Any]:
    """The labels one by one, where an example has several."""
    return (
        values if task in ("classification", "regression") else [each for value in values for each in words_of(value)]
    )


def find_classes(settings: "Finetune", values: list[Any], names: list[str] | None, where: str) -> tuple[str, ...]:
    """The names of the classes: the recipe's, the dataset's own, or the values found, sorted.

    Raises UserError for fractions, and for -1, which marks a hidden label on the Hub, unless the recipe names it.
    """
    if settings.task == "regression":
        return (settings.label_column,)
    if settings.label_names or names:
        return tuple(settings.label_names or names)
    found = set(map(plain, single(settings.task, values)))
    if not found:
        raise UserError(f"{where}: no example has a label; there is nothing to learn")
    if any(isinstance(value, int) and value < 0 for value in found):
        raise UserError(
            f"{where}: there is a label {min(found, key=repr)}; on the Hub it marks a hidden label; if it is a class, "
            "name all classes: finetune.label_names=[...]"
        )
    if fractions := [value for value in found if isinstance(value, float)]:
        raise UserError(
            f"{where}: there is a label {fractions[0]}; numbers with fractions are for finetune.task=regression"
        )
    numbers = list(map(str, sorted(value for value in found if isinstance(value, int))))
    others = sorted({str(value) for value in found} - set(numbers))
    words = [each for each in others if to_number(each) is None]
    if words and len(words) < len(numbers + others) and all(word.lower() in NO_VALUE for word in words):
        raise UserError(
            f"{where}: besides numbers there is {words[0]!r}, which mostly means no label; leave such examples out, or "
            "if it is a class, name all classes: finetune.label_names=[...]"
        )
    return (*numbers, *others)


def places_of(settings: "Finetune", values: list[Any], names: list[str] | None) -> list[str] | None:
    """What whole numbers are places in: the dataset's own class names; or the recipe's, where not all labels are names.

    None where labels are names, or were themselves made the classes: 0 is none of the classes 1 and 2.
    """
    known = settings.label_names or names
    if names and set(known) <= set(names):
        return names  # the recipe's order may be another one
    if names or (known and not {str(plain(value)) for value in single(settings.task, values)} <= set(known)):
        return known
    return None


def plain(value: Any) -> Any:
    """A label as it is written: whole numbers without a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_labels(
    task: str,
    values: list[Any],
    classes: tuple[str, ...],
    places: list[str] | None,
    ids: list[str],
    texts: list[Any],
    where: str,
) -> Any:
    """The labels as numbers, of a shape that `Examples` says; `places` as `places_of` gives them."""
    if task == "regression":
        numbers = [to_number(value) for value in values]
        complain([number is None for number in numbers], ids, f"{where}: %s a label that is not a finite number")
        return np.array(numbers, dtype=np.float32)
    known = {name: number for number, name in enumerate(classes)}

    def number_of(value: Any) -> int:
        value = plain(value)
        if places is not None and isinstance(value, int) and not isinstance(value, bool):
            return known.get(places[value], -1) if 0 <= value < len(places) else -1
        return known.get(str(value), -1)

    outside = f"{where}: %s a label outside the classes ({', '.join(classes[:20])})"
    if task == "classification":
        return numbered(values, number_of, ids, outside)
    if task == "multi_label":
        rows = [several_hot(value, number_of, len(classes)) for value in values]
        complain([row is None for row in rows], ids, outside)
        return np.array(rows, dtype=np.float32)
    words = [words_of(value) for value in values]
    uneven = [len(tags) != len(text) for tags, text in zip(words, texts, strict=True)]
    complain(uneven, ids, f"{where}: %s not as many labels as words")
    return [numbered(tags, number_of, [name] * len(tags), outside) for tags, name in zip(words, ids, strict=True)]


def to_number(value: Any) -> float | None:
    """A finite number, written or as it is; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def numbered(values: list[Any], number_of: Callable[[Any], int], ids: list[str], message: str) -> np.ndarray:
    """Class numbers; raises UserError with `message` where there is none."""
    numbers = [number_of(value) for value in values]
    complain(
        [number < 0 for number in numbers], ids, f"{message}: {values[numbers.index(-1)]!r}" if -1 in numbers else ""
    )
    return np.array(numbers, dtype=np.int64)


def several_hot(value: Any, number_of: Callable[[Any], int], count: int) -> list[float] | None:
    """0 or 1 for each class, from a row of such numbers or a list of classes; None where one is unknown."""
    if isinstance(value, tuple):  # one column for each class
        return [BINARY[each] for each in value] if all(each in BINARY for each in value) else None
    numbers = [number_of(each) for each in words_of(value)]
    return None if -1 in numbers else [float(number in numbers) for number in range(count)]


def check_variety(task: str, examples: Examples, where: str) -> None:
    """Raise UserError where examples have nothing to tell apart."""
    if task == "multi_label":
        return
    values = np.unique(np.concatenate(examples.labels) if task == "tokens" else examples.labels)
    if len(values) < 2:
        one = f"label only ({values[0]:g})" if task == "regression" else f"class only ({examples.classes[values[0]]})"
        raise UserError(f"{where} has one {one}; there is nothing to learn")


# ---- encoding --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Token ids of examples, with their segments (0 or 1) where there are pairs, and labels as arrays.

    Where words are labelled, a label (S,) stands at each word's first token and IGNORED elsewhere.
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
        label = np.full(len(row), IGNORED)
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
    labels = encoded.labels[indices] if is_array else padded([encoded.labels[i] for i in indices], length, IGNORED)
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
