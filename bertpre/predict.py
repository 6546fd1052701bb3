"""`bertpre predict`: label and probability of texts, by a run's classifier or any other."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bertpre.data.classification import encode_texts
from bertpre.data.cleaning import clean_text
from bertpre.errors import UserError
from bertpre.evaluate import predict as probabilities_of
from bertpre.run_directory import load_run
from bertpre.runtime import choose_dtype, start_accelerator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

AT_ONCE = 256  # texts


def predict(model: str, texts: list[str], file: str | None = None, as_json: bool = False) -> None:
    """Print label, probability and text of each text given, or of each line of a file or of standard input.

    `model` is a run directory, whose `finetuned` is taken with its recipe's way of cutting long texts, or the folder or
    Hub id of any text classifier. Raises UserError where there is no such model, or no text.
    """
    lines = iter(texts) if texts else read_lines(file)
    first = next(lines, None)
    if first is None:
        raise UserError("no text to predict: give texts as arguments, --file FILE, or lines on standard input")
    classifier, tokenizer, (max_length, truncation, precision) = load_classifier(model)
    dtype, names = choose_dtype(precision, classifier.device), classifier.config.id2label
    waiting = (text for part in ([first], lines) for text in part)
    while part := list(islice(waiting, AT_ONCE)):
        rows = encode_texts(tokenizer, [clean_text(text) for text in part], max_length, truncation)
        for text, row in zip(part, probabilities_of(classifier, tokenizer, rows, 32, dtype), strict=True):
            label, probability = names[int(row.argmax())], float(row.max())
            if as_json:
                named = {names[number]: round(float(value), 6) for number, value in enumerate(row)}
                line = {"text": text, "label": label, "probability": round(probability, 6), "probabilities": named}
                print(json.dumps(line, ensure_ascii=False), flush=True)
            else:
                print(f"{label}\t{probability:.4f}\t{text}", flush=True)


def read_lines(file: str | None) -> Iterator[str]:
    """The lines of a file, or of standard input, that hold text."""
    try:
        with nullcontext(sys.stdin) if file is None else Path(file).open(encoding="utf-8") as stream:
            yield from (line.rstrip("\n") for line in stream if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--file: {file} cannot be read as text: {error}") from None


def load_classifier(model: str) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase", tuple[int, str, str]]:
    """The classifier on the device, its tokenizer; to what length and how texts are cut, and the precision."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    import bertpre.model  # noqa: F401  registers its classes

    source, max_length, truncation, precision = model, None, "head", "auto"
    if (Path(model) / "recipe.yaml").exists():
        folder, recipe = load_run(model)
        source = str(folder / "finetuned")
        if not Path(source).exists():
            raise UserError(f"no classifier in {source}: run `bertpre finetune` first")
        max_length, truncation = recipe.finetune.max_length, recipe.finetune.truncation
        precision = recipe.training.precision
    device = start_accelerator().device
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        classifier = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32).to(device).eval()
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{source!r} is no text classifier with its tokenizer: {reason}") from None
    longest = min(tokenizer.model_max_length, getattr(classifier.config, "max_position_embeddings", 512))
    return classifier, tokenizer, (max_length or longest, truncation, precision)
