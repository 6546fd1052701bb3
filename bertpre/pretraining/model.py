"""The model that pretraining starts from: random weights, or those of an existing model."""

from typing import TYPE_CHECKING

from safetensors import SafetensorError

from bertpre.data.tokenizer import SPECIAL_TOKENS, load_tokenizer, tokenizer_fingerprint
from bertpre.errors import UserError, first_line
from bertpre.files import refuse_unknown_model
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.conversion import load_for_pretraining
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.pretraining.neighbours import attend_to_neighbours
from bertpre.recipe import Recipe
from bertpre.run_directory import model_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def build_config(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase") -> BertPreConfig:
    """The model's configuration: the recipe's sizes, the tokenizer's vocabulary and special tokens."""
    return BertPreConfig(
        **recipe.model.model_dump(),
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )


def phase_warnings(recipe: Recipe) -> list[str]:
    """Warnings of phases in which no step falls, and of positions that fine-tuning reads but no phase trains."""
    reached = recipe.training.reached_phases
    left_out = [f"training.phases.{number}" for number, is_reached in enumerate(reached) if not is_reached]
    found = [untrained_positions(recipe)]
    if left_out:
        found.append(
            f"{', '.join(left_out)}: none of the {recipe.training.max_steps} steps falls into it; give it a larger "
            "share, or train for more steps"
        )
    return [warning for warning in found if warning is not None]


def untrained_positions(recipe: Recipe) -> str | None:
    """A warning where fine-tuning reads positions that pretraining leaves as they are drawn."""
    first, tuned = recipe.untrained_from, recipe.finetune
    if first is None or tuned is None or not tuned.uses_recipe_model or tuned.max_length <= first:
        return None
    return (
        f"finetune.max_length={tuned.max_length}: no phase of pretraining trains the positions from {first} on; add "
        f"one, e.g. {{share: 0.1, max_length: {tuned.max_length}}}, or set model.architecture=modern, which has none"
    )


def initial_model(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase") -> BertPreForPreTraining:
    """A model with random weights, or with the weights of `training.init`; dropout is the recipe's.

    Raises UserError where `training.init` cannot be loaded, or its sizes or vocabulary differ from the recipe's.
    """
    config, source = build_config(recipe, tokenizer), recipe.training.init
    if source is None:
        model = BertPreForPreTraining(config)
        if recipe.training.initial_attention == "neighbours":
            attend_to_neighbours(model)
        return model
    refuse_unknown_model(model_of(source), "training.init")
    try:
        known = load_for_pretraining(model_of(source))
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"training.init: {source!r} cannot be loaded: {first_line(error)}") from None
    if not knows_vocabulary(known.config, source, tokenizer):
        raise UserError(
            f"training.init: {source} has a vocabulary of {known.config.vocab_size:,} tokens, this run another one of "
            f"{len(tokenizer):,}: prepare with tokenizer.path={source}"
        )
    keys = [key for key in type(recipe.model).model_fields if not key.endswith("dropout_prob")]
    if config.architecture == "modern":
        keys.remove("max_position_embeddings")  # its positions have no weights
    if wrong := [key for key in keys if getattr(known.config, key) != getattr(config, key)]:
        wanted = " ".join(f"model.{key}={getattr(known.config, key)}" for key in wrong)
        raise UserError(f"training.init: {source} has other sizes: set {wanted}")
    if config.architecture == "bert" and recipe.pairs.kind != "none" and known.config.type_vocab_size < 2:
        raise UserError(f"training.init: {source} knows one segment, and a pair has two: set pairs.kind=none")
    for key in ("vocab_size", "layer_norm_eps", "rope_theta", "hidden_act", "initializer_range", "type_vocab_size"):
        setattr(config, key, getattr(known.config, key))  # a recipe has no key for these
    model = BertPreForPreTraining(config)
    model.load_state_dict(known.state_dict(), strict=False)  # parts that ModernBERT lacks stay random
    return model


def knows_vocabulary(config: BertPreConfig, source: str, tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether a tokenizer is a model's own, or, where none lies beside the model, has as many tokens as it.

    A model may have embeddings for more tokens than its tokenizer, such as 30,528.
    """
    try:
        own = load_tokenizer(model_of(source, "tokenizer"))
    except UserError:
        own = None
    if own is None or len(own) <= len(SPECIAL_TOKENS):  # which is what transformers makes where there is none
        return config.vocab_size == len(tokenizer)
    return config.vocab_size >= len(tokenizer) and tokenizer_fingerprint(own) == tokenizer_fingerprint(tokenizer)
