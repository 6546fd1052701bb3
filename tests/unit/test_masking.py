"""The collator's shares: 80/10/10, uniform over positions, different in every epoch."""

import random

import numpy as np
import pytest
import torch

from bertpre.data.masking import NOT_A_CANDIDATE, MaskingCollator, span_lengths, spread_over_spans
from bertpre.data.sampler import Example
from bertpre.training.batches import tokens_in

SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
VOCABULARY, MAX_LENGTH, ROWS = 105, 64, 1500
WORDS = np.arange(5, VOCABULARY)


def rows(count: int, epoch: int = 0, first: int = 0) -> list[Example]:
    """Full rows of the same words."""
    ids = np.random.default_rng(0).choice(WORDS, MAX_LENGTH - 3)
    return [Example(ids[:30], ids[30:], 0, (epoch, first + index)) for index in range(count)]


def collate(examples: list[Example], seed: int = 0, probability: float = 0.15) -> dict[str, torch.Tensor]:
    return MaskingCollator(VOCABULARY, SPECIAL, WORDS, MAX_LENGTH, probability, seed)(examples)


def within(count: int, of: int, share: float) -> bool:
    """Whether a count is within four and a half standard deviations of its binomial mean."""
    return abs(count - of * share) <= 4.5 * (of * share * (1 - share)) ** 0.5


