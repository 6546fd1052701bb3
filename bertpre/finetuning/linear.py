"""Linear models of n-grams: what a user would otherwise train in seconds."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bertpre.data.cleaning import is_unspaced
from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.word_models import fit_majority_tags, fit_word_features

# The vowel signs of Hindi, Thai and others, and the points of Hebrew and Arabic, which \w leaves out.
MARKS = (
    r"\u0300-\u036f\u0591-\u05bd\u05c1-\u05c7\u064b-\u065f\u0670\u0900-\u0963\u0971-\u0dff\u0e31-\u0ebc\u102b-\u103e"
    r"\u17b4-\u17d3"
)
WORD = rf"[\w{MARKS}]"

# Gives probabilities of the classes, (N, C), or numbers, (N,); in the task `tokens` a list of (W, C).
Predictor = Callable[[Examples], Any]


def joined(examples: Examples) -> list[str]:
    """The text of each example, or the two texts of a pair, joined by a space."""
    if examples.pairs is None:
        return examples.texts
    return [f"{first} {second}" for first, second in zip(examples.texts, examples.pairs, strict=True)]


def are_unspaced(examples: Examples) -> bool:
    """Whether texts are in scripts that put no spaces between words."""
    return is_unspaced(" ".join(joined(examples)[:1000]))


def fit_tfidf(training: Examples, task: str = "classification", longest: int = 1) -> Predictor:
    """Logistic regression on TF-IDF of n-grams of up to `longest` words; for a regression, ridge regression.

    In multi-label classification each label has a logistic regression of its own.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    vectorizer, features = vectorize(training, longest)
    logistic = LogisticRegression(C=10, max_iter=1000)
    model = {"regression": Ridge(), "multi_label": OneVsRestClassifier(logistic)}.get(task, logistic)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Label .* is present in all")  # or in none: predicted as such
        model.fit(features, training.labels)

    def predict(examples: Examples) -> np.ndarray:
        found = vectorizer.transform(joined(examples))
        if task == "regression":
            return model.predict(found)
        if task == "multi_label":  # for a single class scikit-learn also gives its complement
            return model.predict_proba(found)[:, -len(training.classes) :]
        probabilities = np.zeros((len(examples), len(training.classes)))
        probabilities[:, model.classes_] = model.predict_proba(found)  # a class may be missing in training
        return probabilities

    return predict


def vectorize(training: Examples, longest: int) -> tuple[Any, Any]:
    """A TF-IDF vectorizer of n-grams of up to `longest` words, and the features of the training examples.

    The words are those that occur in two texts; if there are none, all words; if there are no words, characters. In
    scripts without spaces n-grams are made of characters.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = {"token_pattern": rf"{WORD}{{2,}}", "ngram_range": (1, longest)}
    if are_unspaced(training):
        words = {"analyzer": "char", "ngram_range": (1, 2 * longest)}  # twice as many, since words are short
    for choices in (words | {"min_df": 2}, words, {"token_pattern": r"\S", "ngram_range": (1, longest)}):
        vectorizer = TfidfVectorizer(sublinear_tf=True, **choices)
        try:
            return vectorizer, vectorizer.fit_transform(joined(training))
        except ValueError:  # the vocabulary is empty
            continue
    raise UserError("no training text has a letter in it")


def fit_nbsvm(training: Examples) -> Predictor:
    """NB-SVM on which n-grams of up to three words occur, in scripts without spaces of up to four characters."""
    from sklearn.feature_extraction.text import CountVectorizer

    words: dict[str, Any] = {"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 3)}
    if are_unspaced(training):
        words = {"analyzer": "char", "ngram_range": (1, 4)}
    vectorizer = CountVectorizer(binary=True, dtype=np.float32, **words)
    model = NbSvm.fit(vectorizer.fit_transform(joined(training)), training.labels, len(training.classes))
    return lambda examples: model.probabilities(vectorizer.transform(joined(examples)))


@dataclass(frozen=True)
class NbSvm:
    """Logistic regression on which features occur, each weighted by its log-count ratio.

    Wang and Manning 2012, section 2.3, with logistic loss and without interpolation, as Mesnil et al. 2015. Of more
    than two classes each has a model against all others; `weights` are (F, K) and `offsets` (K,), with one column for
    two classes. With `is_multi_label` probabilities of different classes do not add up to 1.
    """

    weights: np.ndarray
    offsets: np.ndarray
    is_multi_label: bool

    @classmethod
    def fit(cls, features: Any, labels: np.ndarray, count: int) -> "NbSvm":
        """Learn from a sparse matrix of 0 and 1, (N, F), and class numbers (N,) below `count`, or 0 and 1, (N, C)."""
        is_multi_label = labels.ndim == 2
        modelled = [1] if count == 2 else range(count)
        columns = labels.T > 0.5 if is_multi_label else [labels == number for number in modelled]
        weights, offsets = zip(*(fit_one_class(features, is_class) for is_class in columns), strict=True)
        return cls(np.stack(weights, axis=1), np.array(offsets), is_multi_label)

    def probabilities(self, features: Any) -> np.ndarray:
        """The probability of each class, (N, C), from a sparse matrix of 0 and 1, (N, F)."""
        from scipy.special import expit

        probabilities = expit(features @ self.weights + self.offsets)
        if self.is_multi_label:
            return probabilities
        if probabilities.shape[1] == 1:
            return np.concatenate([1 - probabilities, probabilities], axis=1)
        return probabilities / np.maximum(probabilities.sum(1, keepdims=True), 1e-12)


def fit_one_class(features: Any, is_class: np.ndarray) -> tuple[np.ndarray, float]:
    """NB-SVM's weights (F,) for one class against the rest, and its offset; a class without examples gets 0."""
    from sklearn.linear_model import LogisticRegression

    if not is_class.any() or is_class.all():
        return np.zeros(features.shape[1], dtype=np.float32), 100.0 if is_class.all() else -100.0
    own, rest = (np.asarray(features[part].sum(0)).ravel() + 1 for part in (is_class, ~is_class))
    ratio = np.log((own / own.sum()) / (rest / rest.sum())).astype(np.float32)
    model = LogisticRegression(solver="liblinear", dual=True, random_state=0)
    model.fit(features.multiply(ratio).tocsr(), is_class)
    return model.coef_.ravel().astype(np.float32) * ratio, float(model.intercept_[0])


def linear_models(task: str) -> dict[str, Callable[[Examples], Predictor]]:
    """The baselines for a task, by name."""
    if task == "tokens":
        return {"majority tag per word": fit_majority_tags, "word features": fit_word_features}
    models: dict[str, Callable[[Examples], Predictor]] = {
        "TF-IDF words": partial(fit_tfidf, task=task),
        "TF-IDF words, bigrams": partial(fit_tfidf, task=task, longest=2),
    }
    return models if task == "regression" else models | {"NB-SVM trigrams": fit_nbsvm}
