"""Guesses for [MASK]: those of transformers' own pipeline."""

import json
from pathlib import Path

import pytest
from transformers import pipeline

from bertpre.commands.fill import fill
from bertpre.errors import UserError
from tests.helpers import run_here

ONE, TWO = "The film was [MASK].", "The [MASK] was a [MASK], said Mira."


@pytest.mark.parametrize("run", ["tiny_run", "tiny_modern_run"])
def test_the_guesses_are_those_of_the_pipeline(
    run: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder: Path = request.getfixturevalue(run)
    capsys.readouterr()
    assert run_here("fill", folder, ONE, TWO, "--top-k", "3", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == [ONE, TWO]
    theirs = pipeline("fill-mask", model=str(folder / "model"), top_k=3, trust_remote_code=True)
    for row, expected in zip(rows, ([theirs(ONE)], theirs(TWO)), strict=True):
        assert len(row["guesses"]) == len(expected)
        for own, other in zip(row["guesses"], expected, strict=True):
            assert [guess["token"] for guess in own] == [guess["token_str"].strip() for guess in other]
            scores = [guess["score"] for guess in other]
            assert [guess["probability"] for guess in own] == pytest.approx(scores, abs=1e-5)


def test_each_mask_has_a_line(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("fill", tiny_run / "model", TWO) == 0
    text, *lines = capsys.readouterr().out.splitlines()
    assert text == TWO
    assert [line.count(", ") >= 4 for line in lines] == [True, True]


def test_a_text_that_is_too_long_is_refused(tiny_run: Path) -> None:
    with pytest.raises(UserError, match="TEXT has 203 tokens, and the model reads 64: 'a a a"):
        fill(str(tiny_run), ["a " * 200 + "[MASK]"])
