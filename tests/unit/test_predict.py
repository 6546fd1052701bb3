"""How `bertpre predict` shows what a classifier has put out."""

from pathlib import Path

import numpy as np
import pytest

from bertpre.commands.predict import as_line, in_one_line, read_texts
from bertpre.errors import UserError
from bertpre.finetuning.prediction import named_prediction
from bertpre.finetuning.task import Task
from bertpre.recipe import Finetune


@pytest.mark.parametrize(
    ("output", "value", "line"),
    [
        (0.00001234567, 0.00001234567, "1.235e-05\ta"),
        (3.25, 3.25, "3.2500\ta"),
        (1234567.25, 1234567.0, "1234567.0000\ta"),
        (0.0, 0.0, "0.0000\ta"),
    ],
)
def test_a_small_number_keeps_its_digits(output: float, value: float, line: str) -> None:
    prediction = named_prediction(Task("regression", ("score",)), "a", np.float32(output))
    assert prediction["value"] == pytest.approx(value, rel=1e-6)
    assert as_line("a", prediction) == line


def test_a_line_has_no_more_columns_than_it_says() -> None:
    assert in_one_line("a\tb\r\nc", "\t") == "a b c"
    assert in_one_line(("a\tb", "c"), "\t") == "a b\tc"
    assert in_one_line("a\tb\nc") == "a\tb c"  # in JSON


def test_a_label_is_chosen_by_the_probability_that_evaluate_reads() -> None:
    prediction = named_prediction(Task("multi_label", ("one", "two")), "a", np.array([0.5000004, 0.5]))
    assert prediction == {"labels": ["one"], "probabilities": {"one": 0.5, "two": 0.5}}


TAGS = ("B-PER", "B-LOC", "NNP", "VBD", "O", ".")
SENTENCES = "Mira saw Oslo .\nOlga left Rome .\n"
ROWS = ["Mira NNP x", "saw VBD y", "Oslo NNP x", ". . z"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SENTENCES, None),
        ("Mira saw Oslo .\n", None),
        ("Mira saw Oslo .\n\nOlga left .\nAda met Bo O\n", None),
        (SENTENCES + "\n" + SENTENCES, None),  # as many words a line, but few lines
        ("Mira B-PER\nsaw O\nOslo B-LOC\n", [["Mira", "saw", "Oslo"]]),
        ("Mira NNP\nsaw VBD\nOslo NNP\n. .\n", [["Mira", "saw", "Oslo", "."]]),
        ("Mira\nsaw\nOslo\n\nOlga\nleft\n", [["Mira", "saw", "Oslo"], ["Olga", "left"]]),
        ("Mira _\nsaw _\nOslo _\n. _\n\n" * 3, [["Mira", "saw", "Oslo", "."]] * 3),
        ("-DOCSTART- -X- O\n\n" + ("\n".join(ROWS) + "\n\n") * 3, [["Mira", "saw", "Oslo", "."]] * 3),
    ],
)
def test_a_file_of_words_is_told_from_one_of_sentences(
    text: str, words: list[list[str]] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.txt").write_text(text)
    settings = Finetune(path="train.txt", task="tokens")
    read = list(read_texts(str(tmp_path / "file.txt"), settings, tags=TAGS))
    assert read == (words or text.splitlines())
    assert ("is read as a word" in capsys.readouterr().err) == (words is not None)


def test_numbered_words_are_refused_and_not_read_as_sentences(tmp_path: Path) -> None:
    sentence = "# sent_id = 7\n# text = Mira saw Oslo\n" + "".join(f"{n}\tMira\tmira\tX\t_\n" for n in (1, 2, 3))
    (tmp_path / "file.conllu").write_text("\n".join([sentence] * 4))
    with pytest.raises(UserError, match="the first column of .*file.conllu numbers the words"):
        list(read_texts(str(tmp_path / "file.conllu"), Finetune(path="train.txt", task="tokens"), tags=TAGS))
