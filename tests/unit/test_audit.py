"""The audit: histograms, whether the form of pairs predicts their label, and warnings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertpre.data.audit import audit_lines, audit_pairs, bars, drawn_by_size, histogram
from bertpre.data.store import Shard


@given(st.lists(st.integers(1, 5000), min_size=1))
def test_a_histogram_counts_every_length_by_its_power_of_two(lengths: list[int]) -> None:
    counts = histogram(np.array(lengths))
    assert counts == [sum(1 << k <= length < 2 << k for length in lengths) for k in range(len(counts))]
    assert sum(counts) == len(lengths)


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [([5, 1, 5, 1], 12, [0, 1, 2, 3]), ([4] * 10, 8, [2, 7]), ([1, 1, 98, 1, 99], 40, [2, 4]), ([9], 2, [0])],
)
def test_shards_are_drawn_by_their_size(sizes: list[int], most: int, expected: list[int]) -> None:
    assert drawn_by_size(np.array(sizes), most).tolist() == expected


def test_bars_are_proportional_to_the_counts() -> None:
    assert bars([0, 1, 4, 8]) == " ▁▄█"


MARK = 1  # ends every sentence but the last
SHARD = Shard(np.array([*[7, 7, 7, 7, MARK] * 19, 7, 7, 7, 7, 7]), np.arange(0, 101, 5), np.array([0, 8, 16, 20]))


def audit(a_ends: np.ndarray, labels: np.ndarray, kind: str = "nsp") -> dict[str, float]:
    """The audit of pairs whose segment A ends at these tokens and whose segment B has ten tokens.

    The second half of them stands for another epoch.
    """
    zeros, half = np.zeros_like(a_ends), len(labels) // 2
    plan = np.column_stack([zeros, np.arange(len(labels)), zeros, a_ends, zeros, zeros + 10, labels])
    return audit_pairs(plan[:half], plan[half:], [SHARD], kind)


def test_lengths_that_predict_the_label_are_found() -> None:
    generator = np.random.default_rng(0)
    lengths, labels = 5 * generator.integers(1, 20, 4000), generator.integers(0, 2, 4000)
    found = audit(lengths, labels)
    assert abs(found["pair_lengths_auc"] - 0.5) < 3 * found["pair_auc_std"] < 0.06
    found = audit(lengths, lengths > 50)
    assert found["pair_lengths_auc"] > 0.99
    assert found["random_next_share"] == (lengths > 50)[:2000].mean()


def test_a_majority_label_is_not_taken_for_predictable() -> None:
    generator = np.random.default_rng(0)
    labels = (generator.random(4000) < 0.9).astype(int)
    found = audit(5 * generator.integers(1, 20, 4000), labels)
    assert abs(found["pair_lengths_auc"] - 0.5) < 3 * found["pair_auc_std"]


def test_ends_that_predict_the_label_are_found() -> None:
    generator = np.random.default_rng(0)
    lengths, labels = 5 * generator.integers(1, 20, 4000), generator.integers(0, 2, 4000)
    in_mid_sentence = lengths - 2 * labels
    assert audit(in_mid_sentence, labels)["pair_ends_auc"] > 0.99
    without_mark = np.where(labels, 100, lengths)  # where the last sentence ends
    assert audit(without_mark, labels)["pair_ends_auc"] > 0.99
    assert audit(lengths, labels)["pair_ends_auc"] < 0.55


def test_ends_of_documents_that_predict_the_label_together_with_lengths_are_found() -> None:
    generator = np.random.default_rng(0)
    ends_document, is_long = generator.integers(0, 2, (2, 4000)).astype(bool)
    lengths = np.where(ends_document, 40, 35) + 40 * is_long  # documents end at 40 and 80
    found = audit(lengths, ends_document ^ is_long)
    assert found["pair_ends_auc"] < 0.55 and found["pair_form_auc"] > 0.99
    assert audit(np.where(ends_document, 40, 35), ends_document)["pair_ends_auc"] > 0.99
    of_sop = audit(np.where(ends_document, 40, 35), ends_document, "sop")  # whose first segment may begin a document
    assert of_sop["pair_ends_auc"] < 0.55


def test_pairs_without_a_label_are_counted_and_left_out() -> None:
    lengths, labels = np.array([5, 10, 15, 20] * 1000), np.array([0, 1, -100, -100] * 1000)
    found = audit(lengths, labels)
    assert (found["unlabelled_pair_share"], found["random_next_share"]) == (0.5, 0.5)
    assert found["pair_lengths_auc"] > 0.99
    for only in (-100, 1):
        assert audit(lengths, np.full(4000, only))["pair_lengths_auc"] == 0.5


def test_warnings_name_keys_of_the_recipe() -> None:
    lengths = {"smallest": 1, "5%": 1, "median": 9, "95%": 20, "largest": 30}
    metrics = {
        "documents": 2, "sentences": 2, "tokens": 18, "pairs": 2, "dropped": {"empty": 1}, "vocab_size": 512,
        "unknown_share": 0.0,
        "repeated_line_share": 0.0, "unigram_entropy": 2.0, "context_free_loss": 1.75,
        "tokens_in_document": {**lengths, "median": 10},
        "tokens_in_sentence": lengths, "histograms": {"tokens_in_document": [1], "tokens_in_sentence": [1]},
        "pair_lengths_auc": 0.51, "pair_ends_auc": 0.55, "pair_form_auc": 0.5, "pair_auc_std": 0.02,
        "random_next_share": 0.5,
        "unlabelled_pair_share": 0.1,
    }  # fmt: skip
    assert not [line for line in audit_lines(metrics) if line.startswith("warning")]
    worse = {"unknown_share": 0.02, "repeated_line_share": 0.4, "pair_lengths_auc": 0.57}
    worse["unlabelled_pair_share"] = 0.6
    found = [line for line in audit_lines(metrics | worse) if line.startswith("warning: ")]
    assert len(found) == 4
    assert "cleaning removed" not in "".join(audit_lines(metrics))  # as of a store of an earlier version
    removed = {"removed_share": 0.0625, "mostly_removed": 2, "mostly_removed_example": "<ref>a"}
    found_removed = list(audit_lines(metrics | removed))
    assert found_removed[2] == "cleaning removed 6.2% of the characters"
    assert found_removed[-1].startswith("warning: 2 documents lost") and found_removed[-1].endswith("'<ref>a'")
    assert "set corpus.text_unit if" in found[2] and "set pairs.kind=none" in found[2]
    odd = {"unknown_share": 0.002, "unknown_words": {"☃": 7, "x" * 101: 1}, "tokenizer_notes": ["warning: strips"]}
    found = [line for line in audit_lines(metrics | odd) if line.startswith("warning: ")]
    assert found[0] == "warning: strips"
    assert "☃ (7 times)" in found[1] and "character_coverage" in found[1]
