"""The audit of a store: what a user should know about the data before paying for a training on it."""

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bertpre.console import dropped_text
from bertpre.data.frequencies import context_free_loss, entropy
from bertpre.data.pairs import A_END, A_START, B_END, B_START, IGNORE_INDEX, ends_with_mark
from bertpre.data.sampler import PairDataset
from bertpre.data.store import Shard, open_shards, read_store_manifest
from bertpre.data.tokenizer import NOTABLE_SHARE, STOCK_WORD, maskable_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FROM_MANIFEST = (
    "documents", "sentences", "tokens", "vocab_size", "repeated_line_share", "dropped",
)  # fmt: skip
NOT_IN_ALL_MANIFESTS = (
    "unknown_words", "tokenizer_notes", "removed_share", "mostly_removed", "mostly_removed_example",
)  # fmt: skip
AUDITED_SHARDS = 32  # of a large store, at most
PLANNED_TOKENS = 1 << 23  # pairs are planned from shards of about so many tokens
QUANTILES = {"smallest": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "largest": 1.0}
BARS = " ▁▂▃▄▅▆▇█"
MOST_PAIRS = 50_000  # sampled to test whether their form predicts the label
TREE_DEPTH, TREE_LEAF = 8, 50
OF_DOCUMENTS = slice(4, 8)  # columns of `ends_of`
Item = TypeVar("Item")


def audit_store(folder: Path, max_length: int, seed: int, kind: str, **pair_options: Any) -> dict[str, Any]:
    """Totals from the manifest, quantiles of lengths, and the balance of the first epoch's pairs of the training split.

    The other arguments are those of `PairDataset`. Of a large store, some shards are audited: `pairs` is an estimate.
    """
    manifest, shards = read_store_manifest(folder), open_shards(folder, "train")
    sizes = np.array([len(shard.tokens) for shard in shards])
    planned = [shards[number] for number in drawn_by_size(sizes, PLANNED_TOKENS)]
    dataset = PairDataset(planned, max_length, seed, kind=kind, shards_per_group=len(planned), **pair_options)
    plan = dataset.plan(0)[0]
    share = sum(len(shard.tokens) for shard in planned) / sizes.sum()
    metrics = {key: manifest[key] for key in FROM_MANIFEST} | {"pairs": round(len(plan) / share)}
    metrics |= {key: manifest[key] for key in NOT_IN_ALL_MANIFESTS if key in manifest}
    metrics |= audit_pairs(plan, dataset.plan(1)[0], planned, kind) if kind != "none" else {}
    return metrics | audit_lengths(evenly_spaced(shards, AUDITED_SHARDS))


def drawn_by_size(sizes: np.ndarray, most: int) -> np.ndarray:
    """Numbers of items, in order, that have about `most` together: all, or those at equal distances of the sum."""
    ends = np.cumsum(sizes)
    if ends[-1] <= most:
        return np.arange(len(sizes))
    count = max(2, round(most / sizes.mean()))
    return np.unique(np.searchsorted(ends, (np.arange(count) + 0.5) * ends[-1] / count))


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


def audit_pairs(plan: np.ndarray, next_plan: np.ndarray, shards: Sequence[Shard], kind: str) -> dict[str, float]:
    """The balance of pairs, (P, 7) as `PairDataset.plan` returns them, and whether their form predicts the label.

    `pair_lengths_auc`, `pair_ends_auc` and `pair_form_auc` are the areas under the ROC curve of decision trees, fitted
    to these pairs and scored on those of another epoch. They see the lengths of the segments alone; whether these begin
    and end where a sentence does, or with `nsp` a document, and end with an end mark; or both. 0.5 is chance, with the
    standard deviation `pair_auc_std`. Well above it, the model could learn to predict the label without reading a word.
    All but `unlabelled_pair_share` are of the pairs that have a label.
    """
    labelled, held_out = (rows[rows[:, -1] != IGNORE_INDEX] for rows in (plan, next_plan))
    (lengths, ends, labels), (next_lengths, next_ends, next_labels) = (
        forms(sample(rows), shards, kind) for rows in (labelled, held_out)
    )
    lengths_auc, std = tree_auc(lengths, labels, next_lengths, next_labels)
    return {
        "unlabelled_pair_share": 1 - len(labelled) / max(len(plan), 1),
        "random_next_share": float(labelled[:, -1].mean()) if len(labelled) else 0.0,
        "pair_lengths_auc": lengths_auc,
        "pair_ends_auc": tree_auc(ends, labels, next_ends, next_labels)[0],
        "pair_form_auc": tree_auc(
            np.hstack([lengths, ends]), labels, np.hstack([next_lengths, next_ends]), next_labels
        )[0],
        "pair_auc_std": std,
    }


def sample(plan: np.ndarray) -> np.ndarray:
    """At most `MOST_PAIRS` of a plan, drawn at random."""
    return plan[np.random.default_rng(0).permutation(len(plan))[:MOST_PAIRS]]


