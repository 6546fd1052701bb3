"""Texts without labels: which are left out, and their pseudo-labels."""

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from bertpre.data.tokenizer import learn_tokenizer
from bertpre.errors import UserError
from bertpre.finetuning.encoding import encode_examples
from bertpre.finetuning.examples import Examples, read_examples
from bertpre.finetuning.linear import fit_nbsvm
from bertpre.finetuning.pseudo_labels import encode_with_pseudo_labels, fit_on_tokens, read_unlabelled
from bertpre.finetuning.splits import Labelled
from bertpre.recipe import Finetune, Recipe
from tests.unit.test_examples import write_rows


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_tokenizer(iter(["dull fine one two three"] * 3), 128, lowercase=True, max_length=64)


def settings_with(tmp_path: Path, texts: list[str], **unlabelled: object) -> Finetune:
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(["dull one", "fine one"] * 4)]
    path = write_rows(tmp_path / "train.jsonl", rows)
    other = write_rows(tmp_path / "other.jsonl", [{"text": text} for text in texts])
    return Finetune(path=path, unlabelled={"path": other, **unlabelled})


def test_labelled_texts_are_left_out(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, ["dull one", "dull two", "fine\ttwo", "fine three"])
    training = read_examples(settings, "train")
    validation = training.subset([])
    validation.texts.append("fine three")
    unlabelled = read_unlabelled(settings, [training, validation])
    assert unlabelled.texts == ["dull two", "fine two"]
    assert unlabelled.ids == ["train/1", "train/2"]


def test_held_out_texts_are_left_out(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, ["dull<br />ONE", "fine  one"], held_out="train")
    training = read_examples(settings, "train").subset([0, 1])
    with pytest.raises(UserError, match=r"every text of .*other.jsonl is labelled or held out"):
        read_unlabelled(settings, [training])
    missing = settings_with(tmp_path, ["dull two"], held_out="./none.csv")
    with pytest.raises(UserError, match="^finetune.unlabelled.held_out: './none.csv' is neither"):
        read_unlabelled(missing, [training])


def test_texts_set_aside_for_the_test_are_left_out(tmp_path: Path) -> None:
    rows = [{"text": f"dull {number}", "label": number % 2} for number in range(60)]
    path = write_rows(tmp_path / "train.jsonl", rows)
    more = write_rows(tmp_path / "more.jsonl", [{"text": row["text"]} for row in rows] + [{"text": "fine"}])
    tuning = {"path": path, "init": "a/model", "test_fraction": 0.3, "unlabelled": {"path": more}}
    recipe = Recipe(output_dir="out", finetune=tuning | {"validation_fraction": 0.2})
    assert Labelled(recipe).unlabelled.texts == ["fine"]


def test_a_pair_is_left_out_if_both_texts_are_known(tmp_path: Path) -> None:
    rows = [{"text": text, "other": "x", "label": number % 2} for number, text in enumerate(["dull", "fine"] * 4)]
    path = write_rows(tmp_path / "train.jsonl", rows)
    other = write_rows(tmp_path / "other.jsonl", [{"text": "dull", "other": each} for each in ("x", "y")])
    settings = Finetune(path=path, text_pair_column="other", unlabelled={"path": other})
    unlabelled = read_unlabelled(settings, [read_examples(settings, "train")])
    assert (unlabelled.texts, unlabelled.pairs) == (["dull"], ["y"])


def test_pseudo_labels_come_from_nbsvm_on_tokens() -> None:
    """Against scikit-learn's vectorizer on the same tokens, as text, two classes and three."""
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, 9, size=generator.integers(1, 30)) for _ in range(60)]
    texts = [" ".join(f"t{token}" for token in row) for row in rows]
    for count in (2, 3):
        labels = np.arange(60) % count
        predict = fit_on_tokens(rows[:40], labels[:40], count)
        examples = Examples([str(n) for n in range(60)], texts, None, labels, tuple("abc"[:count]))
        expected = fit_nbsvm(examples.subset(range(40)))(examples)
        np.testing.assert_allclose(predict(rows), expected, atol=1e-5)


def test_nbsvm_reads_uncut_texts_and_the_network_cut_ones(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    long = "dull" + " two three" * 5
    settings = settings_with(tmp_path, [long, "fine two"], max_length=8).model_copy(update={"max_length": 10})
    training = read_examples(settings, "train")
    training.texts[0] = long + " two"
    unlabelled = read_unlabelled(settings, [training])
    encoded = encode_with_pseudo_labels(settings, tokenizer, training, unlabelled)
    assert encoded.num_pseudo_labelled == 2
    assert encoded.lengths.tolist() == [8, 4, 10] + [4] * 7
    np.testing.assert_array_equal(encoded.ids[0], encode_examples(tokenizer, unlabelled, 8, "head_tail").ids[0])
    np.testing.assert_array_equal(encoded.labels[2:], np.eye(2)[training.labels])
    rows = [encode_examples(tokenizer, examples, 99).ids for examples in (training, unlabelled)]
    expected = fit_on_tokens(rows[0], training.labels, 2)(rows[1])
    np.testing.assert_allclose(encoded.labels[:2], expected, rtol=1e-6)
    assert encoded.labels[:2].argmax(1).tolist() == [0, 1]
    assert encoded.labels.dtype == np.float32


def test_pseudo_labels_are_made_once(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    settings = settings_with(tmp_path, ["dull two", "fine two"])
    training = read_examples(settings, "train")
    unlabelled = read_unlabelled(settings, [training])
    file = tmp_path / "kept.npy"
    first, second = (encode_with_pseudo_labels(settings, tokenizer, training, unlabelled, file) for _ in range(2))
    np.testing.assert_array_equal(first.labels, second.labels)
    np.save(file, 1 - np.load(file))
    third = encode_with_pseudo_labels(settings, tokenizer, training, unlabelled, file)
    np.testing.assert_array_equal(third.labels[:2], 1 - first.labels[:2])
