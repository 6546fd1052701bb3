"""Atomic writes, checksums, and saved tokenizers."""

import hashlib
import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def file_checksum(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(file: Path, text: str) -> None:
    """Replace a file atomically: if the process is killed, or several write at once, one whole version is left."""
    write_bytes(file, text.encode())


def write_bytes(file: Path, content: bytes) -> None:
    """`write_text` for bytes."""
    partial = file.with_name(f"{file.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", folder: Path, longest: int | None) -> None:
    """Save a tokenizer that cuts texts at `longest` tokens at most, with a `vocab.txt` for older tools.

    `vocab.txt` has the token of id N in line N; it is left out where a token holds white space, which would break the
    lines, and where the vocabulary is not WordPiece's. transformers reads `tokenizer.json`.
    """
    if longest is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, longest)
    tokenizer.save_pretrained(folder)
    config = folder / "tokenizer_config.json"
    # The old name of the class, which transformers 4 knows too.
    write_text(config, config.read_text().replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"'))
    is_word_piece = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"] == "WordPiece"
    ids = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    in_lines = all(line == number and [token] == token.split() for line, (number, token) in enumerate(ids))
    if is_word_piece and in_lines:
        write_text(folder / "vocab.txt", "".join(f"{token}\n" for _, token in ids))
