"""The evaluation part of the report: test metrics, worst mistakes, baselines, label curve, GLUE."""

import html
from typing import Any

from bertpre.recipe import METRICS
from bertpre.reporting.page import image, new_figure, table, to_png


def evaluation_sections(results: dict[str, Any], kind: str) -> list[str]:
    """Tables and pictures of the evaluations in a run's results; `kind` is the task."""
    parts: list[str] = []
    measured = results.get("evaluate", {})
    if "per_class" in measured:
        head = ("class", "precision", "recall", "F1", "examples")
        parts += ["<h2>Test split</h2>", table(class_rows(measured["per_class"]), head)]
    if "confusion" in measured and len(measured["confusion"]) <= 20:
        names = list(measured["per_class"])
        rows = [(name, *map(str, row)) for name, row in zip(names, measured["confusion"], strict=True)]
        parts += ["<h3>Confusion matrix (rows: true class, columns: predicted class)</h3>", table(rows, ("", *names))]
    if "calibration" in measured:
        calibration = measured["calibration"]
        error, brier = calibration["expected_error"], calibration["brier"]
        text = f"<p>Expected calibration error {error:.3f}, Brier score {brier:.3f}.</p>"
        parts += ["<h3>Calibration</h3>", text, image(plot_calibration(calibration))]
    if measured.get("mistakes"):
        parts += ["<h3>Worst mistakes</h3>", mistakes(measured["mistakes"])]
    if "baseline" in results:
        parts += ["<h2>Baselines on the same examples</h2>", baselines(results, kind)]
    if "curve" in results:
        parts += ["<h2>Accuracy by number of labels</h2>", image(plot_curve(results["curve"]))]
    if "glue" in results:
        parts += ["<h2>GLUE, development sets</h2>", glue(results["glue"])]
    return parts


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
        title = f"{word}true {row['label']}, predicted {row['prediction']}{probability}; {row['id']}"
        items.append(f"<li><b>{html.escape(title)}</b><br>{html.escape(row['text'])}</li>")
    return f"<ol>{''.join(items)}</ol>"


def baselines(results: dict[str, Any], kind: str) -> str:
    """A table of the baselines and, in its last row, the run's own model."""
    named = dict(results["baseline"])
    if "evaluate" in results:
        named["this run"] = own_row(kind, results)
    columns = [name for name in next(iter(named.values())) if name != "seconds"]
    rows = [
        (name, *("" if row[of] is None else f"{row[of]:.4f}" for of in columns), f"{row['seconds']:.0f} s")
        for name, row in named.items()
    ]
    return table(rows, ("", *columns, "time to train and test"))


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


def plot_calibration(calibration: dict[str, Any]) -> bytes:
    """Accuracy in each bin of the predicted probability; a PNG."""
    figure, (axis,) = new_figure(1)
    confidence = [row["confidence"] for row in calibration["bins"]]
    accuracy = [row["accuracy"] for row in calibration["bins"]]
    axis.plot([0, 1], [0, 1], color="grey", linestyle="--", label="perfect calibration")
    axis.plot(confidence, accuracy, "o-", markersize=4, label="this classifier")
    axis.set(xlabel="predicted probability", ylabel="accuracy", xlim=(min(confidence) - 0.05, 1.02))
    axis.set_ylim(min(accuracy) - 0.05, 1.02)
    axis.legend()
    return to_png(figure)


def plot_curve(points: list[dict[str, Any]]) -> bytes:
    """Test accuracy over the number of labels, with the standard deviation over seeds; a PNG."""
    figure, (axis,) = new_figure(1)
    for init in dict.fromkeys(point["init"] for point in points):
        chosen = sorted((point for point in points if point["init"] == init), key=lambda point: point["examples"])
        accuracy = [point["accuracy"] for point in chosen]
        axis.errorbar(
            [point["examples"] for point in chosen],
            [each["mean"] for each in accuracy],
            [each["std"] for each in accuracy],
            fmt="o-",
            markersize=4,
            capsize=3,
            label="no pretraining" if init == "random" else init,
        )
    axis.set(xscale="log", xlabel="labelled texts", ylabel="test accuracy")
    axis.legend()
    return to_png(figure)
