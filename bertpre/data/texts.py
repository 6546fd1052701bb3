"""Documents for the Python interface: from files, folders, patterns, the Hub and the sample, or from memory."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from bertpre.data.corpus import TextSource, datasets_settings_kept, read_documents
from bertpre.errors import UserError, refuse_outside, refuse_table, refuse_unknown, strings_in


def read_texts(
    source: str | os.PathLike[str] | Iterable[str | Mapping[str, Any]],
    *,
    name: str | None = None,
    split: str = "train",
    text_column: str = "text",
    text_unit: Literal["line", "paragraph", "document"] = "line",
    limit: int | None = None,
    streaming: bool = False,
) -> Iterator[str]:
    """Read documents one by one, without holding them in memory.

    `source` is a file or folder (Parquet, JSON lines, CSV, TSV, text), a pattern such as `notes/**/*.txt`, a Hub id,
    `sample` for the embedded corpus, or an iterable of strings or of rows with `text_column`, such as a dataset of the
    library `datasets`. `name` is the configuration of a Hub dataset. `text_unit` is what one document is in a text
    file. Raises UserError where the source, split or column does not exist or cannot be read, and where `name`,
    `split`, `text_unit` or `streaming` is given with an iterable.
    """
    refuse_unknown("text_unit", text_unit, ("line", "paragraph", "document"))
    if limit is not None:
        refuse_outside("limit", limit, 1)
    if isinstance(source, Mapping):
        raise UserError(f"source: holds several splits, give one of them: {', '.join(map(str, source))}")
    if isinstance(source, str | os.PathLike):
        options: dict[str, Any] = {"text_column": text_column, "text_unit": text_unit, "limit": limit}
        place = os.path.expanduser(source)
        documents = read_documents(place, name, split, key="source", streaming=streaming, **options)
        with datasets_settings_kept():  # what follows the first document is said by the error raised, and logged
            first = list(islice(documents, 1))
        yield from chain(first, documents)
        return
    if (name, split, text_unit, streaming) != (None, "train", "line", False):
        raise UserError("source: an iterable is read as it is; leave out name, split, text_unit and streaming")
    refuse_table("source", source)
    for number, row in enumerate(islice(source, limit)):
        if isinstance(row, Mapping) and text_column not in row:
            columns = ", ".join(map(repr, row))
            raise UserError(f"source: row {number} has no {text_column!r}; name its column with text_column: {columns}")
        text = row[text_column] if isinstance(row, Mapping) else row
        if text is None or (isinstance(text, float) and math.isnan(text)):
            raise UserError(f"source: row {number} has no text; leave such rows out, in pandas with dropna()")
        if not isinstance(text, str):
            raise UserError(f"source: row {number} holds {type(text).__name__}, not text; name the text's column")
        yield text


@dataclass(frozen=True)
class GivenTexts(TextSource):
    """Texts in memory as the source of a corpus; they are read once."""

    path: str = "texts"
    texts: Iterable[str] = ()

    def __str__(self) -> str:
        return f"{self.path}: the iterable"

    def documents(self) -> Iterator[str]:
        """The texts; raises UserError for what is not a string."""
        return strings_in(self.path, self.texts)
