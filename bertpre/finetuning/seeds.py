"""Classifiers of several seeds: each is trained once and kept, and the best one in validation is the run's.

An interrupted seed resumes from its checkpoints.
"""

import hashlib
import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate import Accelerator

from bertpre.console import console
from bertpre.data.raw_text import for_raw_texts
from bertpre.errors import UserError
from bertpre.files import file_checksum, replaced_folder, write_text
from bertpre.finetuning.examples import Examples, whole_texts
from bertpre.finetuning.fit import FineTuning, goodness
from bertpre.finetuning.inference import Classifier
from bertpre.finetuning.loading import load_classifier
from bertpre.finetuning.scores import mean_and_std, score
from bertpre.finetuning.splits import Labelled
from bertpre.model.folders import save_model
from bertpre.recipe import Finetune, Recipe, binding_values
from bertpre.recipe.public import without_own_places
from bertpre.run_directory import model_of
from bertpre.training.agreement import broadcast_from_first, every_process
from bertpre.training.checkpoint import list_checkpoints
from bertpre.training.trackers import start_trackers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIGURES = "figures.json"  # beside a seed's classifier


def recipe_fingerprint(recipe: Recipe) -> str:
    """A hash of the keys that a fine-tuning or its measurement depends on; `finetune.seeds` is not one of them."""
    sections = {"seed", "tokenizer", "model", "training", "finetune", "evaluate"}
    binding = binding_values(recipe, sections)
    binding.pop("finetune.seeds", None)
    return hashlib.sha256(json.dumps(binding, sort_keys=True).encode()).hexdigest()[:16]


def weights_fingerprint(recipe: Recipe) -> str:
    """A hash of the local weights that `finetune.init` names, which may have been trained again; empty for others."""
    init = recipe.required_finetune.init
    folder = Path(recipe.output_dir) / "model" if init == "pretrained" else Path(model_of(init))
    file = folder / "model.safetensors"
    return file_checksum(file)[:16] if file.is_file() else ""


def seeds_of(recipe: Recipe) -> range:
    """The seeds of the recipe's classifiers."""
    return range(recipe.seed, recipe.seed + recipe.required_finetune.seeds)


def seed_folder(recipe: Recipe, seed: int) -> Path:
    """Where the classifier of one of several seeds is kept."""
    return Path(recipe.output_dir) / "seeds" / str(seed)


def checkpoint_folder(recipe: Recipe) -> Path:
    """Where interrupted seeds resume from; it is removed when all are finished."""
    return Path(recipe.output_dir) / "finetune-checkpoints"


def open_checkpoints(recipe: Recipe, accelerator: Accelerator, made_from: str) -> Path:
    """The folder of the checkpoints that were made from this recipe and these texts; others are removed."""
    folder = checkpoint_folder(recipe) / made_from
    if accelerator.is_main_process and folder.parent.exists() and not folder.exists():
        print("finetune: the recipe or the texts have changed since the interruption; starting from scratch")
        shutil.rmtree(folder.parent)
    accelerator.wait_for_everyone()
    return folder


def examples_fingerprint(parts: list[Examples]) -> str:
    """A hash of the texts and labels of some examples, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr((len(part), part.classes)).encode())
        for text, label in zip(whole_texts(part), part.labels, strict=True):
            digest.update(repr((text, np.asarray(label).tolist())).encode())
    return digest.hexdigest()[:16]


def learned_fingerprint(labelled: Labelled) -> str:
    """A hash of what a classifier is trained on and selected by: texts, labels, and further texts without labels."""
    parts = (labelled.parts.training, labelled.parts.validation, labelled.unlabelled)
    return examples_fingerprint([part for part in parts if part is not None])


def compared_fingerprint(recipe: Recipe, learned: str, tested: str) -> str:
    """A hash of what models are compared on: the recipe's keys, and the hashes of training and test texts."""
    return hashlib.sha256(" ".join([recipe_fingerprint(recipe), learned, tested]).encode()).hexdigest()[:16]


