"""Models as folders that load where bertpre is not installed, each checked against the model it was made from."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel

from bertpre.errors import UserError, first_line, is_disk_full
from bertpre.files import save_tokenizer

from .configuration_bertpre import BertPreConfig
from .conversion import to_stock_bert, to_stock_modernbert
from .folders import give_segments, load_model, read_config, share_weights
from .onnx import run_onnx, write_onnx

STOCK = {"bert": "bert", "modern": "modernbert"}  # the stock model of each architecture
FORMATS = (*STOCK.values(), "bertpre", "onnx")
PARTS = {"encoder": "model", "classifier": "finetuned"}  # a run's models and their folders
FILES = (  # of a model of transformers and its tokenizer
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "*.model", "chat_template.jinja",
)  # fmt: skip
TOLERANCE = 1e-4  # of logits in fp32; two implementations may add in different orders
ROUNDING = 1e-6  # of the largest number, which a regression may give in millions


def export_run(run: Path, to: str | None, folder: Path, only: str | None = None) -> float:
    """Write a run's encoder to `folder` and its classifier to `folder/classifier`; a single one goes to `folder`.

    `to` is one of FORMATS, None for each model's stock class; `only` is one of PARTS. Returns the largest absolute
    difference between the logits of a model and of its export. Raises UserError where the run has no such model or
    one cannot have this format, RuntimeError where the logits differ by more than TOLERANCE.
    """
    sources = [run / name for part, name in PARTS.items() if only in (None, part) and (run / name).is_dir()]
    if not sources:
        stages = zip(PARTS, ("pretrain", "finetune"), strict=True)
        commands = " or ".join(
            f"`bertpre {shlex.join([stage, str(run)])}`" for part, stage in stages if only in (None, part)
        )
        raise UserError(f"{run} has no {only or 'model'}: run {commands} first")
    targets = (folder, folder / "classifier")
    with damage_explained(run):
        return max(export_model(source, to, target) for source, target in zip(sources, targets, strict=False))


@contextmanager
def damage_explained(place: Path) -> Iterator[None]:
    """Turn errors about what a file of a model holds into UserError; those of the disk stay as they are."""
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        if is_disk_full(error) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise UserError(f"{place}: a file of a model is damaged: {first_line(error)}") from None


def refuse_unknown_format(to: str | None, only: str | None) -> None:
    """Raise UserError for a format or a part that does not exist."""
    for option, value, known in (("--to", to, FORMATS), ("--only", only, tuple(PARTS))):
        if value is not None and value not in known:
            raise UserError(f"{option} {value}: choose one of {', '.join(known)}")


def export_model(source: Path, to: str | None, target: Path) -> float:
    """Write one model and its tokenizer; returns and raises as `export_run`."""
    config = read_config(str(source))
    if not isinstance(config, BertPreConfig):
        return export_other(source, config, to, target)
    if (config.architectures or [""])[0] == "BertPreModel":
        raise UserError(
            f"{source} holds an encoder alone, which has no output to compare; it loads by AutoModel as it is"
        )
    stock = STOCK[config.architecture]
    to = to or stock
    is_pretrained = config.architectures[0] == "BertPreForPreTraining"
    try:
        model = load_model(str(source), "AutoModelForMaskedLM" if to == "onnx" and is_pretrained else None)
    except (OSError, ValueError) as error:
        raise UserError(f"{source} cannot be exported: {first_line(error)}") from None
    exported = convert(model, stock if to == "onnx" else to, source)
    # ModernBERT's forward takes no token_type_ids, so its tokenizer must not make any.
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    if exported.config.model_type == "modernbert":
        tokenizer = give_segments(tokenizer, wanted=False)
    save_tokenizer(tokenizer, target, min(tokenizer.model_max_length, config.max_position_embeddings))
    if to == "onnx":  # with the configuration of the stock model, which has the same inputs and outputs
        exported.config.save_pretrained(target)
        return export_graph(model, target / "model.onnx", tokenizer.model_input_names)
    exported.save_pretrained(target)
    share_weights(target)
    return compare_stored(model, type(exported).from_pretrained(target, dtype=torch.float32), target)


def export_other(source: Path, config: PreTrainedConfig, to: str | None, target: Path) -> float:
    """Copy a model of a class of transformers, or write its graph; returns and raises as `export_run`."""
    if to == "onnx":
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        save_tokenizer(tokenizer, target, tokenizer.model_max_length)
        config.save_pretrained(target)
        try:
            return export_graph(load_model(str(source)), target / "model.onnx", tokenizer.model_input_names)
        except (RuntimeError, TypeError) as error:
            raise UserError(f"{source}: a {config.model_type} cannot become onnx: {first_line(error)}") from None
    if to not in (None, config.model_type):
        has_own = (source.parent / PARTS["encoder"]).is_dir()
        alone = " (with --only encoder the run's own model is exported alone)" if has_own else ""
        raise UserError(
            f"{source} was fine-tuned from a stock {config.model_type} and cannot become {to}: it loads anywhere "
            f"as it is{alone}"
        )
    target.mkdir(parents=True, exist_ok=True)
    for file in files_of_model(source):
        shutil.copyfile(file, target / file.name)  # without its mode: a run may be write-protected
    return 0.0


def files_of_model(folder: Path) -> list[Path]:
    """The files in a folder that belong to its model and tokenizer, and nothing that someone else has put there."""
    return [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.is_symlink() and any(fnmatch(file.name, kind) for kind in FILES)
    ]


def convert(model: PreTrainedModel, to: str, source: Path) -> PreTrainedModel:
    """The model to save for a format; raises UserError where the format belongs to the other architecture."""
    architecture = model.config.architecture
    if to == "bertpre":
        return model
    if to != STOCK[architecture]:
        stock = STOCK[architecture]
        raise UserError(f"{source}: architecture {architecture} cannot become {to}; export it to {stock} or bertpre")
    return to_stock_bert(model) if to == "bert" else to_stock_modernbert(model)


def export_graph(model: PreTrainedModel, file: Path, names: list[str]) -> float:
    """Write a model as ONNX; returns the largest difference of the logits that onnxruntime computes."""
    longest = min(64, getattr(model.config, "max_position_embeddings", 64))
    traced, other = (random_inputs(model.config, length) for length in (longest, longest // 2))
    write_onnx(model, file, {name: traced[name] for name in names})
    used = {name: other[name] for name in names}
    return largest_difference(logits(model, used), [run_onnx(file, used)], file.parent)


def compare_stored(model: PreTrainedModel, stored: PreTrainedModel, folder: Path) -> float:
    """The largest difference of the two models' logits on random tokens."""
    inputs = random_inputs(model.config, min(64, model.config.max_position_embeddings))
    if stored.config.model_type == "modernbert":  # it has no segments: both read the tokens as a single text
        del inputs["token_type_ids"]
    return largest_difference(logits(model, inputs), logits(stored, inputs), folder)


