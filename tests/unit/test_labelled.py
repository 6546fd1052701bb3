"""Labelled examples: what is read, what is refused, how texts are cut, and that an epoch has each of them once."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertpre.data import sample
from bertpre.data.tokenizer import learn_tokenizer
from bertpre.errors import UserError
from bertpre.finetuning.batches import TrainingBatches
from bertpre.finetuning.encoding import Encoded, Template, collate, encode_examples, encodings_of_words, in_slices
from bertpre.finetuning.examples import Examples, find_classes, read_examples
from bertpre.finetuning.splits import read_parts, split_off_validation
from bertpre.recipe import Finetune, Recipe

WORDS = [f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_tokenizer(iter([" ".join(WORDS)] * 3), 192, lowercase=True, max_length=64)


def examples_of(texts: list[Any], pairs: list[str] | None = None, labels: Any = None) -> Examples:
    labels = np.arange(len(texts)) % 2 if labels is None else labels
    return Examples([f"train/{number}" for number in range(len(texts))], texts, pairs, labels, ("no", "yes"))


def recipe_of(**options: Any) -> Recipe:
    return Recipe(output_dir="out", finetune={"path": "sample", "init": "a/model", **options})


def write_rows(file: Path, rows: list[dict[str, Any]]) -> str:
    """Rows as JSONL, CSV, TSV or Parquet, by the file's ending."""
    if file.suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    elif file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        pd.DataFrame(rows).to_csv(file, index=False, sep="\t" if file.suffix == ".tsv" else ",")
    return str(file)


# ---- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        ([0, 1, 0], ("0", "1"), [0, 1, 0]),
        ([5, 3, 10], ("3", "5", "10"), [1, 0, 2]),
        (["good", "bad", "good"], ("bad", "good"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
    ],
)
def test_classes_are_the_values_found(
    suffix: str, labels: list[Any], classes: tuple[str, ...], numbers: list[int], tmp_path: Path
) -> None:
    rows = [{"body": f"text {number}", "stars": label} for number, label in enumerate(labels)]
    settings = Finetune(path=write_rows(tmp_path / f"a{suffix}", rows), text_column="body", label_column="stars")
    read = read_examples(settings, "train")
    assert (read.classes, read.labels.tolist()) == (classes, numbers)
    assert read.texts == ["text 0", "text 1", "text 2"]


@pytest.mark.parametrize(
    ("names", "labels", "numbers"),
    [
        (["bad", "good"], [0, 1], [0, 1]),
        (["good", "bad"], ["bad", "good"], [1, 0]),
        (["1", "2", "3"], [3, 1], [2, 0]),  # a name goes before a number
        (["-1", "0", "1"], [-1, 1], [0, 2]),
    ],
)
def test_the_recipe_names_the_classes(names: list[str], labels: list[Any], numbers: list[int], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": f"t {label}", "label": label} for label in labels])
    read = read_examples(Finetune(path=path, label_names=names), "train")
    assert (read.classes, read.labels.tolist()) == (tuple(names), numbers)


def test_the_dataset_names_the_classes(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["dull", "fine"])})
    data = Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    data.to_parquet(str(tmp_path / "train.parquet"))
    for path in (tmp_path, tmp_path / "train.parquet"):
        read = read_examples(Finetune(path=str(path)), "train")
        assert (read.classes, read.labels.tolist()) == (("dull", "fine"), [1, 0])
    renamed = read_examples(Finetune(path=str(tmp_path), label_names=["bad", "good"]), "train")
    assert (renamed.classes, renamed.labels.tolist()) == (("bad", "good"), [1, 0])


