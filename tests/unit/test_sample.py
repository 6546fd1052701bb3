"""The embedded corpus: the same on every machine, readable, and hard to classify by counting words."""

import hashlib
import os
import re
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from benchmarks.plain_opinions import OPINIONS, read_opinions, training_sentences
from bertpre.data.sample import CLASSES, DEFAULT_SIZES, SPLITS, WORDS, SampleDocument, generate, normalize
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.linear import fit_tfidf


def fingerprint(samples: list[SampleDocument]) -> str:
    return hashlib.sha256("\n".join(f"{s.id} {s.label} {s.text}" for s in samples).encode()).hexdigest()[:12]


def count_sentences(text: str) -> int:
    return len(re.findall(r"[.?!](?=\s|<|$)", text))


@pytest.fixture(scope="module")
def reviews() -> dict[str, list[SampleDocument]]:
    return {split: list(generate(split)) for split in ("train", "test")}


def test_documents_are_the_same_on_every_machine() -> None:
    pinned = {
        "train": "861f03bf6f53",
        "test": "e1cc4a74bc5b",
        "unsupervised": "13e368762493",
        "articles": "3673fe137395",
    }
    assert {split: fingerprint(list(generate(split, 5))) for split in SPLITS} == pinned


def test_hash_seed_does_not_matter() -> None:
    program = "from bertpre.data.sample import generate; print([s.text for s in generate('train', 3)])"
    outputs = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        outputs.add(subprocess.check_output([sys.executable, "-c", program], env=environment))
    assert len(outputs) == 1


@pytest.mark.parametrize("split", SPLITS)
def test_longer_corpus_starts_with_the_shorter_one(split: str) -> None:
    assert list(generate(split, 20))[:7] == list(generate(split, 7)) == list(islice(generate(split), 7))


def test_seed_changes_every_document() -> None:
    assert not {s.text for s in generate("train", 50)} & {s.text for s in generate("train", 50, seed=1)}


def test_default_sizes_and_ids(reviews: dict[str, list[SampleDocument]]) -> None:
    assert {split: len(samples) for split, samples in reviews.items()} == {"train": 24000, "test": 1000}
    assert set(DEFAULT_SIZES) == set(SPLITS)
    assert len({s.id for samples in reviews.values() for s in samples}) == 25000


def test_no_test_review_is_in_another_split(reviews: dict[str, list[SampleDocument]]) -> None:
    test = {normalize(s.text) for s in reviews["test"]}
    others = reviews["train"] + [s for split in ("unsupervised", "articles") for s in generate(split, 2000)]
    assert not test & {normalize(s.text) for s in others}


def test_few_reviews_repeat(reviews: dict[str, list[SampleDocument]]) -> None:
    for samples in reviews.values():
        assert len({normalize(s.text) for s in samples}) > 0.95 * len(samples)
    articles = [s.text for s in generate("articles", 1000)]
    assert len(set(articles)) == len(articles)


def test_labels(reviews: dict[str, list[SampleDocument]]) -> None:
    for samples in reviews.values():
        positive, number = sum(s.label for s in samples), len(samples)
        assert abs(positive - number / 2) < 4 * (number / 4) ** 0.5  # four standard deviations of a fair coin
        assert {s.label for s in samples} == {0, 1}
    assert {s.label for split in ("unsupervised", "articles") for s in generate(split, 50)} == {-1}


@pytest.mark.parametrize(("split", "fewest", "most"), [("train", 1, 24), ("unsupervised", 1, 24), ("articles", 5, 16)])
def test_sentences(split: str, fewest: int, most: int) -> None:
    for sample in generate(split, 500):
        assert fewest <= max(1, count_sentences(sample.text)) <= most
        assert not re.search(r"[{}]|  |\b[Aa] [aeio]", sample.text), sample.text
        assert not re.search(r"\b[Aa]n (?!hour|honest|heir)[^aeiouAEIOU8]", sample.text), sample.text
        if sample.text != sample.text.lower():
            body = [line for line in sample.text.split("\n\n") if split != "articles" or line.endswith(".")]
            sentences = re.split(r"(?<=[.?!])(?: |<br /><br />)", " ".join(body))
            assert all(sentence[0].isupper() or sentence[0].isdigit() for sentence in sentences), sample.text


