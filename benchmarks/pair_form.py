"""Does the form of segment pairs reveal their label? Prints one JSON line for each kind of pairs and store.

python benchmarks/pair_form.py STORE_OR_RUN ...        (length 128, one epoch of at most 8 shards)

Boosted trees predict the label of held-out pairs from the lengths of A, B and both, and from their ends: whether each
segment begins and ends where a sentence does, and ends with an end mark, with the lengths. 0.5 is chance. `google_nsp`
is the algorithm of google-research/bert, create_pretraining_data.py, on the same documents.
"""

import json
import random
import sys
from bisect import bisect_left
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from bertpre.data.pairs import ends_with_mark, plan_examples, truncate_pair
from bertpre.data.store import Shard, open_shards

LENGTH, SHORT, RANDOM, MOST_SHARDS, MOST_PAIRS = 128, 0.1, 0.5, 8, 200_000
SHORT_B = 5  # tokens: too short to tell much


def plan_like_google(shard: Shard, generator: random.Random) -> np.ndarray:
    """Pairs as google's code cuts them: a short target for each document, random segments that fill the pair."""
    starts, first, room = shard.sentences.tolist(), shard.documents.tolist(), LENGTH - 3
    plan = []
    for document in range(len(first) - 1):
        target = room if generator.random() >= SHORT else generator.randint(2, room)
        sentence, end = first[document], first[document + 1]
        while sentence < end:
            stop = bisect_left(starts, starts[sentence] + target, sentence + 1, end)
            cut = generator.randint(sentence + 1, max(sentence + 1, stop - 1))
            b_start, b_end, is_random = starts[cut], starts[stop], int(cut == stop or generator.random() < RANDOM)
            if is_random:
                other = generator.randrange(len(first) - 2)
                other += other >= document
                begin = generator.randrange(first[other], first[other + 1])
                wanted = target - (starts[cut] - starts[sentence])
                b_start = starts[begin]
                b_end = starts[bisect_left(starts, b_start + wanted, begin + 1, first[other + 1])]
            plan.append((*truncate_pair(starts[sentence], starts[cut], b_start, b_end, room, generator), is_random))
            sentence = cut if is_random else stop
    return np.array(plan)


def end_marks(shards: list[Shard]) -> np.ndarray:
    """Tokens that end a sentence wherever they occur, or nearly: (largest id + 1,), bool."""
    size = 1 + max(int(shard.tokens.max()) for shard in shards)
    at_end, anywhere = np.zeros(size), np.zeros(size)
    for shard in shards:
        at_end += np.bincount(shard.tokens[shard.sentences[1:] - 1], minlength=size)
        anywhere += np.bincount(shard.tokens, minlength=size)
    return at_end > 0.5 * np.maximum(anywhere, 1)


def features(plan: np.ndarray, shard: Shard, is_mark: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lengths (P, 3) and ends (P, 6) of pairs that have a segment B."""
    a, b = plan[:, 1] - plan[:, 0], plan[:, 3] - plan[:, 2]
    at_boundary = np.isin(plan[:, :4], shard.sentences)
    has_mark = is_mark[shard.tokens[plan[:, [1, 3]] - 1]]
    return np.stack([a, b, a + b], axis=1), np.column_stack([at_boundary, has_mark])


def auc(values: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve of boosted trees on pairs that they were not fitted to."""
    model = HistGradientBoostingClassifier(max_iter=50, random_state=0)
    return float(roc_auc_score(labels, cross_val_predict(model, values, labels, cv=4, method="predict_proba")[:, 1]))


def measure(shards: list[Shard], kind: str) -> dict[str, float]:
    """What one epoch's pairs look like."""
    is_mark, lengths, ends, labels = end_marks(shards), [], [], []
    tokens = rows = 0
    for number, shard in enumerate(shards):
        generator = random.Random(f"0/0/{number}")
        if kind == "google_nsp":
            plan = plan_like_google(shard, generator)
        else:
            marks = ends_with_mark(shard.tokens, shard.sentences)
            plan = plan_examples(kind, shard.sentences, shard.documents, LENGTH, generator, SHORT, RANDOM, marks)
        used = (plan[:, 1] - plan[:, 0]) + (plan[:, 3] - plan[:, 2])
        tokens, rows = tokens + int(used.sum() + 2 * len(plan) + (plan[:, 3] > plan[:, 2]).sum()), rows + len(plan)
        labelled = plan[plan[:, 4] >= 0]
        of_lengths, of_ends = features(labelled, shard, is_mark)
        lengths.append(of_lengths), ends.append(of_ends), labels.append(labelled[:, 4])
    chosen = np.random.default_rng(0).permutation(sum(map(len, labels)))[:MOST_PAIRS]
    x, e, y = (np.concatenate(parts)[chosen] for parts in (lengths, ends, labels))
    short = x[:, 1] <= SHORT_B
    return {
        "pairs": rows, "unlabelled": 1 - sum(map(len, labels)) / rows, "random_among_labelled": y.mean(),
        "auc_lengths": auc(x, y), "auc_ends": auc(e, y), "auc_lengths_and_ends": auc(np.hstack([x, e]), y),
        "tokens_per_slot": tokens / rows / LENGTH,
        "short_b": short.mean(), "random_among_short_b": y[short].mean() if short.any() else 0.0,
    }  # fmt: skip


def main(folders: list[Path]) -> None:
    """Measure and print."""
    for folder in folders:
        store = folder if (folder / "manifest.json").exists() and not (folder / "data").exists() else folder / "data"
        shards = open_shards(store, "train")[:MOST_SHARDS]
        for kind in ("google_nsp", "nsp", "sop"):
            line = {"benchmark": "pair_form", "store": folder.name, "kind": kind}
            print(
                json.dumps(line | {name: round(value, 4) for name, value in measure(shards, kind).items()}), flush=True
            )


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
