"""The part of the report that tells how good a classifier is, where it errs, and what it must beat."""

import html
from typing import Any

from bertpre.recipe import METRICS
from bertpre.reporting.page import image, new_figure, table, to_png


def evaluation_sections(results: dict[str, Any], kind: str) -> list[str]:
    """Tables and pictures of what the verbs that measure have left in a run's figures; `kind` is the task."""
    parts: list[str] = []
    measured = results.get("evaluate", {})
    if "per_class" in measured:
        head = ("class", "precision", "recall", "F1", "examples")
        parts += ["<h2>Test</h2>", table(class_rows(measured["per_class"]), head)]
    if "confusion" in measured and len(measured["confusion"]) <= 20:
        names = list(measured["per_class"])
        rows = [(name, *map(str, row)) for name, row in zip(names, measured["confusion"], strict=True)]
        parts += ["<h3>True classes (rows) and predicted ones</h3>", table(rows, ("", *names))]
    if "calibration" in measured:
        known = measured["calibration"]
        parts.append(
            f"<h3>Is a stated probability to be believed?</h3><p>Expected calibration error "
            f"{known['expected_error']:.3f}, Brier score {known['brier']:.3f}.</p>{image(plot_calibration(known))}"
        )
    if measured.get("mistakes"):
        parts += ["<h3>The worst mistakes</h3>", mistakes(measured["mistakes"])]
    if "baseline" in results:
        parts += ["<h2>Baselines, on the same examples</h2>", baselines(results, kind)]
    if "curve" in results:
        parts += ["<h2>With few labels</h2>", image(plot_curve(results["curve"]))]
    if "glue" in results:
        parts += ["<h2>GLUE, development sets</h2>", glue(results["glue"])]
    return parts


def class_rows(per_class: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    """Precision, recall and F1 of each class."""
    return [
        (name, *(f"{row[of]:.4f}" for of in ("precision", "recall", "f1")), f"{row['examples']:,}")
        for name, row in per_class.items()
    ]


def mistakes(rows: list[dict[str, Any]]) -> str:
    """The texts that were judged worst."""
    items = []
    for row in rows:
        sure = f", {row['probability']:.1%} sure" if "probability" in row else ""
        word = f"{row['word']}: " if "word" in row else ""
        what = f"{word}{row['label']}, taken for {row['prediction']}{sure} ({row['id']})"
        items.append(f"<li><b>{html.escape(what)}</b><br>{html.escape(row['text'])}</li>")
    return f"<ol>{''.join(items)}</ol>"


def baselines(results: dict[str, Any], kind: str) -> str:
    """The baselines and, below them, the run's own model."""
    named = dict(results["baseline"])
    if "evaluate" in results:
        named["this run"] = own_row(kind, results)
    columns = [name for name in next(iter(named.values())) if name != "seconds"]
    rows = [
        (name, *("" if row[of] is None else f"{row[of]:.4f}" for of in columns), f"{row['seconds']:.0f} s")
        for name, row in named.items()
    ]
    return table(rows, ("", *columns, "training and testing"))


def own_row(kind: str, results: dict[str, Any]) -> dict[str, Any]:
    """The run's own model as a row of the table."""
    tuned, tested = results["finetune"], results["evaluate"]
    names = [name for name in METRICS[kind] if name != "loss"]
    held_out = tuned.get("validation", {}).get(names[0])
    own = {name: tested[name] for name in names}
    return {"validation": held_out} | own | {"seconds": tuned["seconds"] + tested["seconds"]}


def glue(measured: dict[str, Any]) -> str:
    """The official figures of each task, and their average."""
    rows = [
        (name, ", ".join(f"{of} {value:.4f}" for of, value in figures.items()))
        for name, figures in measured["tasks"].items()
    ]
    rows += [
        (name.replace("_", " "), f"{measured[name]:.4f}")
        for name in ("average", "average_without_wnli")
        if name in measured
    ]
    return table(rows)


def plot_calibration(known: dict[str, Any]) -> bytes:
    """How often the classifier is right at each stated probability; a PNG."""
    figure, (axis,) = new_figure(1)
    axis.plot([0, 1], [0, 1], color="grey", linestyle="--", label="as it should be")
    confidence = [each["confidence"] for each in known["bins"]]
    axis.plot(confidence, [each["accuracy"] for each in known["bins"]], "o-", markersize=4, label="this classifier")
    axis.set(xlabel="stated probability", ylabel="share that is right", xlim=(min(confidence) - 0.05, 1.02))
    axis.set_ylim(min(each["accuracy"] for each in known["bins"]) - 0.05, 1.02)
    axis.legend()
    return to_png(figure)


def plot_curve(points: list[dict[str, Any]]) -> bytes:
    """Accuracy over the number of labels, with the deviation over seeds; a PNG."""
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
