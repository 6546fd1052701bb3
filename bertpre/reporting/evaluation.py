"""The evaluation part of the report: test metrics, worst mistakes, baselines, label curve, GLUE."""

import html
from typing import Any

from bertpre.recipe import METRICS
from bertpre.reporting.charts import Curve, bar_chart, line_chart, percent
from bertpre.reporting.curves import grid
from bertpre.reporting.page import folded, heat_table, table

MOST_CLASSES = 20  # in a confusion matrix
FEW = 10  # examples, below which a bin of the calibration says little


def evaluation_section(results: dict[str, Any], kind: str) -> str:
    """Tables and charts of the evaluations in a run's results; `kind` is the task."""
    parts: list[str] = []
    measured = results.get("evaluate", {})
    if "per_class" in measured:
        head = ("class", "precision", "recall", "F1", "examples")
        parts += ["<h3>By class</h3>", table(class_rows(measured["per_class"]), head)]
    if "confusion" in measured:
        parts.append(confusion(measured["confusion"], list(measured["per_class"])))
    if "calibration" in measured:
        parts.append(calibration_part(measured["calibration"]))
    if measured.get("mistakes"):
        parts += ["<h3>Worst mistakes</h3>", mistakes(measured["mistakes"])]
    if "baseline" in results:
        parts += ["<h3>Baselines on the same examples</h3>", baselines(results, kind)]
    if "curve" in results:
        parts += ["<h3>Accuracy by number of labels</h3>", label_chart(results["curve"])]
    if "glue" in results:
        parts += ["<h3>GLUE, development sets</h3>", glue(results["glue"])]
    return "".join(parts)


def confusion(counts: list[list[int]], names: list[str]) -> str:
    """The confusion matrix as a heat map; of many classes the pairs that are confused most often."""
    if len(names) <= MOST_CLASSES:
        title = "<h3>Confusion matrix</h3><p class=note>Shares are of the row, the true class.</p>"
        return title + heat_table(counts, names, "true \\ predicted")
    found = [
        (count, true, predicted)
        for true, row in zip(names, counts, strict=True)
        for predicted, count in zip(names, row, strict=True)
        if true != predicted and count
    ]
    rows = [(true, predicted, f"{count:,}") for count, true, predicted in sorted(found, reverse=True)[:10]]
    return "<h3>Most frequent confusions</h3>" + table(rows, ("true class", "predicted", "examples"))


def calibration_part(calibration: dict[str, Any]) -> str:
    """Accuracy by predicted probability, with the number of examples in each bin."""
    bins = calibration["bins"]
    small = tuple(row["examples"] < FEW for row in bins)
    points = [(row["confidence"], row["accuracy"]) for row in bins]
    chart = line_chart(
        "Accuracy by predicted probability", [Curve("this classifier", points, marks=True, doubtful=small)],
        "predicted probability", y_format=percent, diagonal="perfect calibration",
        note=f"hollow: fewer than {FEW} examples" if any(small) else "",
    )  # fmt: skip
    counts = bar_chart(
        "Examples in each bin", [f"{row['confidence']:.2f}" for row in bins], [row["examples"] for row in bins],
        "mean predicted probability",
    )  # fmt: skip
    rows = [
        (
            f"{row['confidence']:.3f}", f"{row['accuracy']:.1%}", f"{row['examples']:,}",
            f"fewer than {FEW}: uncertain" if is_small else "",
        )
        for row, is_small in zip(bins, small, strict=True)
    ]  # fmt: skip
    return (
        f"<h3>Calibration</h3><p>Expected calibration error {calibration['expected_error']:.3f}, Brier score "
        f"{calibration['brier']:.3f}.</p><div class=charts>{chart}{counts}</div>"
        + folded("The bins in numbers", table(rows, ("probability", "accuracy", "examples", "")))
    )


