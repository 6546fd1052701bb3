"""bertpre.data by itself: texts, stores, datasets of pairs and the collator, in a DataLoader and in Trainer."""

import logging
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

import bertpre
import bertpre.data
from bertpre.data import (
    DataCollatorForPretraining,
    Example,
    SegmentPairDataset,
    SegmentPairIterableDataset,
    TokenStore,
    learn_tokenizer,
    load_tokenizer,
    read_texts,
)
from bertpre.data.build import StoreBuilder
from bertpre.data.masking import MaskingCollator
from bertpre.data.store import Shard
from bertpre.errors import UserError
from bertpre.files import locked
from bertpre.model import BertPreConfig, BertPreForMaskedLM, BertPreForPreTraining
from tests.helpers import LIMIT

LENGTH = 32
SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(read_texts("sample", split="train+articles", limit=40))


@pytest.fixture(scope="module")
def store(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("api") / "store"
    return TokenStore.build(folder, texts, vocab_size=512, validation_fraction=0.1)


@pytest.fixture
def collate(store: TokenStore) -> DataCollatorForPretraining:
    return DataCollatorForPretraining(store.tokenizer, LENGTH)


def keys(dataset: Any) -> list[tuple[int, int]]:
    return [example.key for example in dataset]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- texts and stores ------------------------------------------------------------------------------------------------


def test_texts_from_files_patterns_rows_and_strings(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    (tmp_path / "b.csv").write_text("body\nfour\n")
    assert list(read_texts(tmp_path / "a.txt", text_unit="paragraph")) == ["one\ntwo", "three"]
    assert list(read_texts(f"{tmp_path}/*.txt", limit=1)) == ["one"]
    assert list(read_texts(tmp_path / "b.csv", text_column="body")) == ["four"]
    assert list(read_texts(["five", {"text": "six"}, "seven"], limit=2)) == ["five", "six"]
    for options in ({"split": "test"}, {"name": "de"}, {"text_unit": "document"}, {"streaming": True}):
        with pytest.raises(bertpre.UserError, match="source: an iterable is read as it is; leave out name, split"):
            list(read_texts(["five"], **options))
    cases = [
        (["a", 3], "row 1 holds int, not text"),
        (["a", float("nan")], r"row 1 has no text; leave such rows out, in pandas with dropna\(\)"),
        ([{"body": "a", "n": 1}], "row 0 has no 'text'; name its column with text_column: 'body', 'n'"),
        (tmp_path / "c.csv", "source: .*c.csv"),
    ]
    for source, message in cases:
        with pytest.raises(bertpre.UserError, match=message):
            list(read_texts(source))  # type: ignore[arg-type]
    with pytest.raises(bertpre.UserError, match="^split: .*a.txt is a single file"):
        list(read_texts(tmp_path / "a.txt", split="test"))


def test_texts_of_the_folder_one_is_in_and_after_a_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8-sig")
    monkeypatch.chdir(tmp_path)
    assert list(read_texts(".")) == ["one", "two"]
    with pytest.raises(bertpre.UserError, match="^text_column: .* no column 'body'; .*; name one with text_column="):
        list(read_texts("a.txt", text_column="body"))


def test_a_store_is_built_once_and_opened_again(store: TokenStore, texts: list[str]) -> None:
    again = TokenStore(store.folder)
    assert (again.documents, again.tokens) == (store.documents, store.tokens)
    assert again.documents == len(texts)
    assert again.tokenizer.get_vocab() == store.tokenizer.get_vocab()
    assert len(store.tokenizer) == 512
    assert "80 documents" in repr(again)
    with pytest.raises(bertpre.UserError, match=r"open it with TokenStore\("):
        TokenStore.build(store.folder, texts)
    with pytest.raises(bertpre.UserError, match="no prepared data"):
        TokenStore(store.folder / "data")


def test_a_store_with_a_tokenizer_that_exists_and_without_held_out_texts(texts: list[str], tmp_path: Path) -> None:
    tokenizer = learn_tokenizer(texts, vocab_size=256)
    store = TokenStore.build(tmp_path / "a", texts, tokenizer=tokenizer, held_out=texts[:10], validation_fraction=0.1)
    assert store.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert store.documents == len(texts) - 10
    other = TokenStore.build(tmp_path / "b", texts, tokenizer=store.folder / "tokenizer", validation_fraction=0.1)
    assert load_tokenizer(other.folder / "tokenizer").get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "one text"}, "texts: is a single string"),
        ({"texts": ["a", 1]}, "texts: item 1 is int"),
        ({"texts": []}, "texts: the iterable contains no text"),
        ({"vocab_size": 64}, "^vocab_size: a vocabulary of 64 is too small"),
        ({"tokenizer": "/nowhere"}, "^tokenizer: no tokenizer in '/nowhere'"),
        ({"validation_fraction": 0}, "^validation_fraction: 0 is not above 0 and below 0.5"),
        ({"validation_fraction": 1e-9}, "^validation_fraction: .* leaves fewer than two documents"),
    ],
)
def test_a_store_that_cannot_be_built(
    arguments: dict[str, Any], message: str, texts: list[str], tmp_path: Path
) -> None:
    with pytest.raises(bertpre.UserError, match=message):
        TokenStore.build(tmp_path / "store", **{"texts": texts, "vocab_size": 512} | arguments)
    assert not (tmp_path / "store" / "data").exists()


