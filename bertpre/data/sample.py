"""The embedded corpus: film reviews and encyclopaedia articles, written by a seeded generator.

With it `bertpre quickstart` needs no network and no data file. Nobody wrote these texts: three thousand words and five
thousand sentences, many with slots, make all of them. A test accuracy on them shows that every stage works. It does not
show how well a classifier reads real reviews, which are far more varied; `benchmarks/plain_opinions.py` measures that
on plain opinions that the generator did not write.

Each longer document is about one invented film, person, town or ship, so that its true next sentence differs from a
random one. "Nobody could call the script dull" is praise and "Nobody could call the script clever" is not, so that
counting words does not reveal the label of a review. Reviews are of three kinds (SHARES): full ones tell the plot,
brief ones have an opening, and plain ones are opinions of a line or a few, as people type them.

`sample_words.json` has the words and sentence templates:
adjectives, nouns, verbs: words of opinion by class; each fits every film. `gradable` adjectives take "very", `extreme`
ones take "absolutely", `predicative` ones only follow a verb. A verb has its past and its base form.
parts: the parts of a film, by group, and the adjectives that fit only this group.
opinions, fragments: sentences that serve both classes, by manner (MIX). In a template `same` is a word of the review's
own class and `opp` one of the other; the words next to them are much the same in both classes. Endings choose the kind:
`same_a` may stand before a noun, `same_g` is gradable, `same_e` extreme, `same_n` a noun, `same_v` and `same_b` a verb.
remarks, exclamations: sentences that only one class uses. The exclamations and fragments are for plain reviews.
openings, brief_openings, plot, facts: the other sentences of a review.
genres: roles, scenes, things, aims and troubles. phrases, variants: the choices for all other slots of a template; a
phrase stays the same within a document, a variant does not.
articles: an introduction, and sections; an article has two or three sentences of each section. The empty list of a
film's plot stands for the templates of `plot`.
"""

import json
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

SPLITS = ("train", "test", "unsupervised", "articles")
CLASSES = ("negative", "positive")  # of the labels 0 and 1
DEFAULT_SIZES = {"train": 24000, "test": 1000, "unsupervised": 7000, "articles": 2000}
WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("sample_words.json").read_text(encoding="utf-8"))

# Kinds of reviews. Pretraining needs long documents: two segments of one document make a pair, and fill a row.
SHARES = {"plain": 0.6, "brief": 0.2, "full": 0.2}
UNSUPERVISED_SHARES = {"plain": 0.1, "brief": 0.2, "full": 0.7}
# Shares of direct, negated and contrasting opinions. If the first two were equal, single words would not predict the
# label at all; with these shares a bag of words reaches an accuracy of about 80 %. Full reviews have several opinions.
MIX = {"direct": 0.58, "negated": 0.25, "contrasting": 0.17}
FULL_MIX = {"direct": 0.5, "negated": 0.27, "contrasting": 0.23}
REMARK_SHARE, EXCLAMATION_SHARE, FRAGMENT_SHARE = 0.35, 0.2, 0.5  # of the opinions; the last two in plain reviews
FILM_SHARE = 0.25  # of the judgements that name a part of the film: those of the film as a whole
OWN_SHARE, PREDICATIVE_SHARE, DEGREE_SHARE = 0.3, 0.1, 0.2  # of the adjectives: of one part only; ...; with "very"
SENTENCES, WORD_SKEW = ("opinions", "fragments", "remarks", "exclamations"), 1.6
BREAK_SHARE = 0.05  # of the gaps between sentences
KINDS = {  # the list of words that the ending of a slot asks for
    "n": "nouns", "f": "feelings", "q": "qualities", "ly": "adverbs", "er": "comparatives", "est": "superlatives",
}  # fmt: skip
FORMS = {"v": ("verbs", 0), "b": ("verbs", 1), "did": ("deeds", 0), "do": ("deeds", 1)}
PEOPLE = ("actor", "hero")  # groups of parts: an adjective of another group does not fit them
PRONOUNS = {"person": ("{he}", "{him}"), "singular": ("it", "it"), "plural": ("they", "them")}
SLOT = re.compile(r"\{(\w+)\}")
AN = re.compile(r"\b(a) (?=[aeio8]|u(?!se|niq)|honest|hour)", re.IGNORECASE)


@dataclass(frozen=True)
class SampleDocument:
    """One document of the embedded corpus; `label` is 1 for praise, 0 for blame, -1 for none."""

    id: str
    text: str
    label: int