def test_the_recipe_may_put_the_datasets_names_in_another_order(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["spam", "ham", "unsure"])})
    Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features).to_parquet(tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    read = read_examples(Finetune(path=path, label_names=["ham", "spam"]), "train")
    assert (read.classes, read.labels.tolist()) == (("ham", "spam"), [1, 0])
    other = ["spam", "fine", "doubtful"]
    assert read_examples(Finetune(path=path, label_names=other), "train").labels.tolist() == [0, 1]
    with pytest.raises(
        UserError, match=r"label_names \(ham, junk\) are partly the dataset's own \(spam, ham, unsure\)"
    ):
        read_examples(Finetune(path=path, label_names=["ham", "junk"]), "train")


def test_two_lists_of_0_and_1_are_no_lists_of_both_classes(tmp_path: Path) -> None:
    rows = [{"text": "t", "label": row} for row in ([0, 1], [1, 0])]
    read = read_examples(Finetune(path=write_rows(tmp_path / "a.jsonl", rows), task="multi_label"), "train")
    assert read.labels.tolist() == [[0, 1], [1, 0]]
    ragged = write_rows(tmp_path / "b.jsonl", [{"text": "t", "label": row} for row in ([0, 1], [1])])
    with pytest.raises(UserError, match=r"example train/1 has a label outside the classes \(0, 1\)"):
        read_examples(Finetune(path=ragged, task="multi_label"), "train", path=ragged, like=read)
    lists = read_examples(Finetune(path=ragged, task="multi_label"), "train")
    assert lists.labels.tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_lists_of_0_and_1_have_a_place_for_each_class(names: list[str] | None, tmp_path: Path) -> None:
    rows = [{"text": f"t{row}", "label": row} for row in ([0, 1, 0], [1, 1, 0], [0, 0, 1])]
    settings = Finetune(path=write_rows(tmp_path / "a.jsonl", rows), task="multi_label", label_names=names)
    read = read_examples(settings, "train")
    assert read.classes == tuple(names or ("0", "1", "2"))
    assert read.labels.tolist() == [row["label"] for row in rows]
    other = write_rows(tmp_path / "b.jsonl", [{"text": "t", "label": [0, 0, 1]}])
    assert read_examples(settings, "train", path=other, like=read).labels.tolist() == [[0, 0, 1]]
    with pytest.raises(UserError, match="labels are 3 numbers of 0 and 1, and there are 2 classes"):
        read_examples(settings.model_copy(update={"label_names": ["a", "b"]}), "train")


def test_what_numbers_mean_is_decided_on_the_training_split(tmp_path: Path) -> None:
    stars = ["1", "2", "3"]
    path = write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": label} for label in (0, 1, 2)])
    other = write_rows(tmp_path / "b.jsonl", [{"text": "t", "label": label} for label in (1, 2)])
    settings = Finetune(path=path, label_names=stars)
    read = read_examples(settings, "train")
    assert read.labels.tolist() == [0, 1, 2]
    assert read_examples(settings, "train", path=other, like=read.subset([2, 0])).labels.tolist() == [1, 2]
    named = read_examples(settings, "train", path=other)  # these alone would be names
    assert named.labels.tolist() == [0, 1]
    with pytest.raises(UserError, match=r"outside the classes \(1, 2, 3\): 0"):
        read_examples(settings, "train", path=path, like=named)


def test_in_tables_words_for_nothing_are_texts_and_classes(tmp_path: Path) -> None:
    rows = [{"text": "null", "label": "None"}, {"text": "NA", "label": "Billing"}]
    for place in (write_rows(tmp_path / "train.csv", rows), str(tmp_path)):  # the file, and its folder
        read = read_examples(Finetune(path=place), "train")
        assert (read.texts, read.classes) == (["null", "NA"], ("Billing", "None"))
    numbers = write_rows(tmp_path / "b.tsv", [{"text": "t", "label": label} for label in (1, 0, "NA")])
    with pytest.raises(UserError, match="besides numbers there is 'NA', which mostly means no label"):
        read_examples(Finetune(path=numbers), "train")


def test_a_mark_that_is_never_closed_swallows_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\tlabel\n" a cute film\t1\nbad\t0\n"so-so\t1\nfine\t1\n')
    with pytest.raises(UserError, match="an unclosed quote: it swallows the following rows"):
        read_examples(Finetune(path=str(tmp_path / "a.tsv")), "train")
    (tmp_path / "title.tsv").write_text('title\ttext\tlabel\n"Up\tfine\t1\n"So-so\tdull\t0\nUp\tfine\t1\n')
    for path in (tmp_path / "title.tsv", tmp_path / "t*.tsv"):  # in a column that is not asked for
        with pytest.raises(UserError, match="finetune.path: .* has an unclosed quote"):
            read_examples(Finetune(path=str(path)), "train")
    rows = [{"text": 'he said "no",\n\tthen left', "label": 0}, {"text": "a\ttab", "label": 1}]
    read = read_examples(Finetune(path=write_rows(tmp_path / "b.tsv", rows)), "train")
    assert [text.split() for text in read.texts] == [row["text"].split() for row in rows]


@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_names_that_are_numbers_are_no_places(task: str, tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Sequence, Value

    stars = ClassLabel(names=["1", "2", "3", "4", "5"])
    is_list = task == "multi_label"
    features = Features({"text": Value("string"), "label": Sequence(stars) if is_list else stars})
    labels = [[number] for number in range(5)] if is_list else list(range(5))
    Dataset.from_dict({"text": list("abcde"), "label": labels}, features=features).to_parquet(tmp_path / "a.parquet")
    read = read_examples(Finetune(path=str(tmp_path / "a.parquet"), task=task), "train")
    assert read.classes == ("1", "2", "3", "4", "5")
    assert read.labels.tolist() == (np.eye(5).tolist() if is_list else labels)


def test_a_value_that_training_lacks_is_outside_the_classes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", [{"text": "t", "label": label} for label in (1, 2, 5)])
    other = write_rows(tmp_path / "b.csv", [{"text": "t", "label": 0}])
    settings = Finetune(path=path)
    training = read_examples(settings, "train")
    assert training.classes == ("1", "2", "5")
    with pytest.raises(UserError, match=r"outside the classes \(1, 2, 5\): 0"):
        read_examples(settings, "train", path=other, like=training)


def test_a_number_written_as_text_is_the_same_class(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": "t", "label": ["a", label]}) for label in ("1", "2")))
    read = read_examples(Finetune(path=str(path), task="multi_label"), "train")
    assert read.classes == ("1", "2", "a")
    settings = Finetune(path=str(path))
    assert find_classes(settings, [1, "1", 2.0, "b"], None, "here") == ("1", "2", "b")


def test_the_sample_has_names_too() -> None:
    read = read_examples(Finetune(path="sample"), "test", limit=5)
    assert read.classes == sample.CLASSES


def test_pairs_numbers_sets_and_words(tmp_path: Path) -> None:
    rows = [
        {
            "a": "one",
            "b": "two",
            "score": 0.5,
            "tags": ["x", "z"],
            "x": 1,
            "y": 0,
            "w": ["U", "N"],
            "ner": ["O", "B-L"],
        },
        {"a": "three", "b": "four", "score": 4, "tags": [], "x": 0, "y": 1, "w": ["sat"], "ner": ["O"]},
    ]
    path = write_rows(tmp_path / "a.jsonl", rows)
    pairs = Finetune(path=path, task="regression", text_column="a", text_pair_column="b", label_column="score")
    read = read_examples(pairs, "train")
    assert (read.texts, read.pairs, read.labels.tolist()) == (["one", "three"], ["two", "four"], [0.5, 4.0])
    sets = read_examples(Finetune(path=path, task="multi_label", text_column="a", label_column="tags"), "train")
    assert (sets.classes, sets.labels.tolist()) == (("x", "z"), [[1, 1], [0, 0]])
    columns = Finetune(path=path, task="multi_label", text_column="a", label_column=["x", "y"])
    assert read_examples(columns, "train").labels.tolist() == [[1, 0], [0, 1]]
    words = read_examples(Finetune(path=path, task="tokens", text_column="w", label_column="ner"), "train")
    assert words.texts == [["U", "N"], ["sat"]]
    assert (words.classes, [row.tolist() for row in words.labels]) == (("B-L", "O"), [[1, 0], [1]])


def test_a_limited_split_is_drawn_from_its_whole_length(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": int(number >= 50)} for number in range(100)]
    read = read_examples(Finetune(path=write_rows(tmp_path / "sorted.csv", rows)), "train", limit=10)
    assert read.labels.tolist() == [0] * 5 + [1] * 5
    assert (read.texts[0], read.texts[-1]) == ("text 0", "text 99")


@pytest.mark.parametrize(
    ("options", "labels", "words"),
    [
        ({}, [0, -1, -1], "there is a label -1; on the Hub it marks a hidden label"),
        ({"label_names": ["a", "b"]}, [0, 1, 2], "example train/2 has a label outside the classes (a, b): 2"),
        ({"label_names": ["a", "b"]}, ["a", "c", "c"], "2 examples (the first is train/1) have a label outside"),
        ({}, [0.5, 1.0, 0.0], "numbers with fractions are for finetune.task=regression"),
        ({}, [1, 1, 1], "has one class only (1)"),
        ({}, [1, None, 0], "example train/1 has no label"),
        ({"task": "regression"}, [1.0, math.nan, 2.0], "example train/1 has no label"),
        ({"task": "regression"}, ["1", "inf", "2"], "example train/1 has a label that is not a finite number"),
        ({"task": "regression"}, [2, 2, 2], "has one label only (2)"),
        ({"task": "tokens"}, ["A", "A B", "B"], "example train/1 has not as many labels as words"),
        ({"task": "tokens"}, ["A", "A", "A"], "has one class only (A)"),
        ({"task": "multi_label", "label_names": ["a"]}, [["a"], ["b"], []], "example train/1 has a label outside"),
        ({"task": "multi_label"}, [["a"], ["b", None], []], "example train/1 has no label"),
        ({"task": "multi_label"}, [[], [], []], "no example has a label"),
        ({"task": "tokens"}, [1, 0, 1], "label_column holds int, not a tag for each word"),
        ({}, [["a"], ["b"], []], "label_column holds lists, which are for finetune.task=multi_label"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(
    options: dict[str, Any], labels: list[Any], words: str, tmp_path: Path
) -> None:
    rows = [{"text": f"t{number}", "label": label} for number, label in enumerate(labels)]
    with pytest.raises(UserError) as caught:
        read_parts(recipe_of(path=write_rows(tmp_path / "a.jsonl", rows), validation_fraction=0, **options))
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_texts_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    rows = [{"text": text, "label": number} for number, text in enumerate(["a", " ", None])]
    path = write_rows(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError, match=r"2 examples \(the first is train/1\) have no text in it"):
        read_examples(Finetune(path=path), "train")
    with pytest.raises(UserError, match="finetune.label_column: .* has no column 'stars'; its columns are text, label"):
        read_examples(Finetune(path=path, label_column="stars"), "train")
    with pytest.raises(UserError, match="finetune.text_pair_column: .* has no column 'b'"):
        read_examples(Finetune(path=path, text_pair_column="b"), "train")
    with pytest.raises(UserError, match="text_column holds int, not text"):
        read_examples(Finetune(path=path, text_column="label", label_column="text"), "train")
    with pytest.raises(UserError, match="text_column holds int, not words"):
        read_examples(Finetune(path=path, task="tokens", text_column="label", label_column="text"), "train")


def test_another_split_is_read_with_the_classes_of_the_first(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": "b"}])
    settings = Finetune(path="sample")
    training = replace(examples_of(["t"]), classes=("a", "b"))
    assert read_examples(settings, "train", path=path, like=training).labels.tolist() == [1]
    with pytest.raises(UserError, match="outside the classes"):
        read_examples(settings, "train", path=path, like=replace(training, classes=("a", "c")))


# ---- the validation part ---------------------------------------------------------------------------------------------


def test_neighbours_stay_together() -> None:
    examples = examples_of([str(number) for number in range(100)])
    training, validation = split_off_validation(recipe_of(validation_fraction=0.2, validation_block=5), examples)
    assert sorted(training.texts + validation.texts) == sorted(examples.texts)
    blocks = np.bincount([int(text) // 5 for text in validation.texts], minlength=20)
    assert sorted(blocks.tolist()) == [0] * 16 + [5] * 4


@pytest.mark.parametrize(
    ("options", "count", "words"),
    [
        ({"validation_fraction": 0.05}, 9, "leaves nothing to measure on"),
        ({"validation_fraction": 0.1, "validation_block": 10}, 100, None),
        ({"validation_fraction": 0.1}, 10, "too small a validation part: it has one class only"),
    ],
)
def test_a_validation_part_too_small_is_refused(options: dict[str, Any], count: int, words: str | None) -> None:
    examples = examples_of([str(number) for number in range(count)])
    if words is None:
        assert len(split_off_validation(recipe_of(**options), examples)[1]) == 10
        return
    with pytest.raises(UserError, match=words):
        split_off_validation(recipe_of(**options), examples)


def test_without_validation_all_examples_train() -> None:
    parts = read_parts(recipe_of(validation_fraction=0))
    assert (len(parts.training), parts.validation) == (len(read_examples(Finetune(path="sample"), "train")), None)


# ---- encoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("truncation", "kept"), [("head", (0, 8)), ("tail", (56, 64)), ("head_tail", (0, 2, 58, 64))])
def test_a_long_text_keeps_the_ends_that_were_asked_for(
    truncation: str, kept: tuple[int, ...], tokenizer: PreTrainedTokenizerBase
) -> None:
    (row,) = encode_examples(tokenizer, examples_of([" ".join(WORDS)]), 10, truncation).ids
    expected = [word for start, end in zip(kept[::2], kept[1::2], strict=True) for word in WORDS[start:end]]
    assert tokenizer.convert_ids_to_tokens(row.tolist()) == ["[CLS]", *expected, "[SEP]"]


def test_what_a_tokenizers_file_says_of_cutting_and_padding_is_not_heeded(tokenizer: PreTrainedTokenizerBase) -> None:
    expected = encode_examples(tokenizer, examples_of([" ".join(WORDS)]), 20).ids[0]
    template = Template.of(tokenizer, pairs=False)
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=8)
    assert Template.of(tokenizer, pairs=False) == template
    tokenizer.backend_tokenizer.enable_truncation(3)
    assert encode_examples(tokenizer, examples_of([" ".join(WORDS)]), 20).ids[0].tolist() == expected.tolist()


@pytest.mark.parametrize("truncation", ["head", "tail", "head_tail"])
@pytest.mark.parametrize("length", [0, 1, 8, 9])
def test_what_fits_is_kept_whole(truncation: str, length: int, tokenizer: PreTrainedTokenizerBase) -> None:
    (row,) = encode_examples(tokenizer, examples_of([" ".join(WORDS[:length])]), 10, truncation).ids
    assert len(row) == min(length + 2, 10)
    if length <= 8:
        assert tokenizer.convert_ids_to_tokens(row.tolist()) == ["[CLS]", *WORDS[:length], "[SEP]"]


@pytest.mark.parametrize(("first", "second"), [(3, 4), (20, 3), (3, 20), (20, 20), (0, 20), (9, 8)])
def test_a_pair_is_as_the_tokenizer_makes_it(first: int, second: int, tokenizer: PreTrainedTokenizerBase) -> None:
    one, other = " ".join(WORDS[:first]), " ".join(WORDS[30 : 30 + second])
    encoded = encode_examples(tokenizer, examples_of([one], [other]), 20)
    expected = tokenizer(one, other)
    if first + second + 3 <= 20:
        assert encoded.ids[0].tolist() == expected["input_ids"]
        assert encoded.segments[0].tolist() == expected["token_type_ids"]
        return
    assert len(encoded.ids[0]) == 20  # full, and only the longer text has lost something
    counts = [int((encoded.segments[0] == 0).sum()) - 2, int((encoded.segments[0] == 1).sum()) - 1]
    assert all(count == length or count >= 8 for count, length in zip(counts, (first, second), strict=True))


def test_words_have_their_label_at_their_first_token(tokenizer: PreTrainedTokenizerBase) -> None:
    examples = examples_of([["aa", "abac", "ad", "ae"]], labels=[np.array([1, 0, 1, 1])])
    encoded = encode_examples(tokenizer, examples, 6)
    tokens = tokenizer.convert_ids_to_tokens(encoded.ids[0].tolist())
    assert tokens[0], tokens[-1] == ("[CLS]", "[SEP]")
    assert len(tokens) == 6
    labels = dict(zip(tokens, encoded.labels[0].tolist(), strict=True))
    assert labels["[CLS]"] == labels["[SEP]"] == -100
    assert labels["aa"] == 1
    inner = [label for token, label in labels.items() if token.startswith("##")]
    assert inner
    assert set(inner) == {-100}


def test_a_batch_is_padded_and_masked() -> None:
    rows = [np.array([2, 9, 3]), np.array([2, 3])]
    batch = collate(Encoded(rows, None, np.array([1, 0])), [0, 1], 4, pad_token_id=7)
    assert batch["input_ids"].tolist() == [[2, 9, 3, 7], [2, 3, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    segments = [np.array([0, 0, 1]), np.array([0, 1])]
    batch = collate(Encoded(rows, segments, [np.array([1, 0, 1]), np.array([1, 1])]), [1], 3, pad_token_id=7)
    assert batch["token_type_ids"].tolist() == [[0, 1, 0]]
    assert batch["labels"].tolist() == [[1, 1, -100]]


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (3, 3), (7, 3)])
def test_slices_cover_everything_once(count: int, size: int) -> None:
    items = list(range(count))
    assert [item for part in in_slices(count, size) for item in items[part]] == items


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_words_stay_apart_whatever_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    words = ["saw", "\u200b", "oslo"]  # the second one is nothing to the tokenizer
    (encoding,) = encodings_of_words(tokenizer, [words])
    plain = tokenizer.backend_tokenizer.encode(["saw", "?", "oslo"], is_pretokenized=True, add_special_tokens=False)
    assert (encoding.ids, encoding.word_ids) == (plain.ids, plain.word_ids)

    bytes_of = Tokenizer(models.BPE())
    bytes_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of.train_from_iterator(["saw saw oslo oslo saw"] * 9, trainers.BpeTrainer(vocab_size=300))
    (encoding,) = encodings_of_words(PreTrainedTokenizerFast(tokenizer_object=bytes_of), [["saw", "oslo", "saw"]])
    assert encoding.ids == bytes_of.encode("saw oslo saw").ids
    assert set(encoding.word_ids) == {0, 1, 2}


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


def test_epochs_differ_and_depend_on_seed_and_number_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    first, second = training_batches(tokenizer, 37), training_batches(tokenizer, 37)
    second.epoch_batches(3)
    np.testing.assert_array_equal(first.epoch_batches(1), second.epoch_batches(1))
    assert (first.epoch_batches(0) != first.epoch_batches(1)).any()
    assert (training_batches(tokenizer, 37, seed=1).epoch_batches(1) != first.epoch_batches(1)).any()


def test_true_labels_have_the_last_word_of_every_epoch(tokenizer: PreTrainedTokenizerBase) -> None:
    data = training_batches(tokenizer, 37)
    data = TrainingBatches(replace(data.encoded, taught=10), 0, Finetune(path="x", batch_size=4), data.accelerator, 0)
    assert data.steps_per_epoch == 3 + 7
    for epoch in (0, 1):
        batches = data.epoch_batches(epoch)
        assert set(batches[:3].ravel()) == set(range(10))
        assert set(batches[3:].ravel()) == set(range(10, 37))


def test_texts_of_like_length_share_a_batch(tokenizer: PreTrainedTokenizerBase) -> None:
    data = training_batches(tokenizer, 300)
    spread = np.ptp(data.lengths[data.epoch_batches(0)], axis=1)
    assert spread.mean() < 1.5  # at random it would be about 6


def test_a_batch_that_processes_cannot_share_is_refused(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Accelerator, "num_processes", 3)
    with pytest.raises(UserError, match="finetune.batch_size is 4: it must be a multiple of micro_batch_size"):
        training_batches(tokenizer, 37)


@pytest.mark.parametrize("max_length", [16, 100])
def test_a_batch_is_little_longer_than_its_longest_text(max_length: int, tokenizer: PreTrainedTokenizerBase) -> None:
    ids = [np.zeros(length, dtype=np.int64) for length in range(1, max_length + 1)]
    settings = Finetune(path="sample", batch_size=1, max_length=max_length)
    encoded = Encoded(ids, None, np.zeros(len(ids), dtype=np.int64))
    data = TrainingBatches(encoded, 0, settings, Accelerator(cpu=True), seed=0)
    for place, row in enumerate(ids):
        length = data.collate(np.array([place]))["input_ids"].shape[1]
        assert length % 8 == 0 or length == max_length
        assert len(row) <= length < len(row) + 8
