"""Models in folders: saved so that they load where bertpre is not installed, and read back into bertpre's classes."""

import math
import os
import shutil
from copy import deepcopy
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from bertpre.errors import UserError, refuse_outside
from bertpre.files import save_tokenizer

from . import modeling_bertpre
from .configuration_bertpre import BertPreConfig
from .conversion import (
    FROM_MODERNBERT,
    FROM_STOCK,
    SECOND_SEGMENT,
    config_from_stock,
    has_counterpart,
    is_from_bertpre,
    to_stock_bert,
    to_stock_modernbert,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAIR_BIAS = "cls.seq_relationship.bias"
OUR_NAMES = {stock.__name__: ours.__name__ for stock, ours in FROM_STOCK.items()}


# ---- to save ---------------------------------------------------------------------------------------------------------


def save_model(
    model: PreTrainedModel,
    tokenizer: "PreTrainedTokenizerBase",
    folder: str | Path,
    longest: int | None,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Save a model and its tokenizer, which cuts texts at `longest` tokens, for a process without bertpre.

    A BertPre model is saved as its stock class if that loses nothing, otherwise with the code of its classes; any other
    model as it is. `weights` replace the model's own where these are sharded. Without `longest` the tokenizer keeps its
    own limit, or has a BertPre model's if that is lower. Raises UserError if `longest` is below 1 or above what a
    BertPre model reads, if a model has fewer embeddings than the tokenizer has entries, and for a wrapped model, such
    as one with an adapter.
    """
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"model: a {type(model).__name__} is no model of transformers; if it is one of peft, merge the adapter "
            "first: model.merge_and_unload()"
        )
    most = model.config.max_position_embeddings if isinstance(model.config, BertPreConfig) else None
    if longest is not None:
        if isinstance(longest, bool) or not isinstance(longest, Integral):
            raise UserError(f"longest: {longest!r} is not a whole number")
        refuse_outside("longest", longest, 1, most or math.inf)
    elif most is not None:
        longest = min(tokenizer.model_max_length, most)
    if len(tokenizer) > model.config.vocab_size:
        raise UserError(
            f"tokenizer: has {len(tokenizer):,} entries, but the model has {model.config.vocab_size:,} embeddings"
        )
    folder, tokenizer = Path(folder), deepcopy(tokenizer)  # the caller's stays as it is
    stock = stock_form(model, weights) if isinstance(model.config, BertPreConfig) else None
    if stock is not None:
        stock.save_pretrained(folder)
        tokenizer = give_segments(tokenizer, stock.config.model_type == "bert")
    elif isinstance(model.config, BertPreConfig):
        model.save_pretrained(folder, state_dict=weights)
    else:
        model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, longest)
    share_weights(folder)


def share_weights(folder: Path) -> None:
    """Let whoever may read a model's configuration read its weights: safetensors writes them for their owner alone."""
    for file in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", file)


def stock_form(model: PreTrainedModel, weights: dict[str, Tensor] | None = None) -> PreTrainedModel | None:
    """A BertPre model as its stock class, on the CPU; None where that would lose something.

    ModernBERT has no segments. Without pairs in pretraining their vector stays 0, and the pooler and the head for pairs
    stay untrained, the head's bias 0. After training on pairs without `token_type_ids` the vector is still 0, but the
    bias is not. bertpre's own fine-tuning of "modern" reads no segments, and sets their vector to 0. The encoder alone
    has no stock class here, nor has a subclass of the caller's.
    """
    if not has_counterpart(model):
        return None
    weights = {name: tensor.cpu() for name, tensor in (weights or model.state_dict()).items()}
    if model.config.architecture == "bert":
        return to_stock_bert(model, weights)
    if weights[SECOND_SEGMENT].any() or (PAIR_BIAS in weights and weights[PAIR_BIAS].any()):
        return None
    return to_stock_modernbert(model, weights)


def give_segments(tokenizer: "PreTrainedTokenizerBase", wanted: bool) -> "PreTrainedTokenizerBase":
    """The tokenizer, which gives token_type_ids if `wanted`."""
    names = list(tokenizer.model_input_names)
    if wanted != ("token_type_ids" in names):
        names = [*names, "token_type_ids"] if wanted else [name for name in names if name != "token_type_ids"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    return tokenizer


# ---- to load ---------------------------------------------------------------------------------------------------------


def read_config(source: str, subfolder: str = "") -> PreTrainedConfig:
    """The configuration of a model in a folder or on the Hub; bertpre's own where it saved the model as a stock class.

    It stays stock where it has since been given what bertpre's classes lack, such as local attention. Raises OSError
    where there is none, ValueError where transformers does not know the model.
    """
    place = Path(source, subfolder)
    if os.path.isabs(source) and not place.is_dir():
        raise OSError(f"there is no folder {place}")
    if place.is_dir() and not (place / "config.json").is_file():
        models = [str(each.parent) for each in sorted(place.glob("*/config.json"))]
        raise OSError(f"there is no config.json in {place}" + (f"; give {' or '.join(models)}" if models else ""))
    config = AutoConfig.from_pretrained(source, subfolder=subfolder, trust_remote_code=False)
    if not is_from_bertpre(config):
        return config
    try:
        ours = config_from_stock(config)
    except ValueError:
        return config
    ours.architectures = [OUR_NAMES.get(name, name) for name in config.architectures or []]
    return ours


def load_model(
    source: str,
    auto_class: str | None = None,
    *,
    config: PreTrainedConfig | None = None,
    subfolder: str = "",
    new_head: bool = False,
) -> PreTrainedModel:
    """A model in fp32 and in evaluation mode, from a folder or the Hub; one that bertpre saved has bertpre's classes.

    Without `auto_class` it has the class that was saved; `config` may replace the stored one of `read_config`. Raises
    OSError where there is no model, ValueError where transformers does not know it or some of its weights are missing;
    with `new_head` the encoder's weights suffice, without a pooler. An encoder alone of bertpre's class has no pooler
    where its files have none. Raises UserError if `auto_class` is not a name.
    """
    if not isinstance(auto_class, str | None):
        raise UserError(f"auto_class: is {auto_class!r}; give a name, such as 'AutoModelForMaskedLM'")
    source = os.path.expanduser(source)
    config = config or read_config(source, subfolder)
    is_ours = isinstance(config, BertPreConfig)
    is_converted = is_ours and not config.name_or_path  # transformers knows the folder's own configuration by its place
    name = auto_class or config.architectures[0]
    model_class = getattr(transformers if auto_class or not is_ours else modeling_bertpre, name, None)
    if model_class is None:
        raise ValueError(
            f"bertpre has no class for a {name}; load it with transformers, or its encoder alone with "
            'auto_class="AutoModel"'
        )
    renaming = {"key_mapping": FROM_MODERNBERT} if is_ours and config.architecture == "modern" else {}
    model, report = model_class.from_pretrained(
        source, subfolder=subfolder, config=config, dtype=torch.float32, ignore_mismatched_sizes=True,
        output_loading_info=True, trust_remote_code=False, **renaming,
    )  # fmt: skip
    if renaming:
        model._weight_conversions = []  # `save_pretrained` would give the weights ModernBERT's names again
    if is_converted:  # peft would read the configuration again from there, with the class of this one
        model.name_or_path = model.config.name_or_path = ""
    missing = sorted([*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])])
    if is_ours and model is model.base_model and "pooler.dense.weight" in missing:
        missing, model.pooler = [name for name in missing if not name.startswith("pooler.")], None
    if new_head:
        encoder = "" if model is model.base_model else f"{model.base_model_prefix}."
        draw_last_layer(model, encoder, unless=missing)
        missing = [name for name in missing if name.startswith(encoder) and "pooler." not in name]
    if missing:
        raise ValueError(f"its files lack {len(missing)} of the model's weights, {missing[0]} among them")
    return model.eval()


def draw_last_layer(model: PreTrainedModel, encoder: str, unless: list[str]) -> None:
    """New random weights for the last layer outside the encoder, unless they are among those just drawn."""
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.startswith(encoder or name)
    ]
    if layers and f"{layers[-1][0]}.weight" not in unless:
        torch.nn.init.normal_(layers[-1][1].weight, std=getattr(model.config, "initializer_range", 0.02))
        if layers[-1][1].bias is not None:
            torch.nn.init.zeros_(layers[-1][1].bias)
