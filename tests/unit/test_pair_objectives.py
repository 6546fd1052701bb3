"""The pair task of benchmarks/pair_objectives.py: its labels are true, and the passages' lengths do not tell them."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import pair_objectives
from benchmarks.pair_objectives import article_pairs, build_data, convert_public, passages, read_rows

SENTENCE = (
    "Once upon a time the river {name} number {number} ran past {count} old mills and their wheels of green oak. "
)


def article(name: str, paragraphs: int = 9) -> str:
    """A made-up article; each paragraph names it and has a number of its own."""
    lines = [SENTENCE.format(name=name, number=number, count="many " * number) * 2 for number in range(paragraphs)]
    return "A title.\n\n" + "\n".join(lines)


ARTICLES = [article(f"Alph{number}x", 5 + number % 7) for number in range(300)]


def name_in(passage: str) -> str:
    """The article that a passage is from."""
    return passage.split("river ")[1].split()[0]


def test_passages_are_whole_sentences_of_other_paragraphs_than_the_first() -> None:
    found = passages(ARTICLES[0])
    assert len(found) == len({text for text, _ in found}) == 5  # the title is the first paragraph
    assert all(text.endswith("oak.") and 20 <= len(text.split()) <= 50 for text, _ in found)
    assert passages(f"{SENTENCE}\n{SENTENCE}") == passages(f"A title.\n{SENTENCE}") != []


def test_a_passage_occurs_once_and_its_label_is_true() -> None:
    rows = article_pairs(ARTICLES, random.Random(0))
    assert len(rows) > 400
    for row in rows:
        assert (name_in(row["text"]) == name_in(row["text_pair"])) == (row["label"] == "same")
    uses = Counter(text for row in rows for text in (row["text"], row["text_pair"]))
    assert set(uses.values()) == {1}


def test_texts_of_different_articles_are_as_alike_in_length_as_those_of_one() -> None:
    generator, articles = random.Random(0), []
    for number in range(300):
        words = [15 + 5 * (number % 5) + generator.randrange(4) for _ in range(9)]
        articles.append("\n".join(f"The river Alph{number}x rose" + " past" * count + " it." for count in words))
    rows = article_pairs(articles, random.Random(0))
    for label in ("same", "other"):
        differences = [abs(len(row["text"]) - len(row["text_pair"])) for row in rows if row["label"] == label]
        assert len(differences) > 200
        assert sum(difference < 25 for difference in differences) > 0.95 * len(differences)


def test_two_pairs_of_one_article_are_not_exchanged() -> None:
    for seed in range(20):
        rows = article_pairs([ARTICLES[6], ARTICLES[13]], random.Random(seed))
        assert all((name_in(row["text"]) == name_in(row["text_pair"])) == (row["label"] == "same") for row in rows)


def test_articles_of_the_task_are_not_pretrained_on(tmp_path: Path) -> None:
    source = tmp_path / "articles.jsonl"
    source.write_text("\n".join(json.dumps({"text": text}) for text in [*ARTICLES, *ARTICLES]))
    build_data(str(source), tmp_path, name=None)
    pretrained = {row["text"] for row in read_rows(tmp_path / "pretraining.jsonl")}
    assert 0.6 < len(pretrained) / len(ARTICLES) < 0.9
    names = {"pretraining": {name_in(text) for text in pretrained}}
    for part in pair_objectives.PARTS:
        rows = read_rows(tmp_path / "tasks" / "article" / f"{part}.jsonl")
        names[part] = {name_in(text) for row in rows for text in (row["text"], row["text_pair"])}
    everywhere = [name for part in names.values() for name in part]
    assert len(everywhere) == len(set(everywhere))


def test_a_public_set_keeps_its_quotation_marks(tmp_path: Path) -> None:
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for part in ("train", "val", "test"):
        (tmp_path / f"msr-para-{part}.tsv").write_text(f'{header}\n1\t7\t8\t"Yes", he said.\tHe said "yes\n')
    convert_public(tmp_path, tmp_path / "tasks")
    expected = [{"text": '"Yes", he said.', "text_pair": 'He said "yes', "label": "1"}]
    assert read_rows(tmp_path / "tasks" / "mrpc" / "validation.jsonl") == expected
    with pytest.raises(SystemExit, match="holds none of mrpc, sick"):
        convert_public(tmp_path / "tasks", tmp_path)
