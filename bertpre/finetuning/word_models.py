"""Baselines for the task `tokens`: each word's most frequent tag, and a linear model of the word and its neighbours."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from bertpre.finetuning.examples import Examples

WordPredictor = Callable[[Examples], list[np.ndarray]]  # gives probabilities of the tags for each text, (W, C)
NUM_FEATURES = 2**20  # hashed; a million words of news have about as many distinct ones


def fit_majority_tags(training: Examples) -> WordPredictor:
    """How often a word has each tag in training; a word that is new there has the tags of all words."""
    everything = np.zeros(len(training.classes))
    counts: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(training.classes)))
    for words, tags in zip(training.texts, training.labels, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
            everything[tag] += 1

    def predict(examples: Examples) -> list[np.ndarray]:
        rows = [np.stack([counts.get(word, everything) for word in words]) for words in examples.texts]
        return [row / row.sum(-1, keepdims=True) for row in rows]

    return predict


def fit_word_features(training: Examples) -> WordPredictor:
    """Logistic regression on a word, its shape and its ending, and on its two neighbours; by averaged SGD."""
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import SGDClassifier

    hasher = FeatureHasher(NUM_FEATURES, input_type="string", alternate_sign=False)
    model = SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=20, tol=None, average=True, random_state=0)
    model.fit(hasher.transform(features_of_all(training)), np.concatenate(training.labels))

    def predict(examples: Examples) -> list[np.ndarray]:
        probabilities = np.zeros((sum(map(len, examples.texts)), len(training.classes)))
        probabilities[:, model.classes_] = model.predict_proba(hasher.transform(features_of_all(examples)))
        return np.split(probabilities, np.cumsum([len(words) for words in examples.texts])[:-1])

    return predict


def features_of_all(examples: Examples) -> Iterator[list[str]]:
    """The features of every word of every text."""
    for words in examples.texts:
        padded = ["", *words, ""]
        yield from (features(*padded[place : place + 3]) for place in range(len(words)))


def features(before: str, word: str, after: str) -> list[str]:
    """What the linear model sees of a word; "" stands for a text's start and end."""
    return [
        "bias", f"word={word.lower()}", f"shape={shape(word)}", f"ending={word[-3:].lower()}",
        f"before={before.lower()}", f"before's shape={shape(before)}", f"after={after.lower()}",
        f"after's shape={shape(after)}",
    ]  # fmt: skip


def shape(word: str) -> str:
    """A word's characters by kind, runs as one: "Xx" for Berlin, "d-d" for 3-12."""
    kinds = ("X" if char.isupper() else "x" if char.isalpha() else "d" if char.isdigit() else char for char in word)
    return re.sub(r"(.)\1+", r"\1", "".join(kinds))
