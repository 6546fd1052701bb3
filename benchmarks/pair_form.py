"""Does the form of segment pairs reveal their label? Prints one JSON line for each kind of pairs and store.

python benchmarks/pair_form.py STORE_OR_RUN ...        (length 128, at most 8 shards)

Boosted trees learn to predict the label in one epoch and are scored on the next, which cuts other pairs: from the
lengths of A, B and both; from their ends, that is whether each segment begins and ends where a sentence does (or a
document; not for sop, where that is the order itself), and ends with an end mark; and from all of these. A linear
classifier reads the last 40 tokens of segment B and the lengths, and is scored on other documents. 0.5 is chance.
`google_nsp` is the algorithm of google-research/bert, create_pretraining_data.py, on the same documents.
"""

import json
import random
import sys
from bisect import bisect_left
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from bertpre.data.pairs import ends_with_mark, plan_examples, truncate_pairs
from bertpre.data.store import Shard, open_shards

LENGTH, SHORT, RANDOM, MOST_SHARDS, MOST_PAIRS = 128, 0.1, 0.5, 8, 200_000
SHORT_B = 5  # tokens: too short to tell much
LAST, WORDS_PAIRS = 40, 40_000  # tokens of segment B that the linear classifier reads, and pairs of each shard


def plan_like_google(shard: Shard, generator: random.Random, length: int = LENGTH) -> np.ndarray:
    """Pairs as google's code cuts them: a short target for each document, random segments that fill the pair."""
    starts, first, room = shard.sentences.tolist(), shard.documents.tolist(), length - 3
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
            plan.append((starts[sentence], starts[cut], b_start, b_end, is_random))
            sentence = cut if is_random else stop
    planned = np.array(plan)
    truncate_pairs(planned, room, generator)
    return planned


def end_marks(shards: list[Shard]) -> np.ndarray:
    """Which tokens end a sentence more often than not, (largest id + 1,)."""
    size = 1 + max(int(shard.tokens.max()) for shard in shards)
    at_end, anywhere = np.zeros(size), np.zeros(size)
    for shard in shards:
        at_end += np.bincount(shard.tokens[shard.sentences[1:] - 1], minlength=size)
        anywhere += np.bincount(shard.tokens, minlength=size)
    return at_end > 0.5 * np.maximum(anywhere, 1)


