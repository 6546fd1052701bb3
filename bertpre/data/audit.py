"""The audit of a store: what a user should know about the data before paying for a training on it."""

import numpy as np

from bertpre.data.pairs import A_END, A_START, B_END, B_START, IS_RANDOM_NEXT
from bertpre.data.store import Shard

QUANTILES = {"smallest": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "largest": 1.0}
MOST_PAIRS = 50_000  # to judge lengths by


def audit_lengths(shards: list[Shard]) -> dict[str, dict[str, int]]:
    """Quantiles of the tokens in a sentence and in a document."""
    sentences = np.concatenate([np.diff(shard.sentences) for shard in shards])
    documents = np.concatenate([np.diff(shard.sentences[shard.documents]) for shard in shards])
    return {"tokens_in_sentence": quantiles(sentences), "tokens_in_document": quantiles(documents)}


def quantiles(lengths: np.ndarray) -> dict[str, int]:
    """Some quantiles of lengths, by name."""
    return {name: int(np.quantile(lengths, share, method="nearest")) for name, share in QUANTILES.items()}


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
