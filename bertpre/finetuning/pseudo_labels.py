"""Texts without labels: NB-SVM learns from the labelled ones, and labels the others for the network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.corpus import held_out_place
from bertpre.errors import UserError
from bertpre.finetuning.encoding import Encoded, encode_examples, in_slices, tokenize
from bertpre.finetuning.examples import Examples, read_texts
from bertpre.finetuning.linear import nbsvm_chances, nbsvm_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertpre.recipe import Finetune

LONGEST = 3  # tokens in a run
WHOLE = 10**9  # tokens: no text is cut
AT_ONCE = 4096  # texts


def read_unlabelled(settings: "Finetune", labelled: list[Examples]) -> Examples:
    """The texts that the recipe names, less those that are labelled or in the split `held_out`.

    Raises UserError where none is left.
    """
    wanted = settings.unlabelled
    path = wanted.path or settings.path
    ids, texts, pairs, *_ = read_texts(settings, path, wanted.split, wanted.limit, [])
    found = Examples(ids, texts, pairs, np.zeros(len(ids), dtype=np.int64), labelled[0].classes)
    known = {each for examples in labelled for each in keys(examples.texts, examples.pairs)}
    if wanted.held_out:
        place = held_out_place(wanted.held_out, settings.path)
        _, held_out, held_out_pairs, *_ = read_texts(settings, *place, None, [])
        known.update(keys(held_out, held_out_pairs))
    kept = [index for index, each in enumerate(keys(texts, pairs)) if each not in known]
    if not kept:
        raise UserError(f"finetune.unlabelled: every text of {path} (split {wanted.split}) is labelled or held out")
    return found.subset(kept)


def keys(texts: list[str], pairs: list[str] | None) -> list[tuple[str, ...]]:
    """What two examples are alike in when they are the same."""
    return list(zip(texts) if pairs is None else zip(texts, pairs, strict=True))


def encode_and_teach(
    settings: "Finetune", tokenizer: "PreTrainedTokenizerBase", training: Examples, unlabelled: Examples
) -> Encoded:
    """The unlabelled examples as the network reads them, with a teacher's labels, and behind them the training ones.

    The teacher reads whole texts. Labels become probabilities (N, C), after Hinton et al. 2015 (a teacher's
    probabilities) and Lee 2013 (pseudo-labels); the teacher is a bag of n-grams, which few labels suffice for.
    """

    def cutter(examples: Examples) -> Callable[[int], Encoded]:
        tokens = tokenize(tokenizer, examples)
        return lambda length: encode_examples(tokenizer, examples, length, settings.truncation, tokens)

    labelled, others = cutter(training), cutter(unlabelled)
    teacher = Teacher.taught_by(labelled(WHOLE).ids, training.labels, len(training.classes))
    probabilities = teacher.probabilities(others(WHOLE).ids)
    own, further = labelled(settings.max_length), others(settings.unlabelled.max_length or settings.max_length)
    return Encoded(
        further.ids + own.ids,
        None if own.segments is None else further.segments + own.segments,
        np.concatenate([probabilities, np.eye(len(training.classes))[training.labels]]).astype(np.float32),
        taught=len(unlabelled),
    )


@dataclass(frozen=True)
class Teacher:
    """NB-SVM (Wang and Manning 2012, section 2.3) on which runs of up to three tokens occur.

    `vocabulary` (F,) are the runs, as numbers in rising order, of `base` - 1 tokens at most; `weights` are (F, K),
    `offsets` (K,), K is the number of classes, but 1 of two.
    """

    base: int
    vocabulary: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray

    @classmethod
    def taught_by(cls, rows: list[np.ndarray], labels: np.ndarray, count: int) -> "Teacher":
        """Learn from the token ids (S,) of labelled texts."""
        base = int(max(row.max() for row in rows)) + 2
        vocabulary = np.unique(runs(rows, base))[1:]  # without 0, where there is no run
        occurs = occurrences(rows, base, vocabulary)
        weights, offsets = nbsvm_weights(occurs, labels, count)
        return cls(base, vocabulary, weights, offsets)

    def probabilities(self, rows: list[np.ndarray]) -> np.ndarray:
        """The probability of each class, (N, C), of texts (S,)."""
        scores = [
            occurrences(rows[part], self.base, self.vocabulary) @ self.weights for part in in_slices(len(rows), AT_ONCE)
        ]
        return nbsvm_chances(np.concatenate(scores) + self.offsets)


def runs(rows: list[np.ndarray], base: int) -> np.ndarray:
    """The runs of one, two and three tokens that end at each token of all rows, (3, tokens), as numbers.

    Tokens are digits from 1 on to `base`; 0 is where a run would begin before its row, or has a token beyond `base`.
    """
    digits = np.concatenate(rows).astype(np.int64) + 1
    lengths = np.array([len(row) for row in rows])
    place = np.arange(len(digits)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found = np.zeros((LONGEST, len(digits)), dtype=np.int64)
    is_run = np.ones(len(digits), dtype=bool)
    for back in range(LONGEST):
        earlier = np.roll(digits, back)
        is_run = is_run & (place >= back) & (earlier < base)
        found[back] = np.where(is_run, (found[back - 1] if back else 0) + earlier * base**back, 0)
    return found


def find(vocabulary: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Where in the vocabulary (F,) each code stands; F where it does not."""
    places = np.searchsorted(vocabulary, codes)
    places[vocabulary[np.minimum(places, len(vocabulary) - 1)] != codes] = len(vocabulary)
    return places


def occurrences(rows: list[np.ndarray], base: int, vocabulary: np.ndarray) -> Any:
    """Which runs of the vocabulary are in each text: a sparse matrix of 0 and 1, (N, F)."""
    from scipy.sparse import csr_matrix

    places = find(vocabulary, runs(rows, base)).ravel()
    texts = np.tile(np.repeat(np.arange(len(rows)), [len(row) for row in rows]), LONGEST)
    is_known = places < len(vocabulary)
    ones = np.ones(int(is_known.sum()), dtype=np.float32)
    matrix = csr_matrix((ones, (texts[is_known], places[is_known])), shape=(len(rows), len(vocabulary)))
    matrix.data[:] = 1
    return matrix