def generate(split: str, size: int | None = None, seed: int = 0) -> Iterator[SampleDocument]:
    """The first `size` documents of a split; by default `DEFAULT_SIZES` of them.

    Document i depends only on the seed, the split and i. So a longer corpus starts with the shorter one. The
    test split shares no document with another; short reviews may repeat within and between the other splits. Raises
    ValueError for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; the splits are {', '.join(SPLITS)}")
    return (write_document(split, index, seed) for index in range(DEFAULT_SIZES[split] if size is None else size))


@cache  # stages that run in turn read the same reviews: 34,000 documents take 8 seconds on a slow machine, and 20 MB
def write_document(split: str, index: int, seed: int) -> SampleDocument:
    """One document."""
    # Random hashes a string seed itself, so the stream does not depend on PYTHONHASHSEED.
    rng = random.Random(f"{seed}/{split}/{index}")
    facts = invent_facts(rng)
    if split == "articles":
        return SampleDocument(f"{split}-{index:05d}", write_article(facts), -1)
    shares = UNSUPERVISED_SHARES if split == "unsupervised" else SHARES
    label, kind = int(rng.random() < 0.5), draw_key(rng, shares)
    text = write_review(facts, label, kind)
    # Short reviews are the only ones that might be written twice.
    while kind == "plain" and is_for_test(text) != (split == "test"):
        text = write_review(facts, label, kind)
    return SampleDocument(f"{split}-{index:05d}", text, -1 if split == "unsupervised" else label)


def is_for_test(text: str) -> bool:
    """Whether only the test split may hold this review, whatever its case and punctuation."""
    return zlib.crc32(normalize(text).encode()) % 6 == 0


def normalize(text: str) -> str:
    """The words of a text in lower case, without apostrophes, separated by spaces."""
    return " ".join(re.findall(r"\w+", text.lower().replace("'", "")))


def write_review(facts: "Facts", label: int, kind: str) -> str:
    """A review with this opinion of an invented film."""
    rng, reviewer = facts.rng, Reviewer(facts, label, kind)
    if kind == "plain":
        return type_quickly(rng, " ".join(reviewer.opinions(1 + int(4.5 * rng.random() ** 1.5))))
    if kind == "brief":
        opening = fill(pick(rng, WORDS["brief_openings"]), facts)
        return " ".join([opening, *reviewer.opinions(1 + int(rng.random() * 4))])
    plot = WORDS["plot"]
    story = [pick(rng, step) for step in plot[: 1 + int(rng.random() * len(plot))]]
    story += draw(rng, WORDS["facts"], int(rng.random() * 3))
    # The people are introduced first; then story and opinions alternate at random, each in its own order.
    first, second, *others = [fill(template, facts) for template in (pick(rng, WORDS["openings"]), *story)]
    text, opinions = f"{first} {second}", reviewer.opinions(3 + int(rng.random() * 4))
    while others or opinions:
        from_story = rng.random() * (len(others) + len(opinions)) < len(others)
        text += ("<br /><br />" if rng.random() < BREAK_SHARE else " ") + (others if from_story else opinions).pop(0)
    return text


def type_quickly(rng: random.Random, text: str) -> str:
    """The text, sometimes in lower case, without its last full stop or its apostrophes, or with exclamation marks."""
    is_lower, is_open, has_no_apostrophe, is_loud = (rng.random() < share for share in (0.3, 0.3, 0.07, 0.1))
    text = text.lower() if is_lower else text
    text = text.removesuffix(".") if is_open else text
    text = text.replace("'", "") if has_no_apostrophe else text
    return re.sub(r"\.(?= |$)", "!", text) if is_loud else text


@dataclass
class Reviewer:
    """Writes opinions of one film; repeats no template and no word of opinion while others are left."""

    facts: "Facts"
    label: int
    kind: str
    pools: dict[str, list[Any]] = field(default_factory=dict)

    def opinions(self, count: int) -> list[str]:
        """Opinions that all agree with the label; each is a sentence, or two short ones."""
        return [self.opinion() for _ in range(count)]

    def opinion(self) -> str:
        """An exclamation, a remark, a fragment or an opinion."""
        rng, name, is_plain = self.facts.rng, CLASSES[self.label], self.kind == "plain"
        if is_plain and rng.random() < EXCLAMATION_SHARE:
            return self.fill(self.next(f"exclamations/{name}"))
        if rng.random() < REMARK_SHARE:
            return self.fill(self.next(f"remarks/{name}"))
        form = "fragments" if is_plain and rng.random() < FRAGMENT_SHARE else "opinions"
        return self.fill(self.next(f"{form}/{draw_key(rng, FULL_MIX if self.kind == 'full' else MIX)}"))

    def fill(self, template: str) -> str:
        """A template with its words of opinion, and with one part of the film or two."""
        rng, group = self.facts.rng, "film"
        first, second = draw(rng, [group for group in WORDS["parts"] if group != "film"], 2)
        if "{x2}" in template:
            group = ""  # a word may have to fit both parts
        elif "{x}" in template and rng.random() < 1 - FILM_SHARE:
            group = first
        slots = self.part(group or first) | {f"{slot}2": value for slot, value in self.part(second).items()}

        def own(slot: re.Match[str]) -> str:
            side, _, ending = slot[1].partition("_")
            if side in ("same", "opp"):
                name = CLASSES[self.label if side == "same" else 1 - self.label]
                return self.word(name, ending, group, has_degree=side == "same" and rng.random() < DEGREE_SHARE)
            return slots.get(slot[1], slot[0])

        return fill(SLOT.sub(own, template), self.facts)

    def part(self, group: str) -> dict[str, str]:
        """A part of the film, its pronouns and its verbs: the slots x, it, them, is, was, isnt and wasnt."""
        parts = WORDS["parts"][group]
        number, x = pick(self.facts.rng, [(kind, x) for kind in PRONOUNS for x in parts.get(kind, ())])
        present, past = ("are", "were") if number == "plural" else ("is", "was")
        verbs = {"is": present, "was": past, "isnt": f"{present}n't", "wasnt": f"{past}n't"}
        return verbs | dict(zip(("x", "it", "them"), (x, *PRONOUNS[number]), strict=True))

    def word(self, name: str, ending: str, group: str, has_degree: bool) -> str:
        """A word of opinion of a class: what the ending of its slot asks for, or an adjective that fits the group."""
        rng = self.facts.rng
        if kind := KINDS.get(ending):
            return self.next(f"{kind}/{name}")
        if ending in FORMS:
            kind, form = FORMS[ending]
            return self.next(f"{kind}/{name}")[form]
        if not ending and group and (group in PEOPLE or rng.random() < OWN_SHARE):
            return self.next(f"parts/{group}/{name}")
        if not ending and rng.random() < PREDICATIVE_SHARE:
            return self.next(f"adjectives/{name}/predicative")
        kind = {"g": "gradable", "e": "extreme"}.get(ending) or pick(rng, ("gradable", "extreme"))
        adjective = self.next(f"adjectives/{name}/{kind}")
        return f"{pick(rng, WORDS['degrees'][kind])} {adjective}" if has_degree and ending in ("", "a") else adjective

    def next(self, path: str) -> Any:
        """An item of the list at this path of `sample_words.json`; every item before any again."""
        if not self.pools.get(path):
            items: Any = WORDS
            for key in path.split("/"):
                items = items[key]
            self.pools[path] = list(items)
        pool = self.pools[path]
        # Everyday words stand first in their lists, and are as common as they are in reviews.
        skew = 1 if path.startswith(SENTENCES) else WORD_SKEW
        return pool.pop(int(self.facts.rng.random() ** skew * len(pool)))


def write_article(facts: "Facts") -> str:
    """An encyclopaedia article on an invented film, person, town, ship or the like."""
    rng = facts.rng
    article = pick(rng, WORDS["articles"])
    paragraphs = [fill(article["introduction"], facts)]
    for heading, templates in article["sections"].items():
        kept = sorted(draw(rng, templates, 2 + int(rng.random() * 2)), key=templates.index)
        chosen = kept or [pick(rng, step) for step in WORDS["plot"]]
        paragraphs += [heading, " ".join(fill(template, facts) for template in chosen)]
    return "\n\n".join(paragraphs)


class Facts(dict[str, str]):
    """What the templates of one document may name. A phrase is drawn when it is first asked for.

    There are two of each phrase, the second as `town2`. A variant is drawn anew each time.
    """

    def __init__(self, rng: random.Random, **facts: str) -> None:
        super().__init__(facts)
        self.rng = rng

    def __missing__(self, slot: str) -> str:
        if slot in WORDS["variants"]:
            return pick(self.rng, WORDS["variants"][slot])
        phrase = slot.removesuffix("2")
        choices = WORDS["genres"][self["kind"]].get(phrase) or WORDS["phrases"][phrase]
        self[phrase], self[f"{phrase}2"] = draw(self.rng, choices, 2)
        return self[slot]


def invent_facts(rng: random.Random) -> Facts:
    """The facts of one document: a film, its year and genre, its people."""
    year = 1940 + int(rng.random() * 70)
    numbers = {"born": year - 25 - int(rng.random() * 30), "old": 1850 + int(rng.random() * 70), "year": year}
    numbers |= {"weeks": 5 + int(rng.random() * 40), "feet": 75 + int(rng.random() * 80)}
    facts = Facts(rng, title=invent_title(rng), title2=invent_title(rng), kind=pick(rng, list(WORDS["genres"])))
    facts.update({key: str(number) for key, number in numbers.items()})
    facts["kinds"] = re.sub("y$", "ie", facts["kind"]) + "s"
    facts["ship"] = f"{facts['epithet']} {facts['emblem']}"
    # Actors have the sex of the characters they play, and no two people of a document share a name.
    phrases = WORDS["phrases"]
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


def fill(template: str, facts: Facts) -> str:
    """A sentence from a template, with "an" before vowels and a capital at each start. A fact may have slots too."""
    while "{" in template:
        template = SLOT.sub(lambda slot: facts[slot[1]], template)
    text = AN.sub(r"\1n ", template)
    return re.sub(r"(?:^|[.?!] )\w", lambda start: start[0].upper(), text)


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """One item at random."""
    # Only random() gives the same numbers in every Python version; choice() and the others may change.
    return items[int(rng.random() * len(items))]


def draw_key(rng: random.Random, shares: dict[str, float]) -> str:
    """A key of `shares`, with these probabilities."""
    point = rng.random()
    for key, share in shares.items():
        if point < share:
            return key
        point -= share
    return key  # after rounding


def draw(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    """`count` different items in random order, or all if there are fewer."""
    pool = list(items)
    return [pool.pop(int(rng.random() * len(pool))) for _ in range(min(count, len(pool)))]
