"""The headline tiles of a report: each main number with what it is compared with."""

import math
from typing import Any

from bertpre.console import interval_text, time_text
from bertpre.recipe import METRICS
from bertpre.reporting.charts import gauge, number
from bertpre.reporting.evaluation import is_comparable
from bertpre.reporting.page import tile
from bertpre.reporting.pair_results import pair_accuracy, pairs_kind

DIVERGED = 20.0  # nats; a training that diverged has a perplexity that says nothing, or none
STAGES = ("prepare", "pretrain", "finetune", "evaluate")


def tiles(results: dict[str, Any], kind: str | None) -> str:
    """The tiles of the finished stages; `kind` is the task of the fine-tuning, None without one."""
    is_tested = kind is not None and METRICS[kind][0] in results.get("evaluate", {})
    found = pretraining_tiles(results) + ([score_tile(results, kind)] if kind and is_tested else [])
    if average := results.get("glue", {}).get("average"):
        found.append(tile("GLUE average", f"{average:.3f}", "development sets", gauge(average, 1.0)))
    if seconds := stage_seconds(results):
        trained = results.get("pretrain", {})
        note = ", ".join(f"{name} {time_text(value)}" for name, value in seconds.items())
        found.append(tile("Time of all stages", time_text(sum(seconds.values())), note))
        if parameters := trained.get("parameters"):
            read = f"read {number(trained['tokens'])} tokens in {trained['steps']:,} steps"
            found.append(tile("Parameters", number(parameters), read))
    return f"<div class=tiles>{''.join(found)}</div>" if found else ""


def pretraining_tiles(results: dict[str, Any]) -> list[str]:
    """MLM loss and accuracy, and the accuracy on pairs, of the validation part."""
    trained = results.get("pretrain")
    if not trained:
        return []
    validation = trained["validation"]
    found = [loss_tile(validation["mlm_loss"], trained.get("context_free_loss"))]
    loss, accuracy = validation["mlm_loss"], validation["mlm_accuracy"]
    perplexity = f"; perplexity {math.exp(loss):,.1f}" if loss < DIVERGED else ""
    found.append(tile("MLM accuracy", f"{accuracy:.1%}", f"of the masked tokens{perplexity}", gauge(accuracy, 1.0)))
    kind = pairs_kind(results)
    on_pairs = pair_accuracy(validation, kind)
    if on_pairs is None:
        return found
    majority, interval = validation.get("nsp_majority_share"), validation.get("nsp_interval")
    note = [interval_text(interval, ".1%")] if interval else []
    note += [f"majority class {majority:.1%}"] if majority else []
    found.append(
        tile(f"{kind.upper()} accuracy", f"{on_pairs:.1%}", "; ".join(note), gauge(on_pairs, 1.0, majority, interval))
    )
    return found


def loss_tile(loss: float, reference: float | None) -> str:
    """The MLM loss against the best loss without context."""
    if reference is None:
        return tile("MLM loss", f"{loss:.3f}", "the context-free loss was not recorded", unit="nats")
    difference = reference - loss
    word = "better" if difference >= 0 else "worse"
    note = f"{abs(difference):.3f} {word} than the context-free loss {reference:.3f}"
    return tile("MLM loss", f"{loss:.3f}", note, gauge(loss, 1.15 * max(loss, reference), reference), unit="nats")


def score_tile(results: dict[str, Any], kind: str) -> str:
    """The task's main metric on the test split, its interval, and the best baseline on the same examples."""
    measured, name = results["evaluate"], METRICS[kind][0]
    value, interval, best = measured[name], measured.get("intervals", {}).get(name), best_baseline(results, name)
    is_share = name == "accuracy"
    form = ".1%" if is_share else ".3f"
    note = []
    if interval:
        note.append(interval_text(interval, form))
    if best is not None:
        ahead = value - best[1]
        much = f"{100 * abs(ahead):.1f} points" if is_share else f"{abs(ahead):.3f}"
        note.append(f"{much} {'above' if ahead >= 0 else 'below'} {best[0]} ({best[1]:{form}})")
    reference = best[1] if best is not None else None
    picture = gauge(value, 1.0, reference, interval) if value >= 0 else ""
    return tile(f"Test {name}", f"{value:{form}}", "; ".join(note), picture)


def best_baseline(results: dict[str, Any], name: str) -> tuple[str, float] | None:
    """The name and the value of the best baseline that was measured on the test examples; None without one."""
    found = {}
    if name in results.get("evaluate", {}).get("bag_of_words", {}):
        found["bag of words"] = results["evaluate"]["bag_of_words"][name]
    rows = results.get("baseline", {}) if is_comparable(results) else {}
    found |= {of: row[name] for of, row in rows.items() if row.get(name) is not None}
    return max(found.items(), key=lambda each: each[1]) if found else None


def stage_seconds(results: dict[str, Any]) -> dict[str, float]:
    """The seconds of each finished stage that recorded them."""
    return {
        stage: results[stage]["seconds"]
        for stage in STAGES
        if isinstance(results.get(stage), dict) and isinstance(results[stage].get("seconds"), int | float)
    }
