"""`bertpre evaluate`: the classifier on the test split, read once, beside a bag of words."""

import csv
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score

from bertpre.data.classification import LabelledTexts, collate_texts, encode_texts, in_slices, read_labelled
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.finetune import require_finetune, split_off_validation
from bertpre.model.modeling_bertpre import BertPreForSequenceClassification
from bertpre.recipe import Recipe
from bertpre.run_directory import claim, write_results
from bertpre.runtime import choose_dtype, start_accelerator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def evaluate(recipe: Recipe) -> dict[str, Any]:
    """Measure the fine-tuned classifier on the test split; returns the figures for `results.json`."""
    settings, folder = require_finetune(recipe), claim(recipe)
    if not (folder / "finetuned").exists():
        raise UserError(f"no classifier in {folder}/finetuned: run `bertpre finetune` first")
    start = time.perf_counter()
    test = read_labelled(settings, recipe.evaluate.split, recipe.evaluate.limit)
    device = start_accelerator().device
    model = (
        BertPreForSequenceClassification.from_pretrained(folder / "finetuned", dtype=torch.float32).to(device).eval()
    )
    tokenizer = load_tokenizer(folder / "finetuned")
    rows = encode_texts(tokenizer, test.texts, settings.max_length, settings.truncation)
    dtype = choose_dtype(recipe.training.precision, device)
    probabilities = predict(model, tokenizer, rows, recipe.evaluate.batch_size, dtype)
    predictions = probabilities.argmax(axis=1)
    write_predictions(folder / "predictions.csv", test.labels, probabilities)
    figures: dict[str, Any] = {
        "accuracy": float(accuracy_score(test.labels, predictions)),
        "f1": float(f1_score(test.labels, predictions, average="binary" if probabilities.shape[1] == 2 else "macro")),
        "examples": len(test.texts),
        "seconds": time.perf_counter() - start,
    }
    if recipe.evaluate.bag_of_words:
        training, _ = split_off_validation(recipe, read_labelled(settings, settings.split, settings.limit))
        figures["bag_of_words"] = bag_of_words(training, test)
    write_results(folder, "evaluate", figures)
    print(f"evaluate: accuracy {figures['accuracy']:.4f}, F1 {figures['f1']:.4f} on {figures['examples']:,} test texts")
    return figures


def predict(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: list[np.ndarray],
    batch_size: int,
    dtype: torch.dtype,
) -> np.ndarray:
    """Class probabilities (number of rows, number of classes); rows of like length are padded together."""
    order = np.argsort([len(row) for row in rows], kind="stable")
    probabilities = np.zeros((len(rows), model.config.num_labels))
    for part in in_slices(len(rows), batch_size):
        indices = order[part]
        longest = max(len(rows[index]) for index in indices)
        batch = collate_texts(
            [rows[index] for index in indices], np.zeros(len(indices)), longest, tokenizer.pad_token_id
        )
        inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
        with torch.no_grad(), torch.autocast(model.device.type, dtype, enabled=dtype != torch.float32):
            logits = model(**inputs).logits
        probabilities[indices] = logits.float().softmax(-1).cpu().numpy()
    return probabilities


def write_predictions(file: Path, labels: np.ndarray, probabilities: np.ndarray) -> None:
    """One line a text, in the split's order: its label and the probability of each class."""
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["label", *(f"probability_{number}" for number in range(probabilities.shape[1]))])
        writer.writerows(
            [label, *(f"{value:.6f}" for value in row)] for label, row in zip(labels, probabilities, strict=True)
        )


def bag_of_words(training: LabelledTexts, test: LabelledTexts) -> dict[str, float]:
    """TF-IDF of single words and logistic regression, trained on the same examples: what 20 seconds of work give."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    start = time.perf_counter()
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2)
    features = vectorizer.fit_transform(training.texts)
    classifier = LogisticRegression(C=10, max_iter=1000).fit(features, training.labels)
    accuracy = classifier.score(vectorizer.transform(test.texts), test.labels)
    return {"accuracy": float(accuracy), "seconds": time.perf_counter() - start}
