"""Segment pairs for next-sentence prediction: documents of token ids -> spans of two segments and a label."""

import random
from bisect import bisect_left

import numpy as np

# Columns of a plan: where segment A and segment B begin and end in the shard's tokens, and the label.
A_START, A_END, B_START, B_END, IS_RANDOM_NEXT = range(5)
SPECIAL_TOKENS_IN_A_PAIR = 3  # [CLS] A [SEP] B [SEP]
IGNORE_INDEX = -100  # torch's and transformers' mark for a label that is not a target
ROUNDS, PLACES = 6, 16  # a random segment is searched for in up to 6 rounds of 16 random places


def plan_examples(
    kind: str,
    sentences: np.ndarray,
    documents: np.ndarray,
    max_length: int,
    generator: random.Random,
    short_seq_prob: float = 0.1,
    random_next_prob: float = 0.5,
) -> np.ndarray:
    """Cut the documents of a shard into examples: `nsp` is `plan_pairs`, `sop` is `plan_swaps`, `none` `plan_packed`.

    With `sop`, `random_next_prob` is the probability of swapped segments.
    """
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
    sentences are gathered up to a target length (with probability `short_seq_prob` a random shorter one) and split in
    two at a random sentence; with probability `random_next_prob` the second part is replaced by text from another
    document and its sentences are put back for the next pair; tokens beyond `max_length` are cut from either end.
    One difference: a random segment B has as many tokens as the true one it replaces, while google's fills the pair.
    Otherwise a pair that is short, or full to the last token, would reveal that B is the true next segment.

    sentences: token offsets, (number of sentences + 1,); documents: sentence offsets, (number of documents + 1,).
    Returns (number of pairs, 5), int64, columns as named above: segments are spans of the shard's tokens.
    Raises ValueError for fewer than two documents, since a random segment comes from another document.
    """
    room = max_length - SPECIAL_TOKENS_IN_A_PAIR
    plan = plan_whole_sentences(sentences, documents, room, generator, short_seq_prob, random_next_prob)
    is_too_long = plan[:, A_END] - plan[:, A_START] + plan[:, B_END] - plan[:, B_START] > room
    for row in np.flatnonzero(is_too_long).tolist():
        a_start, a_end, b_start, b_end = plan[row, :IS_RANDOM_NEXT].tolist()
        plan[row, :IS_RANDOM_NEXT] = truncate_pair(a_start, a_end, b_start, b_end, room, generator)
    return plan


def plan_whole_sentences(
    sentences: np.ndarray,
    documents: np.ndarray,
    room: int,
    generator: random.Random,
    short_seq_prob: float,
    random_next_prob: float,
) -> np.ndarray:
    """`plan_pairs` before truncation: segments are whole sentences, and may exceed `room`, the tokens that fit."""
    starts, first = sentences.tolist(), documents.tolist()
    number = len(first) - 1
    if number < 2:
        raise ValueError("next-sentence pairs need at least two documents")
    spans: list[tuple[int, int, int, int]] = []
    owners: list[int] = []
    wanted: list[int] = []  # tokens of a random segment B; 0 where B is the true next
    for document in range(number):
        sentence, end = first[document], first[document + 1]
        while sentence < end:
            target = room if generator.random() >= short_seq_prob else 2 + int(generator.random() * (room - 1))
            stop = bisect_left(starts, starts[sentence] + target, sentence + 1, end)
            cut = sentence + 1 + int(generator.random() * (stop - sentence - 1))  # segment A has at least one sentence
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
    return np.column_stack([planned, is_random_next])


def plan_swaps(
    sentences: np.ndarray,
    documents: np.ndarray,
    max_length: int,
    generator: random.Random,
    short_seq_prob: float = 0.1,
    swap_prob: float = 0.5,
) -> np.ndarray:
    """Cut documents into pairs of consecutive segments, which are swapped with probability `swap_prob` (label 1).

    Sentence order prediction (Lan et al. 2019, section 3.1): the topic does not reveal the label. Arguments and result
    as in `plan_pairs`. A single sentence is split in its middle; a single token gives no pair.
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

    Segment B is empty and there is no label. Each sequence leaves room for [CLS], a [SEP] at its end and one wherever a
    document begins within it. The first sequence has a random length, so that every epoch cuts elsewhere; a sentence
    longer than a sequence is cut. Arguments and result as in `plan_pairs`.
    """
    starts, inner = sentences.tolist(), set(sentences[documents[1:-1]].tolist())
    plan: list[tuple[int, int, int, int, int]] = []
    capacity = max_length - 2
    room = 1 + int(generator.random() * capacity)
    begin = at = starts[0]
    for end in starts[1:]:
        while at < end:
            separator = int(at in inner and at > begin)
            if (end - begin) + separator <= room:
                room -= separator
                at = end
                continue
            at = begin + capacity if at == begin and room == capacity else at
            if at > begin:
                plan.append((begin, at, at, at, IGNORE_INDEX))
            begin, room = at, capacity
    if at > begin:
        plan.append((begin, at, at, at, IGNORE_INDEX))
    return np.array(plan, dtype=np.int64).reshape(-1, 5)


def random_segments(
    sentences: np.ndarray, documents: np.ndarray, owners: np.ndarray, wanted: np.ndarray, generator: random.Random
) -> np.ndarray:
    """Spans of whole sentences, (R, 2), each from another document than its owner and with the wanted number of tokens.

    owners: documents, (R,); wanted: tokens, (R,). Places are drawn until one gives exactly that length; failing that,
    the closest of `ROUNDS * PLACES` is taken.
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
    """Remove single tokens from the longer segment, from its front or back at random, until both fit in `room`."""
    a, b = a_end - a_start, b_end - b_start
    excess = max(0, a + b - room)
    level = min(excess, abs(a - b))  # removed until both are equally long; after that, B and A take turns
    from_a = (level if a > b else 0) + (excess - level) // 2
    from_b = excess - from_a
    a_front = generator.getrandbits(from_a).bit_count() if from_a else 0  # of `from_a` coin tosses, the heads
    b_front = generator.getrandbits(from_b).bit_count() if from_b else 0
    return a_start + a_front, a_end - (from_a - a_front), b_start + b_front, b_end - (from_b - b_front)
