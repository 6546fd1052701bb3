"""The audit: histograms, whether lengths predict the label, and warnings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertpre.data.audit import audit_lines, audit_pairs, bars, histogram


@given(st.lists(st.integers(1, 5000), min_size=1))
def test_a_histogram_counts_every_length_by_its_power_of_two(lengths: list[int]) -> None:
    counts = histogram(np.array(lengths))
    assert counts == [sum(1 << k <= length < 2 << k for length in lengths) for k in range(len(counts))]
    assert sum(counts) == len(lengths)


def test_bars_are_proportional_to_the_counts() -> None:
    assert bars([0, 1, 4, 8]) == " ▁▄█"


def pairs(lengths: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A plan of pairs whose segment A has these lengths; segment B has ten tokens."""
    zeros = np.zeros_like(lengths)
    return np.column_stack([zeros, lengths, zeros, zeros + 10, labels])


def test_lengths_that_predict_the_label_are_found() -> None:
    generator = np.random.default_rng(0)
    lengths, labels = generator.integers(1, 60, 2000), generator.integers(0, 2, 2000)
    assert audit_pairs(pairs(lengths, labels)[:400])["lengths_tell"] < 0.05  # a tree fits 200 training pairs by chance
    assert audit_pairs(pairs(lengths, lengths > 30))["lengths_tell"] > 0.4
    assert audit_pairs(pairs(lengths, lengths > 30))["random_next_share"] == (lengths > 30).mean()
    assert audit_pairs(pairs(lengths, np.ones(2000, dtype=int)))["lengths_tell"] == 0


def test_warnings_name_the_keys_that_they_are_given() -> None:
    lengths = {"smallest": 1, "5%": 1, "median": 9, "95%": 20, "largest": 30}
    metrics = {
        "documents": 2, "sentences": 2, "tokens": 18, "pairs": 2, "dropped": {"empty": 1}, "unknown_share": 0.0,
        "repeated_line_share": 0.0, "unigram_entropy": 2.0, "context_free_loss": 1.75,
        "tokens_in_document": {**lengths, "median": 10},
        "tokens_in_sentence": lengths, "histograms": {"tokens_in_document": [1], "tokens_in_sentence": [1]},
        "lengths_tell": 0.0, "random_next_share": 0.5,
    }  # fmt: skip
    assert not [line for line in audit_lines(metrics) if line.startswith("warning")]
    worse = {"unknown_share": 0.02, "repeated_line_share": 0.4, "lengths_tell": 0.03, "tokens_in_document": lengths}
    found = [line for line in audit_lines(metrics | worse, "text", "pairs") if line.startswith("warning: ")]
    assert len(found) == 4
    assert "set text if" in found[2] and "set pairs=none" in found[2]
    odd = {"unknown_share": 0.002, "unknown_words": {"☃": 7, "x" * 101: 1}, "tokenizer_notes": ["warning: strips"]}
    found = [line for line in audit_lines(metrics | odd, "text", "pairs") if line.startswith("warning: ")]
    assert found[0] == "warning: strips"
    assert "☃ (7 times)" in found[1] and "character_coverage" in found[1]
