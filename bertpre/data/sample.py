"""The embedded corpus: film reviews and encyclopaedia articles, written by a seeded generator.

With it `bertpre quickstart` needs no network and no data file. Each document is about one invented film, person, town
or ship, so that its true next sentence differs from a random one. "Nobody could call the script dull" is praise and
"Nobody could call the script clever" is not, so that counting words does not reveal the label of a review.

`sample_words.json` has the words and sentence templates:
adjectives, nouns: words of opinion by class; each fits every part of every film.
opinions: for each opinion, a direct, a negated and a contrasting template (MIX). `same` is a word of the review's own
class, `opp` one of the other; the words next to them are much the same in all three.
verdicts: sentences that only one class uses. openings, plot, facts: the other sentences of a review.
genres: roles, scenes, things, aims and troubles. phrases: the choices for all other slots of a template.
articles: an introduction, and sections; an article has two or three sentences of each section. The empty list of a
film's plot stands for the templates of `plot`.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

SPLITS = ("train", "test", "unsupervised", "articles")
CLASSES = ("negative", "positive")  # of the labels 0 and 1
DEFAULT_SIZES = {"train": 4000, "test": 1000, "unsupervised": 6000, "articles": 2000}
WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("sample_words.json").read_text(encoding="utf-8"))

# Shares of direct, negated and contrasting opinions. If the first two were equal, single words would not predict the
# label at all; with these shares a bag of words reaches an accuracy of about 80 %.
MIX = (0.62, 0.23, 0.15)
VERDICT_SHARE, BREAK_SHARE = 0.15, 0.05  # of the reviews; of the gaps between sentences


@dataclass(frozen=True)
class SampleDocument:
    """One document of the embedded corpus; `label` is 1 for praise, 0 for blame, -1 for none."""

    id: str
    text: str
    label: int


def generate(split: str, size: int | None = None, seed: int = 0) -> Iterator[SampleDocument]:
    """The first `size` documents of a split; by default `DEFAULT_SIZES` of them.

    Document i depends only on the seed, the split and i. So a longer corpus starts with the shorter one, and no two
    splits share a document. Raises ValueError for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; the splits are {', '.join(SPLITS)}")
    return (write_document(split, index, seed) for index in range(DEFAULT_SIZES[split] if size is None else size))


def write_document(split: str, index: int, seed: int) -> SampleDocument:
    """One document."""
    # Random hashes a string seed itself, so the stream does not depend on PYTHONHASHSEED.
    rng = random.Random(f"{seed}/{split}/{index}")
    if split == "articles":
        return SampleDocument(f"{split}-{index:05d}", write_article(rng), -1)
    label = int(rng.random() < 0.5)
    return SampleDocument(f"{split}-{index:05d}", write_review(rng, label), -1 if split == "unsupervised" else label)


def write_review(rng: random.Random, label: int) -> str:
    """A review with this opinion of an invented film."""
    facts, plot = invent_facts(rng), WORDS["plot"]
    story = [pick(rng, step) for step in plot[: 1 + int(rng.random() * len(plot))]]
    story += draw(rng, WORDS["facts"], int(rng.random() * 2))
    opinions = write_opinions(rng, label, facts)
    # The people are introduced first; then story and opinions alternate at random, each in its own order.
    templates = [pick(rng, WORDS["openings"]), story.pop(0)]
    while story or opinions:
        from_story = rng.random() * (len(story) + len(opinions)) < len(story)
        templates.append((story if from_story else opinions).pop(0))
    if rng.random() < VERDICT_SHARE:
        templates.append(pick(rng, WORDS["verdicts"][CLASSES[label]]))
    text = fill(templates[0], facts)
    for template in templates[1:]:
        text += ("<br /><br />" if rng.random() < BREAK_SHARE else " ") + fill(template, facts)
    return text


