"""The model that fine-tuning starts from: this run's, random weights, or any encoder, with its tokenizer."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError, first_line
from bertpre.finetuning.task import PROBLEM_TYPES, Task
from bertpre.pretraining.model import build_config
from bertpre.recipe import Finetune, Recipe
from bertpre.run_directory import load_run, model_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

HEAD_DROPOUT = (  # as configurations of transformers say
    "classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "cls_dropout",
)  # fmt: skip
ENCODER_DROPOUT = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout",
    "mlp_dropout",
)  # fmt: skip


def load_start(recipe: Recipe, init: str, task: Task, seed: int) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """A model with a new head for the task, drawn by `seed`, and its tokenizer.

    `init` is `pretrained`, this run's model; `random`, the recipe's model untrained; a run directory; or the folder or
    Hub id of any encoder. Raises UserError where there is none, its tokenizer is missing, or texts would be longer
    than it can read.
    """
    folder = Path(recipe.output_dir)
    torch.manual_seed(seed)
    if init == "random":
        own = folder / "tokenizer"
        given = recipe.tokenizer.path if not own.exists() else None
        tokenizer = load_tokenizer(model_of(given, "tokenizer") if given else own)
        config = build_config(recipe, tokenizer)
        set_choices(config, recipe.finetune, task)
        model = eager_on_cpu(getattr(transformers, task.auto_class).from_config(config))
        return model, match_inputs(tokenizer, model)
    own = folder if init == "pretrained" else Path(init)
    is_run = init == "pretrained" or (own / "recipe.yaml").exists()
    source = str(own / "model") if is_run else init
    if is_run and not Path(source).exists():
        remedy = "run `bertpre pretrain` first, or set finetune.init to random, a folder or a Hub id"
        raise UserError(f"no pretrained model in {source}: {remedy}")
    tokenizer = load_own_tokenizer(str(own / "tokenizer") if is_run else init)
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        set_choices(config, recipe.finetune, task)
        with without_loading_report():  # that the head is new is no news
            model, told = getattr(transformers, task.auto_class).from_pretrained(
                source, config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
            )
    except (OSError, ValueError) as error:
        raise UserError(f"finetune.init: no encoder in {source!r}: {first_line(error)}") from None
    refuse_unfit(source, model, tokenizer, recipe.finetune)
    refuse_incomplete(source, model, told)
    return eager_on_cpu(model), match_inputs(tokenizer, model)


def match_inputs(tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> "PreTrainedTokenizerBase":
    """The tokenizer, which from here on tells segments apart only where the model, wherever it goes, does.

    A modern model leaves as ModernBERT, which has none.
    """
    takes_segments = "token_type_ids" in inspect.signature(model.forward).parameters
    if not takes_segments or getattr(model.config, "architecture", None) == "modern":
        inputs = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = inputs
    return tokenizer


def readable_length(model: "PreTrainedModel") -> int | None:
    """The longest text that a model reads, in tokens; None where it has no limit.

    Where positions are counted from behind that of the padding, as in RoBERTa, those before it are never used.
    """
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is None or longest <= 0:
        return None
    places = [module for name, module in model.named_modules() if name.endswith(".position_embeddings")]
    padding = getattr(places[0], "padding_idx", None) if places else None
    return longest if padding is None else longest - padding - 1


def load_own_tokenizer(source: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a model; raises UserError where there is none, or it does not tell special tokens apart."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        if tokenizer.pad_token_id is None or not hasattr(tokenizer, "backend_tokenizer"):
            raise ValueError("it has no padding token, or no fast tokenizer")
        if len(tokenizer) <= len(tokenizer.all_special_tokens):  # made up by transformers where there are no files
            raise ValueError("there is no vocabulary")
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        reason = first_line(error)
        raise UserError(
            f"finetune.init: no tokenizer in {source!r}: {reason}; a model cannot be used without its own: put "
            "tokenizer.json and tokenizer_config.json beside it"
        ) from None
    return tokenizer


def set_choices(config: "PreTrainedConfig", settings: Finetune, task: Task) -> None:
    """Write the task and the recipe's choices into a model's configuration, under the names it has for them."""
    for name, value in task.config.items():
        setattr(config, name, value)
    for name in HEAD_DROPOUT:
        if hasattr(config, name) or (name == "cls_dropout" and config.model_type.startswith("deberta")):
            setattr(config, name, settings.dropout)
    for name in ENCODER_DROPOUT if settings.encoder_dropout is not None else ():
        if hasattr(config, name):
            setattr(config, name, settings.encoder_dropout)
    pools_by_choice = hasattr(config, "classifier_pooling") and getattr(config, "architecture", "modern") == "modern"
    if pools_by_choice:
        config.classifier_pooling = settings.pooling
    elif settings.pooling != "cls":
        raise UserError(
            f"finetune.pooling is {settings.pooling}, but this {config.model_type} has its own head: leave it at cls"
        )


def refuse_unfit(
    source: str, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", settings: Finetune
) -> None:
    """Raise UserError where tokens or places are asked for that the model does not have."""
    tokens, longest = model.config.vocab_size, readable_length(model)
    if tokens < len(tokenizer):
        raise UserError(f"finetune.init: the model in {source} has {tokens} tokens, its tokenizer {len(tokenizer)}")
    if longest and settings.max_length > longest:
        raise UserError(f"finetune.max_length is {settings.max_length}, but the model in {source} reads {longest}")


def refuse_incomplete(source: str, model: "PreTrainedModel", told: dict[str, Any]) -> None:
    """Raise UserError where a part of the encoder was not in the files and would be left random."""
    names = [*told["missing_keys"], *(name for name, *_ in told["mismatched_keys"])]
    inside = [name for name in names if name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name]
    if inside:
        raise UserError(
            f"finetune.init: the files in {source} lack {len(inside)} weights of the encoder, {sorted(inside)[0]} "
            "among them: this is no checkpoint of that model"
        )


@contextmanager
def without_loading_report() -> Iterator[None]:
    """Keep transformers from listing which weights it found."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def eager_on_cpu(model: "PreTrainedModel") -> "PreTrainedModel":
    """Our own model with the attention that is fastest on a CPU, where there is no GPU."""
    if model.config.model_type == "bertpre" and not torch.cuda.is_available():
        model.set_attn_implementation("eager")
    return model


