"""What each attention head of the final model looks at in one sentence."""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpre.errors import first_line
from bertpre.reporting.charts import heat_map
from bertpre.reporting.page import paragraph

if TYPE_CHECKING:
    import numpy as np

MOST_LAYERS = 4  # of a deep model, evenly spaced, the first and the last among them


def attention_section(folder: Path, results: dict[str, Any]) -> str:
    """A map for each head of some layers, of the shortest sentence with a [MASK]; empty without a pretrained model."""
    sentences = [filling["sentence"] for filling in results.get("pretrain", {}).get("fillings", [])]
    if not sentences or not (folder / "model").is_dir():
        return ""
    sentence = min(sentences, key=len)
    try:
        tokens, weights = attention_weights(folder / "model", sentence)
    except Exception as error:  # of many classes, for damaged files; none of them should keep a run from its report
        return paragraph(f"The attention cannot be shown: {first_line(error)}", "note")
    layers, count = shown_layers(len(weights)), len(weights)
    top = float(weights[layers].max())
    maps = [
        one_map(tokens, weights[layer][head], top, layer + 1, head + 1)
        for layer in layers
        for head in range(weights.shape[1])
    ]
    listed = ", ".join(str(layer + 1) for layer in layers)
    which = "all layers" if len(layers) == count else f"layers {listed} of {count}"
    text = html.escape(sentence).replace("[MASK]", "<mark>[MASK]</mark>")
    return (
        f"<p>{text}<br><span class=note>Each row is a token that looks, each column a token that it looks at, in the "
        f"same order; the strongest colour is a weight of {top:.2f}. 2.1 is the first head of layer 2; beside it is "
        f"where most of its weight lies ({which}, by the final model in fp32).</span></p>"
        f"<div class=maps>{''.join(maps)}</div>"
    )


def shown_layers(count: int) -> list[int]:
    """The numbers, from 0, of at most `MOST_LAYERS` layers."""
    shown = min(MOST_LAYERS, count)
    return [round(place * (count - 1) / max(shown - 1, 1)) for place in range(shown)]


def attention_weights(model_folder: Path, sentence: str) -> "tuple[list[str], np.ndarray]":
    """The sentence's tokens, and the weights of each layer and head, (layers, heads, tokens, tokens)."""
    import numpy as np
    import torch

    from bertpre.data.tokenizer import load_tokenizer
    from bertpre.model.conversion import load_for_pretraining
    from bertpre.runtime import quiet_transformers

    quiet_transformers()
    tokenizer, model = load_tokenizer(model_folder), load_for_pretraining(str(model_folder)).eval()
    model.set_attn_implementation("eager")  # the others never hold the weights
    inputs = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    weights = np.stack([layer[0].float().numpy() for layer in attentions])
    return tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist()), weights


def one_map(tokens: list[str], weights: "np.ndarray", top: float, layer: int, head: int) -> str:
    """One head's map with where most of its weight lies."""
    name, share = main_target(weights)
    title, note = f"{layer}.{head}", f"{name} {share:.0%}"
    said = f"Attention of layer {layer}, head {head}: most often to {name}, {share:.0%} of the weight"
    return heat_map(title, note, weights.tolist(), top, tokens, said)


def main_target(weights: "np.ndarray") -> tuple[str, float]:
    """Where the largest mean weight of a head lies, and how much; `weights` are (tokens, tokens)."""
    shares = {
        "itself": float(weights.diagonal().mean()),
        "the token before": float(weights.diagonal(-1).sum() / len(weights)),  # the first one has none
        "the next token": float(weights.diagonal(1).sum() / len(weights)),
        "[CLS]": float(weights[:, 0].mean()),
        "[SEP]": float(weights[:, -1].mean()),
    }
    best = max(shares, key=lambda name: shares[name])
    return best, shares[best]
