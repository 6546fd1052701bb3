"""Models with their tokenizers: to fine-tune, to measure or apply a classifier, to probe a masked language model."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from safetensors import SafetensorError

from bertpre.console import console, log_once
from bertpre.data.raw_text import for_clean_texts
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError, first_line
from bertpre.files import ask_hub, refuse_unknown_model
from bertpre.finetuning.inference import Classifier
from bertpre.finetuning.task import PROBLEM_TYPES, Task, last_layer
from bertpre.model import folders
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.conversion import AS_A_NUMBER
from bertpre.pretraining.model import build_config
from bertpre.recipe import Finetune, Recipe
from bertpre.run_directory import is_of_earlier_finetuning, is_run, load_run, model_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]

HEAD_DROPOUT = (  # its names in the configurations of transformers
    "classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "cls_dropout",
)  # fmt: skip
ENCODER_DROPOUT = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout",
    "mlp_dropout",
)  # fmt: skip


# ---- one loader ------------------------------------------------------------------------------------------------------


def load_with_tokenizer(
    source: str,
    auto_class: str | None,
    problem: str,
    *,
    tokenizer_source: str | None = None,
    subfolder: str = "",
    configure: Callable[["PreTrainedConfig"], None] | None = None,
    new_head: bool = False,
) -> "Loaded":
    """A model of an Auto class, in fp32 and in evaluation mode, and its tokenizer, from a folder or the Hub.

    Without `auto_class` the configuration decides which text classifier it is; `configure` may change it. Raises
    UserError, which begins with `problem`, if the model, its tokenizer or some of its weights are missing; with
    `new_head` the encoder's weights suffice.
    """
    try:
        config = folders.read_config(source, subfolder)
        tokenizer = load_own_tokenizer(tokenizer_source or source, subfolder)
        if configure is not None:
            configure(config)
        if getattr(config, "pad_token_id", None) is None:  # GPT-2's head asks where the padding begins
            config.pad_token_id = tokenizer.pad_token_id
        auto_class = auto_class or Task(kind_of(config), ()).auto_class
        model = folders.load_model(source, auto_class, config=config, subfolder=subfolder, new_head=new_head)
        if new_head and isinstance(config, BertPreConfig) and config.architecture == "modern":
            torch.nn.init.zeros_(model.bert.embeddings.second_segment)  # what pretraining with pairs has left of them
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, OSError) and not Path(source).exists():  # transformers hides the Hub's answer
            place = problem.split(":")[0] if ":" in problem else "MODEL"
            ask_hub(source, place, str(Path(subfolder, "model.safetensors")), "model")
        raise UserError(f"{problem}: {first_line(error)}") from None
    except SafetensorError as error:
        raise UserError(f"{problem}: its weights are damaged ({first_line(error)})") from None
    return model, match_inputs(tokenizer, model)


def load_own_tokenizer(source: str, subfolder: str = "") -> "PreTrainedTokenizerBase":
    """A model's tokenizer; raises ValueError if there is none, or none with a vocabulary and padding on the right."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, subfolder=subfolder, trust_remote_code=False)
        if tokenizer.pad_token_id is None or not hasattr(tokenizer, "backend_tokenizer"):
            raise ValueError("it has no padding token, or is not a fast tokenizer")
        if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers makes one up if there are no files
            raise ValueError("it has no vocabulary")
        tokenizer = for_clean_texts(tokenizer)
    except Exception as error:  # of any class: `tokenizers` has none of its own for a damaged file
        raise ValueError(
            f"it has no tokenizer ({first_line(error)}); put tokenizer.json and tokenizer_config.json beside it"
        ) from None
    if tokenizer.padding_side != "right":  # its head reads the last token, for which bertpre would give it padding
        raise ValueError("its tokenizer pads on the left; bertpre reads encoders that are padded on the right")
    return tokenizer


