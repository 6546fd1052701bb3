"""`bertpre export`: a run's models as Hugging Face folders that load where bertpre is not installed."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from bertpre.errors import UserError
from bertpre.model import modeling_bertpre
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.conversion import to_stock_bert, to_stock_modernbert
from bertpre.model.onnx import INPUTS, run_onnx, write_onnx
from bertpre.run_directory import load_run

STOCK = {"bert": "bert", "modern": "modernbert"}  # the stock model of each architecture
TARGETS = (*STOCK.values(), "bertpre", "onnx")
TOLERANCE = 1e-4  # of logits in fp32; the kernels of two implementations may add in another order


def export(run_dir: str, to: str, output_dir: str | None) -> Path:
    """Write the run's models as a Hugging Face folder and check that it computes the same; returns its path.

    `to` is `bert` or `modernbert`, the stock classes; `bertpre`, which carries its own code and needs
    `trust_remote_code=True`; or `onnx`, graphs of the masked language model and of the classifier. The folder,
    `RUN_DIR/export-TO` by default, holds the pretrained model, and below `classifier/` the fine-tuned one; or, where
    only one of them is there, that one. ModernBERT has no segments and no head for their order: it is the same model
    for single texts.
    Raises UserError for an unknown `to` or another architecture's, a run without a model, and a folder in use.
    """
    if to not in TARGETS:
        raise UserError(f"--to {to}: choose one of {', '.join(TARGETS)}")
    run, _ = load_run(run_dir)
    folder = Path(output_dir) if output_dir else run / f"export-{to}"
    refuse_unusable(folder)
    with TemporaryDirectory(dir=folder.parent, prefix=".export-") as partial:  # a failure leaves nothing half-written
        written = Path(partial) / folder.name
        difference = write_models(run, to, written)
        if folder.exists():
            folder.rmdir()  # it is empty
        written.rename(folder)
    print(f"export: {folder}; reloaded, its logits differ from the run's by at most {difference:.1e}")
    return folder


def refuse_unusable(folder: Path) -> None:
    """Make the folder above; raises UserError where that fails, or where the export would land on something."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is there and not empty; remove it, or give a new folder with --output-dir")
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(folder.parent, os.W_OK):
            raise PermissionError
    except OSError as error:
        reason = type(error).__name__
        raise UserError(f"{folder} cannot be written ({reason}); give another folder with --output-dir") from None


PARTS = {"encoder": "model", "classifier": "finetuned"}  # what a run's models are called, and their folders


def write_models(run: Path, to: str | None, folder: Path, only: str | None = None) -> float:
    """Write the pretrained model and, below it, the classifier; or the one there is, or `only` one of them.

    Returns the largest difference of their logits when reloaded. Without `to`, each is written as its stock model.
    """
    if only is not None and only not in PARTS:
        raise UserError(f"--only {only}: choose one of {', '.join(PARTS)}")
    parts = [run / name for part, name in PARTS.items() if only in (None, part) and (run / name).is_dir()]
    if not parts:
        verbs = " or ".join(f"`bertpre {verb} {run}/recipe.yaml`" for verb in ("pretrain", "finetune"))
        raise UserError(f"{run} has no {only or 'model'}: run {verbs} first")
    targets = (folder, folder / "classifier")
    return max(write_model(part, to, target) for part, target in zip(parts, targets, strict=False))