def test_a_file_in_place_of_a_stores_folder_and_unknown_splits_and_epochs_are_named(
    store: TokenStore, texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(bertpre.UserError, match="file: cannot be written: there is a file of this name"):
        TokenStore.build(tmp_path / "file", texts, vocab_size=512)
    with pytest.raises(bertpre.UserError, match="file: there is no prepared data in this folder"):
        TokenStore(tmp_path / "file")
    with pytest.raises(bertpre.UserError, match="split: 'test' is not one of train, validation"):
        store.shards("test")
    with pytest.raises(bertpre.UserError, match="epoch: -1 is not at least 0"):
        SegmentPairDataset(store, LENGTH).set_epoch(-1)


def test_a_damaged_store_is_refused_when_a_dataset_opens_it(texts: list[str], tmp_path: Path) -> None:
    store = TokenStore.build(tmp_path / "store", texts, vocab_size=512, validation_fraction=0.1)
    file = next((tmp_path / "store/data").glob("*.train.tokens.npy"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(bertpre.UserError, match="missing or damaged"):
        SegmentPairDataset(TokenStore(store.folder), LENGTH)


# ---- datasets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nsp", "sop", "none"])
def test_the_map_style_dataset_has_every_pair_of_an_epoch_once(kind: Any, store: TokenStore) -> None:
    dataset = SegmentPairDataset(store, LENGTH, kind=kind)
    assert len(dataset) == len(set(keys(dataset))) == len(list(dataset))
    assert isinstance(dataset[0], Example)
    assert dataset[-1].key == dataset[len(dataset) - 1].key
    assert keys(dataset) != sorted(keys(dataset))
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    assert {example.is_random_next for example in dataset} <= {-100} | ({0, 1} if kind != "none" else set())


def test_another_epoch_or_seed_gives_other_pairs_and_as_many(store: TokenStore) -> None:
    dataset = SegmentPairDataset(store, LENGTH)
    first, length = keys(dataset), len(dataset)
    dataset.set_epoch(1)
    second = keys(dataset)
    assert {epoch for epoch, _ in second} == {1}
    assert len(second) == len(dataset) == length
    assert [index for _, index in first] != [index for _, index in second]
    dataset.set_epoch(0)
    assert keys(dataset) == first
    other = SegmentPairDataset(store, LENGTH, seed=1)
    assert [example.a.tolist() for example in other][:5] != [example.a.tolist() for example in dataset][:5]


def test_the_validation_split_has_documents_of_its_own(store: TokenStore) -> None:
    training, validation = (SegmentPairDataset(store, 128, split=split) for split in ("train", "validation"))
    assert 0 < len(validation) < len(training)
    (shard,) = store.shards("validation")
    assert all(np.shares_memory(example.a, shard.tokens) for example in validation)
    assert not any(np.shares_memory(example.a, shard.tokens) for example in training)


def test_the_iterable_dataset_has_the_same_pairs(store: TokenStore) -> None:
    dataset, iterable = SegmentPairDataset(store, LENGTH), SegmentPairIterableDataset(store, LENGTH)
    assert sorted(keys(iterable)) == sorted(keys(dataset))
    iterable.set_epoch(3)
    assert {epoch for epoch, _ in keys(iterable)} == {3}


@pytest.mark.parametrize("group", [1, 4])
def test_processes_and_workers_divide_the_pairs(group: int, store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import bertpre.data.datasets as module

    monkeypatch.setattr(module, "SHARDS_PER_GROUP", group)
    monkeypatch.setattr(store, "opened", {"train": store.shards("train") * 3})  # several groups, and copies of pairs
    whole = keys(SegmentPairIterableDataset(store, LENGTH))

    def read_by(rank: int, worker: int, workers: int) -> list[tuple[int, int]]:
        info = type("Info", (), {"id": worker, "num_workers": workers})()
        monkeypatch.setattr(module, "get_worker_info", lambda: info)
        return keys(SegmentPairIterableDataset(store, LENGTH, rank=rank, world_size=3))

    each = [sum((read_by(rank, worker, 2) for worker in range(2)), []) for rank in range(3)]
    assert {len(part) for part in each} == {len(whole) // 3}
    assert sorted(sum(each, [])) == sorted(whole[: len(whole) // 3 * 3])


def test_workers_change_nothing_in_the_batches(store: TokenStore, collate: DataCollatorForPretraining) -> None:
    dataset = SegmentPairDataset(store, LENGTH)
    loaders = [DataLoader(dataset, 16, collate_fn=collate, num_workers=number) for number in (0, 2)]
    alone, shared = (list(loader) for loader in loaders)
    assert all(same(one, other) for one, other in zip(alone, shared, strict=True))
    iterable = DataLoader(SegmentPairIterableDataset(store, LENGTH), 16, collate_fn=collate, num_workers=2)
    assert sum(len(batch["labels"]) for batch in iterable) == len(dataset)


def test_workers_that_persist_read_the_new_epoch(store: TokenStore, collate: DataCollatorForPretraining) -> None:
    dataset = SegmentPairDataset(store, LENGTH)
    loader = DataLoader(dataset, 16, collate_fn=collate, num_workers=1, persistent_workers=True)
    first = list(loader)
    dataset.set_epoch(1)
    second = list(loader)
    assert not same(first[0], second[0])
    assert same(second[0], collate([dataset[index] for index in range(16)]))


def test_a_pickled_dataset_is_small_and_the_same(store: TokenStore, collate: DataCollatorForPretraining) -> None:
    dataset = SegmentPairDataset(store, LENGTH)
    dataset.set_epoch(2)
    before, content = keys(dataset), pickle.dumps(dataset)
    assert len(content) < 10_000  # neither tokens nor plans
    assert keys(pickle.loads(content)) == before
    again = pickle.loads(pickle.dumps(collate))
    assert same(again([dataset[0], dataset[1]]), collate([dataset[0], dataset[1]]))


# ---- the collator ----------------------------------------------------------------------------------------------------


def test_a_batch_has_the_shapes_and_names_of_stock_models(
    store: TokenStore, collate: DataCollatorForPretraining
) -> None:
    examples = [SegmentPairDataset(store, LENGTH)[index] for index in range(12)]
    batch = collate(examples)
    shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
    assert shapes.pop("next_sentence_label") == (12,)
    assert shapes == dict.fromkeys(("input_ids", "attention_mask", "token_type_ids", "labels"), (12, LENGTH))
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    reference = MaskingCollator.from_tokenizer(store.tokenizer, LENGTH)
    ids, _, _ = reference.layout(examples)
    is_target = batch["labels"] != -100
    assert torch.equal(batch["labels"][is_target], torch.from_numpy(ids)[is_target])
    assert torch.equal(batch["input_ids"][~is_target], torch.from_numpy(ids)[~is_target])
    compact = reference(examples)
    assert is_target.sum() == (compact["labels"] != -100).sum()
    assert torch.equal(batch["input_ids"], compact["input_ids"])
    masked = [batch["input_ids"][row, place] for row, place in is_target.nonzero()]
    assert 0.5 < np.mean([int(token) == store.tokenizer.mask_token_id for token in masked]) <= 1


def test_masks_change_with_epoch_and_seed_only(store: TokenStore, collate: DataCollatorForPretraining) -> None:
    example = SegmentPairDataset(store, LENGTH)[0]
    later = Example(example.a, example.b, example.is_random_next, (1, example.key[1]))
    one, other = collate([example]), collate([later])
    assert not torch.equal(one["labels"], other["labels"])
    assert torch.equal(one["labels"][0], collate([later, example])["labels"][1])
    seeded = DataCollatorForPretraining(store.tokenizer, LENGTH, seed=1)([example])
    assert not torch.equal(one["labels"], seeded["labels"])


@pytest.mark.parametrize(("kind", "label"), [("nsp", 1), ("sop", 0), ("none", None)])
def test_a_batch_without_any_label_has_a_finite_loss(kind: Any, label: int | None, store: TokenStore) -> None:
    collate = DataCollatorForPretraining(store.tokenizer, LENGTH, kind=kind)
    dataset = SegmentPairDataset(store, LENGTH, kind=kind)
    unlabelled = [example for example in dataset if example.is_random_next == -100][:2]
    labelled = [example for example in dataset if example.is_random_next != -100][:1]
    batch = collate(unlabelled)
    if label is None:
        assert "next_sentence_label" not in batch
        return
    assert batch["next_sentence_label"].tolist() == [label] * 2
    assert torch.isfinite(BertForPreTraining(BertConfig(**SIZES))(**batch).loss)
    mixed = collate(unlabelled + labelled)["next_sentence_label"].tolist()
    assert mixed == [-100, -100, labelled[0].is_random_next]


def test_in_a_batch_without_any_label_text_that_goes_on_is_next(texts: list[str], tmp_path: Path) -> None:
    words, generator = sorted(set(re.findall("[a-z]+", " ".join(texts)))), random.Random(0)
    spoken = [" ".join(generator.choices(words, k=300)) for _ in range(20)]  # no full stop
    store = TokenStore.build(tmp_path / "spoken", spoken, vocab_size=256, validation_fraction=0.4)
    examples = [each for each in SegmentPairDataset(store, 32) if each.is_random_next == -100]
    labels = DataCollatorForPretraining(store.tokenizer, 32)(examples)["next_sentence_label"].tolist()

    def written(ids: np.ndarray) -> str:
        return " ".join(["", *map(str, ids), ""])

    shard = store.shards()[0]
    documents = [written(ids) for ids in np.split(shard.tokens, shard.sentences[shard.documents[1:-1]])]
    for example, label in zip(examples, labels, strict=True):
        if min(len(example.a), len(example.b)) > 4:  # others are found in several documents
            own = next(each for each in documents if written(example.a) in each)
            assert label == (written(example.b) not in own)
    assert {0, 1} == set(labels) and labels.count(0) > 100


def test_other_tokenizers_are_refused_or_mended(store: TokenStore) -> None:
    backend = store.tokenizer.backend_tokenizer
    without_roles = PreTrainedTokenizerFast(tokenizer_object=backend)
    DataCollatorForPretraining(without_roles, LENGTH)
    assert without_roles.sep_token == "[SEP]"
    other_roles = PreTrainedTokenizerFast(tokenizer_object=backend, sep_token="[CLS]")
    with pytest.raises(UserError, match=r"has \[CLS\] in the place of \[SEP\]"):
        DataCollatorForPretraining(other_roles, LENGTH)
    roberta = Tokenizer(models.BPE({"<s>": 0, "<unk>": 1}, [], unk_token="<unk>"))
    with pytest.raises(UserError, match=r"tokenizer: it has no \[PAD\], .* not a BERT tokenizer"):
        DataCollatorForPretraining(PreTrainedTokenizerFast(tokenizer_object=roberta), LENGTH)


def test_a_special_token_that_someone_added_is_no_target_and_no_replacement(store: TokenStore) -> None:
    tokenizer = deepcopy(store.tokenizer)
    tokenizer.add_tokens(["[ENT]"], special_tokens=True)
    collate, added = DataCollatorForPretraining(tokenizer, LENGTH), tokenizer.convert_tokens_to_ids("[ENT]")
    assert added not in collate.collator.replacement_ids
    batch = collate([Example(np.full(9, added), np.full(9, added), 0, (0, 0))])
    assert (batch["labels"] == -100).all()


def test_halves_of_surrogate_pairs_are_left_out_of_a_vocabulary() -> None:
    long = "x" * 120
    one, other = (learn_tokenizer([f"a {half} b{half} {long}{half}"] * 3, 64) for half in ("", "\ud83d"))
    assert one.get_vocab() == other.get_vocab()


def test_mistakes_name_the_argument(store: TokenStore) -> None:
    with pytest.raises(bertpre.UserError, match=r"max_length: an example has \d+ tokens, this collator 16"):
        DataCollatorForPretraining(store.tokenizer, 16)(list(SegmentPairDataset(store, LENGTH)))
    frame, packed = pd.DataFrame({"text": ["A film.", "Another."]}), SegmentPairDataset(store, 64, kind="none")
    for make, message in (
        (lambda: SegmentPairDataset(store, split="test"), "split: 'test' is not one of train, validation"),  # type: ignore[arg-type]
        (lambda: SegmentPairDataset(store, kind="x"), "kind: 'x' is not one of nsp, sop, none"),  # type: ignore[arg-type]
        (lambda: DataCollatorForPretraining(store.tokenizer, masking="word"), "masking: 'word' is not one of tokens"),  # type: ignore[arg-type]
        (lambda: DataCollatorForPretraining(store.tokenizer, kind="x"), "kind: 'x' is not"),  # type: ignore[arg-type]
        (
            lambda: DataCollatorForPretraining(store.tokenizer, LENGTH)(
                [SegmentPairDataset(store, LENGTH, kind="none")[0]]
            ),
            "kind: the examples have no second segment; give dataset and collator the same kind",
        ),
        (
            lambda: DataCollatorForPretraining(store.tokenizer, 64, kind="sop")(
                [packed[number] for number in range(len(packed))]
            ),
            "kind: the examples have no second segment; give dataset and collator the same kind",
        ),
        (
            lambda: DataCollatorForPretraining(store.tokenizer, LENGTH, kind="none")(
                [SegmentPairDataset(store, LENGTH)[0]]
            ),
            "kind: the examples have a second segment; give dataset and collator the same kind",
        ),
        (lambda: DataCollatorForPretraining(store.tokenizer)([]), "examples: there are none in the batch"),
        (lambda: SegmentPairDataset(str(store.folder)), "store: is '.*'; open it first: TokenStore"),  # type: ignore[arg-type]
        (lambda: learn_tokenizer("corpus.txt"), "texts: is a single string"),
        (lambda: learn_tokenizer([]), "texts: there is no text to learn a vocabulary from"),
        (lambda: learn_tokenizer([" \n"]), "texts: there is no text to learn a vocabulary from"),
        (lambda: learn_tokenizer([None, "a"]), "texts: item 0 is NoneType, not a string"),  # type: ignore[list-item]
        (lambda: learn_tokenizer(frame), "texts: is a DataFrame, not texts; give one of its columns"),
        (
            lambda: learn_tokenizer(datasets.DatasetDict({"train": datasets.Dataset.from_pandas(frame)})),
            re.escape("give one of its columns, texts['train']['text']"),
        ),
        (lambda: list(read_texts(frame)), "source: is a DataFrame, not texts; give one of its columns"),
        (lambda: list(read_texts(["a"], limit=0)), "limit: 0 is not at least 1"),
    ):
        with pytest.raises(bertpre.UserError, match=message):
            make()


# ---- Trainer ---------------------------------------------------------------------------------------------------------


class Noting(DataCollatorForPretraining):
    """Notes the pairs of each batch."""

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        self.seen = [*getattr(self, "seen", []), *(example.key for example in examples)]
        return super().__call__(examples)


def trainer(model: torch.nn.Module, store: TokenStore, folder: Path, **arguments: Any) -> tuple[Trainer, Noting]:
    collate = Noting(store.tokenizer, LENGTH)
    settings = {"per_device_train_batch_size": 8, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    dataset = SegmentPairDataset(store, LENGTH, split="validation")
    given = TrainingArguments(str(folder), **settings | arguments)
    return Trainer(model, given, collate, train_dataset=dataset, eval_dataset=dataset), collate


@pytest.mark.parametrize(
    "model",
    [
        lambda: BertForPreTraining(BertConfig(**SIZES)),
        lambda: BertForMaskedLM(BertConfig(**SIZES)),
        lambda: ModernBertForMaskedLM(ModernBertConfig(**SIZES, pad_token_id=0)),
        lambda: BertPreForPreTraining(BertPreConfig(**SIZES)),
        lambda: BertPreForMaskedLM(BertPreConfig(architecture="modern", **SIZES)),
    ],
)
def test_trainer_takes_the_dataset_and_the_collator_as_they_are(model: Any, store: TokenStore, tmp_path: Path) -> None:
    training, _ = trainer(model(), store, tmp_path, max_steps=2, prediction_loss_only=True)
    assert 4 < training.train().training_loss < 9
    assert 4 < training.evaluate()["eval_loss"] < 9


@pytest.mark.parametrize("strategy", ["random", "sequential"])
def test_trainer_advances_the_epoch(strategy: str, store: TokenStore, tmp_path: Path) -> None:
    training, collate = trainer(
        BertForMaskedLM(BertConfig(**SIZES)), store, tmp_path, num_train_epochs=2, train_sampling_strategy=strategy
    )
    training.train()
    length = len(training.train_dataset)
    assert [epoch for epoch, _ in collate.seen] == [0] * length + [1] * length
    assert len(set(collate.seen)) >= 2 * length - 20  # a few repeat where epoch 1 has fewer pairs


def test_gradient_accumulation_does_not_change_the_loss_of_our_models(store: TokenStore, tmp_path: Path) -> None:
    losses = []
    for micro, steps in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        model = BertPreForPreTraining(BertPreConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
        training, _ = trainer(
            model, store, tmp_path, max_steps=1, per_device_train_batch_size=micro, gradient_accumulation_steps=steps,
            train_sampling_strategy="sequential",
        )  # fmt: skip
        losses.append(training.train().training_loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.02)  # the pairs' part is a mean of means


TWO_PROCESSES = """
import sys
import torch
from transformers import BertConfig, BertForPreTraining, Trainer, TrainingArguments
from bertpre.data import DataCollatorForPretraining, SegmentPairDataset, TokenStore

store, folder = TokenStore(sys.argv[1]), sys.argv[2]
seen = []
class Noting(DataCollatorForPretraining):
    def __call__(self, examples):
        seen.extend(example.key for example in examples)
        return super().__call__(examples)

sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
arguments = TrainingArguments(folder, num_train_epochs=2, per_device_train_batch_size=4, dataloader_drop_last=True,
    use_cpu=True, disable_tqdm=True, save_strategy="no", train_sampling_strategy="sequential")
pairs = SegmentPairDataset(store, 32, split="validation")
model = BertForPreTraining(BertConfig(vocab_size=512, **sizes))
trainer = Trainer(model, arguments, Noting(store.tokenizer, 32), pairs)
trainer.train()
weights = torch.cat([weight.flatten() for weight in trainer.model.parameters()])
torch.save({"seen": seen, "weights": weights, "length": len(pairs)}, f"{folder}/rank-{arguments.process_index}.pt")
"""


@pytest.mark.slow
def test_two_processes_of_trainer_divide_the_pairs_of_each_epoch(store: TokenStore, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_PROCESSES)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*launcher, str(tmp_path / "train.py"), str(store.folder), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    one, other = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2))
    assert torch.equal(one["weights"], other["weights"])
    seen = one["seen"] + other["seen"]
    assert len(set(seen)) == len(seen)
    per_epoch = one["length"] // 8 * 8
    assert [sum(key[0] == epoch for key in seen) for epoch in (0, 1)] == [per_epoch, per_epoch]


# ---- wrong arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda store: SegmentPairDataset(store, 2, kind="none"), "max_length: 2 is not at least 8"),
        (lambda store: SegmentPairDataset(store, seed=-1), "seed: -1 is not from 0 to 9223372036854775807"),
        (lambda store: SegmentPairDataset(store, short_seq_prob=2), "short_seq_prob: 2 is not from 0 to 1"),
        (lambda store: SegmentPairIterableDataset(store, world_size=0), "world_size: 0 is not at least 1"),
        (lambda store: SegmentPairIterableDataset(store, rank=2, world_size=2), "rank: 2 is not from 0 to 1"),
        (lambda store: DataCollatorForPretraining(store.tokenizer, mask_split=(1, 1, 1)), "mask_split: .* add up to 1"),
        (
            lambda store: DataCollatorForPretraining(store.tokenizer, mask_split=(float("nan"), 0.1, 0.1)),
            "mask_split: ",
        ),
        (
            lambda store: DataCollatorForPretraining(store.tokenizer, seed=2**63),
            "seed: 9223372036854775808 is not from",
        ),
        (lambda store: learn_tokenizer(["a b"], vocab_size=128, every=0), "every: 0 is not at least 1"),
        (
            lambda store: learn_tokenizer(["a b"], vocab_size=128, character_coverage=2.0),
            "character_coverage: 2.0 is not",
        ),
        (lambda store: DataCollatorForPretraining(store.tokenizer, masked_lm_prob=2), "masked_lm_prob: 2 is not a"),
        (lambda store: TokenStore.build(store.folder / "x", ["a"], workers=0), "workers: 0 is not at least 1"),
        (lambda store: TokenStore.build(store.folder / "x", ["a"], min_characters=0), "min_characters: 0 is not"),
        (
            lambda store: list(read_texts({"train": ["a"], "test": ["b"]})),
            "source: holds several splits, .*: train, test",
        ),
        (lambda store: list(read_texts("x.txt", text_unit="page")), "text_unit: 'page' is not one of line, paragraph"),
    ],
)
def test_a_number_out_of_range_is_refused(function: Any, message: str, store: TokenStore) -> None:
    with pytest.raises(bertpre.UserError, match=message):
        function(store)


def test_a_limit_leaves_the_rest_of_an_iterator() -> None:
    texts = iter("abcd")
    assert (list(read_texts(texts, limit=2)), list(texts)) == (["a", "b"], ["c", "d"])


@pytest.mark.parametrize("world_size", range(1, 9))
def test_all_processes_read_equally_many_pairs_though_the_last_group_is_tiny(
    world_size: int, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = store.shards("train")
    few = [Shard(shards[0].tokens, shards[0].sentences, shards[0].documents[:3])]
    monkeypatch.setattr(store, "opened", {"train": shards + few * 2})
    monkeypatch.setattr("bertpre.data.datasets.SHARDS_PER_GROUP", 1)
    read = [
        keys(SegmentPairIterableDataset(store, LENGTH, rank=rank, world_size=world_size)) for rank in range(world_size)
    ]
    whole = keys(SegmentPairIterableDataset(store, LENGTH))
    assert {len(each) for each in read} == {len(whole) // world_size}
    assert [key for row in zip(*read, strict=True) for key in row] == whole[: len(whole) // world_size * world_size]


def test_another_tokenizer_is_noticed_when_a_build_resumes(
    texts: list[str], store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StoreBuilder, "join", stop)
        TokenStore.build(tmp_path / "a", texts, tokenizer=store.tokenizer, validation_fraction=0.1)
    other = learn_tokenizer(texts, vocab_size=256)
    longest = other.model_max_length
    built = TokenStore.build(tmp_path / "a", texts, tokenizer=other, validation_fraction=0.1)
    assert max(int(shard.tokens.max()) for shard in built.shards()) < len(built.tokenizer) == len(other)
    assert other.model_max_length == longest


def test_what_is_no_example_or_tokenizer_is_refused(texts: list[str]) -> None:
    tokenizer = learn_tokenizer(texts, vocab_size=256)
    collate = DataCollatorForPretraining(tokenizer, max_length=32, kind="none")
    with pytest.raises(bertpre.UserError, match=r"examples: one is a dict; give those of a SegmentPairDataset"):
        collate([{"input_ids": [5, 6]}])  # type: ignore[list-item]
    with pytest.raises(bertpre.UserError, match=r"tokenizer: is 'folder', not a tokenizer"):
        DataCollatorForPretraining("folder", max_length=32)  # type: ignore[arg-type]
    with pytest.raises(bertpre.UserError, match="max_length: 2 is not at least 8"):
        DataCollatorForPretraining(tokenizer, max_length=2)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_a_store_is_built_by_one_process_at_a_time(texts: list[str], tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(bertpre.UserError, match="folder: another process works in"):
        TokenStore.build(tmp_path, texts, tokenizer=learn_tokenizer(texts, vocab_size=256))
    assert not (tmp_path / "tokenizer").exists()  # the other process may have written one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": [53.9, 63.2]}, "are no token ids; give tokenizer"),
        ({"a": "the baker"}, "are no token ids; give tokenizer"),
        ({"b": [99_999]}, "token ids are outside of the [0-9,]+; give"),
        ({"a": [2, 7, 3]}, r"one begins with \[CLS\] and ends with \[SEP\]"),
        ({"is_random_next": 5}, "is_random_next is 5; give 0, 1 or -100"),
        ({"key": 3}, r"a key is 3; give two numbers, \(epoch, number\)"),
    ],
)
def test_malformed_examples_are_refused(
    change: dict[str, Any], message: str, store: TokenStore, collate: DataCollatorForPretraining
) -> None:
    assert store.tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"]) == [2, 3]
    example = Example(**({"a": [7, 8], "b": [9], "is_random_next": 0, "key": (0, 1)} | change))
    with pytest.raises(UserError, match=message):
        collate([example])


def test_the_collator_has_no_settings_that_do_nothing(collate: DataCollatorForPretraining) -> None:
    with pytest.raises(AttributeError):
        collate.masked_lm_prob = 0.4  # type: ignore[attr-defined]


def test_reading_leaves_the_settings_of_datasets_alone(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    datasets.logging.set_verbosity_info()
    datasets.enable_progress_bars()
    try:
        assert list(read_texts(tmp_path / "texts.jsonl")) == ["one", "two"]
        assert (datasets.logging.get_verbosity(), datasets.is_progress_bar_enabled()) == (logging.INFO, True)
    finally:
        datasets.logging.set_verbosity_warning()


def test_examples_may_hold_lists(texts: list[str]) -> None:
    tokenizer = learn_tokenizer(texts, vocab_size=256)
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"][:9] for text in texts[:2])
    batch = DataCollatorForPretraining(tokenizer, max_length=32)([Example(first, second, 1, (0, 0))])  # type: ignore[arg-type]
    assert batch["next_sentence_label"].tolist() == [1]
    assert int(batch["attention_mask"].sum()) == len(first) + len(second) + 3


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 448}, {"lowercase": False}, {"min_characters": 300}, {"near_duplicates": True},
        {"validation_fraction": 0.3}, {"seed": 5},
        {"held_out": ["A man came home, and nobody was there to greet him."]},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_each_argument_of_a_store_changes_it(change: dict[str, Any], texts: list[str], tmp_path: Path) -> None:
    alike = " ".join(f"word{number}" for number in range(60))
    own = [*texts, "A man came home, and nobody was there to greet him.", f"{alike} once", f"{alike} twice"]
    default: dict[str, Any] = {"vocab_size": 512, "validation_fraction": 0.1}
    one, other = (TokenStore.build(tmp_path / name, own, **default | new) for name, new in (("1", {}), ("2", change)))
    assert [shard.tokens.tolist() for shard in one.shards()] != [shard.tokens.tolist() for shard in other.shards()]
