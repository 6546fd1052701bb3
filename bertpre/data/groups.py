"""Runs of consecutive texts of about the same number of characters: what is worked on at once."""

from collections.abc import Iterable, Iterator


def by_characters(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Runs of consecutive texts, each ended by the text that brings it to so many characters."""
    run, length = list[str](), 0
    for text in texts:
        run.append(text)
        length += len(text)
        if length >= characters:
            yield run
            run, length = [], 0
    if run:
        yield run


def cut_into_parts(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """The same, but a remainder below half of that size joins the run before it."""
    complete: list[str] = []
    for run in by_characters(texts, characters):
        if complete and sum(map(len, run)) >= characters // 2:
            yield complete
            complete = []
        complete = complete + run
    if complete:
        yield complete
