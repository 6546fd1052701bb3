"""What a push uploads: the export of a run or of one of its checkpoints, with card, recipe, results and curves."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file

from bertpre.data.raw_text import for_raw_texts
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.files import write_text
from bertpre.model.export import damage_explained, export_model, export_run
from bertpre.model.folders import read_config, save_model
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.pretraining.model import initial_model
from bertpre.recipe import Recipe, to_yaml
from bertpre.recipe.public import without_own_places
from bertpre.reporting.curves import read_metrics
from bertpre.reporting.model_card import write_card
from bertpre.run_directory import read_manifest, read_results, refuse_unfinished_classifier
from bertpre.training.checkpoint import FILES, read_state

WITHOUT = {  # results that these leave out
    "encoder": ("finetune", "evaluate", "baseline", "baseline_of", "curve"), "classifier": ("pretrain",),
}  # fmt: skip
# Results that quote the corpus or the labelled texts, which may be private, or a path, which the recipe has without it.
PRIVATE = ("fillings", "mistakes", "unknown_words", "mostly_removed_example", "init")
KNOWN = ("pretrained", "random")  # values of `init` that are no path


def write_run(
    run: Path, recipe: Recipe, folder: Path, repo_id: str, to: str | None, only: str | None, revision: str | None
) -> None:
    """Write a finished run's models and what describes them; arguments as in `push`. `recipe` is the run's.

    Errors are those of `export_run` and `refuse_unfinished_classifier`.
    """
    if only != "encoder":
        refuse_unfinished_classifier(run)
    export_run(run, to, folder, only)
    describe(run, recipe, folder, results_for(run, only), repo_id, revision)


def results_for(run: Path, only: str | None) -> dict[str, Any]:
    """The run's results, or those that belong to its encoder or classifier alone."""
    left_out = WITHOUT.get(only or "", ())
    return {stage: values for stage, values in read_results(run).items() if stage not in left_out}


def results_of_a_checkpoint(run: Path) -> dict[str, Any]:
    """The run's results that also hold for its checkpoints: those of the data. The others are of the end."""
    return {stage: values for stage, values in read_results(run).items() if stage == "prepare"}


def unfinished_step(run: Path, step: int) -> int | None:
    """The step of a checkpoint, None for that with which the pretraining ended."""
    return None if read_results(run).get("pretrain", {}).get("steps") == step else step


def write_encoder(
    model: Path,
    run: Path,
    recipe: Recipe,
    folder: Path,
    *,
    step: int | None,
    repo_id: str,
    to: str | None = None,
    revision: str | None = None,
) -> None:
    """The same for an encoder after `step` steps of a longer pretraining; None: after all of them.

    `model` is its folder. The run's later results do not belong to it.
    """
    with damage_explained(model):
        export_model(model, to, folder)
    describe(run, recipe, folder, results_of_a_checkpoint(run), repo_id, revision, step)


def write_checkpoint(checkpoint: Path, run: Path, recipe: Recipe, folder: Path, repo_id: str, to: str | None) -> None:
    """The same for a checkpoint of the pretraining; the card names its branch. Raises UserError where it is damaged."""
    state = read_state(checkpoint)
    if state is None:
        raise UserError(f"{checkpoint} is damaged: remove it, or leave --checkpoints out")
    with TemporaryDirectory() as place:
        save_checkpoint_model(checkpoint, run, recipe, Path(place))
        step = unfinished_step(run, state["step"])
        write_encoder(Path(place), run, recipe, folder, step=step, repo_id=repo_id, to=to, revision=checkpoint.name)


def save_checkpoint_model(checkpoint: Path, run: Path, recipe: Recipe, folder: Path) -> None:
    """Write the model of an intact checkpoint to a folder, with the run's tokenizer."""
    tokenizer = load_tokenizer(run / "tokenizer")
    config = read_config(str(run / "model")) if (run / "model").is_dir() else initial_model(recipe, tokenizer).config
    model, weights = BertPreForPreTraining(config), load_file(checkpoint / FILES[0])
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(weights[name])
    save_model(model, for_raw_texts(tokenizer), folder, model.config.max_position_embeddings)


def describe(
    run: Path,
    recipe: Recipe,
    folder: Path,
    results: dict[str, Any],
    repo_id: str,
    revision: str | None,
    step: int | None = None,
) -> None:
    """Write card, curves, recipe and results beside a model; no path of this machine and no text is among them."""
    write_card(folder, recipe, results, read_manifest(run), read_metrics(run), repo_id, revision, step)
    write_text(folder / "recipe.yaml", to_yaml(without_own_places(recipe)))
    write_text(folder / "results.json", json.dumps(public_results(results), indent=2) + "\n")


def public_results(results: Any) -> Any:
    """Results without the texts and paths that they quote; a class may have the name of such an entry."""
    if isinstance(results, dict):
        return {
            key: value if key == "per_class" else public_results(value)
            for key, value in results.items()
            if key not in PRIVATE or value in KNOWN
        }
    return [public_results(each) for each in results] if isinstance(results, list) else results