def fit_seed(tuning: FineTuning, seed: int, made_from: str) -> dict[str, Any]:
    """Train and save the classifier of one seed, or take it from `seeds/` if it is finished; returns its metrics.

    One that was made from something else, by the hash `made_from` of recipe and texts, is trained again.
    """
    recipe, is_main = tuning.recipe, tuning.accelerator.is_main_process
    run, has_several = Path(recipe.output_dir), recipe.required_finetune.seeds > 1
    folder = seed_folder(recipe, seed) if has_several else run / "finetuned"
    # The first process decides: another one may not see yet what is on a shared disk, and would train another seed.
    if has_several and (figures := broadcast_from_first(lambda: figures_in(folder, made_from), every_process())):
        console.say(f"finetune: seed {seed} is finished")
        return figures
    stage = "finetune" if seed == recipe.seed else f"finetune seed {seed}"
    name = stage.replace(" ", "-")
    resumes = tuning.checkpoints is not None and bool(list_checkpoints(tuning.checkpoints / str(seed)))
    config = without_own_places(recipe).model_dump()
    trackers = start_trackers(run, name, recipe.training, config, resumes=resumes) if is_main else []
    classifier, metrics = tuning.fit(seed, stage, trackers)
    if is_main:
        with replaced_folder(folder) as saved:
            save_model(classifier.model, tokenizer_for_others(classifier), saved, classifier.max_length)
            if has_several:
                write_text(saved / FIGURES, json.dumps({"made_from": made_from, "figures": metrics}, indent=2))
        if has_several and tuning.checkpoints is not None:
            shutil.rmtree(tuning.checkpoints / str(seed), ignore_errors=True)
    tuning.accelerator.wait_for_everyone()
    return metrics


def figures_in(folder: Path, made_from: str) -> dict[str, Any] | None:
    """The metrics of a finished seed; None where it is not finished, or was made from something else."""
    if not (folder / FIGURES).exists():
        return None
    kept = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    return kept["figures"] if kept["made_from"] == made_from else None


def tokenizer_for_others(classifier: Classifier) -> "PreTrainedTokenizerBase":
    """The classifier's tokenizer, for programs that neither clean texts nor cut them as bertpre does.

    It cuts a long text at its start where the classifier has learned from ends, or mostly from them. Labelled words are
    not cleaned.
    """
    if classifier.task.kind == "tokens":
        return classifier.tokenizer
    tokenizer = for_raw_texts(deepcopy(classifier.tokenizer))
    tokenizer.truncation_side = "right" if classifier.truncation == "head" else "left"
    tokenizer.init_kwargs["truncation_side"] = tokenizer.truncation_side  # only what is named there is saved
    return tokenizer


def best_of(each: list[dict[str, Any]], settings: Finetune) -> int:
    """Which seed's classifier is the best in validation; the first one without validation."""
    if not settings.has_validation:
        return 0
    return int(np.argmax([goodness(metrics["validation"], settings.best_by) for metrics in each]))


def spread_of(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of every validation metric."""
    rows = [metrics.get("validation", {}) for metrics in each]
    return {name: mean_and_std([row[name] for row in rows]) for name in rows[0] if name != "examples"}


def keep_classifier(recipe: Recipe, seed: int) -> None:
    """Make one seed's classifier the run's."""
    with replaced_folder(Path(recipe.output_dir) / "finetuned") as copy:
        shutil.copytree(seed_folder(recipe, seed), copy, ignore=shutil.ignore_patterns(FIGURES))


def measure_seeds(recipe: Recipe, test: Examples, kept: int, metrics_of_kept: dict[str, Any]) -> dict[str, Any]:
    """Mean, standard deviation and values of the test metrics over the classifiers of all seeds.

    The run's own classifier, of the seed `kept`, was measured before.
    """
    rows = []
    for seed in seeds_of(recipe):
        metrics = metrics_of_kept
        if seed != kept:
            folder = seed_folder(recipe, seed)
            if not folder.exists():
                raise UserError(f"the classifier of seed {seed} is gone from {folder}; run `bertpre finetune` again")
            labels, outputs = load_classifier(recipe, folder, test.classes).apply(test)
            metrics = score(recipe.required_finetune.task, labels, outputs, test.classes)
        rows.append({name: value for name, value in metrics.items() if isinstance(value, float)})
    return {name: mean_and_std([row[name] for row in rows]) for name in rows[0]}
