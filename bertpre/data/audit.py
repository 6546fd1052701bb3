"""The audit of a store: what a user should know about the data before paying for a training on it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bertpre.data.frequencies import context_free_loss, entropy
from bertpre.data.pairs import A_END, A_START, B_END, B_START, IS_RANDOM_NEXT
from bertpre.data.sampler import PairDataset
from bertpre.data.store import Shard, open_shards, read_store_manifest
from bertpre.data.tokenizer import NOTABLE_SHARE, STOCK_WORD, maskable_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FROM_MANIFEST = (
    "documents", "sentences", "tokens", "vocab_size", "repeated_line_share", "dropped",
)  # fmt: skip
AUDITED_SHARDS, PLANNED_SHARDS = 32, 2  # of a large store, at most
QUANTILES = {"smallest": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "largest": 1.0}
BARS = " ▁▂▃▄▅▆▇█"
MOST_PAIRS = 50_000  # sampled to test whether lengths predict the label
Item = TypeVar("Item")


def audit_store(folder: Path, max_length: int, seed: int, kind: str, **pair_options: Any) -> dict[str, Any]:
    """Totals from the manifest, quantiles of lengths, and the balance of the first epoch's pairs of the training split.

    The other arguments are those of `PairDataset`. Of a large store, evenly spaced shards are audited and `pairs` is an
    estimate.
    """
    manifest, shards = read_store_manifest(folder), open_shards(folder, "train")
    planned = evenly_spaced(shards, PLANNED_SHARDS)
    plan = PairDataset(planned, max_length, seed, kind=kind, **pair_options).plan(0)[0]
    all_tokens, planned_tokens = (sum(len(shard.tokens) for shard in some) for some in (shards, planned))
    metrics = {key: manifest[key] for key in FROM_MANIFEST} | {"pairs": round(len(plan) * all_tokens / planned_tokens)}
    metrics |= audit_pairs(plan[:, 2:]) if kind != "none" else {}
    metrics |= {key: manifest[key] for key in ("unknown_words", "tokenizer_notes") if key in manifest}
    return metrics | audit_lengths(evenly_spaced(shards, AUDITED_SHARDS))


def evenly_spaced(items: Sequence[Item], most: int) -> Sequence[Item]:
    """At most this number of items, at equal distances."""
    return items[:: -(-len(items) // most) or 1]


def audit_lengths(shards: Sequence[Shard]) -> dict[str, dict[str, Any]]:
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
    """A histogram as a row of bars; the highest is full."""
    return "".join(BARS[round(count / max(counts) * (len(BARS) - 1))] for count in counts)


def audit_frequencies(
    counts: np.ndarray, tokenizer: "PreTrainedTokenizerBase", mask_split: tuple[float, float, float]
) -> dict[str, float]:
    """The share of unknown tokens, and the references of every MLM loss, in nats; counts: of each token id, (V,)."""
    return {
        "unknown_share": float(counts[tokenizer.unk_token_id] / counts.sum()),
        "unigram_entropy": entropy(counts),
        "context_free_loss": context_free_loss(counts, maskable_ids(tokenizer), mask_split),
    }


def audit_pairs(pairs: np.ndarray) -> dict[str, float]:
    """The balance of pairs, (P, 5) as `plan_pairs` returns them, and whether their lengths predict the label.

    `lengths_tell` is the accuracy that a decision tree gains over the majority label on held-out pairs, from the
    lengths of the segments alone. Well above zero, the model could learn NSP without reading a word.
    """
    from sklearn.tree import DecisionTreeClassifier

    sample = pairs[np.random.default_rng(0).permutation(len(pairs))[:MOST_PAIRS]]
    a, b = sample[:, A_END] - sample[:, A_START], sample[:, B_END] - sample[:, B_START]
    lengths, labels, half = np.stack([a, b, a + b], axis=1), sample[:, IS_RANDOM_NEXT], len(sample) // 2
    gain = 0.0
    if half and len(set(labels[:half].tolist())) == 2:
        tree = DecisionTreeClassifier(max_depth=5, random_state=0).fit(lengths[:half], labels[:half])
        majority = max(labels[half:].mean(), 1 - labels[half:].mean())
        gain = float(tree.score(lengths[half:], labels[half:]) - majority)
    return {"random_next_share": float(pairs[:, IS_RANDOM_NEXT].mean()), "lengths_tell": gain}


def audit_lines(metrics: dict[str, Any], text_unit: str = "text_unit", kind: str = "kind") -> Iterator[str]:
    """The metrics of `prepare` in words, then warnings; `text_unit` and `kind` are the keys that these name."""
    yield (
        f"{metrics['documents']:,} documents, {metrics['sentences']:,} sentences, {metrics['tokens']:,} tokens, "
        f"about {metrics['pairs']:,} examples per epoch"
    )
    yield "dropped documents: " + (", ".join(f"{n:,} {reason}" for reason, n in metrics["dropped"].items()) or "none")
    for name in ("tokens_in_document", "tokens_in_sentence"):
        listed = ", ".join(f"{quantile} {value:,}" for quantile, value in metrics[name].items())
        yield f"{name.replace('_', ' ')}: {listed}; histogram (1, 2-3, 4-7, ...): {bars(metrics['histograms'][name])}"
    yield (
        f"unknown tokens {metrics['unknown_share']:.3%}, repeated lines {metrics['repeated_line_share']:.1%}; "
        f"lowest MLM loss without context {metrics['context_free_loss']:.3f} nats (unigram entropy "
        f"{metrics['unigram_entropy']:.3f})"
    )
    if "lengths_tell" in metrics:
        yield (
            f"pairs: {metrics['random_next_share']:.1%} with label 1; a classifier on segment lengths alone beats the "
            f"majority label by {metrics['lengths_tell']:+.1%}"
        )
    yield from metrics.get("tokenizer_notes", ())
    yield from (f"warning: {warning}" for warning in warnings(metrics, text_unit, kind))


def warnings(metrics: dict[str, Any], text_unit: str, kind: str) -> Iterator[str]:
    """What a user should check before training."""
    if metrics["unknown_share"] > NOTABLE_SHARE:
        words = metrics.get("unknown_words", {})
        often = ", ".join(f"{word[:16]} ({count:,} times)" for word, count in words.items()) or "rare words"
        yield (
            f"{metrics['unknown_share']:.1%} of the tokens are unknown, in a sample most often {often}; raise "
            "tokenizer.character_coverage, or choose another tokenizer.path if one was given"
        )
        if max(map(len, words), default=0) > STOCK_WORD:
            yield "very long words are unknown: put spaces between words"
    if metrics["repeated_line_share"] > 0.3:
        yield f"{metrics['repeated_line_share']:.0%} of the lines repeat others: the model will learn boilerplate"
    if metrics["tokens_in_document"]["median"] == metrics["tokens_in_sentence"]["median"]:
        yield (
            f"most documents are a single sentence and have no true next one: set {text_unit} if a document is a "
            f"paragraph or a whole text file, otherwise set {kind}=none"
        )
    if metrics.get("lengths_tell", 0) > 0.02:
        yield "segment lengths predict the label of the pairs: its accuracy will be optimistic"
