"""Segment pairs: probabilities, edge cases, and lengths that do not reveal the label."""

import random
from itertools import pairwise

import numpy as np
import pytest
from sklearn.base import ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from bertpre.data import sample
from bertpre.data.cleaning import clean_text
from bertpre.data.pairs import IS_RANDOM_NEXT, plan_examples, plan_packed, plan_pairs, random_segments, truncate_pair
from bertpre.data.sentences import split_sentences


def offsets(lengths: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of sentences and of documents, from the tokens of each sentence of each document."""
    sentences = np.cumsum([0, *(length for document in lengths for length in document)])
    return sentences, np.cumsum([0, *(len(document) for document in lengths)])


def plan(lengths: list[list[int]], max_length: int, seed: int = 0, **settings: float) -> np.ndarray:
    return plan_pairs(*offsets(lengths), max_length, random.Random(seed), **settings)


@pytest.mark.parametrize("lengths", [[], [[5, 5, 5]]])
def test_fewer_than_two_documents_are_refused(lengths: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at least two documents"):
        plan(lengths, 32)


def test_a_document_of_one_sentence_can_only_have_a_random_next() -> None:
    planned = plan([[7]] * 20, 32, random_next_prob=0.0)
    assert len(planned) == 20
    assert planned[:, IS_RANDOM_NEXT].all()


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.0), (0.25, 0.25), (0.5, 0.5), (0.9, 0.9)])
def test_the_share_of_random_nexts_is_the_given_probability(probability: float, expected: float) -> None:
    labels = plan([[4] * 400] * 40, 64, random_next_prob=probability)[:, IS_RANDOM_NEXT]
    assert len(labels) > 1000
    # The last sentence of a document may be left alone and has no true next: each of 40 documents can add one.
    assert labels.mean() == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.9, 1.0])
def test_the_share_of_swapped_segments_is_the_given_probability(probability: float) -> None:
    settings = {"short_seq_prob": 0.1, "random_next_prob": probability}
    labels = plan_examples("sop", *offsets([[4] * 400] * 40), 64, random.Random(0), **settings)[:, IS_RANDOM_NEXT]
    assert len(labels) > 1000
    assert labels.mean() == pytest.approx(probability, abs=0.05)


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_the_share_of_short_pairs_is_the_given_probability(kind: str) -> None:
    for short in (0.0, 0.5, 1.0):
        settings = {"short_seq_prob": short, "random_next_prob": 0.0}
        planned = plan_examples(kind, *offsets([[1] * 3000] * 4), 64, random.Random(0), **settings)
        tokens = planned[:, 1] - planned[:, 0] + planned[:, 3] - planned[:, 2]
        # Sentences of one token fill a pair exactly, unless its target is short or the document ends.
        assert (tokens < 61).mean() == pytest.approx(short, abs=0.08)


def test_packed_sequences_are_cut_differently_by_every_generator() -> None:
    starts = {tuple(plan_packed(*offsets([[1] * 300]), 64, random.Random(seed))[:, 0].tolist()) for seed in range(20)}
    assert len(starts) > 10
    assert all(later - earlier == 62 for start in starts for earlier, later in pairwise(start[1:]))


def test_long_documents_fill_all_pairs_except_the_short_ones() -> None:
    lengths = [[3] * 2000] * 4

    def full_share(short: float) -> float:
        planned = plan(lengths, 64, short_seq_prob=short, random_next_prob=0.0)
        total = planned[:, 1] - planned[:, 0] + planned[:, 3] - planned[:, 2]
        return float((total >= 60).mean())

    assert full_share(0.0) > 0.97
    assert full_share(1.0) < 0.3


def test_random_segments_come_from_all_other_documents() -> None:
    lengths = [[5] * 10 for _ in range(6)]
    planned = np.concatenate([plan(lengths, 32, seed, random_next_prob=1.0) for seed in range(60)])
    pairs_of_documents = {(a // 50, b // 50) for a, b in planned[:, [0, 2]].tolist()}
    assert pairs_of_documents == {(a, b) for a in range(6) for b in range(6) if a != b}
    assert len(set(planned[:, 2].tolist())) > 50  # truncated ones start inside sentences too


def test_truncation_removes_from_the_front_as_often_as_from_the_back() -> None:
    generator, front, total = random.Random(0), 0, 0
    for _ in range(500):
        a_start, a_end, b_start, _ = truncate_pair(0, 100, 0, 40, 60, generator)
        front, total = front + a_start + b_start, total + 80
        assert a_end - a_start == 30
    assert front / total == pytest.approx(0.5, abs=0.012)  # five standard deviations


@pytest.fixture(scope="module")
def embedded() -> list[list[int]]:
    """Words in each sentence of the embedded corpus."""
    texts = [clean_text(document.text) for part in ("train", "articles") for document in sample.generate(part, 800)]
    return [[len(sentence.split()) for sentence in split_sentences(text)] for text in texts]


# Pairs whose first segment ends a document can only be random, so random is the majority label everywhere. If random
# segments fill the pair, as google's do, the tree gains 0.08 here; if their length is rounded to sentences, 0.06.
@pytest.mark.parametrize(
    "classifier", [LogisticRegression(), DecisionTreeClassifier(max_depth=5, random_state=0)], ids=["linear", "tree"]
)
def test_lengths_alone_do_not_predict_the_label(classifier: ClassifierMixin, embedded: list[list[int]]) -> None:
    planned = np.random.default_rng(0).permutation(np.concatenate([plan(embedded, 64, seed) for seed in range(4)]))
    a, b, labels = planned[:, 1] - planned[:, 0], planned[:, 3] - planned[:, 2], planned[:, IS_RANDOM_NEXT]
    lengths, half = np.stack([a, b, a + b], axis=1) / 64, len(labels) // 2
    tested = labels[half:]
    assert 0.4 < tested.mean() < 0.6
    accuracy = classifier.fit(lengths[:half], labels[:half]).score(lengths[half:], tested)
    assert accuracy <= max(tested.mean(), 1 - tested.mean()) + 0.01


def test_a_random_segment_has_exactly_the_wanted_length_where_one_exists() -> None:
    generator = np.random.default_rng(0)
    sentences = np.cumsum([0, *generator.integers(1, 40, size=20 * 200)])
    documents = np.arange(0, 20 * 200 + 1, 200)
    owners, wanted = generator.integers(20, size=5000), generator.integers(1, 400, size=5000)
    spans = random_segments(sentences, documents, owners, wanted, random.Random(0))
    assert np.isin(spans, sentences).all()
    begins = np.searchsorted(sentences, spans) // 200
    assert (begins[:, 0] != owners).all()
    assert np.mean(spans[:, 1] - spans[:, 0] == wanted) > 0.97
    assert np.abs(spans[:, 1] - spans[:, 0] - wanted).max() <= 2
