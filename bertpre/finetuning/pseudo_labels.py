"""Texts without labels: NB-SVM learns from the labelled texts and labels the others for the network."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.corpus import place_beside
from bertpre.data.local_files import with_split
from bertpre.errors import UserError
from bertpre.files import write_bytes
from bertpre.finetuning.encoding import EncodedExamples, encode_examples, in_slices, tokenize
from bertpre.finetuning.examples import Examples, overlap
from bertpre.finetuning.linear import NbSvm
from bertpre.finetuning.rows import Rows, read_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertpre.recipe import Finetune

LONGEST = 3  # tokens in an n-gram
UNCUT = 10**9  # tokens: longer than any text
SLICE = 4096  # texts whose features are in memory at once


def read_unlabelled(settings: "Finetune", labelled: list[Examples]) -> Examples:
    """The unlabelled texts of the recipe, without those that are labelled or in the split `held_out`.

    Raises UserError if none is left.
    """
    wanted = settings.unlabelled
    assert wanted is not None  # without this section there are no such texts
    path = wanted.path or settings.path
    rows = read_rows(settings, path, wanted.split, wanted.limit, with_labels=False, key="finetune.unlabelled")
    others: list[Examples | Rows] = [*labelled]
    if wanted.held_out:
        place = place_beside(wanted.held_out, settings.path)
        others.append(read_rows(settings, *place, with_labels=False, key="finetune.unlabelled.held_out"))
    kept = np.flatnonzero(~overlap(rows, others))
    if not len(kept):
        raise UserError(f"finetune.unlabelled: every text of {with_split(path, wanted.split)} is labelled or held out")
    classes = labelled[0].classes
    return Examples(rows.ids, rows.texts, rows.pairs, np.zeros(len(rows.ids), dtype=np.int64), classes).subset(kept)


def encode_with_pseudo_labels(
    settings: "Finetune",
    tokenizer: "PreTrainedTokenizerBase",
    training: Examples,
    unlabelled: Examples,
    file: Path | None = None,
) -> EncodedExamples:
    """The unlabelled examples with pseudo-labels, followed by the training examples, as the network reads them.

    All labels become probabilities (N, C): Hinton et al. 2015 train on a model's probabilities, Lee 2013 on
    pseudo-labels. NB-SVM reads whole texts; it needs few labelled examples. `file` keeps the pseudo-labels, and gives
    them where it exists; it belongs to these examples.
    """

    def encoder(examples: Examples) -> Callable[[int], EncodedExamples]:
        tokens = tokenize(tokenizer, examples)
        return lambda length: encode_examples(tokenizer, examples, length, settings.truncation, tokens)

    labelled, others = encoder(training), encoder(unlabelled)
    if file is not None and file.exists():
        pseudo_labels = np.load(file)
    else:
        predict = fit_on_tokens(labelled(UNCUT).ids, training.labels, len(training.classes))
        pseudo_labels = predict(others(UNCUT).ids).astype(np.float32)
        if file is not None:
            content = io.BytesIO()
            np.save(content, pseudo_labels)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(file, content.getvalue())
    assert settings.unlabelled is not None  # without this section there are no such texts
    own, further = labelled(settings.max_length), others(settings.unlabelled.max_length or settings.max_length)
    return EncodedExamples(
        further.ids + own.ids,
        None if own.segments is None or further.segments is None else further.segments + own.segments,
        np.concatenate([pseudo_labels, np.eye(len(training.classes))[training.labels]]).astype(np.float32),
        num_pseudo_labelled=len(unlabelled),
        num_cut=own.num_cut,
    )


def fit_on_tokens(rows: list[np.ndarray], labels: np.ndarray, count: int) -> Callable[[list[np.ndarray]], np.ndarray]:
    """Fit NB-SVM to the token ids (S,) of labelled texts; returns what gives probabilities (N, C) for other texts."""
    vectorizer = TokenNgrams.fit(rows)
    model = NbSvm.fit(vectorizer.transform(rows), labels, count)
    return lambda others: np.concatenate(
        [model.probabilities(vectorizer.transform(others[part])) for part in in_slices(len(others), SLICE)]
    )


@dataclass(frozen=True)
class TokenNgrams:
    """Finds n-grams of up to three token ids, several times as fast as CountVectorizer (benchmarks/token_ngrams.py).

    An n-gram is a number whose digits in base `base` are its token ids plus 1. `vocabulary` (F,) is sorted.
    """

    base: int
    vocabulary: np.ndarray

    @classmethod
    def fit(cls, rows: list[np.ndarray]) -> "TokenNgrams":
        """Collect the n-grams of the token ids (S,) of texts."""
        base = int(max(row.max() for row in rows)) + 2
        found = np.sort(ngrams(rows, base), axis=None)
        is_new = np.diff(found, prepend=0) > 0  # without 0, which stands for no n-gram
        return cls(base, found[is_new])

    def transform(self, rows: list[np.ndarray]) -> Any:
        """Which n-grams of the vocabulary occur in each text: a sparse matrix of 0 and 1, (N, F)."""
        from scipy.sparse import csr_matrix

        found = ngrams(rows, self.base).ravel()
        texts = np.tile(np.repeat(np.arange(len(rows)), [len(row) for row in rows]), LONGEST)
        order = np.argsort(found)  # in order they are looked up in a third of the time
        found, texts = found[order], texts[order]
        columns = np.minimum(np.searchsorted(self.vocabulary, found), len(self.vocabulary) - 1)
        is_known = self.vocabulary[columns] == found
        ones = np.ones(int(is_known.sum()), dtype=np.float32)
        matrix = csr_matrix((ones, (texts[is_known], columns[is_known])), shape=(len(rows), len(self.vocabulary)))
        matrix.sum_duplicates()  # not every version of scipy has done it by now
        matrix.data[:] = 1
        return matrix


def ngrams(rows: list[np.ndarray], base: int) -> np.ndarray:
    """The n-grams of one, two and three tokens that end at each token of all rows, (3, tokens), as numbers.

    0 where an n-gram would begin before its row, or where it has a token that is too large for the base.
    """
    digits = np.concatenate(rows).astype(np.int64) + 1
    position = np.concatenate([np.arange(len(row)) for row in rows])
    found = np.zeros((LONGEST, len(digits)), dtype=np.int64)
    number, is_ngram = np.zeros(len(digits), dtype=np.int64), np.ones(len(digits), dtype=bool)
    for back in range(LONGEST):
        earlier = np.roll(digits, back)
        is_ngram = is_ngram & (position >= back) & (earlier < base)
        number = number + earlier * base**back
        found[back] = np.where(is_ngram, number, 0)
    return found
