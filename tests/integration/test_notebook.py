"""The notebooks run from the first cell to the last, and print again what they are stored with."""

import os
import re
from pathlib import Path

import nbformat
import pytest

from notebooks.execute import FILES, FOLDER, execute, index_picture, source_hash

REAL_REVIEWS = ("04_many_heads.ipynb", "09_pretrain_on_imdb.ipynb")


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each cell prints whose numbers do not depend on the machine; the others are tagged `varies`."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for cell in cells
        if "varies" not in cell.metadata.get("tags", [])
    ]


def pictures(notebook: nbformat.NotebookNode) -> int:
    """How many pictures the cells show."""
    return sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


def test_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"DOCUMENTS": "60", "HIDDEN_SIZE": "32", "MAX_STEPS": "6", "LABELLED": "100"}
    for name, value in {"OUTPUT_DIR": str(tmp_path / "run"), **tiny}.items():
        monkeypatch.setenv(name, value)
    notebook = execute(FOLDER / "01_quickstart.ipynb", tmp_path)
    assert (tmp_path / "run" / "results.json").is_file()
    assert pictures(notebook)


def test_seq2seq_trains_on_the_readers_own_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people, verbs = {"Anna": "Anna", "the man": "der Mann"}, {"sees": "sieht", "buys": "kauft", "finds": "findet"}
    things = {"the dog": "den Hund", "a cat": "eine Katze", "the book": "das Buch", "an apple": "einen Apfel"}
    pairs = [
        f"{who} {does} {what}.\t{wer} {tut} {was}."
        for who, wer in people.items()
        for does, tut in verbs.items()
        for what, was in things.items()
    ]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs), encoding="utf-8")
    monkeypatch.setenv("PAIRS", str(tmp_path / "pairs.tsv"))
    notebook = execute(FOLDER / "05_seq2seq.ipynb", tmp_path)
    assert "22 pairs to train, 2 others to test" in "".join(printed(notebook))
    assert pictures(notebook) == 3


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_prints_again_what_it_is_stored_with(file: Path, tmp_path: Path) -> None:
    if file.name in REAL_REVIEWS and "IMDB" not in os.environ:
        pytest.skip("needs the environment variable IMDB: the folder of the Hub's stanfordnlp/imdb")
    stored = nbformat.read(file, as_version=4)
    again = execute(file, tmp_path)
    assert printed(again) == printed(stored)
    assert pictures(again) == pictures(stored)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_stored_as_it_ran(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    is_current = notebook.metadata.get("source_hash") == source_hash(notebook)
    assert is_current, f"its code was changed after it ran: python notebooks/execute.py notebooks/{file.name}"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert any(printed(notebook)) and pictures(notebook)
    assert (FOLDER / "index" / f"{file.stem[:2]}.png").read_bytes() == index_picture(notebook)
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users)/", "".join(printed(notebook)))


def test_together_they_are_small() -> None:
    assert sum(file.stat().st_size for file in FILES) < 3_000_000
