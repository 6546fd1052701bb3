"""The batches of fine-tuning: every example once an epoch, similar lengths together."""

from dataclasses import replace

import numpy as np
import pytest
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from bertpre.data.sampler import Position
from bertpre.data.tokenizer import learn_tokenizer
from bertpre.errors import UserError
from bertpre.finetuning.batches import TrainingBatches
from bertpre.finetuning.encoding import EncodedExamples, encode_examples
from bertpre.recipe import Finetune
from bertpre.training.batches import StepBatch
from tests.unit.test_examples import examples_of

WORDS = [f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_tokenizer(iter([" ".join(WORDS)] * 3), 192, lowercase=True, max_length=64)


def training_batches(tokenizer: PreTrainedTokenizerBase, count: int, seed: int = 0) -> TrainingBatches:
    examples = examples_of([" ".join(WORDS[: 1 + number % 9]) for number in range(count)])
    settings = Finetune(path="sample", batch_size=4, max_length=16)
    encoded = encode_examples(tokenizer, examples, 16)
    return TrainingBatches(encoded, tokenizer.pad_token_id, settings, Accelerator(cpu=True), seed)


@pytest.mark.parametrize("count", [1, 3, 4, 37, 300])
def test_an_epoch_has_every_text_and_only_full_batches(count: int, tokenizer: PreTrainedTokenizerBase) -> None:
    data = training_batches(tokenizer, count)
    batches = data.epoch_batches(0)
    assert batches.shape == (data.steps_per_epoch, 4)
    seen = np.bincount(batches.ravel(), minlength=count)
    assert seen.min() >= 1
    assert seen.sum() - count < max(4, count + 4)  # no more than fills the last batch
    if count >= 4:
        assert seen.max() <= 2


def test_an_epochs_order_depends_only_on_seed_and_epoch(tokenizer: PreTrainedTokenizerBase) -> None:
    first, second = training_batches(tokenizer, 37), training_batches(tokenizer, 37)
    second.epoch_batches(3)
    np.testing.assert_array_equal(first.epoch_batches(1), second.epoch_batches(1))
    assert (first.epoch_batches(0) != first.epoch_batches(1)).any()
    assert (training_batches(tokenizer, 37, seed=1).epoch_batches(1) != first.epoch_batches(1)).any()


def test_every_epoch_ends_with_the_true_labels(tokenizer: PreTrainedTokenizerBase) -> None:
    data = training_batches(tokenizer, 37)
    data = TrainingBatches(
        replace(data.encoded, num_pseudo_labelled=10), 0, Finetune(path="x", batch_size=4), data.accelerator, 0
    )
    assert data.steps_per_epoch == 3 + 7
    for epoch in (0, 1):
        batches = data.epoch_batches(epoch)
        assert set(batches[:3].ravel()) == set(range(10))
        assert set(batches[3:].ravel()) == set(range(10, 37))


def test_texts_of_similar_length_share_a_batch(tokenizer: PreTrainedTokenizerBase) -> None:
    data = training_batches(tokenizer, 300)
    spread = np.ptp(data.lengths[data.epoch_batches(0)], axis=1)
    assert spread.mean() < 1.5  # at random it would be about 6


def test_a_batch_size_that_processes_cannot_share_is_refused(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Accelerator, "num_processes", 3)
    with pytest.raises(UserError, match="finetune.batch_size is 4: it must be a multiple of the number of pro"):
        training_batches(tokenizer, 37)


def test_processes_share_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = EncodedExamples([np.full(1 + n % 9, n + 1) for n in range(37)], None, np.zeros(37, dtype=np.int64))

    def step(offset: int) -> StepBatch:
        data = TrainingBatches(encoded, 0, Finetune(path="x", batch_size=4), Accelerator(cpu=True), seed=0)
        assert data.steps_per_epoch == 10
        return data(Position(epoch=1, offset=offset), 0.0)

    (whole,) = step(2).micro_batches
    assert step(2).after == Position(epoch=1, offset=3)
    assert step(9).after == Position(epoch=2)
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    shared = []
    for rank in (0, 1):
        monkeypatch.setattr(Accelerator, "process_index", rank)
        shared += [text for batch in step(2).micro_batches for text in batch["input_ids"][:, 0].tolist()]
    assert sorted(shared) == sorted(whole["input_ids"][:, 0].tolist())


@pytest.mark.parametrize("max_length", [16, 100])
def test_a_batch_is_padded_to_a_multiple_of_8(max_length: int, tokenizer: PreTrainedTokenizerBase) -> None:
    ids = [np.zeros(length, dtype=np.int64) for length in range(1, max_length + 1)]
    settings = Finetune(path="sample", batch_size=1, max_length=max_length)
    encoded = EncodedExamples(ids, None, np.zeros(len(ids), dtype=np.int64))
    data = TrainingBatches(encoded, 0, settings, Accelerator(cpu=True), seed=0)
    for place, row in enumerate(ids):
        length = data.collate(np.array([place]))["input_ids"].shape[1]
        assert length % 8 == 0 or length == max_length
        assert len(row) <= length < len(row) + 8