def write_opinions(rng: random.Random, label: int, facts: dict[str, str]) -> list[str]:
    """Three to five opinions with this label; no template, part of the film or word occurs twice."""
    rows = draw(rng, WORDS["opinions"], 3 + int(rng.random() * 3))
    parts = draw(rng, WORDS["phrases"]["part"], len(rows))
    words = {}
    for key, lists in (("", WORDS["adjectives"]), ("_n", WORDS["nouns"])):
        words["same" + key] = draw(rng, lists[CLASSES[label]], len(rows))
        words["opp" + key] = draw(rng, lists[CLASSES[1 - label]], len(rows))
    opinions = []
    for row, part in zip(rows, parts, strict=True):
        point, (direct, negated, contrasting) = rng.random(), row
        template = direct if point < MIX[0] else negated if point < MIX[0] + MIX[1] else contrasting
        film = pick(rng, ("the film", "this film", facts["title"]))
        slots = {key: choices.pop() for key, choices in words.items()}
        opinions.append(template.format(x=part.format(**facts), film=film, **slots, **facts))
    return opinions


def write_article(rng: random.Random) -> str:
    """An encyclopaedia article on an invented film, person, town or ship."""
    facts, article = invent_facts(rng), pick(rng, WORDS["articles"])
    paragraphs = [fill(article["introduction"], facts)]
    for heading, templates in article["sections"].items():
        kept = sorted(draw(rng, templates, 2 + int(rng.random() * 2)), key=templates.index)
        chosen = kept or [pick(rng, step) for step in WORDS["plot"]]
        paragraphs += [heading, " ".join(fill(template, facts) for template in chosen)]
    return "\n\n".join(paragraphs)


def invent_facts(rng: random.Random) -> dict[str, str]:
    """Everything that the templates of one document may name; two of most things, the second as `town2`."""
    year = 1940 + int(rng.random() * 70)
    numbers = {"born": year - 25 - int(rng.random() * 30), "old": 1850 + int(rng.random() * 70), "year": year}
    numbers |= {"weeks": 5 + int(rng.random() * 40), "feet": 75 + int(rng.random() * 80)}
    facts = {"title": invent_title(rng), "title2": invent_title(rng), "kind": pick(rng, list(WORDS["genres"]))}
    facts |= {key: str(number) for key, number in numbers.items()}
    phrases = WORDS["phrases"]
    for slot, choices in (phrases | WORDS["genres"][facts["kind"]]).items():
        facts[slot], facts[slot + "2"] = draw(rng, choices, 2)
    facts["ship"] = f"{facts['epithet']} {facts['emblem']}"
    # Actors have the sex of the characters they play, and no two people of a document share a name.
    men, women, surnames = (draw(rng, phrases[slot], 8) for slot in ("man", "woman", "surname"))
    for key in ("lead", "director", "other", "writer", "composer", "rival"):
        names, *pronouns = pick(rng, ((men, "he", "his", "him"), (women, "she", "her", "her")))
        facts[key[0] + "last"] = surnames.pop()
        facts[key] = names.pop() if key == "rival" else f"{names.pop()} {facts[key[0] + 'last']}"
        if key == "lead":
            facts["hero"], facts["he"], facts["his"], facts["him"] = names.pop(), *pronouns
        if key == "director":
            facts["dhe"], facts["dhis"], _ = pronouns
    return facts


def invent_title(rng: random.Random) -> str:
    """The title of a film."""
    phrases = WORDS["phrases"]
    epithet, (emblem, other) = pick(rng, phrases["epithet"]), draw(rng, phrases["emblem"], 2)
    name, town = pick(rng, phrases["man"] + phrases["woman"]), pick(rng, phrases["town"])
    forms = (f"The {epithet} {emblem}", f"{epithet} {emblem}", f"The {emblem} of {town}", f"{name}'s {emblem}")
    return pick(rng, (*forms, f"The {emblem} and the {other}", forms[0]))


def fill(template: str, facts: dict[str, str]) -> str:
    """A sentence from a template, with "an" before vowels and a capital at its start."""
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", template.format(**facts))
    return text[0].upper() + text[1:]


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """One item at random."""
    # Only random() gives the same numbers in every Python version; choice() and the others may change.
    return items[int(rng.random() * len(items))]


def draw(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    """`count` different items in random order, or all if there are fewer."""
    pool = list(items)
    return [pool.pop(int(rng.random() * len(pool))) for _ in range(min(count, len(pool)))]
