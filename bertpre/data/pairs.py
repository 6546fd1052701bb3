"""Segment pairs for next-sentence prediction: documents of token ids -> spans of two segments and a label."""

import random
from bisect import bisect_left

import numpy as np

# Columns of a plan: where segment A and segment B begin and end in the shard's tokens, and the label.
A_START, A_END, B_START, B_END, IS_RANDOM_NEXT = range(5)
SPECIAL_TOKENS_IN_A_PAIR = 3  # [CLS] A [SEP] B [SEP]
IGNORE_INDEX = -100  # torch's and transformers' mark for a label that is not a target
ROUNDS, PLACES = 6, 16  # at most so many times so many places are tried for a random segment


def plan_examples(
    kind: str,
    sentences: np.ndarray,
    documents: np.ndarray,
    max_length: int,
    generator: random.Random,
    short_seq_prob: float = 0.1,
    random_next_prob: float = 0.5,
) -> np.ndarray:
    """Cut the documents of a shard into examples of a kind, `nsp`, `sop` or `none`; see the three functions below."""
    if kind == "none":
        return plan_packed(sentences, documents, max_length, generator)
    plan = {"nsp": plan_pairs, "sop": plan_swaps}[kind]
    return plan(sentences, documents, max_length, generator, short_seq_prob, random_next_prob)


def plan_pairs(
    sentences: np.ndarray,
    documents: np.ndarray,
    max_length: int,
    generator: random.Random,
    short_seq_prob: float = 0.1,
    random_next_prob: float = 0.5,
) -> np.ndarray:
    """Cut the documents of one shard into segment pairs.

    The algorithm is `create_instances_from_document` of google-research/bert (Devlin et al. 2018, appendix A.1):
    sentences are gathered up to a target length (with probability `short_seq_prob` a random shorter one) and cut in
    two at a random place; with probability `random_next_prob` the second part is replaced by text from another
    document and its sentences are put back for the next pair; what exceeds `max_length` is cut at either end.
    One departure: a random segment B has as many tokens as the true one it replaces, where google's fills the pair up;
    else a pair that is short, or full to the last token, would tell that B is the true next.

    sentences: token offsets, (number of sentences + 1,); documents: sentence offsets, (number of documents + 1,).
    Returns (number of pairs, 5), int64, columns as named above: segments are spans of the shard's tokens.
    Raises ValueError for fewer than two documents: there would be nothing to draw a random segment from.
    """
    starts, first = sentences.tolist(), documents.tolist()
    number = len(first) - 1
    if number < 2:
        raise ValueError("next-sentence pairs need at least two documents")
    room = max_length - SPECIAL_TOKENS_IN_A_PAIR
    spans: list[tuple[int, int, int, int]] = []
    owners: list[int] = []
    wanted: list[int] = []  # tokens of a random segment B; 0 where B is the true next
    for document in range(number):
        sentence, end = first[document], first[document + 1]
        while sentence < end:
            target = room if generator.random() >= short_seq_prob else 2 + int(generator.random() * (room - 1))
            stop = bisect_left(starts, starts[sentence] + target, sentence + 1, end)
            cut = sentence + 1 + int(generator.random() * (stop - sentence - 1))  # at least one sentence in A
            a_start, a_end = starts[sentence], starts[cut]
            spans.append((a_start, a_end, a_end, starts[stop]))
            owners.append(document)
            if cut == stop:  # there is no true next
                wanted.append(max(1, target - (a_end - a_start)))
            else:
                wanted.append(starts[stop] - a_end if generator.random() < random_next_prob else 0)
            sentence = cut if wanted[-1] else stop  # the sentences after A are put back
    planned, lengths = np.array(spans, dtype=np.int64), np.array(wanted)
    is_random_next = lengths > 0
    planned[is_random_next, 2:] = random_segments(
        sentences, documents, np.array(owners)[is_random_next], lengths[is_random_next], generator
    )
    is_too_long = planned[:, 1] - planned[:, 0] + planned[:, 3] - planned[:, 2] > room
    for row in np.flatnonzero(is_too_long).tolist():
        planned[row] = truncate_pair(*planned[row].tolist(), room, generator)
    return np.column_stack([planned, is_random_next])


