"""Pseudo-likelihoods against a plain loop over a stock model; pairs in BLiMP's layout; what cannot be probed."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bertpre.commands.probe import encode, probe
from bertpre.errors import UserError
from bertpre.finetuning.loading import load_masked_lm
from bertpre.finetuning.pseudo_likelihood import score_tokens, word_ends
from tests.helpers import run_here

SENTENCES = ["The film is a joy, and Mira said so.", "Nobody saw it twice."]


def test_every_token_is_masked_once(tiny_run: Path) -> None:
    network, tokenizer = load_masked_lm(str(tiny_run))
    rows = encode(tokenizer, SENTENCES)
    pieces = [[token.startswith("##") for token in tokenizer.convert_ids_to_tokens(ids.tolist())] for ids in rows]
    words = [np.cumsum(~np.array(inside)) for inside in pieces]
    for ends in (None, [word_ends(row) for row in words]):
        scored = score_tokens(network, tokenizer, rows, ends)
        for number, (ids, (values, right)) in enumerate(zip(rows, scored, strict=True)):
            for place in range(len(ids)):
                inputs = [tokenizer.cls_token_id, *ids.tolist(), tokenizer.sep_token_id]
                last = ends[number][place] if ends else place + 1
                inputs[place + 1 : last + 1] = [tokenizer.mask_token_id] * (last - place)
                with torch.no_grad():
                    logits = network(torch.tensor([inputs])).logits[0, place + 1]
                assert values[place] == pytest.approx(logits.log_softmax(-1)[ids[place]].item(), abs=1e-4)
                assert right[place] == (logits.argmax().item() == ids[place])


def test_the_pieces_of_a_word_end_together() -> None:
    assert word_ends([0, 0, 0, 1, 2, 2]).tolist() == [3, 3, 3, 4, 6, 6]


def test_a_classifier_is_not_a_masked_language_model(tiny_run: Path) -> None:
    with pytest.raises(UserError, match="is not a masked language model: its files lack"):
        load_masked_lm(str(tiny_run / "finetuned"))


def test_a_run_is_probed_on_its_held_out_text(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = probe(str(tiny_run), limit=3, max_length=32)
    assert figures["texts"] == 3
    assert sum(row["tokens"] for row in figures["by_frequency"]) == figures["tokens"]
    losses = sum(row["loss"] * row["tokens"] for row in figures["by_frequency"]) / figures["tokens"]
    assert figures["pseudo_perplexity"] == pytest.approx(math.exp(losses), rel=1e-5)
    right = sum(row["accuracy"] * row["tokens"] for row in figures["by_frequency"]) / figures["tokens"]
    assert figures["accuracy"] == pytest.approx(right)
    assert "pseudo-perplexity" in capsys.readouterr().out


def test_pairs_and_texts_of_any_model(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [
        {"sentence_good": "The film is a joy.", "sentence_bad": "joy The a is film.", "UID": "order"},
        {"sentence_good": "Mira saw it.", "sentence_bad": "saw Mira it.", "UID": "order"},
    ]
    folder = tmp_path / "blimp"
    folder.mkdir()
    for name in ("order", "again"):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES))
    arguments = ("--texts", tmp_path / "texts.txt", "--pairs", folder)
    assert run_here("probe", tiny_run / "model", *arguments) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "of 2 pairs" in out
    assert "of 4 pairs" in out
    swapped = [{"sentence_good": row["sentence_bad"], "sentence_bad": row["sentence_good"]} for row in pairs]
    swapped[0]["sentence_good"] += "\u2028"  # ends a line for str.splitlines, not in JSON lines
    (tmp_path / "swapped.jsonl").write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in swapped))
    again = tmp_path / "blimp" / "more"
    again.mkdir()
    (again / "order.jsonl").write_text((tmp_path / "swapped.jsonl").read_text())
    every = probe(str(tiny_run / "model"), pairs=str(folder))["acceptability"]
    assert every["pairs"] == 6
    assert set(every["files"]) == {"again", "order", "more/order"}
    one = probe(str(tiny_run / "model"), pairs=str(folder / "order.jsonl"))["acceptability"]
    other = probe(str(tiny_run / "model"), pairs=str(tmp_path / "swapped.jsonl"))["acceptability"]
    assert one["accuracy"] + other["accuracy"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}/model"], "nothing to probe"),
        (["{run}/tokenizer", "--texts", "{tmp}/a.txt"], "is not a masked language model"),
        (["{run}", "--texts", "{tmp}/none.txt"], "cannot be read as text"),
        (["{run}/model", "--pairs", "{tmp}/a.txt"], "line 1 of {tmp}/a.txt is not a pair"),
        (["{run}/model", "--pairs", "{tmp}/empty"], "holds no .jsonl file"),
        (["{run}/model", "--texts", "{tmp}/markup.txt"], "holds only markup"),
    ],
)
def test_a_mistake_is_one_message(
    arguments: list[str], words: str, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("not JSON")
    (tmp_path / "empty").mkdir()
    (tmp_path / "markup.txt").write_text("<br />\n&nbsp;")
    places = {"run": tiny_run, "tmp": tmp_path}
    assert run_here("probe", *(argument.format(**places) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert words.format(**places) in error
    assert len(error.splitlines()) == 1
