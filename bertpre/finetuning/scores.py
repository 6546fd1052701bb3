"""How good predictions are: the figures of each task, and their 95 % intervals."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

RESAMPLES, BINS = 1000, 15
AT_ONCE = 10**7  # numbers of drawn confusion matrices
INTERVAL = (2.5, 97.5)  # percentiles
BILOU = {"L": "E", "U": "S"}  # what IOBES calls these marks


def score(kind: str, labels: Any, outputs: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    """The figures of a task: `labels` and `outputs` as `Examples.labels` and `Task.outputs` have them.

    Of labelled words both are lists, an array for each text: class numbers (W,) and probabilities (W, C).
    """
    if kind == "regression":
        return score_numbers(labels, outputs)
    if kind == "multi_label":
        return score_sets(labels, outputs, classes)
    if kind == "tokens":
        return score_tags(labels, outputs, classes)
    return score_classes(labels, outputs, classes)


def score_classes(labels: np.ndarray, probabilities: np.ndarray, classes: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy, F1 (of the second of two classes, else the mean over classes), Matthews correlation, calibration."""
    from sklearn.metrics import confusion_matrix, log_loss

    numbers = range(len(classes))
    confusion = confusion_matrix(labels, probabilities.argmax(-1), labels=numbers)
    figures = {name: float(value) for name, value in from_confusion(confusion).items()}
    return figures | {
        "loss": float(log_loss(labels, probabilities, labels=numbers)),
        "per_class": per_class(confusion, classes),
        "confusion": confusion.tolist(),
        "calibration": calibration(labels, probabilities),
    }


