"""CSV and TSV files as tables whose rows stream, checked for what careless quotes do to them."""

import csv
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from bertpre.console import log_once
from bertpre.data.compressed import file_named, open_file
from bertpre.errors import first_line

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = (",", ";", "\t", "|")
SAMPLED_LINES = 200  # in which another delimiter is looked for
MISSING = ["", "nan", "NaN"]  # not "None", "null" or "NA", which may be texts or classes


@dataclass(frozen=True)
class CsvFiles:
    """Some columns of local CSV or TSV files, every value as the text that it is; nan and NaN are missing values.

    Guessing types, row by row or file by file, would make two classes of "01" and 1, and a number of a text like 2020.
    """

    files: list[str]
    delimiter: str = ","
    columns: list[str] | None = None
    features: None = None

    @property
    def column_names(self) -> list[str]:
        """The columns of the first row; none if there is no row."""
        return list(next(self.iter(batch_size=1), ()))

    def select_columns(self, columns: list[str]) -> "CsvFiles":
        """The same files with only these columns."""
        return CsvFiles(self.files, self.delimiter, columns)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[str | None]]]:
        """Batches of rows, column by column.

        Raises ValueError, which names the file, where a column is missing or a row has more fields than the header.
        """
        for name in self.files:
            with file_named(name):
                delimiter = delimiter_in(name, self.delimiter)
                for frame in read_csv(name, delimiter, batch_size):
                    if missing := set(self.columns or ()).difference(frame.columns):
                        raise ValueError(f"{name} has no column {', '.join(sorted(missing))}")
                    refuse_twice(self.columns or [], frame, name, delimiter)
                    chosen = frame[self.columns or list(frame.columns)].astype(object)
                    if len(chosen):
                        yield chosen.where(chosen.notna(), None).to_dict("list")


def delimiter_in(name: str, usual: str) -> str:
    """What separates a file's columns: another delimiter, where the usual one gives one column and that one several.

    All of the first rows must have as many values as the header, so that a text with a semicolon is not cut.
    """
    if widths_by(usual, name)[:1] != [1]:
        return usual
    for other in DELIMITERS:
        widths = widths_by(other, name)
        if widths and widths[0] > 1 and len(set(widths)) == 1:
            log_once(f"{name}: its columns are separated by {other!r}, as its first rows show")
            return other
    return usual


def widths_by(delimiter: str, name: str) -> list[int]:
    """How many values each of a file's first rows has where this separates them; none for a damaged file."""
    with open_file(name, "rt", encoding="utf-8-sig", errors="replace", newline="") as stream, suppress(csv.Error):
        lines = list(islice(stream, SAMPLED_LINES))
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        return widths[:-1] if len(lines) == SAMPLED_LINES else widths  # the last row may be cut
    return []


def read_csv(name: str, delimiter: str, rows: int) -> "Iterator[pd.DataFrame]":
    """A file's rows, some at a time; raises ValueError where one has more fields than the header or swallows others."""
    import pandas as pd

    is_plain = delimiter == "\t" and has_whole_lines(name)
    options: dict[str, Any] = {
        "dtype": str,
        "keep_default_na": False,
        "na_values": MISSING,
        "index_col": False,
        "skipinitialspace": delimiter != "\t",
        "quoting": csv.QUOTE_NONE if is_plain else csv.QUOTE_MINIMAL,
    }
    with (
        open_file(name, "rb") as stream,
        open_file(name, "rt", encoding="utf-8-sig", newline="") as lines,
        pd.read_csv(stream, sep=delimiter, chunksize=rows, **options) as frames,
    ):
        checked = iter([]) if is_plain else whole_rows(lines, name, delimiter)
        unread: list[int] = []  # the rows with values in columns without a name; the first column may number the rows
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # fields beyond the header's would be dropped
                try:
                    frame = next(frames, None)
                except pd.errors.ParserError as error:
                    raise ValueError(f"{first_line(error)}{odd_line(name, delimiter)}") from None
                except pd.errors.ParserWarning:
                    raise ValueError(
                        f"{name} has rows with more fields than its header: put texts that contain {delimiter!r} in "
                        f"quotes, and name every column{other_delimiter(name, delimiter)}"
                    ) from None
            deque(islice(checked, None if frame is None else len(frame)), maxlen=0)
            if frame is None:
                mention_unread(name, unread, delimiter)
                return
            nameless = [column for column in frame.columns[1:] if column.startswith("Unnamed: ")]
            unread += frame.index[frame[nameless].notna().any(axis=1)].tolist()
            yield frame.rename(columns=unquoted).map(unquoted, na_action="ignore") if is_plain else frame


def refuse_twice(columns: list[str], frame: "pd.DataFrame", name: str, delimiter: str) -> None:
    """Raise ValueError where a file has two columns of a wanted name, of which pandas renames the second."""
    doubtful = [each for each in columns if f"{each}.1" in frame.columns]
    if not doubtful:
        return
    with open_file(name, "rt", encoding="utf-8-sig", newline="") as lines:
        header = next(csv.reader(lines, delimiter=delimiter), [])
    if twice := [each for each in doubtful if header.count(each) > 1]:
        raise ValueError(f"{name} has two columns of the name {twice[0]}; give each a name of its own")


