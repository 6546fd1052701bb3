"""The embedded corpus: the same on every machine, readable, and hard to classify by counting words."""

import hashlib
import os
import re
import subprocess
import sys
from itertools import islice

import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from bertpre.data.sample import CLASSES, DEFAULT_SIZES, SPLITS, WORDS, SampleDocument, generate


def fingerprint(samples: list[SampleDocument]) -> str:
    return hashlib.sha256("\n".join(f"{s.id} {s.label} {s.text}" for s in samples).encode()).hexdigest()[:12]


def count_sentences(text: str) -> int:
    return len(re.findall(r"[.?!](?=\s|<|$)", text))


@pytest.fixture(scope="module")
def reviews() -> dict[str, list[SampleDocument]]:
    return {split: list(generate(split)) for split in ("train", "test")}


def test_documents_are_the_same_on_every_machine() -> None:
    pinned = {
        "train": "7ad11b945473",
        "test": "b88193d90ef3",
        "unsupervised": "b117433f134b",
        "articles": "b005dfb2e40d",
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
    assert {split: len(samples) for split, samples in reviews.items()} == {"train": 4000, "test": 1000}
    assert set(DEFAULT_SIZES) == set(SPLITS)
    assert len({s.id for samples in reviews.values() for s in samples}) == 5000


def test_no_text_is_shared_or_repeated(reviews: dict[str, list[SampleDocument]]) -> None:
    texts = [s.text for samples in reviews.values() for s in samples]
    texts += [s.text for split in ("unsupervised", "articles") for s in generate(split, 1000)]
    assert len(set(texts)) == len(texts)


def test_labels(reviews: dict[str, list[SampleDocument]]) -> None:
    for samples in reviews.values():
        positive, number = sum(s.label for s in samples), len(samples)
        assert abs(positive - number / 2) < 4 * (number / 4) ** 0.5  # four standard deviations of a fair coin
        assert {s.label for s in samples} == {0, 1}
    assert {s.label for split in ("unsupervised", "articles") for s in generate(split, 50)} == {-1}


@pytest.mark.parametrize(("split", "fewest", "most"), [("train", 5, 14), ("unsupervised", 5, 14), ("articles", 5, 16)])
def test_sentences(split: str, fewest: int, most: int) -> None:
    for sample in generate(split, 500):
        assert fewest <= count_sentences(sample.text) <= most
        body = [line for line in sample.text.split("\n\n") if split != "articles" or line.endswith(".")]
        sentences = re.split(r"(?<=[.?!])(?: |<br /><br />)", " ".join(body))
        assert len(set(sentences)) == len(sentences), sample.text
        assert all(sentence[0].isupper() and sentence[-1] in ".?!" for sentence in sentences), sample.text
        assert not re.search(r"[{}]|  |\b[Aa] [aeiou]|\b[Aa]n [^aeiouAEIOU]", sample.text), sample.text


def test_some_reviews_have_paragraphs() -> None:
    assert 20 < sum("<br /><br />" in s.text for s in generate("train", 100)) < 45


def test_every_opinion_serves_both_classes() -> None:
    words = [word for kind in ("adjectives", "nouns") for words in WORDS[kind].values() for word in words]
    assert len(set(words)) == len(words)
    for direct, negated, contrasting in WORDS["opinions"]:
        assert "{same" in direct and "{opp" not in direct
        assert "{opp" in negated and "{same" not in negated
        assert "{opp" in contrasting and "{same" in contrasting


def test_opinions_agree_with_the_label(reviews: dict[str, list[SampleDocument]]) -> None:
    # Find some templates of plain meaning again, and compare the class of their word with the label.
    lists = [(label, WORDS[kind][name]) for kind in ("adjectives", "nouns") for label, name in enumerate(CLASSES)]
    polarity = {word: label for label, words in lists for word in words}
    frames = [
        (r"Anybody would call .* (\w+)\.", False),
        (r"Nobody could call .* (\w+)\.", True),
        (r"told me that .* was (\w+), and they were right\.", False),
        (r"told me that .* was (\w+), but they were wrong\.", True),
        (r"is not the (\w+) I expected\.", True),
        (r"I expected an? \w+ and got an? (\w+)\.", False),
    ]
    for pattern, turned in frames:
        for sample in reviews["test"]:
            for sentence in re.split(r"(?<=\.)(?: |<br /><br />)", sample.text):
                if found := re.search(pattern, sentence):
                    assert (polarity[found[1]] == sample.label) != turned, sample.text


def test_bag_of_words_gets_about_four_in_five(reviews: dict[str, list[SampleDocument]]) -> None:
    vectorizer = TfidfVectorizer()
    features = vectorizer.fit_transform(s.text for s in reviews["train"])
    model = LogisticRegression(max_iter=1000).fit(features, [s.label for s in reviews["train"]])
    accuracy = model.score(vectorizer.transform(s.text for s in reviews["test"]), [s.label for s in reviews["test"]])
    assert 0.75 <= accuracy <= 0.85


def test_unknown_split_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'validation'.*train, test, unsupervised, articles"):
        generate("validation")
