"""Sentences: where one ends, by rules that hold for reviews and encyclopaedias alike."""

import re

# An end mark with the quotes that close it, then white space and what can begin a sentence; Chinese and Japanese full
# stops need no space, and the Hindi and Arabic ones are marks like ours. Every match begins with one of a set of
# characters, and looks back at which: so the engine skips to the next of them at once. A run of marks is looked at from
# its first one only: a thousand dots cost no million looks.
BOUNDARY = re.compile(
    r"""(?P<mark>[.!?…۔؟।。！？\n])(?:"""
    r"""(?<=[.!?…۔؟।])(?<![.!?…۔؟।]{2})(?P<more>[.!?…۔؟।]*+)["'”’)\]]*+\s++(?=["'“‘(\[*]*[^\W_a-z])"""
    r"""|(?<=[.!?])(?P<small>)\s+(?=[a-z])"""  # a writer without capitals: "the plan. i just wish"
    r"""|(?<=[.!?])(?<![.!?]{2})[.!?]*+\s++(?=\*)"""  # "a fun movie. *** out of"
    r"""|(?<=[。！？])[。！？]*[」』”]*"""
    r"""|(?<=[a-z]{2}[.!?])[.!?]*(?=[A-Z][a-z])"""  # the space forgotten, as reviews do: "the end.The actors"
    r"""|(?<=\n))"""
)
TITLE = (  # what a name follows, or a number
    r"[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Lt|Col|Gen|Capt|Sgt|Rev|Hon|Gov|Sen|Rep|vs|Vol|pp|cf|e\.g|i\.e|U\.S|U\.K|a\.m|p\.m"
    r"|approx|Inc|Ltd|Co|Mt|Ft|(?:[a-z]\.)+[a-z]"
)
NAME_FOLLOWS = re.compile(rf"(?:^|[\s(\"'])(?:{TITLE})$")
LOWER_FOLLOWS = re.compile(rf"(?:^|[\s(\"'])(?:{TITLE}|etc|no|feat|ft|dept|ca|min|max)$|\.$", re.IGNORECASE)
NUMBER = re.compile(r"(?:^|\W)[Nn]o$")


def split_sentences(text: str) -> list[str]:
    """The sentences of a cleaned text, in order; nothing but white space between them is lost."""
    sentences, start = [], 0
    for match in BOUNDARY.finditer(text):
        if is_abbreviation(text, start, match):
            continue
        sentence = text[start : match.end()].strip()
        if sentence:
            sentences.append(sentence)
        start = match.end()
    rest = text[start:].strip()
    return [*sentences, rest] if rest else sentences


def is_abbreviation(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the full stop of a match ends an abbreviation and not the sentence that begins at `start`."""
    if match["mark"] != ".":
        return False
    before = max(0, start - 1, match.start() - 12), match.start()
    if match["small"] is not None:
        return LOWER_FOLLOWS.search(text, *before) is not None
    if match["more"] != "":
        return False
    return NAME_FOLLOWS.search(text, *before) is not None or (
        text[match.end()].isdigit() and NUMBER.search(text, *before) is not None
    )