def load_classifier(folder: Path, kind: str, classes: tuple[str, ...]) -> tuple["PreTrainedModel", Any]:
    """A fine-tuned model and its tokenizer; raises UserError where its classes are not those of the recipe."""
    import transformers

    import bertpre.model  # noqa: F401  registers its classes

    auto_class = getattr(transformers, Task(kind, classes).auto_class)
    model = auto_class.from_pretrained(folder, dtype=torch.float32).eval()
    known = tuple(model.config.id2label[number] for number in range(model.config.num_labels))
    if known != classes:
        raise UserError(f"the classifier in {folder} knows {', '.join(known)}; the labels are {', '.join(classes)}")
    return model, match_inputs(load_own_tokenizer(str(folder)), model)


def load(model: str) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase", Task, tuple[Finetune, str]]:
    """The classifier, its tokenizer, its task; the settings that texts are read by, and the precision."""
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
    )

    import bertpre.model  # noqa: F401  registers its classes

    source, settings, precision = model, None, "auto"
    if (Path(model) / "recipe.yaml").exists():
        folder, recipe = load_run(model)
        source = str(folder / "finetuned")
        if not Path(source).exists():
            raise UserError(f"no classifier in {source}: run `bertpre finetune` first")
        settings, precision = recipe.finetune, recipe.training.precision
    reason = ""
    for subfolder in ("", "classifier"):  # where `bertpre push` puts it below a pretrained model
        try:
            config = AutoConfig.from_pretrained(source, subfolder=subfolder)
            tokenizer = AutoTokenizer.from_pretrained(source, subfolder=subfolder)
            if not hasattr(tokenizer, "backend_tokenizer"):
                raise ValueError("its tokenizer is no fast one")
            kind = settings.task if settings else kind_of(config)
            auto_class = AutoModelForTokenClassification if kind == "tokens" else AutoModelForSequenceClassification
            with without_loading_report():
                classifier, told = auto_class.from_pretrained(
                    source, subfolder=subfolder, dtype=torch.float32, output_loading_info=True
                )
            if not told["missing_keys"]:
                break
            lacking = sorted(told["missing_keys"])[0]
            reason = reason or f"its files lack the classifier's weights ({lacking}): fine-tune it"
        except (OSError, ValueError, ImportError) as error:
            reason = reason or first_line(error)
    else:
        raise UserError(f"{source!r} is no text classifier with its tokenizer: {reason}")
    if settings is None:
        longest = min(tokenizer.model_max_length, readable_length(classifier) or 512)
        settings = Finetune(path=source, max_length=longest, truncation="head")
    classes = tuple(config.id2label[number] for number in range(config.num_labels))
    return classifier.eval(), match_inputs(tokenizer, classifier), Task(kind, classes), (settings, precision)


def kind_of(config: Any) -> str:
    """The task that a model's configuration tells."""
    if any("TokenClassification" in name for name in config.architectures or []):
        return "tokens"
    kinds = {problem: kind for kind, problem in PROBLEM_TYPES.items() if problem}
    return kinds.get(config.problem_type, "regression" if config.num_labels == 1 else "classification")


def load_masked_lm(model: str) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """The model, in evaluation, and its tokenizer; raises UserError where it is no such model."""
    from transformers import AutoModelForMaskedLM

    import bertpre.model  # noqa: F401  registers its classes

    source = model_of(model)
    try:
        with without_loading_report():
            network, told = AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
        if told["missing_keys"]:
            raise ValueError(f"its files lack weights ({sorted(told['missing_keys'])[0]})")
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{source!r} is no masked language model: {reason}") from None
    tokenizer = load_own_tokenizer(source)
    if tokenizer.mask_token_id is None:
        raise UserError(f"the tokenizer of {source!r} has no mask token")
    return network.eval(), tokenizer