def shown_and_labels(batch: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    is_target = batch["labels"] != -100
    shown = batch["input_ids"].gather(1, batch["masked_positions"])
    return shown[is_target].numpy(), batch["labels"][is_target].numpy()


def test_of_the_targets_80_percent_show_mask_10_another_word_and_10_themselves() -> None:
    shown, labels = shown_and_labels(collate(rows(ROWS)))
    total, chance = len(labels), 1 / len(WORDS)  # a random word can be the word itself
    assert total == ROWS * round(MAX_LENGTH * 0.15)
    assert within(int((shown == SPECIAL["[MASK]"]).sum()), total, 0.8)
    assert within(int((shown == labels).sum()), total, 0.1 + 0.1 * chance)
    assert within(int(((shown != labels) & (shown != SPECIAL["[MASK]"])).sum()), total, 0.1 * (1 - chance))


def test_every_position_is_chosen_equally_often() -> None:
    batch = collate(rows(ROWS))
    places = batch["masked_positions"][batch["labels"] != -100]
    counts = np.bincount(places.numpy(), minlength=MAX_LENGTH)
    special = [0, 31, MAX_LENGTH - 1]
    assert counts[special].sum() == 0
    share = round(MAX_LENGTH * 0.15) / (MAX_LENGTH - 3)
    assert all(within(int(count), ROWS, share) for place, count in enumerate(counts) if place not in special)


def test_every_word_is_drawn_as_a_replacement_equally_often() -> None:
    shown, labels = shown_and_labels(collate(rows(8000)))
    drawn = shown[(shown != labels) & (shown != SPECIAL["[MASK]"])]
    counts = np.bincount(drawn, minlength=VOCABULARY)[WORDS]
    assert all(within(int(count), len(drawn), 1 / len(WORDS)) for count in counts)


def test_the_80_10_10_split_does_not_depend_on_the_position() -> None:
    batch = collate(rows(ROWS))
    for places in (batch["masked_positions"] < 16, batch["masked_positions"] >= 48):
        is_target = (batch["labels"] != -100) & places
        shown = batch["input_ids"].gather(1, batch["masked_positions"])[is_target]
        assert within(int((shown == SPECIAL["[MASK]"]).sum()), int(is_target.sum()), 0.8)


@pytest.mark.parametrize("change", [{"epoch": 1}, {"first": 10}])
def test_another_epoch_or_index_gives_another_mask(change: dict[str, int]) -> None:
    assert not torch.equal(collate(rows(10))["input_ids"], collate(rows(10, **change))["input_ids"])


def test_another_seed_gives_another_mask_and_the_same_seed_the_same() -> None:
    assert not torch.equal(collate(rows(10))["input_ids"], collate(rows(10), seed=1)["input_ids"])
    assert torch.equal(collate(rows(10))["input_ids"], collate(rows(10))["input_ids"])


def test_masks_of_two_epochs_are_independent() -> None:
    first, second = (collate(rows(ROWS, epoch)) for epoch in (0, 1))
    chosen = [torch.zeros(ROWS, MAX_LENGTH, dtype=torch.bool) for _ in range(2)]
    for mask, batch in zip(chosen, (first, second), strict=True):
        for row in range(ROWS):
            mask[row, batch["masked_positions"][row]] = True
    share = round(MAX_LENGTH * 0.15) / (MAX_LENGTH - 3)
    assert within(int((chosen[0] & chosen[1]).sum()), ROWS * (MAX_LENGTH - 3), share**2)


def test_words_outside_the_replacements_are_never_drawn() -> None:
    allowed = WORDS[::2]
    shown, labels = shown_and_labels(MaskingCollator(VOCABULARY, SPECIAL, allowed, MAX_LENGTH)(rows(300)))
    replaced = shown[(shown != labels) & (shown != SPECIAL["[MASK]"])]
    assert set(replaced.tolist()) <= set(allowed.tolist())
    assert len(replaced)


def test_a_pair_of_only_unknown_words_has_no_target() -> None:
    unknown = np.ones(4, dtype=np.int64)
    assert (collate([Example(unknown, unknown, 1, (0, 0))])["labels"] == -100).all()


def runs_of(places: np.ndarray) -> list[int]:
    """Lengths of the runs of neighbouring positions."""
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return [len(run) for run in np.split(places, breaks)]


def mask_long_rows(masking: str, count: int = 400, epoch: int = 0) -> list[np.ndarray]:
    """The sorted targets of rows of 512 tokens at a probability of 1 in 20."""
    ids = np.random.default_rng(0).choice(WORDS, 509)
    examples = [Example(ids[:250], ids[250:], 0, (epoch, index)) for index in range(count)]
    batch = MaskingCollator(VOCABULARY, SPECIAL, WORDS, 512, 0.05, 0, masking)(examples)
    rows = zip(batch["masked_positions"].numpy(), batch["labels"].numpy(), strict=True)
    return [np.sort(places[labels != -100]) for places, labels in rows]


def test_span_lengths_are_geometric_among_one_to_ten() -> None:
    lengths = span_lengths((np.arange(100_000) + 0.5) / 100_000)
    expected = 0.2 * 0.8 ** np.arange(10)
    np.testing.assert_allclose(np.bincount(lengths.astype(int))[1:] / 100_000, expected / expected.sum(), atol=1e-4)
    assert lengths.mean() == pytest.approx(3.797, abs=0.001)  # SpanBERT, section 3.1: 3.8


def test_spans_are_as_long_in_a_row() -> None:
    # Adjacent spans look like one; the last is cut by the share.
    lengths = [length for row in mask_long_rows("spans") for length in runs_of(row)]
    assert 3.5 < np.mean(lengths) < 4.0
    assert max(lengths) >= 10
    single = [length for row in mask_long_rows("words") for length in runs_of(row)]
    assert np.mean(single) < 1.2


@pytest.mark.parametrize("masking", ["words", "spans"])
def test_with_single_token_words_the_share_is_exact_and_positions_are_uniform(masking: str) -> None:
    rows_of_places = mask_long_rows(masking)
    assert {len(row) for row in rows_of_places} == {round(512 * 0.05)}
    counts = np.bincount(np.concatenate(rows_of_places), minlength=512)
    middle = np.concatenate(
        [counts[20:231], counts[271:490]]
    )  # positions right after a special token lie in fewer spans
    assert middle.mean() == pytest.approx(400 * 26 / 509, rel=0.05)
    assert counts[[0, 251, 511]].sum() == 0


def test_all_tokens_of_a_span_show_the_same_of_mask_random_and_original() -> None:
    ids = np.random.default_rng(0).choice(WORDS, 509)
    examples = [Example(ids[:250], ids[250:], 0, (0, index)) for index in range(400)]
    batch = MaskingCollator(VOCABULARY, SPECIAL, WORDS, 512, 0.05, 0, "spans")(examples)
    shown_masks = []
    for row in range(len(examples)):
        places = np.sort(batch["masked_positions"][row][batch["labels"][row] != -100].numpy())
        for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            is_mask = (batch["input_ids"][row][run] == SPECIAL["[MASK]"]).numpy()
            assert is_mask.all() or not is_mask.any()
            shown_masks.append(is_mask[0])
    assert within(sum(shown_masks), len(shown_masks), 0.8)


def google_counts(word_lengths: list[int], wanted: int, rows: int) -> list[int]:
    """How many tokens google's create_masked_lm_predictions masks with whole words, in rows of these words."""
    counts, generator = [], random.Random(0)
    for _ in range(rows):
        total = 0
        for length in generator.sample(word_lengths, len(word_lengths)):
            if total >= wanted:
                break
            if total + length > wanted:
                continue
            total += length
        counts.append(total)
    return counts


def test_whole_words_give_as_many_targets_as_googles_algorithm() -> None:
    word_lengths = [1, 4, 2, 6, 3, 5, 7, 4, 6, 3, 5, 7, 8]  # 61 tokens: segment A has 28 of them
    ids = np.concatenate([[6] + [7] * (length - 1) for length in word_lengths])
    collator = MaskingCollator(VOCABULARY, SPECIAL, WORDS, MAX_LENGTH, 0.15, 0, "words", np.array([7]))
    examples = [Example(ids[:28], ids[28:], 0, (0, index)) for index in range(4000)]
    counts = (collator(examples)["labels"] != -100).sum(1).numpy()
    wanted = round(MAX_LENGTH * 0.15)
    expected = google_counts(word_lengths, wanted, 4000)
    observed_shares, expected_shares = (np.bincount(some, minlength=wanted + 1) / 4000 for some in (counts, expected))
    np.testing.assert_allclose(observed_shares, expected_shares, atol=0.03)


def test_where_no_word_fits_the_first_is_masked_up_to_the_slots() -> None:
    word = np.arange(5, 35)  # one word of 30 tokens
    collator = MaskingCollator(VOCABULARY, SPECIAL, WORDS, MAX_LENGTH, 0.3, 0, "words", word[1:])
    batch = [Example(word, word, 0, (0, index)) for index in range(20)]
    for probability in (0.1, 0.3):
        counts = (collator(batch, probability)["labels"] != -100).sum(1)
        assert set(counts.tolist()) == {round(MAX_LENGTH * probability)}
    shorter = [Example(word, np.array([40]), 0, (0, index)) for index in range(20)]
    assert set((collator(shorter)["labels"] != -100).sum(1).tolist()) == {1}  # the word that fits


def test_a_pair_without_a_label_keeps_its_segment_b_and_one_without_segment_b_has_one_separator() -> None:
    batch = collate([Example(WORDS[:4], WORDS[4:7], -100, (0, 0)), Example(WORDS[:4], WORDS[:0], -100, (0, 1))])
    assert batch["attention_mask"].sum(1).tolist() == [10, 6]
    assert batch["token_type_ids"].sum(1).tolist() == [4, 0]
    assert batch["next_sentence_label"].tolist() == [-100, -100]


def test_a_span_ends_at_a_special_token() -> None:
    number = np.array([[0.1, 0.5, NOT_A_CANDIDATE, 0.9, 0.7]])
    length, segment = np.array([[9, 1, 1, 2, 1]]), np.array([[1, 1, 2, 2, 2]])
    assert spread_over_spans(number, length, segment).tolist() == [[0.1, 0.1, NOT_A_CANDIDATE, 0.9, 0.7]]
    assert spread_over_spans(number[:, ::-1], length, np.ones((1, 5))).tolist() == [
        [0.7, 0.7, NOT_A_CANDIDATE, 0.5, 0.1]
    ]


def test_mask_split_sets_the_shares() -> None:
    collator = MaskingCollator(VOCABULARY, SPECIAL, WORDS, MAX_LENGTH, mask_split=(0.5, 0.0, 0.5))
    shown, labels = shown_and_labels(collator(rows(ROWS)))
    assert within(int((shown == SPECIAL["[MASK]"]).sum()), len(labels), 0.5)
    assert within(int((shown == labels).sum()), len(labels), 0.5)


def test_a_causal_batch_asks_for_each_next_token_and_shows_the_ones_before() -> None:
    words = np.arange(5, 105)
    examples = [Example(words[:62], words[:0], 0, (0, 0)), Example(words[:3], words[:0], 0, (0, 1))]
    batch = MaskingCollator(VOCABULARY, SPECIAL, WORDS, MAX_LENGTH).next_tokens(examples)
    cls, sep, pad = SPECIAL["[CLS]"], SPECIAL["[SEP]"], SPECIAL["[PAD]"]
    assert batch["input_ids"].tolist() == [[cls, *range(5, 67), sep], [cls, 5, 6, 7, sep, *[pad] * 59]]
    assert batch["labels"].tolist() == [[*range(5, 67), sep, -100], [5, 6, 7, sep, *[-100] * 60]]
    assert batch["attention_mask"].shape == (1, 1, MAX_LENGTH, MAX_LENGTH)
    assert all(int(row.sum()) == place + 1 and row[place] for place, row in enumerate(batch["attention_mask"][0, 0]))
    assert tokens_in(batch) == 64 + 5


def test_another_epoch_shows_other_targets_as_mask() -> None:
    shown = []
    for epoch in (0, 1):
        batch = collate(rows(ROWS, epoch), probability=0.3)
        is_mask = batch["input_ids"].gather(1, batch["masked_positions"]) == SPECIAL["[MASK]"]
        row, slot = torch.nonzero(batch["labels"] != -100, as_tuple=True)
        places = zip(row.tolist(), batch["masked_positions"][row, slot].tolist(), strict=True)
        shown.append(dict(zip(places, is_mask[row, slot].tolist(), strict=True)))
    both = shown[0].keys() & shown[1].keys()
    assert within(sum(shown[0][place] == shown[1][place] for place in both), len(both), 0.8**2 + 0.2**2)


def test_another_epoch_has_other_spans() -> None:
    ends = []
    for epoch in (0, 1):
        starts: dict[tuple[int, int], int] = {}
        for number, row in enumerate(mask_long_rows("spans", 1000, epoch)):
            breaks = np.flatnonzero(np.diff(row) != 1) + 1
            starts |= {(number, int(run[0])): len(run) for run in np.split(row, breaks)}
        ends.append(starts)
    both = ends[0].keys() & ends[1].keys()
    assert len(both) > 50
    assert sum(ends[0][place] == ends[1][place] for place in both) < 0.4 * len(both)
