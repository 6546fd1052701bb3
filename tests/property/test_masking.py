"""The collator: layout, and which tokens become targets, for any pairs."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertpre.data.masking import MaskingCollator
from bertpre.data.sampler import Example

SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
VOCABULARY, MAX_LENGTH = 60, 40
WORDS = np.arange(5, VOCABULARY)
CONTINUATIONS = np.arange(40, VOCABULARY)  # a third of the tokens continue a word
modest = settings(max_examples=60, deadline=None)


@st.composite
def examples(draw: st.DrawFn) -> list[Example]:
    """A batch of pairs; segment B may be empty."""
    batch = []
    for _ in range(draw(st.integers(1, 5))):
        a, b = draw(st.integers(1, MAX_LENGTH - 4)), draw(st.integers(0, 12))
        a = min(a, MAX_LENGTH - 3 - b)
        generator = np.random.default_rng(draw(st.integers(0, 999)))
        ids = generator.choice(WORDS, a + b).astype(np.uint16)
        key = (draw(st.integers(0, 3)), draw(st.integers(0, 10**6)))
        label = draw(st.sampled_from([0, 1, -100])) if b else -100
        batch.append(Example(ids[:a], ids[a:], label, key))
    return batch


MASKINGS = st.sampled_from(["tokens", "words", "spans"])


def collator(probability: float = 0.15, seed: int = 0, masking: str = "tokens") -> MaskingCollator:
    return MaskingCollator(VOCABULARY, SPECIAL, WORDS, MAX_LENGTH, probability, seed, masking, CONTINUATIONS)


def originals(example: Example) -> list[int]:
    b = [*example.b.tolist(), SPECIAL["[SEP]"]] if len(example.b) else []
    return [SPECIAL["[CLS]"], *example.a.tolist(), SPECIAL["[SEP]"], *b]


def targets(batch: dict[str, torch.Tensor], row: int) -> dict[int, int]:
    """Position and label of each target of one row."""
    is_target = batch["labels"][row] != -100
    places = batch["masked_positions"][row][is_target].tolist()
    assert len(places) == len(set(places))
    return dict(zip(places, batch["labels"][row][is_target].tolist(), strict=True))


@modest
@given(examples(), st.sampled_from([0.05, 0.15, 0.3]))
def test_a_row_is_cls_a_sep_b_sep_and_padding(batch: list[Example], probability: float) -> None:
    out = collator(probability)(batch)
    for row, example in enumerate(batch):
        ids, found = originals(example), targets(out, row)
        length = len(ids)
        restored = out["input_ids"][row].clone()
        for place, label in found.items():
            restored[place] = label
        assert restored.tolist() == ids + [SPECIAL["[PAD]"]] * (MAX_LENGTH - length)
        first = len(example.a) + 2
        second = length - first
        assert out["token_type_ids"][row].tolist() == [0] * first + [1] * second + [0] * (MAX_LENGTH - length)
        assert out["attention_mask"][row].tolist() == [1] * length + [0] * (MAX_LENGTH - length)
    assert out["next_sentence_label"].tolist() == [example.is_random_next for example in batch]
    assert {tensor.dtype for tensor in out.values()} == {torch.int64}


@modest
@given(examples(), st.sampled_from([0.01, 0.05, 0.15, 0.3, 0.4]))
def test_the_number_of_targets_is_the_share_of_the_length_and_at_least_one(
    batch: list[Example], probability: float
) -> None:
    out = collator(probability)(batch)
    assert out["labels"].shape[1] == max(1, round(MAX_LENGTH * probability))
    for row, example in enumerate(batch):
        assert len(targets(out, row)) == max(1, round(len(originals(example)) * probability))


def words_of(ids: list[int]) -> list[list[int]]:
    """The positions of each word's tokens; a word ends at a special token."""
    words: list[list[int]] = []
    for place, token in enumerate(ids):
        if token in SPECIAL.values():
            continue
        if token in CONTINUATIONS and ids[place - 1] not in SPECIAL.values():
            words[-1].append(place)
        else:
            words.append([place])
    return words


@modest
@given(examples(), st.sampled_from([0.05, 0.15, 0.3]), st.sampled_from(["words", "spans"]))
def test_words_are_masked_as_a_whole_within_the_share(batch: list[Example], probability: float, masking: str) -> None:
    out = collator(probability, masking=masking)(batch)
    for row, example in enumerate(batch):
        chosen, words = set(targets(out, row)), words_of(originals(example))
        wanted = max(1, round(len(originals(example)) * probability))
        touched = [word for word in words if chosen & set(word)]
        if len(touched) == 1:  # where none fits, the first is masked up to the number of slots
            assert set(touched[0][: out["labels"].shape[1]]) == chosen
        else:
            assert sorted(chosen) == [place for word in touched for place in word]
            assert len(chosen) <= wanted
        assert all(len(word) > wanted - len(chosen) for word in words if word not in touched)  # no other would fit


@modest
@given(examples(), MASKINGS, st.sampled_from([0.1, 0.2, 0.3]))
def test_a_lower_probability_gives_fewer_targets_in_the_same_slots(
    batch: list[Example], masking: str, probability: float
) -> None:
    lower, whole = collator(0.3, masking=masking), collator(probability, masking=masking)
    for row in range(len(batch)):
        assert targets(lower(batch, probability), row) == targets(whole(batch), row)
    assert lower(batch, probability)["labels"].shape == lower(batch)["labels"].shape


@modest
@given(examples(), MASKINGS)
def test_special_tokens_are_neither_targets_nor_replacements(batch: list[Example], masking: str) -> None:
    out = collator(0.3, masking=masking)(batch)
    for row, example in enumerate(batch):
        for place, label in targets(out, row).items():
            assert label == originals(example)[place]
            assert label not in SPECIAL.values()
            shown = int(out["input_ids"][row, place])
            assert shown == SPECIAL["[MASK]"] or shown in WORDS
        unused = out["labels"][row] == -100
        assert (out["masked_positions"][row][unused] == 0).all()


@modest
@given(examples(), MASKINGS)
def test_a_mask_depends_only_on_its_own_example(batch: list[Example], masking: str) -> None:
    mask = collator(masking=masking)
    together, reverse = mask(batch), mask(batch[::-1])
    for row, example in enumerate(batch):
        alone = mask([example])
        for name, tensor in together.items():
            assert torch.equal(alone[name][0], tensor[row]), name
            assert torch.equal(reverse[name][len(batch) - 1 - row], tensor[row]), name


@modest
@given(st.lists(st.integers(5, VOCABULARY - 1), min_size=2, max_size=30), st.integers(1, 20))
def test_unknown_words_are_not_targets(ids: list[int], unknown: int) -> None:
    a = np.array([*ids, *[SPECIAL["[UNK]"]] * min(unknown, MAX_LENGTH - 4 - len(ids))])
    out = collator(0.4)([Example(a, np.array([7]), 0, (0, 0))])
    assert SPECIAL["[UNK]"] not in targets(out, 0).values()
