"""Segment pairs: probabilities, edge cases, and a form that does not reveal the label."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bertpre.data import sample
from bertpre.data.audit import audit_pairs
from bertpre.data.cleaning import clean_text
from bertpre.data.pairs import (
    B_END,
    B_START,
    IGNORE_INDEX,
    IS_RANDOM_NEXT,
    OTHER_END,
    balanced,
    ends_with_mark,
    plan_examples,
    plan_packed,
    plan_pairs,
    plan_swaps,
    plan_whole_sentences,
    random_choice,
    random_text,
    truncate_pairs,
)
from bertpre.data.sampler import PairDataset
from bertpre.data.sentences import split_sentences
from bertpre.data.store import Shard


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


def labels_of(planned: np.ndarray) -> np.ndarray:
    """The labels of the pairs that have one."""
    return planned[planned[:, IS_RANDOM_NEXT] != IGNORE_INDEX, IS_RANDOM_NEXT]


def test_a_document_of_one_sentence_gets_a_random_next_and_no_label() -> None:
    planned = plan([[7]] * 20, 32)
    assert len(planned) == 20
    assert (planned[:, IS_RANDOM_NEXT] == IGNORE_INDEX).all()
    assert (planned[:, 3] - planned[:, 2] == 7).all()
    assert (planned[:, 0] != planned[:, 2]).all()


@pytest.mark.parametrize("make_plan", [plan_pairs, plan_swaps])
def test_sentences_longer_than_a_row_are_read_and_where_they_are_cut_is_no_label(make_plan: Callable[..., Any]) -> None:
    documents = [[700, *[20, 30, 25, 40] * 6, 900, *[35, 15, 20] * 6]] * 20  # a transcript with few full stops
    sentences, firsts = offsets(documents)
    planned = make_plan(sentences, firsts, 128, random.Random(0), short_seq_prob=0.0)
    was_read = np.zeros(sentences[-1], dtype=bool)
    for a, a_end, b, b_end, _ in planned.tolist():
        was_read[a:a_end] = was_read[b:b_end] = True
    assert was_read.mean() > 0.9
    lengths = planned[:, [1, 3]] - planned[:, [0, 2]]
    assert lengths.sum(1).max() <= 125
    has_label = planned[:, IS_RANDOM_NEXT] != IGNORE_INDEX
    assert 0.2 < has_label.mean() < 0.8
    # A labelled segment B, which may be cut from its front, is never a later piece of a long sentence.
    within = {start + 63 * piece for start in sentences[:-1][np.diff(sentences) > 125] for piece in range(1, 15)}
    places = [2] if make_plan is plan_pairs else [0, 2]
    assert not within & set(planned[has_label][:, places].ravel().tolist())


def test_only_the_last_sentence_of_a_document_has_no_label() -> None:
    planned = plan([[20] * 4] * 40, 128, short_seq_prob=0.5)
    is_last = planned[:, 0] % 80 == 60
    assert is_last.any()
    assert (planned[:, IS_RANDOM_NEXT] == IGNORE_INDEX).tolist() == is_last.tolist()


def test_a_single_sentence_is_segment_a_of_a_sop_example_without_segment_b() -> None:
    planned = plan_swaps(*offsets([[7], [100], [5, 5]] * 10), 64, random.Random(0))
    alone = planned[planned[:, IS_RANDOM_NEXT] == IGNORE_INDEX]
    lengths, ends = planned[:, 1] - planned[:, 0], planned[:, 3] - planned[:, 2]
    pieces = [(31, 7), (31, 30)]  # of the sentence that is longer than a row
    found = sorted(zip(lengths.tolist(), ends.tolist(), strict=True))
    assert found == sorted([(5, 5), (7, 0), *pieces] * 10)
    assert len(alone) == 30


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.0), (0.25, 0.25), (0.5, 0.5), (0.9, 0.9)])
def test_the_share_of_random_nexts_is_the_given_probability(probability: float, expected: float) -> None:
    labels = labels_of(plan([[4] * 400] * 40, 64, random_next_prob=probability))
    assert len(labels) > 1000
    assert labels.mean() == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.9, 1.0])
def test_the_share_of_swapped_segments_is_the_given_probability(probability: float) -> None:
    settings = {"short_seq_prob": 0.1, "random_next_prob": probability}
    labels = labels_of(plan_examples("sop", *offsets([[4] * 400] * 40), 64, random.Random(0), **settings))
    assert len(labels) > 800
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


def test_the_cuts_of_packed_rows_do_not_meet_as_a_shard_goes_on() -> None:
    generator = random.Random(0)
    sentences, documents = offsets([[1 + generator.randrange(40)] for _ in range(20_000)])
    plans = [plan_packed(sentences, documents, 64, random.Random(seed)) for seed in range(20)]
    for place in sentences[-1] * np.array([0.1, 0.5, 0.9]):
        assert len({int(planned[np.searchsorted(planned[:, 0], place), 0]) for planned in plans}) >= 9
    for planned in plans:
        begins, ends = planned[1:, 0], planned[:-1, 1]
        assert (begins <= ends).all() and (begins > planned[:-1, 0]).all()  # no token is left out between rows
        assert (begins < ends).mean() < 0.01


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


def test_a_random_segment_never_begins_a_document_since_no_true_next_does() -> None:
    whole = plan([[5] * 10] * 20, 512, random_next_prob=1.0)  # nothing is truncated
    is_random = whole[:, IS_RANDOM_NEXT] == 1
    assert is_random.any()
    assert (whole[is_random, 2] % 50 != 0).all()


def test_a_random_segment_is_no_lone_sentence_where_other_documents_have_pairs() -> None:
    lengths = [[9]] * 100 + [[7, 9, 9]] * 20  # true next segments have 9 tokens, as the lone sentences, or 18
    whole = plan(lengths, 64, short_seq_prob=0.0, random_next_prob=1.0)
    labelled = whole[whole[:, IS_RANDOM_NEXT] == 1]
    assert len(labelled) >= 20 and (labelled[:, 2] > 100 * 9).all()
    few = plan([[9]] * 100 + [[7, 9, 9]], 64, short_seq_prob=0.0, random_next_prob=1.0)  # no other document has one
    assert (few[few[:, IS_RANDOM_NEXT] == 1, 2] < 100 * 9).all()


def test_a_random_segment_ends_its_document_where_the_true_one_does() -> None:
    documents = [[5] * 9] * 40 + [[5] * 4] * 40
    ends = np.cumsum([0, *map(sum, documents)])
    whole = np.concatenate([plan(documents, 33, seed, short_seq_prob=0.0) for seed in range(20)])
    tokens = whole[:, 1] - whole[:, 0] + whole[:, 3] - whole[:, 2]
    short = whole[(tokens < 30) & (whole[:, IS_RANDOM_NEXT] != IGNORE_INDEX)]
    assert {0, 1} <= set(short[:, IS_RANDOM_NEXT].tolist())
    assert np.isin(short[:, 3], ends).all()  # a short row has the end of a document, whatever its label


def test_lone_sentences_get_different_text_that_fills_their_rows() -> None:
    lengths = [[9]] * 300 + [[9] * 12] * 30  # lone ones, and documents of 108 tokens
    whole = plan(lengths, 64, short_seq_prob=0.0)
    lone = whole[whole[:, 0] < 300 * 9]
    sizes = lone[:, 3] - lone[:, 2]
    assert len(lone) == 300
    assert len(set(lone[:, 2].tolist())) > 150
    assert np.mean(sizes == 64 - 3 - 9) > 0.95


def test_the_text_for_a_lone_sentence_is_not_of_a_copy() -> None:
    sentences, documents = offsets([[5] * 50, [5] * 50, [7]])
    originals = np.array([0, 0, 2])
    for seed in range(20):
        (span,) = random_text(sentences, documents, originals, np.array([20]), np.array([0]), random.Random(seed))
        assert span.tolist() == [500, 507]


def test_truncation_removes_from_the_front_as_often_as_from_the_back() -> None:
    pairs = np.array([[0, 100, 0, 40, 0]] * 500)
    truncate_pairs(pairs, 60, random.Random(0))
    assert (pairs[:, 1] - pairs[:, 0] == 30).all()
    assert pairs[:, [0, 2]].sum() / (500 * 80) == pytest.approx(0.5, abs=0.012)  # five standard deviations


@pytest.fixture(scope="module")
def embedded() -> Shard:
    """Words of the embedded corpus as tokens; every sentence ends with token 1 or 2."""
    texts = [
        clean_text(document.text) for part in ("unsupervised", "articles") for document in sample.generate(part, 800)
    ]
    lengths = [[len(sentence.split()) for sentence in split_sentences(text)] for text in texts]
    sentences, documents = offsets(lengths)
    tokens = np.full(sentences[-1], 7)
    tokens[sentences[1:] - 1] = 1 + (np.arange(len(sentences) - 1) % 7 == 0)
    tokens[sentences[documents[1:]] - 1] = np.where(np.arange(len(documents) - 1) % 3, 1, 7)  # some end without a mark
    return Shard(tokens, sentences, documents)


# With google's algorithm the first two are 0.68 and 0.52; before lone sentences lost their label, 0.62 and 0.54. With
# ALBERT's, cut forwards at any sentence, the others are 0.70 and 0.52; here the last sentences give the ends away, too.
@pytest.mark.parametrize(("kind", "tolerance"), [("nsp", 0.02), ("sop", 0.04)])
def test_the_form_of_a_pair_does_not_predict_its_label(kind: str, tolerance: float, embedded: Shard) -> None:
    data = PairDataset([embedded], 64, seed=0, kind=kind)
    epochs = [np.concatenate([data.plan(epoch)[0] for epoch in range(first, 8, 2)]) for first in (0, 1)]
    found = audit_pairs(*epochs, [embedded], kind)
    assert 0.45 < found["random_next_share"] < 0.55
    assert found["unlabelled_pair_share"] < 0.4
    assert found["pair_lengths_auc"] == pytest.approx(0.5, abs=tolerance)
    assert found["pair_ends_auc"] == pytest.approx(0.5, abs=tolerance)
    assert found["pair_form_auc"] == pytest.approx(0.5, abs=tolerance)


def test_the_shorter_segment_of_a_truncated_pair_has_either_label() -> None:
    # Of two segments that are both too long, A keeps one token more. It must not be the one that came first.
    planned = plan_swaps(*offsets([[61, 61]] * 400), 64, random.Random(0))
    assert set((planned[:, 1] - planned[:, 0]).tolist()) == {31}
    assert 0.4 < labels_of(planned).mean() < 0.6


def test_balanced_pairs_have_as_many_of_each_order() -> None:
    lengths = np.array([[10, 20]] * 100 + [[20, 10]] * 60 + [[15, 15]] * 7 + [[40, 10]] * 5)
    marks = np.ones_like(lengths)
    is_kept = balanced(lengths, marks, random.Random(0))
    straight, turned, same, alone = np.split(is_kept, [100, 160, 167])
    assert straight.sum() == turned.sum() > 40
    assert same.all()
    assert not alone.any()
    marks[:100, 1] = 0  # (10 with a mark, 20 without) has no mirror image now
    assert not balanced(lengths[:160], marks[:160], random.Random(0)).any()
    assert len(balanced(lengths[:0], marks[:0], random.Random(0))) == 0


def test_a_random_choice_has_the_wanted_form_where_another_document_has_it() -> None:
    form, owner = np.array([1, 2, 2, 2, 5]), np.array([0, 0, 0, 1, 2])
    wanted, not_from = np.array([2, 2, 1, 4] * 50), np.array([0, 1, 0, 2] * 50)
    chosen = random_choice(form, owner, wanted, not_from, random.Random(0))
    assert [set(chosen[number::4].tolist()) for number in range(4)] == [{3}, {1, 2}, {3}, {3, 2, 1} & set(chosen[3::4])]
    assert (owner[chosen] != not_from).all()


def test_an_end_mark_is_a_token_that_mostly_ends_sentences() -> None:
    sentences = [[8, 9, 1], [9, 1], [8, 8], [9, 9, 8, 2], [1, 2]]
    tokens, starts = np.concatenate(sentences), np.cumsum([0, *map(len, sentences)])
    assert ends_with_mark(tokens, starts).tolist() == [True, True, False, True, True]


def test_a_random_segment_ends_as_the_true_one_before_it_has_its_length() -> None:
    form = np.array([5, 9, 12]) + OTHER_END * np.array([1, 0, 1])
    owner, wanted = np.array([0, 1, 2]), np.array([9, 8]) + OTHER_END * np.array([1, 0])
    chosen = random_choice(form, owner, wanted, np.array([3, 3]), random.Random(0))
    assert chosen.tolist() == [2, 1]  # not the one of nine tokens


def test_random_segments_end_as_the_true_ones_where_another_document_has_such_an_end() -> None:
    generator = random.Random(0)
    lengths = [[generator.randrange(3, 40) for _ in range(generator.randrange(2, 9))] for _ in range(80)]
    sentences, documents = offsets(lengths)
    marks = np.array([generator.random() < 0.3 for _ in range(len(sentences) - 1)])
    planned = plan_whole_sentences(sentences, documents, 100, generator, 0.1, 0.5, marks)
    begins, ends = planned[:, B_START], planned[:, B_END]
    last = np.searchsorted(sentences, ends) - 1
    kinds = 2 * np.isin(ends, sentences[documents]) + marks[last]
    is_random, is_true = planned[:, IS_RANDOM_NEXT] == 1, planned[:, IS_RANDOM_NEXT] == 0
    shares = [np.bincount(kinds[each], minlength=4) / each.sum() for each in (is_random, is_true)]
    assert begins.size > 100
    assert np.abs(shares[0] - shares[1]).max() < 0.12