def overlap_text(measured: dict[str, Any]) -> str:
    """How many test texts the classifier learned from, and the task's first metric without them."""
    text = f"{measured['overlap']:,} of {measured['examples']:,} test texts equal a training text"
    if unlabelled := measured.get("overlap_unlabelled"):
        text += f" ({unlabelled:,} only an unlabelled one)"
    if "without_overlap" in measured:
        name, value = next(iter(measured["without_overlap"].items()))
        text += f"; {name} without them {value:.4f}"
    return text


def class_rows(per_class: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    """Precision, recall and F1 of each class."""
    return [
        (name, *(f"{row[of]:.4f}" for of in ("precision", "recall", "f1")), f"{row['examples']:,}")
        for name, row in per_class.items()
    ]


def mistakes(rows: list[dict[str, Any]]) -> str:
    """The test examples with the largest errors."""
    items = []
    for row in rows:
        probability = f" (probability {row['probability']:.1%})" if "probability" in row else ""
        word = f"{row['word']}: " if "word" in row else ""
        label, prediction = (short(row[name]) for name in ("label", "prediction"))
        title = f"{word}true {label}, predicted {prediction}{probability}; {row['id']}"
        items.append(f"<li><b>{html.escape(title)}</b><br>{html.escape(row['text'])}</li>")
    return f"<ol class=mistakes>{''.join(items)}</ol>"


def short(value: Any) -> str:
    """A class as it is, or a number of a regression with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def baselines(results: dict[str, Any], kind: str) -> str:
    """A table of the baselines and, in its last row, the run's own model where it was measured on the same."""
    named = dict(results["baseline"])
    if is_comparable(results):
        named["this run"] = own_row(kind, results)
    columns = [name for name in next(iter(named.values())) if name != "seconds"]
    rows = [
        (name, *("" if row[of] is None else f"{row[of]:.4f}" for of in columns), f"{row['seconds']:.0f} s")
        for name, row in named.items()
    ]
    return table(rows, ("", *columns, "time to train and test"))


def is_comparable(results: dict[str, Any]) -> bool:
    """Whether a run's model was measured on what its baselines were: the same texts, with the same settings."""
    baseline_of = results.get("baseline_of")
    return "evaluate" in results and results["evaluate"].get("compared", baseline_of) == baseline_of


def own_row(kind: str, results: dict[str, Any]) -> dict[str, Any]:
    """The run's own model as a row of the table."""
    tuned, tested = results["finetune"], results["evaluate"]
    names = [name for name in METRICS[kind] if name != "loss"]
    row = {"validation": tuned.get("validation", {}).get(names[0])} | {name: tested[name] for name in names}
    return row | {"seconds": tuned["seconds"] + tested["seconds"]}


def glue(measured: dict[str, Any]) -> str:
    """The official metrics of each task and their average."""
    rows = [
        (name, ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items()))
        for name, metrics in measured["tasks"].items()
    ]
    rows += [
        (name.replace("_", " "), f"{measured[name]:.4f}")
        for name in ("average", "average_without_wnli")
        if name in measured
    ]
    return table(rows)


def label_chart(points: list[dict[str, Any]]) -> str:
    """Test accuracy over the number of labels, with the standard deviation over several seeds."""
    curves, has_spread = [], any(len(point["accuracy"]["values"]) > 1 for point in points)
    for init in dict.fromkeys(point["init"] for point in points):
        chosen = sorted((point for point in points if point["init"] == init), key=lambda point: point["examples"])
        accuracy = [point["accuracy"] for point in chosen]
        curves.append(
            Curve(
                "no pretraining" if init == "random" else init,
                [(point["examples"], each["mean"]) for point, each in zip(chosen, accuracy, strict=True)],
                marks=True,
                errors=tuple(each["std"] for each in accuracy) if has_spread else (),
            )
        )
    note = "± 1 std over seeds" if has_spread else ""
    return grid([line_chart("Test accuracy", curves, "labelled texts", y_format=percent, is_log=True, note=note)])