def largest_difference(expected: list[Tensor], computed: list[Tensor], folder: Path) -> float:
    """The largest absolute difference of logits; raises RuntimeError above TOLERANCE, or ROUNDING of the largest.

    The exported model may lack our second logits: ModernBERT has no head for next sentence prediction.
    """
    differences = [(one - other).abs().max() for one, other in zip(expected, computed, strict=False)]
    difference = torch.stack(differences).max().item()  # NaN where any is NaN
    largest = max(one.abs().max().item() for one in expected)
    if not difference <= max(TOLERANCE, ROUNDING * largest):  # NaN is refused too
        raise RuntimeError(f"{folder.name}: the exported model's logits differ from the run's by {difference:.1e}")
    return difference


def random_inputs(config: PreTrainedConfig, length: int) -> dict[str, Tensor]:
    """Four sequences of two segments, or as many as the model has, three of them padded; (4, S) each."""
    lengths = torch.tensor([[length], [length - 1], [length // 2], [2]])
    positions = torch.arange(length)
    return {
        "input_ids": torch.randint(config.vocab_size, (4, length), generator=torch.Generator().manual_seed(0)),
        "attention_mask": (positions < lengths).long(),
        "token_type_ids": (positions >= lengths // 2).long().clamp(max=getattr(config, "type_vocab_size", 1) - 1),
    }


@torch.no_grad()
def logits(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """All logits that a model returns, the vocabulary's first."""
    return [value for name, value in model.eval()(**inputs).items() if name.endswith("logits")]