def forms(plan: np.ndarray, shards: Sequence[Shard], kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lengths of A, B and both, (P, 3), how they begin and end, (P, 10), and the labels, (P,).

    Where documents begin and end counts for `nsp` alone: in the order of `sop` the beginning comes first.
    """
    spans = plan[:, 2:-1]
    a, b = spans[:, A_END] - spans[:, A_START], spans[:, B_END] - spans[:, B_START]
    ends = np.zeros((len(plan), 10), dtype=bool)
    for number, shard in enumerate(shards):
        here = plan[:, 0] == number
        ends[here] = ends_of(spans[here], shard)
    if kind == "sop":
        ends[:, OF_DOCUMENTS] = False
    return np.stack([a, b, a + b], axis=1), ends, plan[:, -1]


def ends_of(spans: np.ndarray, shard: Shard) -> np.ndarray:
    """Whether segments begin and end where a sentence or a document does, and end with an end mark.

    (P, 10), of spans, (P, 4).
    """
    place = np.searchsorted(shard.sentences, spans)
    at_boundary = shard.sentences[place] == spans
    has_mark = ends_with_mark(shard.tokens, shard.sentences)[place[:, [A_END, B_END]] - 1]
    at_document = at_boundary & np.isin(place, shard.documents)
    return np.hstack([at_boundary, at_document, has_mark & at_boundary[:, [A_END, B_END]]])


def tree_auc(
    features: np.ndarray, labels: np.ndarray, next_features: np.ndarray, next_labels: np.ndarray
) -> tuple[float, float]:
    """The AUC of a decision tree on features that it was not fitted to, and its standard deviation by chance."""
    from sklearn.metrics import roc_auc_score
    from sklearn.tree import DecisionTreeClassifier

    ones = int(next_labels.sum())
    zeros = len(next_labels) - ones
    if min(ones, zeros) == 0 or len(set(labels.tolist())) < 2:
        return 0.5, 0.5
    tree = DecisionTreeClassifier(max_depth=TREE_DEPTH, min_samples_leaf=TREE_LEAF, random_state=0)
    scores = tree.fit(features, labels).predict_proba(next_features)[:, 1]
    std = ((ones + zeros + 1) / (12 * ones * zeros)) ** 0.5  # of Mann and Whitney's rank sum
    return float(roc_auc_score(next_labels, scores)), std


def audit_lines(metrics: dict[str, Any]) -> Iterator[str]:
    """The metrics of `prepare` in words, then warnings, which name keys of the recipe."""
    yield (
        f"{metrics['documents']:,} documents, {metrics['sentences']:,} sentences, {metrics['tokens']:,} tokens, "
        f"about {metrics['pairs']:,} examples per epoch"
    )
    yield f"dropped documents: {dropped_text(metrics['dropped'])}"
    if "removed_share" in metrics:
        yield f"cleaning removed {metrics['removed_share']:.1%} of the characters"
    for name in ("tokens_in_document", "tokens_in_sentence"):
        listed = ", ".join(f"{quantile} {value:,}" for quantile, value in metrics[name].items())
        yield f"{name.replace('_', ' ')}: {listed}; histogram (1, 2-3, 4-7, ...): {bars(metrics['histograms'][name])}"
    yield (
        f"vocabulary of {metrics['vocab_size']:,}, unknown tokens {metrics['unknown_share']:.3%}, repeated lines "
        f"{metrics['repeated_line_share']:.1%}; "
        f"lowest MLM loss without context {metrics['context_free_loss']:.3f} nats (unigram entropy "
        f"{metrics['unigram_entropy']:.3f})"
    )
    if "pair_lengths_auc" in metrics:
        yield (
            f"pairs: {metrics['unlabelled_pair_share']:.1%} without a label, {metrics['random_next_share']:.1%} of the "
            f"others with label 1"
        )
        yield (
            f"AUC of a classifier that sees only the segments' lengths {metrics['pair_lengths_auc']:.3f}, only how "
            f"they begin and end {metrics['pair_ends_auc']:.3f}, both {metrics['pair_form_auc']:.3f} (chance: 0.5 ± "
            f"{metrics['pair_auc_std']:.3f})"
        )
    yield from metrics.get("tokenizer_notes", ())
    yield from (f"warning: {warning}" for warning in warnings(metrics))


def warnings(metrics: dict[str, Any]) -> Iterator[str]:
    """What a user should check before training."""
    if metrics["unknown_share"] > NOTABLE_SHARE:
        words = metrics.get("unknown_words", {})
        often = ", ".join(f"{word[:16]} ({count:,} times)" for word, count in words.items()) or "rare words"
        yield (
            f"{metrics['unknown_share']:.1%} of the tokens are unknown, in a sample most often {often}; raise "
            "tokenizer.character_coverage, or choose another tokenizer.path if one was given"
        )
        if max((len(unicodedata.normalize("NFD", word)) for word in words), default=0) > STOCK_WORD:
            yield "very long words are unknown: put spaces between words"
    if mostly_removed := metrics.get("mostly_removed"):
        example = metrics["mostly_removed_example"]
        yield (
            f"{mostly_removed:,} documents lost more than half of their characters in cleaning, which removes markup, "
            f"e.g. the one that begins {example!r}"
        )
    if metrics["repeated_line_share"] > 0.3:
        yield f"{metrics['repeated_line_share']:.0%} of the lines repeat others: the model will learn boilerplate"
    if metrics.get("unlabelled_pair_share", 0.0) > 0.5:
        yield (
            "most pairs have no label, because most documents are a single sentence or little more, or sentences are "
            "longer than a row: set corpus.text_unit if a document is a paragraph or a whole text file, otherwise set "
            "pairs.kind=none"
        )
    chance = 0.5 + max(0.02, 3 * metrics.get("pair_auc_std", 0.0))
    for key, form in (
        ("pair_lengths_auc", "lengths"),
        ("pair_ends_auc", "ends"),
        ("pair_form_auc", "lengths and ends"),
    ):
        if metrics.get(key, 0.5) > chance:
            yield f"segment {form} predict the label of the pairs (AUC {metrics[key]:.3f}): accuracy will be optimistic"
