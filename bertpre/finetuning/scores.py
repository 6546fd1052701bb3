"""The metrics of each task, and their 95 % confidence intervals."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bertpre.recipe import METRICS
from bertpre.training.intervals import clustered_interval, wilson_interval

RESAMPLES, BINS = 1000, 15
INTERVAL = (2.5, 97.5)  # percentiles
TINY = 1e-9  # rounding errors of metrics that are equal
SAME_PLACE = {"L": "E", "U": "S", "M": "I", "W": "S"}  # marks of BILOU and BMEWO, and those of IOBES
RANGES = {"f1": (0.0, 1.0)}  # of metrics that are not between -1 and 1


def score(kind: str, labels: Any, outputs: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    """The metrics of a task; `labels` and `outputs` have the form of `Examples.labels` and `Task.outputs`.

    In the task `tokens` both are lists with an array for each text: class numbers (W,) and probabilities (W, C).
    """
    if kind == "regression":
        return score_numbers(labels, outputs)
    if kind == "multi_label":
        return score_multi_label(labels, outputs, classes)
    if kind == "tokens":
        return score_tags(labels, outputs, classes)
    return score_classes(labels, outputs, classes)


def score_classes(labels: np.ndarray, probabilities: np.ndarray, classes: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy, F1 (of two classes the second one's, else the mean over classes), Matthews correlation, calibration."""
    from sklearn.metrics import confusion_matrix, log_loss

    numbers = range(len(classes))
    confusion = confusion_matrix(labels, probabilities.argmax(-1), labels=numbers)
    metrics = {name: float(value) for name, value in from_confusion(confusion).items()}
    return metrics | {
        "loss": float(log_loss(labels, probabilities, labels=numbers)),
        "per_class": per_class(confusion, classes),
        "confusion": confusion.tolist(),
        "calibration": calibration(labels, probabilities),
    }


