"""`bertpre pretrain`: store -> model, with exact resume."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertpre.commands.push import push_result
from bertpre.console import time_text
from bertpre.data.raw_text import for_raw_texts
from bertpre.data.store import read_store_manifest
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.files import file_checksum, replaced_folder
from bertpre.hub.background import BackgroundPush
from bertpre.manifest import manifest
from bertpre.model.folders import save_model
from bertpre.pretraining.batches import PretrainingData
from bertpre.pretraining.build import build_pretraining_trainer
from bertpre.pretraining.model import initial_model, phase_warnings
from bertpre.recipe import Recipe, flatten
from bertpre.reporting.curves import of_stage, read_metrics
from bertpre.reporting.report import times_read, validation_rows
from bertpre.run_directory import (
    data_folder,
    is_finished,
    one_at_a_time,
    read_manifest,
    write_manifest,
    write_results,
)
from bertpre.runtime import arithmetic_here, choose_dtype, own_device, start_accelerator
from bertpre.training.agreement import refuse_different_starts
from bertpre.training.checkpoint import list_checkpoints, newest_whole
from bertpre.training.sharding import gather_each
from bertpre.training.trainer import Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)
PUSH_SECONDS = 600  # that the end of a training waits for a push in the background
RISE = 0.05  # nats by which a validation MLM loss has risen, not just varied


@one_at_a_time
def pretrain(recipe: Recipe, after_step: Callable[[Trainer], None] | None = None) -> dict[str, Any]:
    """Pretrain the recipe's model on the prepared data; returns the entry of `results.json`.

    `after_step` is called after each step with the trainer, whose `progress`, `log` and model it may look at.
    """
    started = time.perf_counter()
    accelerator = start_accelerator(may_shard=True)
    accelerator.wait_for_everyone()  # for the first one, which claims the folder
    refuse_different_starts(lambda: start_of(recipe))
    folder, store = Path(recipe.output_dir), data_folder(recipe)
    refuse_to_begin_again(folder)
    if not (folder / "tokenizer").is_dir():  # with data.path `prepare` copies it
        raise UserError(f"{folder}: no tokenizer; run `bertpre prepare` with this recipe first")
    tokenizer = load_tokenizer(folder / "tokenizer")
    data = PretrainingData(recipe, tokenizer, store, accelerator)
    dtype = choose_dtype(recipe.training.precision, accelerator.device)
    for warning in phase_warnings(recipe) if accelerator.is_main_process else ():
        logger.warning(warning)
    torch.manual_seed(recipe.seed)
    model = initial_model(recipe, tokenizer)
    pushing = BackgroundPush(folder, tokenizer, recipe.hub.push_every) if recipe.hub.push_every else None

    def after_each(trainer: Trainer) -> None:
        for call in (after_step, pushing):
            if call is not None:
                call(trainer)

    trainer = build_pretraining_trainer(recipe, accelerator, model, data, dtype, folder, after_step=after_each)
    if accelerator.is_main_process:
        record_start(folder, manifest(accelerator.device, dtype, accelerator.num_processes))
    on_gpu = accelerator.device.type == "cuda"  # a CPU's steps take longer than planning holds them up
    try:
        with trainer.log.output, data.planned_ahead() if on_gpu else nullcontext():
            validation = trainer.train(started)
        results = results_of(trainer, data, model, validation)
        weights = gather_each(model.state_dict().items(), accelerator.is_main_process)
        if accelerator.is_main_process:
            with replaced_folder(folder / "model") as saved:
                save_model(model, for_raw_texts(tokenizer), saved, model.config.max_position_embeddings, weights)
            write_results(folder, "pretrain", results)
            say_results(results, recipe)
        accelerator.wait_for_everyone()
    except BaseException:
        if pushing is not None:
            pushing.stop()
        raise
    if pushing is not None:
        pushing.end(PUSH_SECONDS)  # after the last wait for each other: that one may take less than a push
    if accelerator.is_main_process:
        push_result(recipe)
    return results


def start_of(recipe: Recipe) -> dict[str, Any]:
    """What a pretraining starts from, by name. Raises UserError where nothing is prepared, and says what to do."""
    store, sections = data_folder(recipe), {"seed", "pairs", "model", "training", "checkpoint"}
    read_store_manifest(store)
    keys = flatten(recipe.model_dump(include=sections))
    keys |= arithmetic_here(recipe.training.precision, recipe.training.optimizer, own_device())
    return keys | {"the data's checksum": file_checksum(store / "manifest.json")}


def refuse_to_begin_again(folder: Path) -> None:
    """Raise UserError where a pretraining has finished and no checkpoint of it is left to go on from."""
    if is_finished(folder, "pretrain") and newest_whole(folder / "checkpoints") is None:
        has_model = (folder / "model").is_dir()
        raise UserError(
            f"{folder}: this pretraining has finished, and no checkpoint of it is left; to train again, give another "
            "folder with output_dir=FOLDER"
            + (f"; to train its model further, add training.init={folder} tokenizer.path={folder} too" * has_model)
        )


def record_start(folder: Path, facts: dict[str, Any]) -> None:
    """Write what this training runs with; where it resumes, keep what it ran with before, and warn of differences."""
    known = read_manifest(folder).get("pretrain")
    if known and list_checkpoints(folder / "checkpoints"):
        facts |= {"before": [*known.pop("before", []), known]}
        old, new = (flatten({key: each[key] for key in ("versions", "commit", "hardware")}) for each in (known, facts))
        if changed := [f"{key} ({old.get(key)} before, now {new[key]})" for key in new if new[key] != old.get(key)]:
            logger.warning(
                "this training began with another %s: it may round otherwise than an uninterrupted one",
                ", ".join(changed),
            )
    write_manifest(folder, "pretrain", facts)


def results_of(
    trainer: Trainer, data: PretrainingData, model: "PreTrainedModel", validation: dict[str, Any]
) -> dict[str, Any]:
    """The entry of `results.json`; `validation` is the last one."""
    names = trainer.training_step.objective.metric_names
    results = {
        "steps": trainer.progress.step,
        "tokens": trainer.progress.tokens,
        "epochs": trainer.progress.tokens / data.tokens_per_epoch,  # special tokens count among the tokens
        "seconds": trainer.clock.elapsed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "validation": {name: validation[name] for name in names if name in validation and name != "loss"},
        "context_free_loss": data.frequencies["context_free_loss"],
        "unigram_entropy": data.frequencies["unigram_entropy"],
        "fillings": validation["fillings"],
    }
    if "nsp_accuracy" in validation:
        results["validation"] |= data.judge_pairs(validation["nsp_accuracy"])
    return results


def say_results(results: dict[str, Any], recipe: Recipe) -> None:
    """Print them in a line, and warn where the model has memorised its text."""
    measured = "; ".join(f"{name} {value}" for name, value in validation_rows(results, recipe.pairs.kind))
    epochs = times_read(results["epochs"], recipe.pairs.kind)
    print(
        f"pretrain: {results['steps']:,} steps, {results['tokens']:,} tokens ({epochs}) in "
        f"{time_text(results['seconds'])}; validation {measured}"
    )
    rows = of_stage(read_metrics(Path(recipe.output_dir)), "pretrain", "validation")
    if warning := memorised(rows, results["epochs"]):
        logger.warning(warning)


def memorised(validations: list[dict[str, Any]], epochs: float) -> str | None:
    """A warning where the MLM loss on held-out text was lower before the end; `validations` are rows of the log."""
    if epochs < 2 or not validations:  # none where the log was removed
        return None
    lowest, last = min(validations, key=lambda row: row["mlm_loss"]), validations[-1]
    if last["mlm_loss"] < lowest["mlm_loss"] + RISE:
        return None
    return (
        f"pretrain: the validation MLM loss was {lowest['mlm_loss']:.3f} at step {lowest['step']:,} and is "
        f"{last['mlm_loss']:.3f} at the end, after {epochs:.0f} times the text: a model that reads it too often "
        "memorises it; train on more text, or for a shorter time in a new output_dir"
    )
