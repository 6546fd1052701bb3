"""Segment pairs: for any documents, spans respect sentences and documents, and no sentence is lost."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertpre.data.pairs import (
    IGNORE_INDEX,
    ROWS_TO_NEW_CUT,
    cut_long_sentences,
    plan_packed,
    plan_pairs,
    plan_swaps,
    plan_whole_sentences,
    random_choice,
    truncate_pairs,
)
from bertpre.data.sampler import PairDataset
from tests.property.strategies import Lengths, document_lengths, shard_of

PROBABILITIES = st.sampled_from([0.0, 0.1, 0.5, 1.0])
modest = settings(max_examples=80, deadline=None)


def plan(lengths: Lengths, max_length: int, seed: int, short: float = 0.1, random_next: float = 0.5) -> np.ndarray:
    shard = shard_of(lengths)
    return plan_pairs(shard.sentences, shard.documents, max_length, random.Random(seed), short, random_next)


def untruncated(lengths: Lengths, max_length: int, seed: int, short: float, random_next: float) -> np.ndarray:
    shard = shard_of(lengths)
    generator = random.Random(seed)
    return plan_whole_sentences(shard.sentences, shard.documents, max_length - 3, generator, short, random_next)


def document_of(lengths: Lengths, token: int) -> int:
    """The document that holds a token."""
    shard = shard_of(lengths)
    return int(np.searchsorted(shard.sentences[shard.documents], token, side="right")) - 1


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99), PROBABILITIES, PROBABILITIES)
def test_both_segments_have_tokens_and_fit(
    lengths: Lengths, max_length: int, seed: int, short: float, random_next: float
) -> None:
    for a_start, a_end, b_start, b_end, _ in plan(lengths, max_length, seed, short, random_next).tolist():
        assert a_start < a_end
        assert b_start < b_end
        assert (a_end - a_start) + (b_end - b_start) + 3 <= max_length


@modest
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2])), min_size=1), st.integers(0, 99)
)
def test_a_random_segment_has_the_nearest_form_in_other_documents(candidates: list[tuple[int, int]], seed: int) -> None:
    form, owner = np.array(candidates).T
    wanted, not_from = np.arange(-1, 11).repeat(3), np.tile([0, 1, 3], 12)
    chosen = random_choice(form, owner, wanted, not_from, random.Random(seed))
    for number, one, own in zip(chosen, wanted, not_from, strict=True):
        if others := [abs(each - one) for each, document in candidates if document != own]:
            assert owner[number] != own and abs(form[number] - one) == min(others)


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99))
def test_each_segment_lies_in_one_document_and_a_random_one_in_another(
    lengths: Lengths, max_length: int, seed: int
) -> None:
    for a_start, a_end, b_start, b_end, is_random_next in plan(lengths, max_length, seed).tolist():
        a, b = document_of(lengths, a_start), document_of(lengths, b_start)
        assert document_of(lengths, a_end - 1) == a
        assert document_of(lengths, b_end - 1) == b
        if is_random_next != IGNORE_INDEX:
            assert (a != b) == bool(is_random_next)
        if a == b:
            assert b_start >= a_end


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99), PROBABILITIES, PROBABILITIES)
def test_before_truncation_segments_are_whole_sentences_and_a_true_next_follows_the_first(
    lengths: Lengths, max_length: int, seed: int, short: float, random_next: float
) -> None:
    boundaries = set(shard_of(lengths).sentences.tolist())
    for *span, is_random_next in untruncated(lengths, max_length, seed, short, random_next).tolist():
        assert set(span) <= boundaries
        if not is_random_next:
            assert span[1] == span[2]


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99), PROBABILITIES, PROBABILITIES)
def test_every_token_is_new_in_exactly_one_first_or_true_next_segment(
    lengths: Lengths, max_length: int, seed: int, short: float, random_next: float
) -> None:
    seen: list[int] = []
    for a_start, a_end, b_start, b_end, is_random_next in untruncated(
        lengths, max_length, seed, short, random_next
    ).tolist():
        assert a_start <= len(seen) < a_end  # it may begin with text of the pair before
        assert document_of(lengths, a_start) == document_of(lengths, len(seen))
        seen += range(len(seen), a_end)
        seen += [] if is_random_next else range(b_start, b_end)
    assert seen == all_tokens(lengths)


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99), PROBABILITIES, PROBABILITIES)
def test_a_pair_has_a_label_unless_segment_a_ends_its_document(
    lengths: Lengths, max_length: int, seed: int, short: float, random_next: float
) -> None:
    ends = set(shard_of(lengths).sentences[shard_of(lengths).documents].tolist())
    for _, a_end, _, _, label in untruncated(lengths, max_length, seed, short, random_next).tolist():
        assert (label == IGNORE_INDEX) == (a_end in ends)


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99))
def test_truncation_removes_no_more_than_it_must(lengths: Lengths, max_length: int, seed: int) -> None:
    room, shard = max_length - 3, shard_of(lengths)
    *cut, is_inside, _ = cut_long_sentences(shard.sentences, shard.documents, room, None)
    whole = plan_whole_sentences(*cut, room, random.Random(seed), 0.1, 0.5, is_inside=is_inside)
    planned = plan(lengths, max_length, seed)
    assert planned[:, 4].tolist() == whole[:, 4].tolist()
    for row, cut in zip(whole.tolist(), planned.tolist(), strict=True):
        a_start, a_end, b_start, b_end, _ = row
        if a_end - a_start + b_end - b_start <= room:
            assert cut == row
        else:
            assert (cut[1] - cut[0]) + (cut[3] - cut[2]) == room
        assert a_start <= cut[0] < cut[1] <= a_end
        assert b_start <= cut[2] < cut[3] <= b_end


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 200), st.integers(0, 99))
def test_lengths_after_truncation_are_those_of_googles_loop(a: int, b: int, room: int, seed: int) -> None:
    left, right = a, b
    while left + right > room:  # `truncate_seq_pair`: one token at a time from the longer, from B where both are equal
        if left > right:
            left -= 1
        else:
            right -= 1
    pair = np.array([[1000, 1000 + a, 5000, 5000 + b, 0]])
    truncate_pairs(pair, room, random.Random(seed))
    a_start, a_end, b_start, b_end, _ = pair[0].tolist()
    assert (a_end - a_start, b_end - b_start) == (left, right)
    assert 1000 <= a_start < a_end <= 1000 + a
    assert 5000 <= b_start < b_end <= 5000 + b


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99))
def test_the_same_generator_gives_the_same_plan(lengths: Lengths, max_length: int, seed: int) -> None:
    np.testing.assert_array_equal(plan(lengths, max_length, seed), plan(lengths, max_length, seed))


def all_tokens(lengths: Lengths) -> list[int]:
    return shard_of(lengths).tokens.tolist()


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99), PROBABILITIES)
def test_swapped_segments_are_neighbours_in_one_document(
    lengths: Lengths, max_length: int, seed: int, short: float
) -> None:
    shard, room = shard_of(lengths), max_length - 3
    planned = plan_swaps(shard.sentences, shard.documents, max_length, random.Random(seed), short, 0.5)
    last = 0
    for a_start, a_end, b_start, b_end, label in planned.tolist():
        left, right = ((b_start, b_end), (a_start, a_end)) if label == 1 else ((a_start, a_end), (b_start, b_end))
        assert last <= left[0] < left[1] <= right[0]
        assert right[0] < right[1] or (right[0] == right[1] and label == IGNORE_INDEX)  # a sentence alone
        assert left[1] == right[0] or a_end - a_start + b_end - b_start == room  # truncated
        assert document_of(lengths, left[0]) == document_of(lengths, right[1] - 1)
        last = right[1]


@modest
@given(document_lengths(), st.integers(0, 99), PROBABILITIES)
def test_swapped_segments_hold_every_token_once(lengths: Lengths, seed: int, short: float) -> None:
    shard = shard_of(lengths)
    longest = 12 * 40 + 3  # no document is longer, so nothing is truncated
    planned = plan_swaps(shard.sentences, shard.documents, longest, random.Random(seed), short, 0.5)
    seen = [token for row in planned.tolist() for token in range(min(row[0], row[2]), max(row[1], row[3]))]
    assert seen == all_tokens(lengths)


@modest
@given(document_lengths(), st.integers(8, 96), st.integers(0, 99), PROBABILITIES)
def test_swapped_segments_fit(lengths: Lengths, max_length: int, seed: int, short: float) -> None:
    shard = shard_of(lengths)
    planned = plan_swaps(shard.sentences, shard.documents, max_length, random.Random(seed), short, 0.5)
    for a_start, a_end, b_start, b_end, label in planned.tolist():
        assert a_start < a_end
        assert b_start < b_end or label == IGNORE_INDEX
        assert (a_end - a_start) + (b_end - b_start) + 3 <= max_length


@modest
@given(document_lengths(), st.integers(3, 96), st.integers(0, 99))
def test_packed_rows_leave_out_less_than_a_row_at_either_end_and_repeat_tokens_only_at_new_cuts(
    lengths: Lengths, max_length: int, seed: int
) -> None:
    shard, capacity = shard_of(lengths), max_length - 2
    planned = plan_packed(shard.sentences, shard.documents, max_length, random.Random(seed))
    begins, ends = planned[:, 0], planned[:, 1]
    is_new_cut = np.arange(1, len(planned)) % ROWS_TO_NEW_CUT == 0
    assert (begins[1:] == ends[:-1])[~is_new_cut].all()
    assert ((begins[:-1] < begins[1:]) & (begins[1:] <= ends[:-1]))[is_new_cut].all()
    left = shard.tokens[ends[-1] :].tolist()
    separators = sum(begin in left[1:] for begin in shard.sentences[shard.documents].tolist())
    assert begins[0] < capacity and len(left) + separators < capacity
    if len(shard.tokens) <= capacity:
        assert begins[0] == 0
    assert (planned[:, 2] == planned[:, 3]).all()
    assert (planned[:, 4] == IGNORE_INDEX).all()


@modest
@given(document_lengths(), st.integers(3, 64), st.integers(0, 20))
def test_packed_rows_are_full_and_have_a_separator_after_each_document(
    lengths: Lengths, max_length: int, seed: int
) -> None:
    shard, sep = shard_of(lengths), 99_999
    data = PairDataset([shard], max_length, seed, kind="none", sep_token_id=sep)
    assert data.has_padding == (len(shard.tokens) < max_length - 2)
    begins = set(shard.sentences[shard.documents].tolist())
    for row in data.plan(0)[0].tolist():
        ids, (start, end) = data.example(row, 0).a.tolist(), row[2:4]
        if not data.has_padding:
            assert len(ids) == max_length - 2
        expected = [part for token in range(start, end) for part in ([sep] * (token in begins) + [token])]
        expected = expected[start in begins :]
        # A document may end one slot before its row: then its separator fills that.
        assert ids == expected or (end in begins and ids == [*expected, sep] and len(ids) == max_length - 2)
