"""Errors of reading a corpus, in words: what is wrong, and what to do."""

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertpre.data.compressed import DAMAGED
from bertpre.data.local_files import KNOWN_ENDINGS, with_split
from bertpre.data.tables import named, path_key
from bertpre.errors import UserError, first_line

LOCAL_COPY = "without a network, give a local copy with the same layout: {place}=FOLDER"
ADVICE = {  # by what readers say
    "codec can't decode": "; save it as UTF-8, where all of it is in another encoding e.g. with: "
    "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW_FILE",
    "end-of-stream marker": "; it is cut off: copy it again",
    "Invalid data stream": "; it is damaged: copy it again",
    "EOF inside string": "; a quote is not closed",
    "C error: Expected": "; put values that contain the separator in quotes, and double each quote inside them",
    "Couldn't cast": "; its files have different columns or types: give them the same",
    "as a scalar of type": "; a column has values of several types: write all of them as text",
    "zstd not supported": "; install it with pip install 'bertpre[zstd]', or unpack the files",
    "Bad split": "; a folder is named with a slash, as in ./texts",
    "several configurations": "; set {name} to one of them",
    "BuilderConfig": "; set {name} to one of these, or to null for files of your own",
}
NAMED = {  # what a part of a recipe has keys for; those of a corpus, and arguments in Python, name all
    "finetune": ("name", "limit"), "finetune.unlabelled": ("limit",), "evaluate": ("limit",),
    "finetune.validation_split": ("name",), "finetune.validation_path": (),
    "finetune.unlabelled.held_out": (), "corpus.validation": (), "corpus.held_out": (), "--file": (),
}  # fmt: skip
WITHOUT_KEY = {"name": "; give a dataset with one configuration", "limit": "; give a file with these rows alone"}


@contextmanager
def failures_explained(path: str, name: str | None, split: str, key: str) -> Iterator[None]:
    """Turn errors of `datasets` (unknown name, damaged file, no network) into UserError.

    The embedded corpus is read without that library.
    """
    if path == "sample":
        yield
        return
    from datasets.exceptions import DatasetNotFoundError, DatasetsError
    from yaml import YAMLError

    copy = LOCAL_COPY.format(place=path_key(key))
    try:
        yield
    except DatasetNotFoundError:
        raise UserError(f"{path_key(key)}: {path!r} is neither a local folder nor a Hub dataset; {copy}") from None
    except FileNotFoundError as error:
        refuse_hub_answer(error, path, key)
        if Path(path).exists() and (glob.has_magic(path) or "::" in path):
            raise UserError(
                f"{path_key(key)}: {path} has *, ?, [ or :: in its name, which cannot be read: rename it"
            ) from None
        known = ", ".join(KNOWN_ENDINGS)
        raise UserError(f"{path_key(key)}: {path} contains no data file; known endings: {known}") from None
    except YAMLError as error:
        raise UserError(
            f"{path_key(key)}: the README.md in {path} begins with metadata that are not valid YAML: "
            f"{first_line(error)}; correct them, or remove the lines between the two ---"
        ) from None
    except (DatasetsError, OSError, RuntimeError, StopIteration, TypeError, ValueError, *DAMAGED) as error:
        refuse_hub_answer(error, path, key)
        if not Path(path).exists() and not glob.has_magic(path) and isinstance(error, OSError):
            kind = type(error).__name__
            raise UserError(f"{path_key(key)}: the Hub dataset {path!r} cannot be reached ({kind}); {copy}") from None
        reason = "it is empty" if isinstance(error, StopIteration) else first_line(error).removeprefix(f"{path}: ")
        if configurations := re.search(r"available configs: \[(.*?)\]", str(error)):
            reason = f"it has several configurations ({configurations[1]})"
        place = with_split(path, split) if name is None else f"{path} (name {name}, split {split})"
        raise UserError(f"{key}: {place} cannot be read: {reason}{remedy(reason, path, split, key)}") from None


def remedy(reason: str, path: str, split: str, key: str) -> str:
    """What to do, if it is known; it names only keys that there are."""
    advice = next((advice for words, advice in ADVICE.items() if words in reason), "")
    if "[" in split and "Bad split" in reason:
        local, hub = "; files have no slices: set {limit}", "; a slice of a split needs {streaming}=false"
        advice = local if Path(path).exists() else hub
    for argument, instead in WITHOUT_KEY.items():
        if f"{{{argument}}}" in advice and argument not in NAMED.get(key, (argument,)):
            return instead
    return advice.format(**{argument: named(key, argument) for argument in ("name", "limit", "streaming")})


def refuse_hub_answer(error: BaseException, path: str, key: str) -> None:
    """Raise UserError where an answer of the Hub, which `datasets` reports as a missing file, caused an error."""
    from huggingface_hub.errors import HfHubHTTPError

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, HfHubHTTPError):
        cause = cause.__cause__
    if cause is None or (status := cause.response.status_code) == 404:
        return
    remedy = "accept its terms on its page, and log in with `hf auth login`" if status in (401, 403) else "try later"
    raise UserError(f"{path_key(key)}: the Hub does not give out the dataset {path!r} (status {status}); {remedy}")
