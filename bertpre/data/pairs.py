"""Segment pairs for next-sentence prediction: documents of token ids -> spans of two segments and a label."""

import random
from bisect import bisect_left, bisect_right

import numpy as np

# Columns of a plan: where segment A and segment B begin and end in the shard's tokens, and the label.
A_START, A_END, B_START, B_END, IS_RANDOM_NEXT = range(5)
KINDS = ("nsp", "sop", "none")  # of pairs: next-sentence prediction, the order of sentences, packed rows
SPECIAL_TOKENS_IN_A_PAIR = 3  # [CLS] A [SEP] B [SEP]
SHORTEST_ROW = 8  # the least max_length, as in the recipe
IGNORE_INDEX = -100  # torch's and transformers' mark for a label that is not a target
DRAWS = 8  # of a random segment; if none fits, the nearest in length, or any of another document, is taken
REACH = 16  # places in the order of forms, for `balanced`
OTHER_END = 1 << 40  # tokens: a form that ends in another way is farther away than any other length
ROWS_TO_NEW_CUT = 128  # of packed rows


def plan_examples(
    kind: str,
    sentences: np.ndarray,
    documents: np.ndarray,
    max_length: int,
    generator: random.Random,
    short_seq_prob: float = 0.1,
    random_next_prob: float = 0.5,
    has_end_mark: np.ndarray | None = None,
    originals: np.ndarray | None = None,
) -> np.ndarray:
    """Cut the documents of a shard into examples: `nsp` is `plan_pairs`, `sop` is `plan_swaps`, `none` `plan_packed`.

    With `sop`, `random_next_prob` is the probability of swapped segments.
    """
    given = sentences, documents, max_length, generator
    if kind == "none":
        return plan_packed(*given)
    if kind == "sop":
        return plan_swaps(*given, short_seq_prob, random_next_prob, has_end_mark)
    return plan_pairs(*given, short_seq_prob, random_next_prob, has_end_mark, originals)


def plan_pairs(
    sentences: np.ndarray,
    documents: np.ndarray,
    max_length: int,
    generator: random.Random,
    short_seq_prob: float = 0.1,
    random_next_prob: float = 0.5,
    has_end_mark: np.ndarray | None = None,
    originals: np.ndarray | None = None,
) -> np.ndarray:
    """Cut the documents of one shard into segment pairs.

    The algorithm is `create_instances_from_document` of google-research/bert (Devlin et al. 2018, appendix A.1):
    sentences are gathered up to a target length (with probability `short_seq_prob` a random shorter one) and split in
    two at a random sentence; with probability `random_next_prob` the second part is replaced by text from another
    document and its sentences are put back for the next pair; tokens beyond `max_length` are cut from either end.
    Five differences keep the label out of the form, or waste less:
    - A random segment B is the true next of another pair, has the length of the one that it replaces, and ends its
      document where that one does. Google's fills the pair with sentences from anywhere.
    - A sentence that is left alone at the end of its document has no true next. It gets text from another document, so
      that the row is full, but no label (IGNORE_INDEX). Google labels it random.
    - Two sentences are gathered where the document has two, however long the first.
    - The short target is drawn for each pair, not for each document, so that a document is not cut up as a whole.
    - A sentence that is longer than a row is read in pieces (`cut_long_sentences`). Google's pairs read its middle.

    sentences: token offsets, (number of sentences + 1,); documents: sentence offsets, (number of documents + 1,).
    has_end_mark: (number of sentences,), of `ends_with_mark`; a random segment agrees with the true one in it, too.
    originals: (number of documents,), of `Shard`; a random segment does not come from a copy of the document either.
    Returns (number of pairs, 5), int64, columns as named above: segments are spans of the shard's tokens.
    Raises ValueError for fewer than two documents, since a random segment comes from another document.
    """
    room = max_length - SPECIAL_TOKENS_IN_A_PAIR
    sentences, documents, is_inside, has_end_mark = cut_long_sentences(sentences, documents, room, has_end_mark)
    probabilities = short_seq_prob, random_next_prob
    plan = plan_whole_sentences(
        sentences, documents, room, generator, *probabilities, has_end_mark, originals, is_inside
    )
    truncate_pairs(plan, room, generator)
    return plan


