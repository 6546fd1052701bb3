"""`bertpre fill`: what a masked language model puts in the place of [MASK]."""

import json
from typing import TYPE_CHECKING, Any

import torch

from bertpre.data.cleaning import clean_text
from bertpre.errors import UserError
from bertpre.finetuning.loading import load_masked_lm, readable_length
from bertpre.runtime import start_accelerator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MASK = "[MASK]"  # whatever the model's own tokenizer calls it


def fill(model: str, texts: list[str], top_k: int = 5, as_json: bool = False) -> None:
    """Print the `top_k` likeliest tokens for each [MASK] of each text, with their probabilities.

    `model` is a run directory, or the folder or Hub id of any masked language model. Of several masks in a text each is
    guessed by itself, with the others in place. Raises UserError if there is no such model, or for a text without a
    mask or longer than the model reads.
    """
    if without := [text for text in texts if MASK not in text]:
        raise UserError(f"TEXT {without[0]!r} has no {MASK}: put it in the place of a word")
    accelerator = start_accelerator()  # the process's settings for torch; hides progress bars too
    network, tokenizer = load_masked_lm(model)
    network.to(accelerator.device)
    for text in texts:
        found = guesses(network, tokenizer, text, top_k)
        if as_json:
            print(json.dumps({"text": text, "guesses": found}, ensure_ascii=False), flush=True)
            continue
        print(text)
        for mask in found:
            print("  " + ", ".join(f"{guess['token']} {guess['probability']:.4f}" for guess in mask), flush=True)


def guesses(
    network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", text: str, top_k: int
) -> list[list[dict[str, Any]]]:
    """For each [MASK] of a text its `top_k` likeliest tokens, the likeliest first."""
    given = clean_text(text).replace(MASK, str(tokenizer.mask_token))
    inputs = tokenizer(given, return_tensors="pt").to(network.device)
    length, longest = inputs["input_ids"].shape[1], readable_length(network)
    if longest is not None and length > longest:
        raise UserError(f"TEXT has {length} tokens, and the model reads {longest}: {text[:60]!r}")
    with torch.no_grad():
        logits = network(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].float()
    values, ids = logits.softmax(-1).topk(min(top_k, logits.shape[-1]))
    return [
        [
            {"token": tokenizer.decode([token]).strip(), "probability": round(probability, 6)}
            for token, probability in zip(*of_mask, strict=True)
        ]
        for of_mask in zip(ids.tolist(), values.tolist(), strict=True)
    ]
