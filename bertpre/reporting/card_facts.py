"""What a model card says in metadata, and which facts of a recipe it may show."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertpre.recipe import METRICS, Finetune, Hub, Recipe, Source
from bertpre.recipe.paths import NAMES
from bertpre.recipe.public import HUB_ID, MODEL_ID
from bertpre.reporting.pair_results import pair_accuracy, pairs_kind

TASKS = {
    "classification": "text classification",
    "multi_label": "multi-label text classification",
    "regression": "text regression",
    "tokens": "token classification",
}
METRIC_IDS = {  # bertpre's names of metrics and the Hub's
    "accuracy": "accuracy", "f1": "f1", "matthews": "matthews_correlation", "pearson": "pearsonr",
    "spearman": "spearmanr", "loss": "loss",
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """The folder that a card describes."""

    repo_id: str  # on the Hub, or the folder's own name
    model_type: str  # of transformers
    revision: str | None = None  # the branch that the model lies in; None: main
    step: int | None = None  # of an unfinished pretraining
    has_curves: bool = False  # their picture lies beside the card
    is_onnx: bool = False
    cleans: bool = False  # the tokenizer removes markup
    classes: Sequence[str] = ()  # of the classifier


def front_matter(recipe: Recipe, results: dict[str, Any], hub: Hub, model_type: str, is_onnx: bool) -> dict[str, Any]:
    """The metadata that the Hub's search and widget read."""
    datasets = sorted(path for path in text_paths(recipe) if HUB_ID.fullmatch(path))
    base = recipe.required_finetune.init if is_classifier(results) else recipe.training.init
    base = recipe.training.init if base == "pretrained" else base
    facts = {
        "language": hub.language or ("en" if is_synthetic(recipe) else None),
        "license": hub.license,
        "library_name": "onnx" if is_onnx else "transformers",
        "pipeline_tag": pipeline_of(recipe.required_finetune) if is_classifier(results) else "fill-mask",
        "tags": [*dict.fromkeys((model_type, "bertpre")), *([] if is_classifier(results) else ["masked-lm"])],
        "base_model": base if base and base not in NAMES and MODEL_ID.fullmatch(base) else None,
        "datasets": datasets,
    }
    return {name: fact for name, fact in facts.items() if fact}


def model_index(recipe: Recipe, results: dict[str, Any], name: str, lacks_pairs: bool) -> list[dict[str, Any]]:
    """The metrics as the Hub's `model-index`; empty without any."""
    found = [entry for entry in (pretraining_entry(recipe, results, lacks_pairs), test_entry(recipe, results)) if entry]
    return [{"name": name, "results": found}] if found else []


def pretraining_entry(recipe: Recipe, results: dict[str, Any], lacks_pairs: bool) -> dict[str, Any]:
    """The validation metrics of the pretraining; empty without one.

    `lacks_pairs`: the published model has no head for sentence pairs.
    """
    if "pretrain" not in results or recipe.corpus is None:
        return {}
    validation, kind = results["pretrain"]["validation"], pairs_kind(results)
    names = {
        "mlm_loss": ("loss", "MLM loss, nats per masked token"),
        "mlm_accuracy": ("accuracy", "MLM accuracy"),
        "nsp_accuracy": ("accuracy", f"{kind.upper()} accuracy"),
    }
    if lacks_pairs or pair_accuracy(validation, kind) is None:
        del names["nsp_accuracy"]
    found = [metric(*name, validation[key]) for key, name in names.items() if key in validation]
    source = recipe.corpus
    part = "held-out part" if source.validation is None else "validation texts"  # the former is of no split
    data = indexed_dataset(source.path, source.name, None, part)
    return {"task": {"type": "fill-mask", "name": "Masked language modelling"}, "dataset": data, "metrics": found}


def test_entry(recipe: Recipe, results: dict[str, Any]) -> dict[str, Any]:
    """The metrics of the classifier on the test texts; empty without them."""
    measured, tuning = results.get("evaluate"), recipe.finetune
    if not measured or tuning is None:
        return {}
    found = [metric(METRIC_IDS[name], name, measured[name]) for name in METRICS[tuning.task] if name in measured]
    path = recipe.evaluate.path or tuning.path
    part = "test texts"
    if tuning.test_fraction:
        part = "held-out part"
    elif measured.get("chosen_on_test"):
        part = "test texts, on which the best epoch was selected"
    data = indexed_dataset(path, tuning.name if path == tuning.path else None, recipe.evaluate.split, part)
    return {"task": {"type": pipeline_of(tuning), "name": TASKS[tuning.task]}, "dataset": data, "metrics": found}


def metric(kind: str, name: str, value: float) -> dict[str, Any]:
    """One metric of a `model-index`."""
    return {"type": kind, "name": name, "value": value}


def indexed_dataset(path: str, config: str | None, split: str | None, part: str) -> dict[str, str]:
    """A dataset of a `model-index`: its Hub id, or what else it is."""
    kind = path if HUB_ID.fullmatch(path) else "synthetic" if path == "sample" else "local"
    title = "the synthetic corpus built into bertpre" if path == "sample" else path
    data = {"type": kind, "name": f"{title}, {part}", "config": config, "split": split}
    return {name: value for name, value in data.items() if value}


def pipeline_of(settings: Finetune) -> str:
    """The name of transformers' pipeline for the task."""
    return "token-classification" if settings.task == "tokens" else "text-classification"


def is_classifier(results: dict[str, Any]) -> bool:
    """Whether the repository holds only a fine-tuned model."""
    return "finetune" in results and "pretrain" not in results


def is_synthetic(recipe: Recipe) -> bool:
    """Whether all texts of the training are of the corpus built into bertpre."""
    starts_elsewhere = recipe.finetune is not None and recipe.finetune.init not in NAMES
    return text_paths(recipe) == {"sample"} and recipe.training.init is None and not starts_elsewhere


def text_paths(recipe: Recipe) -> set[str]:
    """The paths of all texts of the training."""
    paths, tuning = {source.path for source in sources(recipe)}, recipe.finetune
    if tuning is not None:
        paths.add(tuning.path)
        if tuning.unlabelled is not None and tuning.unlabelled.path is not None:
            paths.add(tuning.unlabelled.path)
    return paths


def sources(recipe: Recipe) -> list[Source]:
    """All sources of the pretraining text."""
    return [recipe.corpus, *recipe.corpus.more] if recipe.corpus else []
