"""The audit of a store: what a user should know about the data before paying for a training on it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bertpre.data.pairs import A_END, A_START, B_END, B_START, IS_RANDOM_NEXT
from bertpre.data.store import Shard, entropy

QUANTILES = {"smallest": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "largest": 1.0}
BARS = " ▁▂▃▄▅▆▇█"
MOST_PAIRS = 50_000  # to judge lengths by


def audit_lengths(shards: list[Shard]) -> dict[str, dict[str, Any]]:
    """Quantiles and a histogram of the tokens in a sentence and in a document."""
    sentences = np.concatenate([np.diff(shard.sentences) for shard in shards])
    documents = np.concatenate([np.diff(shard.sentences[shard.documents]) for shard in shards])
    lengths = {"tokens_in_document": documents, "tokens_in_sentence": sentences}
    histograms = {name: histogram(values) for name, values in lengths.items()}
    return {name: quantiles(values) for name, values in lengths.items()} | {"histograms": histograms}


def quantiles(lengths: np.ndarray) -> dict[str, int]:
    """Some quantiles of lengths, by name."""
    return {name: int(np.quantile(lengths, share, method="nearest")) for name, share in QUANTILES.items()}


def histogram(lengths: np.ndarray) -> list[int]:
    """How many lengths, all at least 1, are 1, 2 to 3, 4 to 7, 8 to 15, and so on up to the largest."""
    return np.bincount(np.log2(lengths).astype(int)).tolist()


def bars(counts: list[int]) -> str:
    """A histogram as a row of bars, the highest of which is full."""
    return "".join(BARS[round(count / max(counts) * (len(BARS) - 1))] for count in counts)


def count_tokens(shards: list[Shard], vocab_size: int, unk_token_id: int) -> dict[str, float]:
    """The unigram entropy of the tokens, in nats, and the share of unknown ones."""
    counts = sum(np.bincount(shard.tokens, minlength=vocab_size) for shard in shards)
    return {"unigram_entropy": entropy(counts), "unknown_share": float(counts[unk_token_id] / counts.sum())}


def audit_pairs(pairs: np.ndarray) -> dict[str, float]:
    """Look at pairs, (P, 5) as `plan_pairs` returns them: how balanced they are, and whether lengths tell the label.

    `lengths_tell` is the accuracy that a decision tree gains over the commoner label on pairs it has not seen, from the
    lengths of the segments alone. Well above zero, NSP would be learned without reading a word.
    """
    from sklearn.tree import DecisionTreeClassifier

    sample = pairs[np.random.default_rng(0).permutation(len(pairs))[:MOST_PAIRS]]
    a, b = sample[:, A_END] - sample[:, A_START], sample[:, B_END] - sample[:, B_START]
    lengths, labels, half = np.stack([a, b, a + b], axis=1), sample[:, IS_RANDOM_NEXT], len(sample) // 2
    tells = 0.0
    if half and len(set(labels[:half].tolist())) == 2:
        tree = DecisionTreeClassifier(max_depth=5, random_state=0).fit(lengths[:half], labels[:half])
        commoner = max(labels[half:].mean(), 1 - labels[half:].mean())
        tells = float(tree.score(lengths[half:], labels[half:]) - commoner)
    return {"random_next_share": float(pairs[:, IS_RANDOM_NEXT].mean()), "lengths_tell": tells}


def audit_lines(figures: dict[str, Any]) -> Iterator[str]:
    """The figures of `prepare` as a user reads them, and what in them is unusual."""
    yield (
        f"{figures['documents']:,} documents, {figures['sentences']:,} sentences, {figures['tokens']:,} tokens, "
        f"about {figures['pairs']:,} examples an epoch"
    )
    yield "dropped documents: " + (", ".join(f"{n:,} {reason}" for reason, n in figures["dropped"].items()) or "none")
    for name in ("tokens_in_document", "tokens_in_sentence"):
        quantiles = ", ".join(f"{quantile} {value:,}" for quantile, value in figures[name].items())
        yield f"{name.replace('_', ' ')}: {quantiles}; from 1 by doubling: {bars(figures['histograms'][name])}"
    yield (
        f"unknown tokens {figures['unknown_share']:.3%}, repeated lines {figures['repeated_line_share']:.1%}; "
        f"unigram entropy {figures['unigram_entropy']:.3f} nats: the MLM loss of a model that ignores context"
    )
    if "lengths_tell" in figures:
        yield (
            f"pairs: {figures['random_next_share']:.1%} with label 1; lengths alone beat the commoner label by "
            f"{figures['lengths_tell']:+.1%}"
        )
    yield from (f"attention: {warning}" for warning in warnings(figures))


def warnings(figures: dict[str, Any]) -> Iterator[str]:
    """What is worth a look before the training is paid for."""
    if figures["unknown_share"] > 0.01:
        yield f"{figures['unknown_share']:.1%} of the tokens are unknown: is the tokenizer of this language and script?"
    if figures["repeated_line_share"] > 0.3:
        yield f"{figures['repeated_line_share']:.0%} of the lines are repeats of others: boilerplate is cheap to learn"
    if figures["tokens_in_document"]["median"] == figures["tokens_in_sentence"]["median"]:
        yield (
            "most documents are one sentence, without a true next one: set corpus.text_unit where a document is a "
            "paragraph or a whole text file, else pairs.kind=none"
        )
    if figures.get("lengths_tell", 0) > 0.02:
        yield "the lengths of the segments tell the label of the pairs: its accuracy will flatter the model"
