"""Linear models of bags of n-grams: what a user would otherwise train in seconds."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples

Predictor = Callable[[Examples], np.ndarray]  # gives the probability of each class, (N, C), or numbers, (N,)


def together(examples: Examples) -> list[str]:
    """The text of each example, both texts of a pair."""
    if examples.pairs is None:
        return examples.texts
    return [f"{one} {other}" for one, other in zip(examples.texts, examples.pairs, strict=True)]


def words_classifier(training: Examples, longest: int = 1) -> Predictor:
    """Logistic regression on TF-IDF of all runs of up to `longest` words."""
    from sklearn.linear_model import LogisticRegression

    vectorizer, found = tfidf(training, longest)
    classifier = LogisticRegression(C=10, max_iter=1000).fit(found, training.labels)
    return all_classes(classifier, lambda examples: vectorizer.transform(together(examples)), len(training.classes))


def tfidf(training: Examples, longest: int) -> tuple[Any, Any]:
    """What turns texts into TF-IDF of runs of up to `longest` words, and that of the training examples.

    Words count that are in two texts; where there are none, all words; where no text has any, single characters.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = together(training)
    for choices in ({"min_df": 2}, {}, {"token_pattern": r"\S"}):
        vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, longest), **choices)
        try:
            found = vectorizer.fit_transform(texts)
        except ValueError:  # nothing is left
            continue
        return vectorizer, found
    raise UserError("finetune: no text has a letter in it")


def all_classes(classifier: Any, features: Callable[[Examples], Any], count: int) -> Predictor:
    """Probabilities for every class, those too that the classifier has not seen."""

    def predict(examples: Examples) -> np.ndarray:
        probabilities = np.zeros((len(examples), count))
        probabilities[:, classifier.classes_] = classifier.predict_proba(features(examples))
        return probabilities

    return predict


def nbsvm(training: Examples) -> Predictor:
    """Logistic regression on which runs of up to three words occur, each weighed by its log-count ratio.

    Wang and Manning 2012, section 2.3, with logistic loss and without interpolation, as Mesnil et al. 2015; of more
    than two classes each against the others.
    """
    vectorizer, occurs = trigrams(training)
    weights, offsets = nbsvm_weights(occurs, training.labels, len(training.classes))
    return lambda examples: nbsvm_chances(vectorizer.transform(together(examples)) @ weights + offsets)


def trigrams(training: Examples) -> tuple[Any, Any]:
    """What finds the runs of up to three words in texts, and those of the training examples, (N, F)."""
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(binary=True, ngram_range=(1, 3), token_pattern=r"\w+|[^\w\s]", dtype=np.float32)
    return vectorizer, vectorizer.fit_transform(together(training))


def nbsvm_weights(occurs: Any, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights (F, K) of features that occur or do not (N, F), and offsets (K,): K is `count`, but 1 of two classes."""
    return weights_of(occurs, [labels == number for number in ([1] if count == 2 else range(count))])


def weights_of(occurs: Any, answers: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Weights (F, K) and offsets (K,) for K questions, each answered by yes or no for every text, (N,)."""
    models = [against_the_rest(occurs, is_class) for is_class in answers]
    return np.stack([weights for weights, _ in models], axis=1), np.array([offset for _, offset in models])


def nbsvm_chances(scores: np.ndarray) -> np.ndarray:
    """The probability of each class, (N, C), from NB-SVM's sums of weights, (N, K)."""
    from scipy.special import expit

    chances = expit(scores)
    if scores.shape[1] == 1:
        chances = np.concatenate([1 - chances, chances], axis=1)
    return chances / np.maximum(chances.sum(1, keepdims=True), 1e-12)


def against_the_rest(occurs: Any, is_class: np.ndarray) -> tuple[np.ndarray, float]:
    """NB-SVM's weight of each feature (N, F) for one class, and its offset; what does not occur is never told."""
    from sklearn.linear_model import LogisticRegression

    if not is_class.any() or is_class.all():
        return np.zeros(occurs.shape[1], dtype=np.float32), 100.0 if is_class.all() else -100.0
    one, rest = (np.asarray(occurs[part].sum(0)).ravel() + 1 for part in (is_class, ~is_class))
    ratio = np.log((one / one.sum()) / (rest / rest.sum())).astype(np.float32)
    classifier = LogisticRegression(solver="liblinear", dual=True, random_state=0)
    classifier.fit(occurs.multiply(ratio).tocsr(), is_class)
    return classifier.coef_.ravel().astype(np.float32) * ratio, float(classifier.intercept_[0])


def words_regression(training: Examples, longest: int = 1) -> Predictor:
    """Ridge regression on TF-IDF of all runs of up to `longest` words."""
    from sklearn.linear_model import Ridge

    vectorizer, found = tfidf(training, longest)
    regression = Ridge().fit(found, training.labels)
    return lambda examples: regression.predict(vectorizer.transform(together(examples)))


def words_sets(training: Examples, longest: int = 1) -> Predictor:
    """Logistic regression on TF-IDF, for each label by itself: whether a text has it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    vectorizer, found = tfidf(training, longest)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Label .* is present in all")  # and none: it is told as it is
        classifier = OneVsRestClassifier(LogisticRegression(C=10, max_iter=1000)).fit(found, training.labels)
    count = len(training.classes)  # of one class scikit-learn gives its opposite too
    return lambda examples: classifier.predict_proba(vectorizer.transform(together(examples)))[:, -count:]


def nbsvm_sets(training: Examples) -> Predictor:
    """NB-SVM for each label by itself."""
    from scipy.special import expit

    vectorizer, occurs = trigrams(training)
    weights, offsets = weights_of(occurs, list(training.labels.T > 0.5))
    return lambda examples: expit(vectorizer.transform(together(examples)) @ weights + offsets)


BAGS: dict[str, dict[str, Callable[[Examples], Predictor]]] = {  # by task
    "classification": {
        "TF-IDF words": words_classifier,
        "TF-IDF words, bigrams": partial(words_classifier, longest=2),
        "NB-SVM trigrams": nbsvm,
    },
    "multi_label": {
        "TF-IDF words": words_sets,
        "TF-IDF words, bigrams": partial(words_sets, longest=2),
        "NB-SVM trigrams": nbsvm_sets,
    },
    "regression": {
        "TF-IDF words": words_regression,
        "TF-IDF words, bigrams": partial(words_regression, longest=2),
    },
}
