"""Metrics against scikit-learn's and scipy's, and against cases worked out by hand."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from bertpre.finetuning import scores
from bertpre.finetuning.scores import (
    calibration,
    entities,
    from_confusion,
    intervals,
    mean_and_std,
    missing_variance,
    score,
)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_classification_metrics_equal_scikit_learns(count: int) -> None:
    generator = np.random.default_rng(count)
    labels = generator.integers(0, count, 400)
    probabilities = generator.dirichlet(np.ones(count), 400)
    probabilities[:200] += np.eye(count)[labels[:200]]
    probabilities /= probabilities.sum(1, keepdims=True)
    names = tuple("abcde"[:count])
    figures, predicted = score("classification", labels, probabilities, names), probabilities.argmax(1)
    assert figures["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    average = "binary" if count == 2 else "macro"
    assert figures["f1"] == pytest.approx(metrics.f1_score(labels, predicted, average=average))
    assert figures["matthews"] == pytest.approx(metrics.matthews_corrcoef(labels, predicted))
    assert figures["loss"] == pytest.approx(metrics.log_loss(labels, probabilities))
    assert figures["confusion"] == metrics.confusion_matrix(labels, predicted).tolist()
    report = metrics.classification_report(labels, predicted, target_names=names, output_dict=True)
    for name, row in figures["per_class"].items():
        assert [row["precision"], row["recall"], row["f1"], row["examples"]] == pytest.approx(
            [report[name]["precision"], report[name]["recall"], report[name]["f1-score"], report[name]["support"]]
        )
    low, high = intervals("classification", labels, probabilities, names)["accuracy"]
    exact = stats.binomtest(int((labels == predicted).sum()), 400).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((exact.low, exact.high))


def test_a_class_without_examples_and_predictions_is_left_out_of_mean_f1() -> None:
    labels = np.array([0, 1, 3, 3])
    figures = score("classification", labels, np.eye(4)[[0, 3, 3, 3]], tuple("abcd"))
    assert figures["f1"] == pytest.approx(metrics.f1_score(labels, [0, 3, 3, 3], average="macro"))


@pytest.mark.parametrize("kind", ["classification", "multi_label", "tokens"])
def test_twenty_of_twenty_right_leave_room_for_errors(kind: str) -> None:
    labels = np.arange(20) % 2
    one_hot = np.eye(2)[labels]
    truth = {"classification": labels, "multi_label": one_hot, "tokens": [labels] * 20}[kind]
    outputs = [one_hot] * 20 if kind == "tokens" else one_hot
    found = intervals(kind, truth, outputs, ("a", "b"))
    assert list(found) == ["accuracy"]  # all resamples have an F1 of 1
    low, high = found["accuracy"]
    assert 0.8 < low < 1 and high == pytest.approx(1)


def test_the_bootstrap_covers_95_percent() -> None:
    found = np.arange(400)[:, None] % 2  # of 400 labels every second one: F1 is 2 p / (1 + p) of that share p
    low, high = intervals("multi_label", np.ones((400, 1)), found, ("a",))["f1"]
    ends = stats.binomtest(200, 400).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx([2 * end / (1 + end) for end in (ends.low, ends.high)], abs=0.004)


def test_neighbours_that_are_alike_widen_every_interval() -> None:
    generator = np.random.default_rng(0)
    blocks = np.repeat(np.arange(40), 25)
    labels, is_hard = generator.integers(0, 2, 1000), generator.random(40) < 0.2
    wrong = generator.random(1000) < np.where(is_hard, 0.5, 0.05)[blocks]
    outputs = np.eye(2)[np.where(wrong, 1 - labels, labels)]
    for kind, truth in (("classification", labels), ("multi_label", np.eye(2)[labels])):
        single = intervals(kind, truth, outputs, ("a", "b"))
        grouped = intervals(kind, truth, outputs, ("a", "b"), blocks, by_class=kind == "classification")
        shuffled = intervals(kind, truth, outputs, ("a", "b"), generator.permutation(blocks))
        for name, (low, high) in grouped.items():
            assert high - low > 1.3 * (single[name][1] - single[name][0])
            assert np.ptp(shuffled[name]) == pytest.approx(np.ptp(single[name]), rel=0.2)
    assert list(intervals("classification", labels, outputs, ("a", "b"), np.zeros(1000))) == ["accuracy"]


def test_what_resamples_of_few_blocks_vary_too_little_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [missing_variance(sizes) for sizes in ([9], [3, 1], [1, 1])] == [9 / 8, 2.0, np.inf]
    generator = np.random.default_rng(0)
    labels, blocks = np.repeat([0, 1, 2, 2, 1], 40), np.repeat(np.arange(5), 40)  # class 0 has one block
    outputs = np.eye(3)[np.where(generator.random(200) < 0.2 + 0.1 * blocks, (labels + 1) % 3, labels)]
    seen = score("classification", labels, outputs, tuple("abc"))
    wide = intervals("classification", labels, outputs, tuple("abc"), blocks, by_class=True)
    monkeypatch.setattr(scores, "missing_variance", lambda sizes: 1.0)
    narrow = intervals("classification", labels, outputs, tuple("abc"), blocks, by_class=True)
    for name in ("f1", "matthews"):
        distances = [[end - seen[name] for end in each[name]] for each in (wide, narrow)]
        assert distances[0] == pytest.approx([(5 / 2) ** 0.5 * each for each in distances[1]])
    monkeypatch.undo()
    alone = intervals("classification", labels[40:120], outputs[40:120], tuple("abc"), blocks[40:120], by_class=True)
    assert alone == {"accuracy": [0.0, 1.0]}


def test_no_interval_leaves_the_range_of_its_metric() -> None:
    labels = np.repeat([0, 1], 40)
    outputs = np.eye(2)[labels]
    outputs[[0, 79]] = outputs[[79, 0]]
    found = intervals("classification", labels, outputs, ("a", "b"), np.repeat(np.arange(4), 20))
    assert found["f1"][1] == found["matthews"][1] == 1.0


def test_blocks_of_one_class_leave_the_balance_of_the_classes_as_it_is() -> None:
    labels, blocks = np.repeat([0, 1], 500), np.repeat(np.arange(40), 25)  # sorted by label
    wrong = np.random.default_rng(0).random(1000) < np.where(labels, 0.2, 0.02)
    outputs = np.eye(2)[np.where(wrong, 1 - labels, labels)]
    single = intervals("classification", labels, outputs, ("a", "b"))
    grouped = intervals("classification", labels, outputs, ("a", "b"), blocks, by_class=True)
    for name in ("accuracy", "f1"):
        assert np.ptp(grouped[name]) < 1.1 * np.ptp(single[name])


def test_copies_of_texts_are_counted_as_one_whatever_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "RESAMPLES", 10)  # accuracy's interval needs none
    generator, names, is_inside = np.random.default_rng(0), ("a", "b"), []
    for _ in range(300):
        labels = (generator.random(60) < 0.8).astype(int)
        outputs = np.eye(2)[np.ones(60, dtype=int)]  # always the second class: the balance decides on the accuracy
        tenfold = np.repeat(np.arange(60), 10)
        low, high = intervals("classification", labels[tenfold], outputs[tenfold], names, tenfold)["accuracy"]
        is_inside.append(low <= 0.8 <= high)
    assert np.mean(is_inside) > 0.92


def test_a_constant_prediction_has_no_correlation() -> None:
    assert from_confusion(np.array([[5, 0], [3, 0]])) == {"accuracy": 0.625, "f1": 0.0, "matthews": 0.0}
    counts = np.arange(1, 400)[:, None] * [1, 3, 7]
    assert from_confusion(counts[..., None] * np.eye(3, dtype=int))["matthews"].max() == 1.0  # not the next float
    assert score("regression", np.array([1.0, 2.0]), np.array([3.0, 3.0]), ("x",))["pearson"] == 0.0


def test_calibration_of_four_examples() -> None:
    labels = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.2, 0.8]])
    measured = calibration(labels, probabilities)
    assert measured["expected_error"] == pytest.approx((3 * abs(0.9 - 2 / 3) + abs(0.8 - 1)) / 4)
    assert measured["brier"] == pytest.approx(metrics.brier_score_loss(labels, probabilities[:, 1]) * 2)
    assert sum(each["examples"] for each in measured["bins"]) == 4


def test_regression_metrics_equal_scipys() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 6, 100).astype(np.float32)
    predicted = labels + generator.normal(size=100)
    figures = score("regression", labels, predicted, ("grade",))
    assert figures["pearson"] == pytest.approx(stats.pearsonr(labels, predicted).statistic)
    assert figures["spearman"] == pytest.approx(stats.spearmanr(labels, predicted).statistic)
    assert figures["rmse"] ** 2 == pytest.approx(metrics.mean_squared_error(labels, predicted))
    low, high = intervals("regression", labels, predicted, ("grade",))["pearson"]
    assert low < figures["pearson"] < high


def test_multi_label_metrics_equal_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    labels, probabilities = generator.integers(0, 2, (50, 3)).astype(np.float32), generator.random((50, 3))
    figures, chosen = score("multi_label", labels, probabilities, ("a", "b", "c")), probabilities > 0.5
    assert figures["f1"] == pytest.approx(metrics.f1_score(labels, chosen, average="micro"))
    assert figures["f1_macro"] == pytest.approx(metrics.f1_score(labels, chosen, average="macro"))
    assert figures["accuracy"] == pytest.approx(metrics.accuracy_score(labels, chosen))
    brier = metrics.brier_score_loss(labels.ravel(), probabilities.ravel())
    assert figures["calibration"]["brier"] == pytest.approx(2 * brier)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-PER I-PER O", {("PER", 1, 3)}),
        ("B-PER B-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("I-LOC I-LOC I-PER", {("LOC", 0, 2), ("PER", 2, 3)}),
        ("S-LOC B-PER E-PER O", {("LOC", 0, 1), ("PER", 1, 3)}),
        ("S-LOC I-LOC", {("LOC", 0, 1), ("LOC", 1, 2)}),
        ("B-LOC E-LOC E-LOC", {("LOC", 0, 2), ("LOC", 2, 3)}),
        ("U-LOC B-PER I-PER L-PER O", {("LOC", 0, 1), ("PER", 1, 4)}),
        ("o b-per i-per u-LOC", {("per", 1, 3), ("LOC", 3, 4)}),
        ("B-ORG M-ORG E-ORG S-PER O b-org m-org m-org e-org", {("ORG", 0, 3), ("PER", 3, 4), ("org", 5, 9)}),
        ("W-ORG B-PER M-PER E-PER", {("ORG", 0, 1), ("PER", 1, 4)}),
        ("O O", set()),
    ],
)
def test_entities_of_tags(tags: str, found: set[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == found


def test_two_plain_tags_have_a_mean_f1_with_an_interval() -> None:
    labels, guesses = [np.array([0, 0, 1]), np.array([0, 1])], [np.array([0, 0, 0]), np.array([0, 1])]
    outputs = [np.eye(2)[each] for each in guesses]
    wanted = metrics.f1_score(np.concatenate(labels), np.concatenate(guesses), average="macro")
    assert score("tokens", labels, outputs, ("N", "V"))["f1"] == pytest.approx(wanted)
    low, high = intervals("tokens", labels * 50, outputs * 50, ("N", "V"))["f1"]
    assert low < wanted < high


def test_an_entity_counts_only_as_a_whole() -> None:
    classes = ("B-PER", "I-PER", "O")
    labels = [np.array([0, 1, 2]), np.array([2, 0])]
    outputs = [np.eye(3)[[0, 2, 2]], np.eye(3)[[2, 0]]]
    figures = score("tokens", labels, outputs, classes)
    assert figures["accuracy"] == pytest.approx(4 / 5)
    assert figures["f1"] == pytest.approx(0.5)  # one of two, of two
    assert figures["calibration"]["expected_error"] == pytest.approx(1 / 5)
    assert figures["per_class"] == {"PER": {"precision": 0.5, "recall": 0.5, "f1": 0.5, "examples": 2}}
    iob1 = score("tokens", [np.array([0, 0, 1])], [np.eye(2)[[0, 1, 1]]], ("I-PER", "O"))  # no entity begins beside one
    assert (iob1["f1"], list(iob1["per_class"])) == (0.0, ["PER"])
    lone = score("tokens", [np.array([0, 2])], [np.eye(3)[[0, 2]]], ("B-PER", "I-PER", "S"))  # a tag without a kind
    assert lone["f1"] == 1
    assert intervals("tokens", labels * 50, outputs * 50, classes)["f1"] == pytest.approx([0.5, 0.5], abs=0.15)


def test_spread_over_seeds() -> None:
    assert mean_and_std([0.9, 0.92, 0.94]) == {
        "mean": pytest.approx(0.92),
        "std": pytest.approx(0.02),
        "values": [0.9, 0.92, 0.94],
    }
    assert mean_and_std([0.5])["std"] == 0.0