def test_reviews_are_short_and_long() -> None:
    lengths = [count_sentences(s.text) for s in generate("train", 500)]
    assert 300 < sum(length <= 5 for length in lengths) < 450
    assert 50 < sum(length >= 7 for length in lengths) < 200
    typed = [s.text for s in generate("train", 500) if count_sentences(s.text) <= 5]
    assert 50 < sum(text == text.lower() for text in typed) < 200
    assert 50 < sum(text[-1] not in ".?!" for text in typed) < 200


def test_some_reviews_have_paragraphs() -> None:
    assert 10 < sum("<br /><br />" in s.text for s in generate("unsupervised", 100)) < 45


def test_every_opinion_serves_both_classes() -> None:
    for kind in ("nouns", "feelings", "qualities", "adverbs", "comparatives", "superlatives"):
        assert not set(WORDS[kind]["positive"]) & set(WORDS[kind]["negative"]), kind
    assert not {w for kind in WORDS["adjectives"]["positive"].values() for w in kind} & {
        w for kind in WORDS["adjectives"]["negative"].values() for w in kind
    }
    for part in WORDS["parts"].values():
        assert not set(part["positive"]) & set(part["negative"])
    for manners in (WORDS["opinions"], WORDS["fragments"]):
        for template in manners["direct"]:
            assert "{same" in template and "{opp" not in template
        for template in manners["negated"]:
            assert "{opp" in template and "{same" not in template
        for template in manners["contrasting"]:
            assert "{opp" in template and "{same" in template


def test_exclamations_and_remarks_belong_to_one_class() -> None:
    for kind in ("exclamations", "remarks"):
        assert len(WORDS[kind]["positive"]) > 100
        both = {normalize(text) for text in WORDS[kind]["positive"]} & {normalize(s) for s in WORDS[kind]["negative"]}
        assert not {text for text in both if "opp" not in text and "same" not in text}


def test_opinions_agree_with_the_label(reviews: dict[str, list[SampleDocument]]) -> None:
    # Find some templates of plain meaning again, and compare the class of their word with the label.
    polarity = {
        word: label
        for label, name in enumerate(CLASSES)
        for words in (*WORDS["adjectives"][name].values(), WORDS["nouns"][name])
        for word in words
    }
    frames = [
        (r"Anybody would call .* (\w+)\.", False),
        (r"Nobody could call .* (\w+)\.", True),
        (r"told me that .* was (\w+), and they were right\.", False),
        (r"told me that .* was (\w+), but they were wrong\.", True),
        (r"is not the (\w+) I expected\.", True),
        (r"I expected an? \w+ and got an? (\w+)\.", False),
        (r"[Nn]ot (\w+) at all\.", True),
        (r"^I thought .* was (\w+)\.", False),
        (r"[Cc]ould have been (\w+),? but (?:is|was)n't\.", True),
    ]
    found = dict.fromkeys((pattern for pattern, _ in frames), 0)
    for sample in reviews["train"]:
        for sentence in re.split(r"(?<=\.)(?: |<br /><br />)", sample.text):
            for pattern, turned in frames:
                match = re.search(pattern, sentence)
                if match and (label := polarity.get(match[1].lower())) is not None:
                    found[pattern] += 1
                    assert (label != sample.label) == turned, sample.text
    assert min(found.values()) > 3, found


def test_bag_of_words_gets_about_four_in_five(reviews: dict[str, list[SampleDocument]]) -> None:
    training, test = (
        Examples([s.id for s in split], [s.text for s in split], None, np.array([s.label for s in split]), CLASSES)
        for split in (reviews["train"][:8000], reviews["test"])
    )
    accuracy = (fit_tfidf(training)(test).argmax(1) == test.labels).mean()
    assert 0.7 <= accuracy < 0.85


def test_the_plain_opinions_are_balanced_and_the_generator_writes_few_of_them() -> None:
    opinions = read_opinions(OPINIONS)
    labels = [label for _, label in opinions]
    assert len(opinions) >= 120 and sum(labels) == len(labels) / 2
    texts = [normalize(text) for text, _ in opinions]
    assert len(set(texts)) == len(texts)
    assert len(set(" ".join(texts).split())) > 300
    known = training_sentences()
    assert sum(text in known for text in texts) < 0.2 * len(texts)


def test_unknown_split_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'validation'.*train, test, unsupervised, articles"):
        generate("validation")