def mention_unread(name: str, rows: list[int], delimiter: str) -> None:
    """Log how many rows of a file have values in columns without a name."""
    if rows:
        log_once(
            f"{name}: rows with values in columns without a name, which are not read: {len(rows):,} (the first is row "
            f"{rows[0] + 1}); put texts that contain {delimiter!r} in quotes, or name every column"
        )


def other_delimiter(name: str, delimiter: str) -> str:
    """The end of a message: what may separate the columns of a file instead, and how to write it with commas."""
    with open_file(name, "rt", encoding="utf-8-sig") as stream:
        header = stream.readline()
    others = [each for each in DELIMITERS if each != delimiter and each in header]
    if not others:
        return ""
    return (
        f"; or, if its columns are separated by {others[0]!r}, which its first line has, write a .csv file with "
        f"commas: pandas.read_csv({name!r}, sep={others[0]!r}).to_csv(...), with quotechar or header=None where it "
        "needs them"
    )


def has_whole_lines(name: str) -> bool:
    """Whether each line of a TSV file is a row with all columns, so that no quote holds a tab or the end of a line.

    In such a file a quote is a part of the text, as in the original files of GLUE, except around a whole value.
    """
    with open_file(name, "rt", encoding="utf-8-sig") as stream:
        tabs = {line.count("\t") for line in stream if line.strip("\n")}
    return len(tabs) == 1 and tabs != {0}


def unquoted(value: str) -> str | None:
    """A value without the quotes around it, if those inside are doubled, as CSV has it; None for a missing value."""
    if len(value) > 1 and value[0] == value[-1] == '"' and '"' not in (inner := value[1:-1]).replace('""', ""):
        value = inner.replace('""', '"')
    return None if value in MISSING else value


def whole_rows(lines: IO[str], name: str, delimiter: str) -> Iterator[list[str]]:
    """The rows of a CSV file, to check them: pandas says nothing where a quote swallows rows or values.

    Raises ValueError where a quote that other text follows ends a value of several lines, since another value begins
    there; where a row of several lines that hold delimiters lacks values; and within one line where a quote joins two
    values, or a backslash stands before it. Files of careless origin are full of such quotes that do neither. A log
    line counts the rows of one line that lack values.
    """
    csv.field_size_limit((1 << 31) - 1)
    options: dict[str, Any] = {"delimiter": delimiter, "skipinitialspace": delimiter != "\t"}
    read: deque[str] = deque(maxlen=1)  # the last line
    rows = csv.reader(remembered(lines, read), strict=True, **options)
    columns, short = 0, list[int]()  # the lines of rows with fewer values than the header
    while True:
        begin = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            if "expected after" not in str(error):
                continue
            if rows.line_num > begin:
                raise swallowed(name, begin, rows.line_num, delimiter) from None
            if '\\"' in read[0]:
                raise ValueError(
                    f"{name} has a backslash before a quote in line {begin}: double the quote instead, as CSV has it"
                ) from None
            if len(next(csv.reader(read, **options))) < columns:
                raise ValueError(
                    f"{name} has a quote in line {begin} that joins two values: put each value that begins with a "
                    "quote in quotes, and double those inside"
                ) from None
            continue
        if row is None:
            if short:
                log_once(
                    f"{name}: rows with fewer values than the header, which are read as if the last were empty: "
                    f"{len(short):,} (the first is in line {short[0]})"
                )
            return
        if row:
            columns = columns or len(row)
            if len(row) < columns and any(delimiter in value and "\n" in value for value in row):
                raise swallowed(name, begin, rows.line_num, delimiter)
            short += [begin] if len(row) < columns else []
            yield row


def swallowed(name: str, first: int, last: int, delimiter: str) -> ValueError:
    """The error of a quote that is not closed, between two lines of a file; it names an odd line of a TSV file."""
    return ValueError(
        f"{name} has an unclosed quote in the row that begins at line {first}: it swallows the rows up to line {last}. "
        f"Close it, or double each quote inside a value{odd_line(name, delimiter)}"
    )


def odd_line(name: str, delimiter: str) -> str:
    """The end of a message: the one line in a hundred of a TSV file that has not the header's number of tabs.

    Without it a quote would be a part of the text, as in GLUE's files.
    """
    if delimiter != "\t":
        return ""
    with open_file(name, "rt", encoding="utf-8-sig") as stream:
        tabs = {number: line.count("\t") for number, line in enumerate(stream, start=1) if line.strip("\n")}
    usual = next(iter(tabs.values()), 0)
    odd = [number for number, count in tabs.items() if count != usual]
    if not odd or len(odd) > 0.01 * len(tabs):
        return ""
    return (
        f"; or mend line {odd[0]}, which has {tabs[odd[0]] + 1} columns and the header {usual + 1}: where all lines "
        "have as many, quotes are read as text"
    )


def remembered(lines: Iterable[str], last: deque[str]) -> Iterator[str]:
    """The same lines, each put into `last` first."""
    for line in lines:
        last.append(line)
        yield line