def from_confusion(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Accuracy, F1 and Matthews correlation of confusion matrices (..., true C, predicted C).

    The mean F1 leaves out classes that neither occur nor are predicted, as scikit-learn does. The correlation is 0 if
    labels or predictions do not vary.
    """
    total, right = confusion.sum((-1, -2)), np.trace(confusion, axis1=-2, axis2=-1)
    true, predicted = confusion.sum(-1), confusion.sum(-2)
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    occurs = true + predicted > 0
    f1 = 2 * hits / np.where(occurs, true + predicted, 1)
    widths = [np.sqrt(total.astype(float) ** 2 - (counts.astype(float) ** 2).sum(-1)) for counts in (true, predicted)]
    covariance = right.astype(float) * total - (true.astype(float) * predicted).sum(-1)
    both = widths[0] * widths[1]
    return {
        "accuracy": right / total,
        "f1": f1[..., 1] if confusion.shape[-1] == 2 else f1.sum(-1) / occurs.sum(-1),
        "matthews": np.clip(np.where(both > 0, covariance / np.where(both > 0, both, 1), 0.0), -1, 1),
    }


def per_class(confusion: np.ndarray, classes: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and number of examples of each class."""
    true, predicted, hits = confusion.sum(1), confusion.sum(0), np.diagonal(confusion)
    return {name: precision_recall_f1(*counts) for name, *counts in zip(classes, hits, predicted, true, strict=True)}


def precision_recall_f1(hits: int, predicted: int, true: int) -> dict[str, float]:
    """Precision, recall and F1 from counts; 0 instead of a division by 0."""
    return {
        "precision": float(hits / max(predicted, 1)),
        "recall": float(hits / max(true, 1)),
        "f1": float(2 * hits / max(true + predicted, 1)),
        "examples": int(true),
    }


def calibration(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
    """Expected calibration error, Brier score, and the bins of a reliability diagram.

    The expected calibration error (Guo et al. 2017, section 2) is the mean distance between confidence and accuracy
    over bins of equal width; the Brier score is the squared distance between probabilities and truth.
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
    """Pearson and Spearman correlation (0 if a side does not vary), root mean squared error and mean absolute error."""
    labels, predicted = labels.astype(np.float64), predicted.astype(np.float64)
    return {
        "pearson": pearson(labels, predicted),
        "spearman": spearman(labels, predicted),
        "rmse": float(np.sqrt(((labels - predicted) ** 2).mean())),
        "mae": float(np.abs(labels - predicted).mean()),
        "loss": float(((labels - predicted) ** 2).mean()),
    }


def pearson(one: np.ndarray, other: np.ndarray) -> float:
    """The Pearson correlation of two arrays (N,)."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """The Spearman correlation of two arrays (N,)."""
    from scipy.stats import rankdata

    return pearson(rankdata(one), rankdata(other))


CORRELATIONS = {"pearson": pearson, "spearman": spearman}


def score_multi_label(labels: np.ndarray, probabilities: np.ndarray, classes: tuple[str, ...]) -> dict[str, Any]:
    """F1 over all decisions at 0.5, mean F1 over classes, and the fraction of texts with every class right."""
    truth, chosen = labels > 0.5, probabilities > 0.5
    counts = np.stack([(truth & chosen).sum(0), chosen.sum(0), truth.sum(0)])
    classwise = {name: precision_recall_f1(*counts[:, number]) for number, name in enumerate(classes)}
    clipped = np.clip(probabilities, 1e-7, 1 - 1e-7)
    flat = clipped.ravel()
    return {
        "f1": precision_recall_f1(*counts.sum(1))["f1"],
        "f1_macro": float(np.mean([each["f1"] for each in classwise.values()])),
        "accuracy": float((truth == chosen).all(1).mean()),
        "loss": float(-np.where(truth, np.log(clipped), np.log(1 - clipped)).mean()),
        "per_class": classwise,
        "calibration": calibration(truth.ravel().astype(int), np.stack([1 - flat, flat], axis=1)),
    }


def score_tags(labels: list[np.ndarray], probabilities: list[np.ndarray], classes: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy over words, and F1: of whole entities if tags begin with B- and I-, else the mean over tags."""
    all_labels, all_probabilities = np.concatenate(labels), np.concatenate(probabilities)
    picked = all_probabilities[np.arange(len(all_labels)), all_labels]
    metrics = {
        "accuracy": float((all_probabilities.argmax(-1) == all_labels).mean()),
        "loss": float(-np.log(np.maximum(picked, 1e-7)).mean()),
        "words": len(all_labels),
    }
    if not has_entities(classes):
        f1 = mean_f1(tag_counts(labels, probabilities, len(classes)).sum(0))
        return score_classes(all_labels, all_probabilities, classes) | metrics | {"f1": f1}
    counts = entity_counts(labels, probabilities, classes)
    return metrics | {
        "calibration": calibration(all_labels, all_probabilities),
        "f1": precision_recall_f1(*np.sum(list(counts.values()), axis=(0, 1)))["f1"],
        "per_class": {kind: precision_recall_f1(*counts[kind].sum(0)) for kind in sorted(counts)},
    }


def tag_counts(labels: list[np.ndarray], probabilities: list[np.ndarray], count: int) -> np.ndarray:
    """For each text the correct, predicted and true words of each of `count` tags, (N, 3, C)."""
    found = [row.argmax(-1) for row in probabilities]
    parts = [(tags[tags == guess], guess, tags) for tags, guess in zip(labels, found, strict=True)]
    return np.array([[np.bincount(each, minlength=count) for each in part] for part in parts])


def mean_f1(counts: np.ndarray) -> float:
    """The mean F1 of the classes that occur or are predicted, from correct, predicted and true ones, (3, C)."""
    hits, predicted, true = counts
    occurs = predicted + true > 0
    return float((2 * hits[occurs] / (predicted + true)[occurs]).mean())


def entity_counts(
    labels: list[np.ndarray], probabilities: list[np.ndarray], classes: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """For each kind of entity the correct, predicted and true entities of each text, (N, 3)."""
    kinds = {kind for mark, kind in map(mark_and_kind, classes) if mark in tuple("BIES")}
    counts = {kind: np.zeros((len(labels), 3), dtype=np.int64) for kind in kinds}
    for number, (row, tags) in enumerate(zip(probabilities, labels, strict=True)):
        found, truth = (entities([classes[tag] for tag in each]) for each in (row.argmax(-1), tags))
        for place, each in enumerate((found & truth, found, truth)):
            for kind, *_ in each:
                counts[kind][number, place] += 1
    return counts


def has_entities(classes: tuple[str, ...]) -> bool:
    """Whether the tags are those of entities; IOB1 has B- only where one follows another of its kind."""
    return any(name.upper().startswith(("B-", "I-")) for name in classes)


def mark_and_kind(tag: str) -> tuple[str, str]:
    """The place of a word in its entity (B, I, E, S, or O outside), as IOBES names it, and the entity's kind."""
    mark, _, kind = tag.partition("-")
    return SAME_PLACE.get(mark.upper(), mark.upper()), kind


def entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """(kind, first word, last word + 1) of each entity; an I- after another kind begins an entity, as in conlleval.

    Tags are IOB1, IOB2, IOBES (E- ends an entity, S- is a single word), BILOU, which writes L- and U- for these, or
    BMES and BMEWO, which write M- for I- and W- for S-; in capitals or small letters.
    """
    found: set[tuple[str, int, int]] = set()
    start, kind = 0, None
    for place, tag in enumerate([*tags, "O"]):
        mark, here = mark_and_kind(tag)
        if kind is not None and (mark not in "IE" or here != kind):
            found.add((kind, start, place))
            kind = None
        if mark in ("B", "S") or (mark in ("I", "E") and kind is None):
            start, kind = place, here
        if mark in ("E", "S"):
            found.add((here, start, place + 1))
            kind = None
    return found


def intervals(
    kind: str,
    labels: Any,
    outputs: Any,
    classes: tuple[str, ...],
    blocks: np.ndarray | None = None,
    by_class: bool = False,
) -> dict[str, list[float]]:
    """95 % confidence intervals of a task's main metrics: Wilson's for accuracy, bootstrap percentiles for the others.

    `blocks` (N,) numbers the blocks of texts that are alike: then whole blocks are resampled, and accuracy's interval
    is wider by their design effect, as it always is for words, which are alike within a text. With `by_class` the
    blocks are drawn in strata, as in a file that is sorted by label: chance does not decide the balance of the classes.
    A metric that is the same in every resample has no interval: the bootstrap cannot say how far it is from that of
    other texts. Where strata have few blocks, the bootstrap's intervals are widened by what resamples vary too little.
    """
    found, strata, stretch = {}, None, 1.0
    if blocks is not None:
        strata = blocks_by_class(blocks, labels if by_class else np.zeros(len(labels), dtype=int))
        stretch = missing_variance(list(map(len, strata))) ** 0.5
    if kind != "regression":
        found["accuracy"] = accuracy_interval(kind, *right_answers(kind, labels, outputs), strata)
    if stretch == np.inf:
        return found
    measure = other_metrics(kind, labels, outputs, classes)
    drawn = [measure(draw) for draw in resamples(len(labels), strata)]
    for name, seen in measure(np.arange(len(labels))).items():
        low, high = percentiles([row[name] for row in drawn])
        if high - low > TINY:
            ends = [end + (stretch - 1) * (end - seen) for end in (low, high)]
            found[name] = [float(end) for end in np.clip(ends, *RANGES.get(name, (-1.0, 1.0)))]
    return found


def missing_variance(sizes: list[int]) -> float:
    """By how much a bootstrap's variance is too small where it draws strata of so many blocks each.

    A stratum of n blocks has (n - 1) / n of its variance among resamples, one of a single block none (Rao and Wu 1988).
    Infinite where every stratum has one block.
    """
    freedom = sum(sizes) - len(sizes)
    return sum(sizes) / freedom if freedom else np.inf


def blocks_by_class(blocks: np.ndarray, classes: np.ndarray) -> list[list[np.ndarray]]:
    """The numbers of the texts of each block, sorted into strata: the blocks with the same most frequent class."""
    in_order = np.argsort(blocks, kind="stable")
    starts = np.unique(blocks[in_order], return_index=True)[1]
    strata: dict[int, list[np.ndarray]] = {}
    for members in np.split(in_order, starts[1:]):
        strata.setdefault(int(np.bincount(classes[members]).argmax()), []).append(members)
    return list(strata.values())


def accuracy_interval(
    kind: str, right: np.ndarray, answers: np.ndarray, strata: list[list[np.ndarray]] | None
) -> list[float]:
    """The interval of an accuracy, from the right answers and all answers of each text, (N,) each."""
    if strata is None and kind != "tokens":
        return wilson_interval(float(right.mean()), len(right))
    if strata is None:
        return clustered_interval(right, answers, np.zeros(len(right), dtype=int))
    hits, sizes = (
        np.array([counts[members].sum() for stratum in strata for members in stratum]) for counts in (right, answers)
    )
    return clustered_interval(hits, sizes, np.repeat(np.arange(len(strata)), [len(stratum) for stratum in strata]))


def right_answers(kind: str, labels: Any, outputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """The number of right answers for each text and of all answers, (N,) each; `tokens` has an answer for each word."""
    if kind == "tokens":
        right = [(row.argmax(-1) == tags).sum() for row, tags in zip(outputs, labels, strict=True)]
        return np.array(right), np.array([len(row) for row in labels])
    is_right = ((labels > 0.5) == (outputs > 0.5)).all(1) if kind == "multi_label" else labels == outputs.argmax(-1)
    return is_right.astype(int), np.ones(len(labels), dtype=int)


def other_metrics(
    kind: str, labels: Any, outputs: Any, classes: tuple[str, ...]
) -> Callable[[np.ndarray], dict[str, float]]:
    """A function from the numbers of the chosen texts to their main metrics without accuracy."""
    if kind == "regression":
        return lambda chosen: {name: of(labels[chosen], outputs[chosen]) for name, of in CORRELATIONS.items()}
    if kind == "classification":
        cells, count = labels * len(classes) + outputs.argmax(-1), len(classes)

        def of_classes(chosen: np.ndarray) -> dict[str, float]:
            metrics = from_confusion(np.bincount(cells[chosen], minlength=count**2).reshape(count, count))
            return {name: float(metrics[name]) for name in ("f1", "matthews")}

        return of_classes
    if kind == "tokens" and not has_entities(classes):
        of_tags = tag_counts(labels, outputs, len(classes))
        return lambda chosen: {"f1": mean_f1(of_tags[chosen].sum(0))}
    if kind == "tokens":
        counts = np.sum(list(entity_counts(labels, outputs, classes).values()), axis=0)
    else:
        truth, found = labels > 0.5, outputs > 0.5
        counts = np.stack([part.sum(1) for part in (truth & found, found, truth)], axis=1)
    return lambda chosen: {"f1": precision_recall_f1(*counts[chosen].sum(0))["f1"]}


def resamples(count: int, strata: list[list[np.ndarray]] | None) -> Iterator[np.ndarray]:
    """The numbers of the texts in 1,000 resamples, with replacement, of `count` texts or of each stratum's blocks."""
    generator = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        if strata is None:
            yield generator.integers(0, count, count)
        else:
            draws = [(blocks, generator.integers(0, len(blocks), len(blocks))) for blocks in strata]
            yield np.concatenate([blocks[number] for blocks, numbers in draws for number in numbers])


def percentiles(values: Sequence[float] | np.ndarray) -> list[float]:
    """The ends of the middle 95 % of the values."""
    return [float(value) for value in np.percentile(values, INTERVAL)]


def mean_and_std(values: Sequence[float]) -> dict[str, Any]:
    """Mean and sample standard deviation of one metric over several seeds."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": std, "values": list(values)}


def main_metrics(kind: str) -> list[str]:
    """The metrics of a task that are shown first, without the loss."""
    return [name for name in METRICS[kind] if name != "loss"]
