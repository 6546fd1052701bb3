"""Atomic writes, and checksums."""

import hashlib
import uuid
from pathlib import Path


def file_checksum(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(file: Path, text: str) -> None:
    """Replace a file atomically: if the process is killed, or several write at once, one whole version is left."""
    partial = file.with_name(f"{file.name}.{uuid.uuid4().hex[:8]}.partial")
    content = text.encode()
    try:
        partial.write_bytes(content)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
