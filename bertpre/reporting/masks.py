"""Masks at work: a few masked pairs with their answers, and the guesses for [MASK] through training."""

import html
from pathlib import Path
from typing import Any

from bertpre.errors import first_line
from bertpre.recipe import Recipe
from bertpre.reporting.curves import Rows, of_stage
from bertpre.reporting.page import paragraph
from bertpre.run_directory import data_folder

SHOWN_PAIRS, SHOWN_TOKENS, SHOWN_EVALUATIONS = 3, 96, 8
LABELS = {
    "nsp": ("the true next segment", "a random segment"),
    "sop": ("in order", "in the wrong order"),
}
NO_GUESSES = "No guesses were recorded."
LEGEND = (
    "<p>The answer is above each target: <mark class=masked>[MASK]</mark> hides it, <mark class=random>another "
    "token</mark> replaces it, or <mark class=kept>it is kept</mark>, and the model has to predict it all the same.</p>"
)


def masked_pairs_section(folder: Path, recipe: Recipe) -> str:
    """The first validation pairs as the model reads them; a sentence that says why where their data is not there."""
    if recipe.corpus is None or not (folder / "tokenizer").is_dir():
        return ""
    try:
        pairs = masked_pairs(folder, recipe)
    except Exception as error:  # of many classes, for damaged files; none of them should keep a run from its report
        return paragraph(f"The masked pairs cannot be shown: {first_line(error)}", "note")
    return (
        LEGEND + "".join(pairs) + paragraph("These are the first validation pairs, with the masks they keep.", "note")
    )


def masked_pairs(folder: Path, recipe: Recipe) -> list[str]:
    """A few validation pairs of the first phase, with the masks that every evaluation uses."""
    from bertpre.data.sampler import Position
    from bertpre.data.store import open_shards
    from bertpre.data.tokenizer import load_tokenizer
    from bertpre.pretraining.batches import build_collator, pair_dataset

    tokenizer = load_tokenizer(folder / "tokenizer")
    shards = open_shards(data_folder(recipe), "validation", verify=False)  # training has verified them
    phase = recipe.training.phases[0]
    examples, _ = pair_dataset(recipe, tokenizer, phase, shards).take(Position(), SHOWN_PAIRS)
    batch = build_collator(recipe, tokenizer, phase)(examples)
    shown = []
    for row in range(len(examples)):
        length = int(batch["attention_mask"][row].sum())
        tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][row, :length].tolist())
        answers = {
            int(place): tokenizer.convert_ids_to_tokens(int(label))
            for place, label in zip(batch["masked_positions"][row], batch["labels"][row], strict=True)
            if label >= 0
        }
        label = int(batch["next_sentence_label"][row])
        shown.append(
            pair(
                tokens, answers, LABELS[recipe.pairs.kind][label] if label >= 0 and recipe.pairs.kind in LABELS else ""
            )
        )
    return shown


def pair(tokens: list[str], answers: dict[int, str], label: str) -> str:
    """One masked pair as HTML; `answers` are the original tokens by their place."""
    starts = {place + 1 for place, token in enumerate(tokens) if token in ("[CLS]", "[SEP]")}
    words = [marked(token, answers.get(place), place in starts) for place, token in enumerate(tokens[:SHOWN_TOKENS])]
    more = f" … ({len(tokens) - SHOWN_TOKENS} more tokens)" if len(tokens) > SHOWN_TOKENS else ""
    second = f"; segment B is {label}" if label.endswith("segment") else f"; the segments are {label}" if label else ""
    note = f"<div class=note>{len(tokens)} tokens, {len(answers)} targets{html.escape(second)}</div>"
    return f"<div class=pair>{''.join(words)}{more}{note}</div>"


def marked(token: str, answer: str | None, starts_segment: bool) -> str:
    """A token with a space before it, unless it continues a word of its segment; a target has its answer above it."""
    if answer is None:
        if token in ("[CLS]", "[SEP]"):
            return f" <span class=sep>{token}</span>"
        return html.escape(token[2:] if token.startswith("##") and not starts_segment else f" {token}")
    kind = "masked" if token == "[MASK]" else "kept" if token == answer else "random"
    return f" <ruby class={kind}>{html.escape(token)}<rt>{html.escape(answer)}</rt></ruby>"


def guesses_section(rows: Rows, results: dict[str, Any]) -> str:
    """For each fixed validation sentence the model's guesses at evaluations, the last one included.

    A run whose log holds no guesses shows the final ones from its results.
    """
    evaluations, note = [row for row in of_stage(rows, "pretrain", "validation") if row.get("fillings")], ""
    if not evaluations and "pretrain" in results:
        final = results["pretrain"].get("fillings", [])
        evaluations = [{"step": results["pretrain"]["steps"], "fillings": final}] if final else []
        note = paragraph("The log holds no guesses; these are of the final model." if final else NO_GUESSES, "note")
    if not evaluations:
        return note
    chosen = thinned(evaluations)
    parts = [
        sentence(chosen[-1]["fillings"][number], [(row["step"], row["fillings"][number]["guesses"]) for row in chosen])
        for number in range(min(len(row["fillings"]) for row in chosen))
    ]
    return f"{note}<div class=charts>{''.join(parts)}</div>"


def thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `SHOWN_EVALUATIONS` rows, evenly spaced, the first and the last among them."""
    last = len(rows) - 1
    count = min(len(rows), SHOWN_EVALUATIONS)
    return [rows[round(place * last / max(count - 1, 1))] for place in range(count)]


def sentence(filling: dict[str, Any], guesses: list[tuple[int, list[str]]]) -> str:
    """A sentence with its masked word, and a line of guesses for each evaluation; a right guess is marked."""
    text = html.escape(filling["sentence"]).replace("[MASK]", "<mark>[MASK]</mark>")
    lines = []
    for step, words in guesses:
        cells = " · ".join(
            f"<mark class=kept>{html.escape(word)}</mark>" if word == filling["answer"] else html.escape(word)
            for word in words
        )
        lines.append(f"<tr><th scope=row>{step:,}</th><td>{cells}</td></tr>")
    head = "<thead><tr><th scope=col>step</th><th scope=col>guesses, the most probable first</th></tr></thead>"
    answer = f"<span class=note>original: {html.escape(filling['answer'])}</span>"
    return f"<div><p>{text}<br>{answer}</p><table>{head}{''.join(lines)}</table></div>"