def cut_long_sentences(
    sentences: np.ndarray, documents: np.ndarray, room: int, has_end_mark: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Sentences of more than `room` tokens in pieces, of which two fill a row: a text without full stops is one.

    Takes and returns offsets and marks as `plan_pairs` does, and whether each sentence begins inside of a longer one,
    (number of sentences + 1,).
    """
    lengths, half = np.diff(sentences), (room + 1) // 2
    pieces = np.where(lengths > room, -(-lengths // half), 1)
    first = np.concatenate([[0], np.cumsum(pieces)])  # each sentence's first piece, and the number of all
    number = np.arange(first[-1]) - np.repeat(first[:-1], pieces)  # of each piece in its sentence
    begins = np.repeat(sentences[:-1], pieces) + number * half
    is_inside, marks = np.append(number > 0, False), None
    if has_end_mark is not None:
        marks = np.repeat(has_end_mark, pieces) & ~is_inside[1:]  # its last piece ends as the sentence does
    return np.append(begins, sentences[-1]), first[documents], is_inside, marks


def plan_whole_sentences(
    sentences: np.ndarray,
    documents: np.ndarray,
    room: int,
    generator: random.Random,
    short_seq_prob: float,
    random_next_prob: float,
    has_end_mark: np.ndarray | None = None,
    originals: np.ndarray | None = None,
    is_inside: np.ndarray | None = None,
) -> np.ndarray:
    """`plan_pairs` before truncation: segments are whole sentences, and may exceed `room`, the tokens that fit.

    `is_inside` is of `cut_long_sentences`. A pair that is cut there has no label, since a segment B that begins inside
    of a sentence would reveal it.
    """
    if len(documents) < 3:
        raise ValueError("next-sentence pairs need at least two documents")
    inside = np.zeros(len(sentences), dtype=bool) if is_inside is None else is_inside
    probabilities = short_seq_prob, random_next_prob
    owner, begin, cuts, stops, targets, labels = gather_pairs(
        sentences.tolist(), documents.tolist(), inside.tolist(), room, generator, *probabilities
    )
    originals = np.arange(len(documents) - 1) if originals is None else originals
    owner, is_alone = originals[owner], cuts == stops
    planned = np.column_stack([sentences[begin], sentences[cuts], sentences[cuts], sentences[stops], labels])
    true_next = np.column_stack([np.where(is_alone, sentences[begin], sentences[cuts]), sentences[stops]])
    # What a random segment has in common with the true one: how it ends first, then its length. A short row would
    # else reveal the label: a true segment B that is short ends its document.
    marks = np.zeros(len(sentences) - 1, dtype=bool) if has_end_mark is None else has_end_mark
    ends_document, is_random = np.isin(stops, documents), labels == 1
    form = true_next[:, 1] - true_next[:, 0] + OTHER_END * (2 * ends_document + marks[stops - 1])
    # The true next segments of other pairs. Where another document has none, sentences that are alone, then any.
    choices = ~is_alone & ~inside[cuts], ~inside[np.where(is_alone, begin, cuts)], np.ones(len(begin), dtype=bool)
    usable = next((each for each in choices if len(np.unique(owner[each])) > 1), choices[-1])
    candidates = np.flatnonzero(usable)
    planned[is_random, B_START : B_END + 1] = true_next[candidates][
        random_choice(form[candidates], owner[candidates], form[is_random], owner[is_random], generator)
    ]
    room_for_b = (targets - (sentences[stops] - sentences[begin]))[is_alone]
    spans = random_text(sentences, documents, originals, room_for_b, owner[is_alone], generator)
    planned[is_alone, B_START : B_END + 1] = spans
    return planned


def gather_pairs(
    sentences: list[int],
    documents: list[int],
    is_inside: list[bool],
    room: int,
    generator: random.Random,
    short_seq_prob: float,
    random_next_prob: float,
) -> np.ndarray:
    """Each pair's document, first sentence, cut between the segments, end, target in tokens, and label: (6, pairs)."""
    rows: list[int] = []
    add, draw = rows.extend, generator.random
    for document in range(len(documents) - 1):
        sentence, end = documents[document], documents[document + 1]
        while sentence < end:
            target = draw_target(room, short_seq_prob, generator)
            stop = bisect_left(sentences, sentences[sentence] + target, min(sentence + 2, end), end)
            cut = sentence + 1 + int(draw() * (stop - sentence - 1))  # segment A has at least one sentence
            label = IGNORE_INDEX if cut == stop or is_inside[cut] else int(draw() < random_next_prob)
            add((document, sentence, cut, stop, target, label))
            sentence = cut if label == 1 else stop  # the sentences after A are put back
    return np.array(rows, dtype=np.int64).reshape(-1, 6).T


def draw_target(room: int, short_seq_prob: float, generator: random.Random) -> int:
    """The tokens that a pair should have: `room`, or with probability `short_seq_prob` 2 to `room`."""
    return room if generator.random() >= short_seq_prob else 2 + int(generator.random() * (room - 1))


def random_choice(
    form: np.ndarray, owner: np.ndarray, wanted: np.ndarray, not_from: np.ndarray, generator: random.Random
) -> np.ndarray:
    """For each wanted form, (R,), the index of a random candidate of that form from another document than `not_from`.

    form, owner: of the N candidates. Where no other document has that form, the nearest form is taken.
    """
    rng = np.random.default_rng(generator.getrandbits(64))
    order = np.argsort(form, kind="stable")
    form, owner = form[order], owner[order]
    low, high = (np.searchsorted(form, wanted, side=side) for side in ("left", "right"))
    chosen, rows = np.zeros(len(wanted), dtype=np.int64), np.flatnonzero(low < high)
    is_open = np.ones(len(wanted), dtype=bool)
    for _ in range(DRAWS):
        chosen[rows] = rng.integers(low[rows], high[rows])
        is_open[rows] = owner[chosen[rows]] == not_from[rows]
        rows = rows[is_open[rows]]
    start = np.where(low < high, chosen, np.minimum(low, len(form) - 1))[is_open]
    chosen[is_open] = nearest_of_others(form, owner, wanted[is_open], not_from[is_open], start)
    return order[chosen]


def nearest_of_others(
    form: np.ndarray, owner: np.ndarray, wanted: np.ndarray, not_from: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """The index of the nearest form of another document than `not_from`, (R,), to either side of `start`.

    form, owner: of the N candidates, sorted by form. One document may have nearly all of them, so a run of candidates
    of one document is passed in a single step. Where there is no other document, `start`.
    """
    runs = np.flatnonzero(np.diff(owner)) + 1  # where they begin, without the first
    run_before, run_after = np.append(-1, runs - 1), np.append(runs, len(form))
    before = np.maximum(start - 1, 0)
    left = np.where(owner[before] != not_from, before, run_before[np.searchsorted(runs, before, side="right")])
    right = np.where(owner[start] != not_from, start, run_after[np.searchsorted(runs, start, side="right")])
    far = np.iinfo(np.int64).max
    left_gap = np.where(left >= 0, np.abs(form[left] - wanted), far)
    right_gap = np.where(right < len(form), np.abs(form[np.minimum(right, len(form) - 1)] - wanted), far)
    nearest = np.where(right_gap <= left_gap, right, left)
    return np.where(np.minimum(left_gap, right_gap) < far, nearest, start)


def random_text(
    sentences: np.ndarray,
    documents: np.ndarray,
    originals: np.ndarray,
    wanted: np.ndarray,
    not_from: np.ndarray,
    generator: random.Random,
) -> np.ndarray:
    """Where random sentences of other documents than `not_from`, (R,), begin and end, (R, 2), in tokens.

    They are at least `wanted` tokens, (R,), or a whole document, the longest of several drawn at random.
    """
    rng = np.random.default_rng(generator.getrandbits(64))
    document = np.repeat(np.arange(len(originals)), np.diff(documents))  # of each sentence
    tokens = np.diff(sentences[documents])

    def usable(sentence: np.ndarray) -> np.ndarray:
        """How many of the wanted tokens a sentence's document has; -1 where it is the row's own."""
        own = originals[document[sentence]] == not_from
        return np.where(own, -1, np.minimum(tokens[document[sentence]], np.maximum(wanted, 0)))

    drawn = rng.integers(len(document), size=len(wanted))
    for _ in range(DRAWS):
        another = rng.integers(len(document), size=len(wanted))
        drawn = np.where(usable(another) > usable(drawn), another, drawn)
    for row in np.flatnonzero(usable(drawn) < 0):
        others = np.flatnonzero(originals[document] != not_from[row])
        drawn[row] = rng.choice(others) if len(others) else drawn[row]
    first, end = documents[document[drawn]], documents[document[drawn] + 1]
    latest = np.searchsorted(sentences, sentences[end] - wanted, side="right") - 1  # with enough text after it
    begin = np.minimum(drawn, np.clip(latest, first, end - 1))
    stop = np.clip(np.searchsorted(sentences, sentences[begin] + wanted), begin + 1, end)
    return np.column_stack([sentences[begin], sentences[stop]])


def plan_swaps(
    sentences: np.ndarray,
    documents: np.ndarray,
    max_length: int,
    generator: random.Random,
    short_seq_prob: float = 0.1,
    swap_prob: float = 0.5,
    has_end_mark: np.ndarray | None = None,
) -> np.ndarray:
    """Cut documents into pairs of consecutive segments, which are swapped with probability `swap_prob` (label 1).

    Sentence order prediction (Lan et al. 2019, section 3.1): the topic does not reveal the label. Arguments and result
    as in `plan_pairs`. Nor should the form. The sentence that crosses the target length is longer than most, and would
    always be in the second segment: so half of the documents are cut from their end. What then still differs between
    first and second segments is balanced (`balanced`): some pairs get no label (IGNORE_INDEX). So does a pair
    of which a segment begins inside of a long sentence, and a sentence alone, which becomes segment A; segment B is
    empty.
    """
    room = max_length - SPECIAL_TOKENS_IN_A_PAIR
    sentences, documents, is_inside, has_end_mark = cut_long_sentences(sentences, documents, room, has_end_mark)
    starts = sentences.tolist()
    rows: list[tuple[int, int, int]] = []
    for begin, end in zip(documents[:-1].tolist(), documents[1:].tolist(), strict=True):
        if generator.random() < 0.5:
            rows += cut_in_two(starts[begin : end + 1], room, short_seq_prob, generator)
        else:  # the same with the document turned round
            turned = [-start for start in reversed(starts[begin : end + 1])]
            cut = cut_in_two(turned, room, short_seq_prob, generator)
            rows += [(-stop, -middle, -start) for start, middle, stop in reversed(cut)]
    start, middle, stop = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    is_alone = (middle == start) | (middle == stop)
    # A segment that begins inside of a sentence would show which of the two comes first.
    is_within = is_inside[np.searchsorted(sentences, np.stack([start, middle]))].any(0)
    middle = np.where(is_alone, stop, middle)
    plan = np.column_stack([start, middle, middle, stop, np.where(is_alone | is_within, IGNORE_INDEX, 0)])
    labelled = np.flatnonzero(~is_alone & ~is_within)
    ends = np.searchsorted(sentences, plan[labelled][:, [A_END, B_END]]) - 1
    marks = np.zeros_like(ends) if has_end_mark is None else has_end_mark[ends]
    lengths = np.column_stack([middle - start, stop - middle])[labelled]
    is_kept = balanced(lengths, marks, generator)
    plan[labelled[~is_kept], IS_RANDOM_NEXT] = IGNORE_INDEX
    is_swapped = np.array([generator.random() < swap_prob for _ in rows], dtype=bool) & (plan[:, IS_RANDOM_NEXT] == 0)
    plan[is_swapped] = np.column_stack([plan[is_swapped][:, [2, 3, 0, 1]], np.ones(is_swapped.sum(), dtype=np.int64)])
    truncate_pairs(plan, room, generator)  # last, since of two segments in excess B becomes the shorter
    return plan


def cut_in_two(
    starts: list[int], room: int, short_seq_prob: float, generator: random.Random
) -> list[tuple[int, int, int]]:
    """Gather the sentences of a document up to a target length, and cut at the one nearest to a random place.

    starts: offsets of the sentences and the end. Returns start, cut and end of each; those of a single sentence have
    the cut at their end.
    """
    rows, sentence, end = [], 0, len(starts) - 1
    while sentence < end:
        target = draw_target(room, short_seq_prob, generator)
        stop = bisect_left(starts, starts[sentence] + target, min(sentence + 2, end), end)
        if stop == end - 1 and stop - sentence > 2:  # rather than leave the last sentence alone
            stop -= 1
        place = starts[sentence] + generator.random() * (starts[stop] - starts[sentence])
        after = bisect_left(starts, place, sentence + 1, stop)  # the first cut that is not before the place
        cuts = starts[max(after - 1, sentence + 1) : min(after + 1, stop)] or [starts[stop]]
        rows.append((starts[sentence], min(cuts, key=lambda cut: abs(cut - place)), starts[stop]))
        sentence = stop
    return rows


def balanced(lengths: np.ndarray, marks: np.ndarray, generator: random.Random) -> np.ndarray:
    """Which pairs keep their label, (P,): those that have a mirror image, a pair with the same two forms in turn.

    lengths, marks: of both segments, (P, 2). Swapping then shows every form as often with either label. The pairs are
    put in order of their form (how the shorter and the longer segment end, then their lengths), and each is matched
    with the nearest one that is turned the other way round, at most `REACH` places away. Others lose their label.
    """
    forms = 2 * lengths + marks
    is_turned = (forms[:, 0] > forms[:, 1]).tolist()
    shorter, longer = np.sort(forms, axis=1).T
    ends = (2 * (shorter % 2) + longer % 2).tolist()
    rng = np.random.default_rng(generator.getrandbits(64))
    is_kept = shorter == longer
    unmatched: list[tuple[int, int]] = []
    for place, row in enumerate(np.lexsort((rng.random(len(forms)), longer, shorter, ends)).tolist()):
        if is_kept[row]:
            continue
        if unmatched and (place - unmatched[-1][0] > REACH or ends[unmatched[-1][1]] != ends[row]):
            unmatched.clear()
        if unmatched and is_turned[unmatched[-1][1]] != is_turned[row]:
            is_kept[[row, unmatched.pop()[1]]] = True
        else:
            unmatched.append((place, row))
    return is_kept


def plan_packed(sentences: np.ndarray, documents: np.ndarray, max_length: int, generator: random.Random) -> np.ndarray:
    """Fill rows with consecutive tokens, across sentences and documents.

    FULL-SENTENCES of Liu et al. 2019, section 4.2, but a sentence that does not fit is cut and continues in the next
    row, so every row is full: [CLS], tokens, a [SEP] after each document that ends before the row, and [SEP]. Segment B
    is empty and there is no label. The first row begins at a random token, so that every epoch cuts elsewhere. What
    lies before it, and what fills no row after the last one, is left out: less than a row each. Two cuts that lie a
    slot apart meet where a document ends with a row. So every 128th row begins again at a random token, one of the row
    before it. Of a shard with less text than one row, a short row holds all there is. Arguments and result as in
    `plan_pairs`.
    """
    capacity, begins = max_length - 2, sentences[documents].tolist()
    # The slot of each document's first token, if all tokens lay in one row with a [SEP] between documents.
    slots = [begin + number for number, begin in enumerate(begins[:-1])]
    end = begins[-1] + len(slots) - 1
    at = int(generator.random() * min(capacity, max(begins[-1] - capacity, 0) + 1))
    plan: list[tuple[int, int, int, int, int]] = []
    while at < begins[-1]:
        row_end = at + bisect_right(begins, at) - 1 + capacity  # a row begins with a token, not with a [SEP]
        if row_end > end and plan:
            break
        last = bisect_left(slots, row_end) - 1  # the last document with a token in the row
        stop = min(row_end - last, begins[last + 1])
        plan.append((at, stop, stop, stop, IGNORE_INDEX))
        at = stop if len(plan) % ROWS_TO_NEW_CUT else stop - int(generator.random() * (stop - at))
    return np.array(plan, dtype=np.int64).reshape(-1, 5)


def truncate_pairs(plan: np.ndarray, room: int, generator: random.Random) -> None:
    """Truncate the pairs of a plan, in place, to `room` tokens.

    Single tokens are removed from the longer segment, from its front or back at random, until both fit.
    """
    a, b = plan[:, A_END] - plan[:, A_START], plan[:, B_END] - plan[:, B_START]
    rows = np.flatnonzero(a + b > room)
    a, b = a[rows], b[rows]
    excess = a + b - room
    level = np.minimum(excess, abs(a - b))  # removed until both are equally long; after that, B and A take turns
    from_a = np.where(a > b, level, 0) + (excess - level) // 2
    removed = np.column_stack([from_a, excess - from_a])
    from_front = np.random.default_rng(generator.getrandbits(64)).binomial(removed, 0.5)
    plan[rows[:, None], [A_START, B_START]] += from_front
    plan[rows[:, None], [A_END, B_END]] -= removed - from_front


def ends_with_mark(tokens: np.ndarray, sentences: np.ndarray) -> np.ndarray:
    """Whether each sentence ends with an end mark, (number of sentences,).

    An end mark is a token that ends a sentence more often than not: no list of marks fits every language.
    """
    last = tokens[sentences[1:] - 1]
    return (2 * np.bincount(last, minlength=1 + int(tokens.max())) > np.bincount(tokens))[last]
