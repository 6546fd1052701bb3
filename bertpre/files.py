"""Files that are whole or not there, and their checksums."""

import hashlib
import uuid
from pathlib import Path


def file_checksum(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(file: Path, text: str) -> None:
    """Replace a file whole: a killed process leaves the old one or the new one, and so do several at once."""
    partial = file.with_name(f"{file.name}.{uuid.uuid4().hex[:8]}.partial")
    content = text.encode()
    try:
        partial.write_bytes(content)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