def from_confusion(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Accuracy, F1 and Matthews correlation of confusion matrices (..., true C, predicted C).

    So that a bootstrap over examples is a draw of matrices. A class that is neither there nor predicted is left out of
    the mean of F1, as scikit-learn does; a correlation with what does not vary is 0.
    """
    total, right = confusion.sum((-1, -2)), np.trace(confusion, axis1=-2, axis2=-1)
    true, predicted = confusion.sum(-1), confusion.sum(-2)
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    is_there = true + predicted > 0
    f1 = 2 * hits / np.where(is_there, true + predicted, 1)
    spread = [np.sqrt(total.astype(float) ** 2 - (counts.astype(float) ** 2).sum(-1)) for counts in (true, predicted)]
    covariance = right.astype(float) * total - (true.astype(float) * predicted).sum(-1)
    both = spread[0] * spread[1]
    return {
        "accuracy": right / total,
        "f1": f1[..., 1] if confusion.shape[-1] == 2 else f1.sum(-1) / is_there.sum(-1),
        "matthews": np.where(both > 0, covariance / np.where(both > 0, both, 1), 0.0),
    }


def per_class(confusion: np.ndarray, classes: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and number of examples of each class."""
    true, predicted, hits = confusion.sum(1), confusion.sum(0), np.diagonal(confusion)
    return {name: of_counts(*counts) for name, *counts in zip(classes, hits, predicted, true, strict=True)}


def of_counts(hits: int, predicted: int, true: int) -> dict[str, float]:
    """Precision, recall and F1 from counts; 0 where there is nothing to divide by."""
    return {
        "precision": float(hits / max(predicted, 1)),
        "recall": float(hits / max(true, 1)),
        "f1": float(2 * hits / max(true + predicted, 1)),
        "examples": int(true),
    }


def calibration(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
    """How far stated probabilities are from what they should be.

    Expected calibration error (Guo et al. 2017, section 2): the mean distance of confidence and accuracy over
    bins of equal width; Brier score: the mean squared distance of all probabilities from the truth.
    """
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == labels
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins = [
        {
            "confidence": float(confidence[here].mean()),
            "accuracy": float(right[here].mean()),
            "examples": int(here.sum()),
        }
        for here in (place == number for number in range(BINS))
        if here.any()
    ]
    distance = sum(abs(each["confidence"] - each["accuracy"]) * each["examples"] for each in bins)
    truth = np.eye(probabilities.shape[1])[labels]
    return {
        "expected_error": distance / len(labels),
        "brier": float(((probabilities - truth) ** 2).sum(-1).mean()),
        "bins": bins,
    }


def score_numbers(labels: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """Pearson and Spearman correlation (0 where a side does not vary), root mean squared and mean absolute error."""
    labels, predicted = labels.astype(np.float64), predicted.astype(np.float64)
    return {
        "pearson": pearson(labels, predicted),
        "spearman": spearman(labels, predicted),
        "rmse": float(np.sqrt(((labels - predicted) ** 2).mean())),
        "mae": float(np.abs(labels - predicted).mean()),
        "loss": float(((labels - predicted) ** 2).mean()),
    }


def pearson(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of two rows of numbers."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of their ranks."""
    from scipy.stats import rankdata

    return pearson(rankdata(one), rankdata(other))


def score_sets(labels: np.ndarray, probabilities: np.ndarray, classes: tuple[str, ...]) -> dict[str, Any]:
    """F1 over all decisions at 0.5, its mean over classes, and the share of texts with every class right."""
    truth, chosen = labels > 0.5, probabilities > 0.5
    counts = np.stack([(truth & chosen).sum(0), chosen.sum(0), truth.sum(0)])
    classwise = {name: of_counts(*counts[:, number]) for number, name in enumerate(classes)}
    sure = np.clip(probabilities, 1e-7, 1 - 1e-7)
    return {
        "f1": of_counts(*counts.sum(1))["f1"],
        "f1_macro": float(np.mean([each["f1"] for each in classwise.values()])),
        "accuracy": float((truth == chosen).all(1).mean()),
        "loss": float(-np.where(truth, np.log(sure), np.log(1 - sure)).mean()),
        "per_class": classwise,
        "calibration": calibration(truth.ravel().astype(int), np.stack([1 - sure.ravel(), sure.ravel()], axis=1)),
    }


def score_tags(labels: list[np.ndarray], probabilities: list[np.ndarray], classes: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy over words, and F1: of whole entities where tags begin with B- and I-, else the mean over tags."""
    chosen = [row.argmax(-1) for row in probabilities]
    right = np.array([(one == other).sum() for one, other in zip(chosen, labels, strict=True)])
    words = np.array([len(row) for row in labels])
    every, sure = np.concatenate(labels), np.concatenate(probabilities)
    figures = {
        "accuracy": float(right.sum() / words.sum()),
        "loss": float(-np.log(np.maximum(sure[np.arange(len(every)), every], 1e-7)).mean()),
        "words": int(words.sum()),
    }
    if not has_entities(classes):
        return score_classes(every, sure, classes) | figures
    counts = entity_counts(labels, chosen, classes)
    return figures | {
        "calibration": calibration(every, sure),
        "f1": of_counts(*sum(counts.values()).sum(0))["f1"],
        "per_class": {kind: of_counts(*counts[kind].sum(0)) for kind in sorted(counts)},
    }


def entity_counts(
    labels: list[np.ndarray], chosen: list[np.ndarray], classes: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """For each kind of entity how many of each text were found rightly, were found at all, and are there, (N, 3)."""
    kinds = {kind for mark, _, kind in (name.partition("-") for name in classes) if mark in (*"BIES", *BILOU)}
    counts = {kind: np.zeros((len(labels), 3), dtype=np.int64) for kind in kinds}
    for number, rows in enumerate(zip(chosen, labels, strict=True)):
        found, truth = (entities([classes[tag] for tag in row]) for row in rows)
        for place, each in enumerate((found & truth, found, truth)):
            for kind, *_ in each:
                counts[kind][number, place] += 1
    return counts


def has_entities(classes: tuple[str, ...]) -> bool:
    """Whether tags mark the beginnings of entities."""
    return any(name.startswith("B-") for name in classes)


def entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """(kind, first word, word behind the last) of each entity; an I- behind another kind begins one, as in conlleval.

    Tags are IOB2, IOBES (E- ends an entity, S- is one of a single word) or BILOU, which has L- and U- for these.
    """
    found, start, kind = set(), 0, None
    for place, tag in enumerate([*tags, "O"]):
        mark, _, here = tag.partition("-")
        mark = BILOU.get(mark, mark)
        if kind is not None and (mark not in "IE" or here != kind):
            found.add((kind, start, place))
            kind = None
        if mark in ("B", "S") or (mark in ("I", "E") and kind is None):
            start, kind = place, here
        if mark in ("E", "S"):
            found.add((kind, start, place + 1))
            kind = None
    return found


def intervals(kind: str, labels: Any, outputs: Any, classes: tuple[str, ...]) -> dict[str, list[float]]:
    """The 95 % intervals of a task's main figures, from examples (of words, texts) drawn anew, 1,000 times."""
    if kind == "classification":
        return intervals_of_classes(labels, outputs, classes)
    measures: dict[str, Callable[[np.ndarray], float]]
    if kind == "regression":
        measures = {
            "pearson": lambda draw: pearson(labels[draw], outputs[draw]),
            "spearman": lambda draw: spearman(labels[draw], outputs[draw]),
        }
    elif kind == "multi_label":
        truth, chosen = labels > 0.5, outputs > 0.5
        hits, predicted, true = (part.sum(1) for part in (truth & chosen, chosen, truth))
        every = (truth == chosen).all(1)
        measures = {
            "f1": lambda draw: of_counts(hits[draw].sum(), predicted[draw].sum(), true[draw].sum())["f1"],
            "accuracy": lambda draw: every[draw].mean(),
        }
    else:
        right = np.array([(row.argmax(-1) == tags).sum() for row, tags in zip(outputs, labels, strict=True)])
        words = np.array([len(row) for row in labels])
        measures = {"accuracy": lambda draw: right[draw].sum() / words[draw].sum()}
        if has_entities(classes):
            counts = sum(entity_counts(labels, [row.argmax(-1) for row in outputs], classes).values())
            measures["f1"] = lambda draw: of_counts(*counts[draw].sum(0))["f1"]
    generator, drawn = np.random.default_rng(0), {name: [] for name in measures}
    for _ in range(RESAMPLES):
        draw = generator.integers(0, len(labels), len(labels))
        for name, measure in measures.items():
            drawn[name].append(measure(draw))
    return {name: percentiles(values) for name, values in drawn.items()}


def intervals_of_classes(
    labels: np.ndarray, probabilities: np.ndarray, classes: tuple[str, ...]
) -> dict[str, list[float]]:
    """Those of accuracy, F1 and Matthews correlation: drawing examples anew draws a confusion matrix."""
    from sklearn.metrics import confusion_matrix

    confusion = confusion_matrix(labels, probabilities.argmax(-1), labels=range(len(classes)))
    generator, share, drawn = np.random.default_rng(0), confusion.ravel() / len(labels), []
    for part in np.array_split(np.arange(RESAMPLES), -(-RESAMPLES * confusion.size // AT_ONCE)):
        matrices = generator.multinomial(len(labels), share, len(part)).reshape(-1, *confusion.shape)
        drawn.append(from_confusion(matrices))
    return {name: percentiles(np.concatenate([part[name] for part in drawn])) for name in drawn[0]}


def percentiles(values: Sequence[float]) -> list[float]:
    """The two ends of the middle 95 %."""
    return [float(value) for value in np.percentile(values, INTERVAL)]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and sample deviation of one figure over several seeds."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "deviation": deviation, "values": list(values)}
