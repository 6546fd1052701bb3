"""Labelled texts: both ends of a long one are kept as asked, every text is seen once an epoch, the best epoch wins."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from bertpre.data.classification import LabelledTexts, collate_texts, encode_texts, in_slices
from bertpre.data.tokenizer import learn_tokenizer
from bertpre.errors import UserError
from bertpre.finetune import LabelledData
from bertpre.recipe import Finetune

WORDS = [f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_tokenizer(iter([" ".join(WORDS)] * 3), 192, lowercase=True, max_length=64)


@pytest.mark.parametrize(("truncation", "kept"), [("head", (0, 8)), ("tail", (56, 64)), ("head_tail", (0, 2, 58, 64))])
def test_a_long_text_keeps_the_ends_that_were_asked_for(
    truncation: str, kept: tuple[int, ...], tokenizer: PreTrainedTokenizerBase
) -> None:
    (row,) = encode_texts(tokenizer, [" ".join(WORDS)], 10, truncation)
    expected = [word for start, end in zip(kept[::2], kept[1::2], strict=True) for word in WORDS[start:end]]
    assert tokenizer.convert_ids_to_tokens(row.tolist()) == ["[CLS]", *expected, "[SEP]"]


@pytest.mark.parametrize("truncation", ["head", "tail", "head_tail"])
@pytest.mark.parametrize("length", [0, 1, 8, 9])
def test_what_fits_is_kept_whole(truncation: str, length: int, tokenizer: PreTrainedTokenizerBase) -> None:
    (row,) = encode_texts(tokenizer, [" ".join(WORDS[:length])], 10, truncation)
    assert len(row) == min(length + 2, 10)
    if length <= 8:
        assert tokenizer.convert_ids_to_tokens(row.tolist()) == ["[CLS]", *WORDS[:length], "[SEP]"]


def test_a_batch_is_padded_and_masked() -> None:
    batch = collate_texts([np.array([2, 9, 3]), np.array([2, 3])], np.array([1, 0]), 4, pad_token_id=7)
    assert batch["input_ids"].tolist() == [[2, 9, 3, 7], [2, 3, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (3, 3), (7, 3)])
def test_slices_cover_everything_once(count: int, size: int) -> None:
    items = list(range(count))
    assert [item for part in in_slices(count, size) for item in items[part]] == items


def labelled_data(tokenizer: PreTrainedTokenizerBase, count: int, seed: int = 0, **options: int) -> LabelledData:
    texts = LabelledTexts([" ".join(WORDS[: 1 + number % 9]) for number in range(count)], np.arange(count) % 2)
    settings = Finetune(path="sample", batch_size=4, max_length=16, **options)
    return LabelledData(texts, tokenizer, settings, Accelerator(cpu=True), seed)


@pytest.mark.parametrize("count", [1, 3, 4, 37, 300])
def test_an_epoch_has_every_text_and_only_full_batches(count: int, tokenizer: PreTrainedTokenizerBase) -> None:
    data = labelled_data(tokenizer, count)
    batches = data.epoch_batches(0)
    assert batches.shape == (data.steps_per_epoch, 4)
    seen = np.bincount(batches.ravel(), minlength=count)
    assert seen.min() >= 1
    assert seen.sum() - count < max(4, count + 4)  # no more than fills the last batch
    if count >= 4:
        assert seen.max() <= 2


def test_epochs_differ_and_depend_on_seed_and_number_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    first, second = labelled_data(tokenizer, 37), labelled_data(tokenizer, 37)
    second.epoch_batches(3)
    np.testing.assert_array_equal(first.epoch_batches(1), second.epoch_batches(1))
    assert (first.epoch_batches(0) != first.epoch_batches(1)).any()
    assert (labelled_data(tokenizer, 37, seed=1).epoch_batches(1) != first.epoch_batches(1)).any()


def test_texts_of_like_length_share_a_batch(tokenizer: PreTrainedTokenizerBase) -> None:
    data = labelled_data(tokenizer, 300)
    spread = np.ptp(data.lengths[data.epoch_batches(0)], axis=1)
    assert spread.mean() < 1.5  # at random it would be about 6


def test_in_order_gives_every_text_once(tokenizer: PreTrainedTokenizerBase) -> None:
    data = labelled_data(tokenizer, 37)
    batches = list(data.in_order())
    assert torch.cat([batch["labels"] for batch in batches]).tolist() == data.labels.tolist()
    lengths = torch.cat([batch["attention_mask"].sum(1) for batch in batches])
    assert lengths.tolist() == data.lengths.tolist()


def test_a_batch_that_processes_cannot_share_is_refused(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Accelerator, "num_processes", 3)
    with pytest.raises(UserError, match="finetune.batch_size is 4: it must be a multiple of the number of processes"):
        labelled_data(tokenizer, 37)
