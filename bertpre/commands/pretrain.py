"""`bertpre pretrain`: store -> model, with exact resume."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertpre.data.store import read_store_manifest
from bertpre.data.tokenizer import load_tokenizer
from bertpre.pretraining.batches import PretrainingData
from bertpre.pretraining.build import build_pretraining_trainer, has_pairs
from bertpre.pretraining.model import initial_model
from bertpre.recipe import Recipe
from bertpre.run_directory import claim, one_at_a_time, write_manifest, write_results
from bertpre.runtime import choose_dtype, manifest, start_accelerator
from bertpre.training.sharding import whole

if TYPE_CHECKING:
    pass


@one_at_a_time
def pretrain(recipe: Recipe) -> dict[str, Any]:
    """Pretrain the recipe's model on the prepared data; returns the figures for `results.json`."""
    accelerator = start_accelerator()
    if accelerator.is_main_process:
        claim(recipe)
    accelerator.wait_for_everyone()
    folder = Path(recipe.output_dir)
    facts = read_store_manifest(folder / "data")
    tokenizer = load_tokenizer(folder / "tokenizer")
    data = PretrainingData(recipe, tokenizer, folder / "data", accelerator)
    dtype = choose_dtype(recipe.training.precision, accelerator.device)
    torch.manual_seed(recipe.seed)
    model = initial_model(recipe, tokenizer)
    trainer = build_pretraining_trainer(recipe, accelerator, model, data, dtype, folder)
    if accelerator.is_main_process:
        write_manifest(folder, "pretrain", manifest(accelerator.device, dtype, accelerator.num_processes))
    validation = trainer.train()
    trainer.log.close()
    figures = {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "seconds": trainer.elapsed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "validation": {name: validation[name] for name in trainer.objective.figures if name != "loss"},
        "unigram_entropy": facts["unigram_entropy"],
        "fillings": validation["fillings"],
    }
    weights = {name: whole(value) for name, value in model.state_dict().items()}
    if accelerator.is_main_process:
        model.save_pretrained(folder / "model", state_dict=weights)
        tokenizer.save_pretrained(folder / "model")
        write_results(folder, "pretrain", figures)
        print(
            f"pretrain: {figures['steps']:,} steps, {figures['tokens']:,} tokens in {figures['seconds']:.0f} s; "
            f"validation MLM loss {validation['mlm_loss']:.3f} (unigram entropy {facts['unigram_entropy']:.3f})"
            + (f", {recipe.pairs.kind.upper()} accuracy {validation['nsp_accuracy']:.3f}" if has_pairs(recipe) else "")
        )
    accelerator.wait_for_everyone()
    return figures