def plan_swaps(
    sentences: np.ndarray,
    documents: np.ndarray,
    max_length: int,
    generator: random.Random,
    short_seq_prob: float = 0.1,
    swap_prob: float = 0.5,
) -> np.ndarray:
    """Cut documents into two consecutive segments, which change places with probability `swap_prob`.

    The label is then 1. Sentence order prediction (Lan et al. 2019, section 3.1): the topic does not give the label
    away. Arguments and result as of `plan_pairs`. A sentence that is alone is cut in its middle; one of a single token
    makes no pair.
    """
    starts, first = sentences.tolist(), documents.tolist()
    room = max_length - SPECIAL_TOKENS_IN_A_PAIR
    plan: list[tuple[int, int, int, int, int]] = []
    for document in range(len(first) - 1):
        sentence, end = first[document], first[document + 1]
        while sentence < end:
            target = room if generator.random() >= short_seq_prob else 2 + int(generator.random() * (room - 1))
            stop = bisect_left(starts, starts[sentence] + target, sentence + 1, end)
            start, until = starts[sentence], starts[stop]
            middle = starts[sentence + 1 + int(generator.random() * (stop - sentence - 1))]
            middle = (start + until) // 2 if middle == until else middle
            sentence = stop
            if middle == start:
                continue
            spans = truncate_pair(start, middle, middle, until, room, generator)
            is_swapped = generator.random() < swap_prob
            plan.append((*spans[2:], *spans[:2], 1) if is_swapped else (*spans, 0))
    return np.array(plan, dtype=np.int64).reshape(-1, 5)


def plan_packed(sentences: np.ndarray, documents: np.ndarray, max_length: int, generator: random.Random) -> np.ndarray:
    """Fill sequences with full sentences, across documents (Liu et al. 2019, section 4.2, FULL-SENTENCES).

    Segment B is empty and there is no label. Room is kept for [CLS], a [SEP] at the end and one wherever a document
    begins within a sequence. The first sequence has a random length, so that epochs cut at other places; a sentence
    longer than a sequence is cut. Arguments and result as of `plan_pairs`.
    """
    starts, inner = sentences.tolist(), set(sentences[documents[1:-1]].tolist())
    plan: list[tuple[int, int, int, int, int]] = []
    whole = max_length - 2
    room = 1 + int(generator.random() * whole)
    begin = at = starts[0]
    for end in starts[1:]:
        while at < end:
            separator = int(at in inner and at > begin)
            if (end - begin) + separator <= room:
                room -= separator
                at = end
                continue
            at = begin + whole if at == begin and room == whole else at
            if at > begin:
                plan.append((begin, at, at, at, IGNORE_INDEX))
            begin, room = at, whole
    if at > begin:
        plan.append((begin, at, at, at, IGNORE_INDEX))
    return np.array(plan, dtype=np.int64).reshape(-1, 5)


def random_segments(
    sentences: np.ndarray, documents: np.ndarray, owners: np.ndarray, wanted: np.ndarray, generator: random.Random
) -> np.ndarray:
    """Spans of whole sentences, (R, 2), each of another document than its owner and of as many tokens as wanted.

    owners: documents, (R,); wanted: tokens, (R,). Places are drawn until one has sentences of exactly that length; the
    nearest of `ROUNDS * PLACES` is taken where none has.
    """
    rng = np.random.default_rng(generator.getrandbits(64))
    spans, errors = np.zeros((len(owners), 2), dtype=np.int64), np.full(len(owners), np.iinfo(np.int64).max)
    rows = np.arange(len(owners))
    for _ in range(ROUNDS):
        if not len(rows):
            break
        other = rng.integers(len(documents) - 2, size=(len(rows), PLACES))
        other += other >= owners[rows, None]
        first, last = documents[other], documents[other + 1]
        sentence = first + (rng.random(other.shape) * (last - first)).astype(np.int64)
        start, target = sentences[sentence], wanted[rows, None]
        above = np.clip(np.searchsorted(sentences, start + target), sentence + 1, last)
        stops = np.stack([above, np.maximum(above - 1, sentence + 1)], axis=2)  # (R, PLACES, 2)
        starts, ends = np.repeat(start, 2, axis=1), sentences[stops].reshape(len(rows), -1)
        error = np.abs(ends - starts - target)
        best = error.argmin(axis=1)[:, None]
        start, end, error = (np.take_along_axis(values, best, 1)[:, 0] for values in (starts, ends, error))
        is_better = error < errors[rows]
        better = rows[is_better]
        spans[better], errors[better] = np.column_stack([start, end])[is_better], error[is_better]
        rows = rows[errors[rows] > 0]
    return spans


def truncate_pair(
    a_start: int, a_end: int, b_start: int, b_end: int, room: int, generator: random.Random
) -> tuple[int, int, int, int]:
    """Take single tokens from the longer segment, at its front or back by a coin's toss, until both fit in `room`."""
    a, b = a_end - a_start, b_end - b_start
    excess = max(0, a + b - room)
    level = min(excess, abs(a - b))  # tokens taken before the two are equally long; then B and A take turns
    from_a = (level if a > b else 0) + (excess - level) // 2
    from_b = excess - from_a
    a_front = generator.getrandbits(from_a).bit_count() if from_a else 0  # so many coins of `from_a` fell on "front"
    b_front = generator.getrandbits(from_b).bit_count() if from_b else 0
    return a_start + a_front, a_end - (from_a - a_front), b_start + b_front, b_end - (from_b - b_front)