def features(plan: np.ndarray, shard: Shard, is_mark: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Lengths (P, 3) and ends (P, 10) of pairs that have a segment B."""
    a, b = plan[:, 1] - plan[:, 0], plan[:, 3] - plan[:, 2]
    at_boundary = np.isin(plan[:, :4], shard.sentences)
    has_mark = is_mark[shard.tokens[plan[:, [1, 3]] - 1]]
    at_document = np.isin(plan[:, :4], shard.sentences[shard.documents]) & (kind != "sop")
    return np.stack([a, b, a + b], axis=1), np.column_stack([at_boundary, has_mark, at_document])


def b_alone(shards: list[Shard], kind: str) -> float:
    """AUC of a linear classifier that reads the end of segment B and the lengths, on documents it has not seen."""
    texts, labels, is_seen, is_unseen = [], [], [], []
    for number, shard in enumerate(shards):
        plan = plan_of(shard, kind, random.Random(f"0/0/{number}"))
        plan = plan[plan[:, 4] >= 0][:WORDS_PAIRS]
        starts = shard.sentences[shard.documents]
        is_odd = np.searchsorted(starts, plan[:, [0, 2]], side="right") % 2 == 1
        is_seen.append(is_odd.all(axis=1))
        is_unseen.append((~is_odd).all(axis=1))
        labels.append(plan[:, 4])
        for a_start, a_end, b_start, b_end, _ in plan.tolist():
            tokens = shard.tokens[max(b_start, b_end - LAST) : b_end].tolist()
            is_short = b_end - b_start + a_end - a_start < LENGTH - 3
            words = [str(token) + "s" * each for token in tokens for each in {False, is_short}]
            texts.append(" ".join([*words, f"length{(b_end - b_start) // 8}", "short" * is_short]))
    (seen, unseen, label) = map(np.concatenate, (is_seen, is_unseen, labels))
    counts = CountVectorizer(binary=True, token_pattern=r"\S+", min_df=3).fit_transform(texts)
    model = LogisticRegression(C=0.02, max_iter=100).fit(counts[seen], label[seen])
    return float(roc_auc_score(label[unseen], model.decision_function(counts[unseen])))


def auc(train: np.ndarray, labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray) -> float:
    """Area under the ROC curve of boosted trees."""
    model = HistGradientBoostingClassifier(max_iter=50, random_state=0).fit(train, labels)
    return float(roc_auc_score(test_labels, model.predict_proba(test)[:, 1]))


def plan_of(shard: Shard, kind: str, generator: random.Random) -> np.ndarray:
    """A shard's pairs, by google's algorithm or ours."""
    if kind == "google_nsp":
        return plan_like_google(shard, generator)
    marks = ends_with_mark(shard.tokens, shard.sentences)
    return plan_examples(kind, shard.sentences, shard.documents, LENGTH, generator, SHORT, RANDOM, marks)


def epoch_of(shards: list[Shard], kind: str, epoch: int) -> tuple[list[np.ndarray], dict[str, float]]:
    """Lengths (P, 3), ends (P, 10) and labels (P,) of an epoch's labelled pairs, and what its rows look like."""
    is_mark, parts = end_marks(shards), []
    tokens = rows = 0
    for number, shard in enumerate(shards):
        plan = plan_of(shard, kind, random.Random(f"0/{epoch}/{number}"))
        b = plan[:, 3] - plan[:, 2]
        tokens += int((plan[:, 1] - plan[:, 0] + b + 2 + (b > 0)).sum())
        rows += len(plan)
        labelled = plan[plan[:, 4] >= 0]
        parts.append((*features(labelled, shard, is_mark, kind), labelled[:, 4]))
    chosen = np.random.default_rng(epoch).permutation(sum(len(part[2]) for part in parts))[:MOST_PAIRS]
    lengths, ends, labels = (np.concatenate(column)[chosen] for column in zip(*parts, strict=True))
    short = lengths[:, 1] <= SHORT_B
    facts = {
        "pairs": rows, "unlabelled": 1 - sum(len(part[2]) for part in parts) / rows,
        "random_among_labelled": labels.mean(), "tokens_per_slot": tokens / rows / LENGTH,
        "short_b": short.mean(), "random_among_short_b": labels[short].mean() if short.any() else 0.0,
    }  # fmt: skip
    return [lengths, ends, np.hstack([lengths, ends]), labels], facts


def measure(shards: list[Shard], kind: str) -> dict[str, float]:
    """The trees learn from one epoch's pairs and are scored on the next one's."""
    (*seen, labels), facts = epoch_of(shards, kind, 0)
    (*unseen, unseen_labels), _ = epoch_of(shards, kind, 1)
    names = ("auc_lengths", "auc_ends", "auc_lengths_and_ends")
    pairs = zip(names, seen, unseen, strict=True)
    found = {name: auc(train, labels, test, unseen_labels) for name, train, test in pairs}
    return facts | found | {"auc_end_of_b": b_alone(shards, kind)}


def main(folders: list[Path]) -> None:
    """Measure and print."""
    for folder in folders:
        shards = open_shards(folder / "data" if (folder / "data").exists() else folder, "train")[:MOST_SHARDS]
        for kind in ("google_nsp", "nsp", "sop"):
            measured = {name: round(value, 4) for name, value in measure(shards, kind).items()}
            print(json.dumps({"benchmark": "pair_form", "store": folder.name, "kind": kind} | measured), flush=True)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
