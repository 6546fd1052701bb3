"""Folders and their locks, atomic writes, checksums, saved tokenizers, and whether a model or dataset exists."""

import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from bertpre.console import command_line
from bertpre.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HUB_SECONDS = 10  # for the Hub to answer whether it has a model or dataset
HOW_LOADED = ("is_local", "local_files_only")  # transformers 5 saves with a tokenizer where it came from


def file_checksum(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def make_folder(folder: Path) -> None:
    """Make a folder where there is none; raises OSError where it cannot be made or written to."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):  # os.access does not say why: no permission, or a read-only file system
        pass


class FolderInUse(UserError):
    """Another process works in the folder, so nothing in it may be changed."""


@contextmanager
def locked(folder: Path, key: str = "output_dir") -> Iterator[None]:
    """Keep other processes out of a folder; raises FolderInUse, which names the key, where one works in it.

    The lock is on the folder itself: it leaves no file and ends with the process.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        take_lock(handle, folder, key)
        yield
    finally:
        os.close(handle)


def take_lock(handle: int, folder: Path, key: str) -> None:
    """Lock an open folder; raises FolderInUse where another process holds the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUse(f"{key}: another process works in {folder}; wait for it, or give another folder") from None
    except OSError:
        pass  # a file system without locks


def write_text(file: Path, text: str) -> None:
    """Replace a file atomically: if the process is killed, or several write at once, one whole version is left."""
    write_bytes(file, text.encode())


def write_bytes(file: Path, content: bytes) -> None:
    """`write_text` for bytes."""
    partial = file.with_name(f"{file.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.write_bytes(content)
        if file.exists():
            shutil.copymode(file, partial)  # it may be for its owner alone
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, beside `folder`, whose place it takes at the end.

    A failure leaves `folder` as it was; what a killed process has left is put back or removed first. A link to a
    folder stays one. Raises UserError for a link to a folder that holds something other than a model.
    """
    link, folder = folder, folder.resolve()
    if link.is_symlink() and folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise UserError(f"{link} is a link to {folder}, whose files are not of a model; remove the link and run again")
    partial, old = folder.with_name(f"{folder.name}.partial"), folder.with_name(f".{folder.name}.replaced")
    if old.exists() and not folder.exists():
        old.rename(folder)
    for rest in (partial, old):
        shutil.rmtree(rest, ignore_errors=True)
    try:
        yield partial
        if folder.exists():
            folder.rename(old)
        try:
            partial.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    finally:
        for rest in (partial, old):
            shutil.rmtree(rest, ignore_errors=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into; at the end its content is moved to `folder`, which must be missing or empty.

    It lies in `folder`, where that exists, since that may be another disk, else beside it. A failure leaves `folder`
    as it was. Raises UserError where another process has filled it meanwhile.
    """
    exists = folder.is_dir()
    partial = (folder if exists else folder.parent) / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
    partial.mkdir()
    try:
        yield partial
        there = [file for file in folder.iterdir() if not file.name.startswith(f".{folder.name}.")] if exists else []
        if there or (folder.exists() and not exists):
            raise UserError(f"{folder}: another process has written it meanwhile; nothing in it was changed")
        if exists:
            for file in partial.iterdir():
                file.rename(folder / file.name)
        else:
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", folder: Path, longest: int | None) -> None:
    """Save a tokenizer that cuts texts at `longest` tokens at most, with a `vocab.txt` for older tools.

    `vocab.txt` has the token of id N in line N; it is left out where a token holds white space, which would break the
    lines, and where the vocabulary is not WordPiece's. transformers reads `tokenizer.json`.
    """
    if longest is not None:
        tokenizer.model_max_length = longest
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = {
        key: value for key, value in json.loads(file.read_text(encoding="utf-8")).items() if key not in HOW_LOADED
    }
    kind, has_steps = config.get("tokenizer_class"), type(tokenizer.backend_tokenizer.normalizer).__name__ == "Sequence"
    if kind == "TokenizersBackend" or (kind == "BertTokenizer" and has_steps):  # which would not load the steps
        config["tokenizer_class"] = "PreTrainedTokenizerFast"  # its old name, which transformers 4 knows too
        config["model_input_names"] = tokenizer.model_input_names
    write_text(file, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    is_word_piece = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"] == "WordPiece"
    ids = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    in_lines = all(line == number and [token] == token.split() for line, (number, token) in enumerate(ids))
    if is_word_piece and in_lines:
        write_text(folder / "vocab.txt", "".join(f"{token}\n" for _, token in ids))


def refuse_unknown_model(name: str, place: str) -> None:
    """Raise UserError where a model or tokenizer is neither a local folder nor, cached or reachable, on the Hub.

    Messages begin with `place`.
    """
    if (Path(name) / "state.json").is_file():
        raise UserError(
            f"{place}: {name} is a checkpoint; write its model to a folder with "
            f"`{command_line('export', name, '--to', 'bertpre', '--output-dir', 'FOLDER')}`"
        )
    if Path(name).is_dir():
        return
    if Path(name).is_file():
        raise UserError(f"{place}: {name!r} is a file; give the folder of a model or a Hub id (owner/name)")
    run, part = Path(name).parent, Path(name).name
    if (run / "recipe.yaml").is_file():
        has_checkpoints = part == "model" and (run / "checkpoints").is_dir()
        command = command_line("export", run, "--to", "bertpre")
        export = f", or write the model of its last checkpoint with `{command}`" if has_checkpoints else ""
        finish = command_line("run", run)
        raise UserError(
            f"{place}: the run directory {run} has no {part}; finish its earlier stages with `{finish}`{export}"
        )
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    files = ("config.json", "tokenizer_config.json", "tokenizer.json")
    try:
        is_cached = any(isinstance(try_to_load_from_cache(name, file), str) for file in files)
    except HFValidationError:
        raise UserError(f"{place}: there is no folder {name!r}, and that is not a Hub id (owner/name)") from None
    if not is_cached:
        ask_hub(name, place, files[0], "model")


def ask_hub(name: str, place: str, file: str, kind: Literal["model", "dataset"]) -> None:
    """Raise UserError where the Hub has no such repository or cannot be reached; it need not have the file.

    The Hub is asked once: its libraries would try for half a minute and more without a network.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    problem = f"{place}: there is no folder {name!r}"
    try:
        get_hf_file_metadata(hf_hub_url(name, file, repo_type=kind), timeout=HUB_SECONDS)
    except EntryNotFoundError:
        return
    except OfflineModeIsEnabled:
        raise UserError(f"{problem}; the Hub is switched off by HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        advice = "check the name, or log in with `hf auth login` if it is private or has terms to accept"
        raise UserError(
            f"{problem}, and the Hub does not give out a {kind} of this name (status {status}); "
            f"{'try later' if status >= 500 else advice}"
        ) from None
    except HTTPError as error:
        raise UserError(f"{problem}, and the Hub cannot be reached ({type(error).__name__})") from None