def write_model(source: Path, to: str | None, target: Path) -> float:
    """Write one model with its tokenizer; returns the largest difference of the logits when reloaded.

    Raises UserError where it was fine-tuned from another model than `to`.
    """
    config = AutoConfig.from_pretrained(source)
    if config.model_type != BertPreConfig.model_type:
        if to not in (None, config.model_type):
            raise UserError(f"{source} was fine-tuned from a stock {config.model_type}: it loads anywhere as it is")
        shutil.copytree(source, target)
        return 0.0
    stock = STOCK[config.architecture]
    to = to or stock
    name = config.architectures[0]
    if to == "onnx" and name == "BertPreForPreTraining":
        name = "BertPreForMaskedLM"
    model = getattr(modeling_bertpre, name).from_pretrained(source, dtype=torch.float32).eval()
    exported = convert(model, stock if to == "onnx" else to, source)
    # ModernBERT's forward takes no token_type_ids, so its tokenizer must not make any.
    choices = {"model_input_names": list(INPUTS["modern"])} if "modernbert" in (to, exported.config.model_type) else {}
    AutoTokenizer.from_pretrained(source, **choices).save_pretrained(target)
    if to == "onnx":  # with the configuration of the stock model, which has the same inputs and outputs
        exported.config.save_pretrained(target)
        return write_graph(model, target / "model.onnx")
    exported.save_pretrained(target)
    return check_parity(model, type(exported).from_pretrained(target, dtype=torch.float32), target)


def write_graph(model: PreTrainedModel, file: Path) -> float:
    """Write a model as ONNX; returns the largest difference of the logits that onnxruntime computes."""
    longest = min(64, model.config.max_position_embeddings)
    write_onnx(model, file, random_inputs(model.config.vocab_size, longest))
    inputs = random_inputs(model.config.vocab_size, longest // 2)  # another length than it was traced with
    used = {name: inputs[name] for name in INPUTS[model.config.architecture]}
    return largest_difference(logits(model, used), [run_onnx(file, used)], file.parent)


def convert(model: PreTrainedModel, to: str, source: Path) -> PreTrainedModel:
    """The model as it will be saved; raises UserError where its architecture is another one than `to` is for."""
    architecture = model.config.architecture
    if to == "bertpre":
        return with_code(model)
    if to != STOCK[architecture]:
        raise UserError(f"{source}: architecture is {architecture}: use --to {STOCK[architecture]}, or --to bertpre")
    return to_stock_bert(model) if to == "bert" else to_stock_modernbert(model)


def with_code(model: PreTrainedModel) -> PreTrainedModel:
    """Let the model's folder carry the code of its classes; every Auto class finds its own there."""
    modeling_bertpre.register_for_auto_class()
    model.config.auto_map = {
        auto_name: f"modeling_bertpre.{auto_class.__name__}"
        for auto_name, auto_class in modeling_bertpre.AUTO_CLASSES.items()
    }
    return model


def check_parity(model: PreTrainedModel, reloaded: PreTrainedModel, folder: Path) -> float:
    """The largest difference of the two models' logits on random tokens."""
    inputs = random_inputs(model.config.vocab_size, min(64, model.config.max_position_embeddings))
    if reloaded.config.model_type == "modernbert":  # it has no segments: both take the tokens as one text
        del inputs["token_type_ids"]
    return largest_difference(logits(model, inputs), logits(reloaded, inputs), folder)


def largest_difference(ours: list[Tensor], theirs: list[Tensor], folder: Path) -> float:
    """The largest difference of logits; raises RuntimeError above TOLERANCE.

    ModernBERT has no head for sentence order, whose logits are our second ones.
    """
    difference = max((one - other).abs().max().item() for one, other in zip(ours, theirs, strict=False))
    if not difference <= TOLERANCE:  # so that NaN fails too
        raise RuntimeError(
            f"{folder.name}: reloaded, its logits differ from the run's by {difference:.1e}; nothing was written"
        )
    return difference


def random_inputs(vocab_size: int, length: int) -> dict[str, Tensor]:
    """Four sequences of two segments, three of them padded; (4, S) each."""
    lengths = torch.tensor([[length], [length - 1], [length // 2], [2]])
    places = torch.arange(length)
    return {
        "input_ids": torch.randint(vocab_size, (4, length), generator=torch.Generator().manual_seed(0)),
        "attention_mask": (places < lengths).long(),
        "token_type_ids": (places >= lengths // 2).long(),
    }


@torch.no_grad()
def logits(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """All the logits that a model computes, the vocabulary's first."""
    return [value for name, value in model.eval()(**inputs).items() if name.endswith("logits")]