def match_inputs(tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> "PreTrainedTokenizerBase":
    """The tokenizer, which gives segments only if the model, also as a stock class, reads them.

    A modern model is fine-tuned without: it is saved as ModernBERT, which reads none.
    """
    if isinstance(model.config, BertPreConfig):
        reads = model.config.architecture == "bert" or bool(model.bert.embeddings.second_segment.any())
        return folders.give_segments(tokenizer, reads)
    takes_segments = "token_type_ids" in inspect.signature(model.forward).parameters
    return folders.give_segments(tokenizer, takes_segments and "token_type_ids" in tokenizer.model_input_names)


def readable_length(model: "PreTrainedModel") -> int | None:
    """The longest text that a model reads, in tokens; None if it has no limit.

    RoBERTa and its like count positions from the padding's, so that those up to it are never used.
    """
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is None or longest <= 0:
        return None
    positions = [module for name, module in model.named_modules() if name.endswith(".position_embeddings")]
    padding = getattr(positions[0], "padding_idx", None) if positions else None
    return longest if padding is None else longest - padding - 1


# ---- to fine-tune ----------------------------------------------------------------------------------------------------


def load_start(recipe: Recipe, init: str, task: Task, seed: int) -> "Loaded":
    """A model with a new head for the task, drawn by `seed`, and its tokenizer.

    `init` is `pretrained` (this run's model), `random` (untrained), a run directory, or the folder or Hub id of an
    encoder. Raises UserError if it cannot be loaded, or reads shorter texts than the recipe wants.
    """
    torch.manual_seed(seed)
    return random_start(recipe, task, seed) if init == "random" else trained_start(recipe, init, task)


def start_place(recipe: Recipe, init: str) -> tuple[str, str]:
    """Where the encoder and its tokenizer are; `init` as in `load_start`. Raises UserError where it is missing."""
    run = recipe.output_dir if init == "pretrained" else init
    source = model_of(run)
    if is_run(run) and not Path(source).exists():
        raise UserError(
            f"finetune.init: no pretrained model in {source}; run `bertpre pretrain` first, or set finetune.init to "
            "random, a folder or a Hub id"
        )
    refuse_unknown_model(source, "finetune.init")
    return source, model_of(run, "tokenizer")


def trained_start(recipe: Recipe, init: str, task: Task) -> "Loaded":
    """An encoder with a new head, and its tokenizer; `init` and errors are those of `load_start`."""
    source, tokenizer_source = start_place(recipe, init)
    model, tokenizer = load_with_tokenizer(
        source,
        task.auto_class,
        f"finetune.init: {source!r} is not an encoder",
        tokenizer_source=tokenizer_source,
        configure=partial(configure_for_task, settings=recipe.required_finetune, task=task),
        new_head=True,
    )
    refuse_unfit(source, model, tokenizer, recipe.required_finetune)
    return eager_on_cpu(model), tokenizer


def can_start_at_random(recipe: Recipe, stage: str) -> bool:
    """Whether the network that is fine-tuned has a tokenizer, without which it has no random weights; says so if not.

    An existing model has one, or `load_start` refuses it.
    """
    if recipe.required_finetune.uses_recipe_model:
        try:
            recipe_tokenizer(recipe)
        except UserError as error:
            console.say(
                f"{stage}: the network without pretraining is left out: {error}; `bertpre prepare` makes a tokenizer"
            )
            return False
    return True


def recipe_tokenizer(recipe: Recipe) -> "PreTrainedTokenizerBase":
    """The tokenizer of `finetune.init`, of the run, or of `tokenizer.path`; UserError or ValueError without one."""
    settings = recipe.required_finetune
    if not settings.uses_recipe_model:
        return load_own_tokenizer(model_of(settings.init, "tokenizer"))
    own, given = Path(recipe.output_dir) / "tokenizer", recipe.tokenizer.path
    if given and not own.exists():
        return load_tokenizer(model_of(given, "tokenizer"))
    if not own.exists():
        raise UserError(f"no tokenizer in {own}")
    return load_tokenizer(own)


def random_start(recipe: Recipe, task: Task, seed: int) -> "Loaded":
    """The network that the recipe fine-tunes, with random weights, and its tokenizer."""
    settings = recipe.required_finetune
    if settings.uses_recipe_model:
        tokenizer = recipe_tokenizer(recipe)
        config: PreTrainedConfig = build_config(recipe, tokenizer)
        configure_for_task(config, settings, task)
    else:
        trained, tokenizer = trained_start(recipe, settings.init, task)
        config = trained.config
    torch.manual_seed(seed)  # loading has drawn a head
    model = eager_on_cpu(getattr(transformers, task.auto_class).from_config(config, dtype=torch.float32))
    return model, match_inputs(tokenizer, model)


def configure_for_task(config: "PreTrainedConfig", settings: Finetune, task: Task) -> None:
    """Write the task, dropout and pooling into a model's configuration, under the names that it has for them."""
    for name, value in task.config.items():
        setattr(config, name, value)
    reads_pairs = settings.text_pair_column is not None
    if reads_pairs or hasattr(config, "reads_pairs"):
        config.reads_pairs = reads_pairs
    if task.kind == "regression" and config.model_type != "bertpre":
        config.sentence_transformers = dict(AS_A_NUMBER)
    if task.kind != "tokens":  # words are always cut at their end
        config.truncation = settings.truncation
    for name in HEAD_DROPOUT:
        if hasattr(config, name) or (name == "cls_dropout" and config.model_type.startswith("deberta")):
            setattr(config, name, settings.dropout)
    for name in ENCODER_DROPOUT if settings.encoder_dropout is not None else ():
        if hasattr(config, name):
            setattr(config, name, settings.encoder_dropout)
    can_choose = hasattr(config, "classifier_pooling") and getattr(config, "architecture", "modern") == "modern"
    if can_choose:
        config.classifier_pooling = settings.pooling or config.classifier_pooling
    elif settings.pooling == "mean":
        raise UserError(f"finetune.pooling is mean, but this {config.model_type} has its own head: leave it out")


def refuse_unfit(
    source: str, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", settings: Finetune
) -> None:
    """Raise UserError if the model has too few tokens or positions, or no bias where a regression needs one."""
    tokens, longest = model.config.vocab_size, readable_length(model)
    if tokens < len(tokenizer):
        raise UserError(f"finetune.init: the model in {source} has {tokens} tokens, its tokenizer {len(tokenizer)}")
    if longest and settings.max_length > longest:
        raise UserError(f"finetune.max_length is {settings.max_length}, but the model in {source} reads {longest}")
    if settings.task == "regression" and last_layer(model).bias is None:
        raise UserError(
            f"finetune.init: the head of this {model.config.model_type} has no bias; a regression needs one"
        )


def eager_on_cpu(model: "PreTrainedModel") -> "PreTrainedModel":
    """The model; if it is bertpre's own and there is no GPU, with the attention that is fastest on a CPU."""
    if isinstance(model.config, BertPreConfig) and not torch.cuda.is_available():
        model.set_attn_implementation("eager")
    return model


# ---- to measure, to apply, to probe ----------------------------------------------------------------------------------


def load_classifier(recipe: Recipe, folder: Path, classes: tuple[str, ...]) -> Classifier:
    """The recipe's classifier in a folder; raises UserError if its classes are not `classes`."""
    task = Task(recipe.required_finetune.task, classes)
    model, tokenizer = load_with_tokenizer(str(folder), task.auto_class, f"{folder} is not a classifier of this recipe")
    known = class_names(model)
    if known != classes:
        raise UserError(f"{folder}: the classifier's classes are {', '.join(known)}, not {', '.join(classes)}")
    return Classifier.of(recipe, model, tokenizer, task)


def load_any_classifier(place: str) -> tuple[Classifier, Finetune]:
    """The classifier of a run directory, a folder or a Hub id, and the settings by which texts are read for it.

    Where `bertpre push` has put a pretrained model, the classifier is in the folder `classifier` below it.
    """
    if Path(place).name == "finetuned" and is_run(Path(place).parent):
        place = str(Path(place).parent)
    if is_run(place):
        folder, recipe = load_run(place)
        source = folder / "finetuned"
        if not source.exists():
            raise UserError(f"no classifier in {source}; run `bertpre finetune` first")
        if is_of_earlier_finetuning(folder):
            log_once(f"{source} is of an earlier fine-tuning; the last one has not ended")
        model, tokenizer = load_with_tokenizer(str(source), None, f"{str(source)!r} is not a text classifier")
        task = Task(recipe.required_finetune.task, class_names(model))
        return Classifier.of(recipe, model, tokenizer, task), recipe.required_finetune
    problem = f"{place!r} is not a fine-tuned text classifier"
    refuse_unknown_model(place, problem)
    try:
        model, tokenizer = load_with_tokenizer(place, None, problem)
    except UserError as error:
        try:
            model, tokenizer = load_with_tokenizer(place, None, problem, subfolder="classifier")
        except UserError:
            raise error from None
    longest = min(tokenizer.model_max_length, readable_length(model) or 512)
    kind = kind_of(model.config)
    known = getattr(model.config, "truncation", None)
    truncation = known if known in ("head", "tail", "head_tail") else "head"
    values = {"path": place, "task": kind, "max_length": longest, "truncation": truncation}
    if getattr(model.config, "reads_pairs", False):
        values["text_pair_column"] = "text_pair"
    settings = Finetune.model_validate(values)
    if kind == "regression" and model.config.num_labels > 1:
        raise UserError(f"{problem}: it predicts {model.config.num_labels} numbers for a text, and one is read")
    task, knows_pairs = Task(kind, class_names(model)), hasattr(model.config, "reads_pairs")
    return Classifier(model, tokenizer, task, longest, truncation, knows_pairs=knows_pairs), settings


def class_names(model: "PreTrainedModel") -> tuple[str, ...]:
    """The classes in a model's configuration, in order."""
    return tuple(model.config.id2label[number] for number in range(model.config.num_labels))


def kind_of(config: "PreTrainedConfig") -> str:
    """The task of a classifier, by its configuration."""
    if any("TokenClassification" in name for name in config.architectures or []):
        return "tokens"
    kinds = {problem: kind for kind, problem in PROBLEM_TYPES.items() if problem}
    return kinds.get(config.problem_type, "regression" if config.num_labels == 1 else "classification")


def load_masked_lm(place: str) -> "Loaded":
    """The masked language model of a run directory, a folder or a Hub id, and its tokenizer."""
    source, problem = model_of(place), f"{place!r} is not a masked language model"
    refuse_unknown_model(source, problem)
    model, tokenizer = load_with_tokenizer(source, "AutoModelForMaskedLM", problem)
    if tokenizer.mask_token_id is None:
        raise UserError(f"{problem}: its tokenizer has no mask token")
    return model, tokenizer
