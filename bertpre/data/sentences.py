"""Sentences: where one ends, by rules that hold for reviews and encyclopaedias alike."""

import re

# An end mark with the quotes that close it, then white space and what can begin a sentence; Chinese and Japanese full
# stops need no space, and the Hindi and Arabic ones are marks like ours.
BOUNDARY = re.compile(
    r"""(?P<mark>[.!?…۔؟।]+)(?P<close>["'”’)\]]*)(?P<space>\s+)(?=["'“‘(\[]*[^\W_a-z])"""
    r"""|(?P<cjk>[。！？]+[」』”]*)"""
    r"""|(?<=[a-z]{2})[.!?]+(?=[A-Z][a-z])"""  # the space forgotten, as reviews do: "the end.The actors"
    r"""|\n"""
)
ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Lt|Col|Gen|Capt|Sgt|Rev|Hon|Gov|Sen|Rep|vs|etc|No|Vol|pp|cf"
    r"|e\.g|i\.e|U\.S|U\.K|a\.m|p\.m|approx|Inc|Ltd|Co|Mt|Ft)$"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a cleaned text, in order; nothing but white space between them is lost."""
    sentences, start = [], 0
    for match in BOUNDARY.finditer(text):
        if match["mark"] == "." and ABBREVIATION.search(text, max(0, start - 1, match.start() - 12), match.start()):
            continue
        sentence = text[start : match.end()].strip()
        if sentence:
            sentences.append(sentence)
        start = match.end()
    rest = text[start:].strip()
    return [*sentences, rest] if rest else sentences
