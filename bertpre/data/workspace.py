"""The workspace of `prepare`: the files that it keeps in `data.partial` until the store is complete.

A part is a run of consecutive documents. Each stage of a part marks itself finished by writing its facts last, so that
an interrupted `prepare` and array jobs on a shared file system skip what is done.
"""

import json
from dataclasses import asdict, dataclass, fields
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.errors import UserError
from bertpre.files import write_text

SEPARATOR = "\0"  # between cleaned texts, which contain no control characters


@dataclass(frozen=True)
class Part:
    """The files of one part, `part-00007.*`.

    `texts`: the N cleaned texts. Arrays: `digests` (N, 2), uint64, and `minhashes` (N, 112), uint32, of the texts;
    `keep` (N,), bool, the texts that are not duplicates; `counts` (V,), how often each token occurs in the training
    documents; `lines` (L,), uint64, checksums of all sentences. Facts: `clean.json` and `encode.json`, one
    for each stage.
    """

    folder: Path
    number: int

    @property
    def name(self) -> str:
        """What the names of the part's files begin with."""
        return f"part-{self.number:05d}"

    def file(self, ending: str) -> Path:
        """One of the part's files."""
        return self.folder / f"{self.name}.{ending}"

    def load(self, array: str) -> np.ndarray:
        """Read one of the arrays."""
        return np.load(self.file(f"{array}.npy"), allow_pickle=False)

    def save(self, array: str, values: np.ndarray) -> None:
        """Write one of the arrays."""
        np.save(self.file(f"{array}.npy"), values, allow_pickle=False)

    def texts(self) -> list[str]:
        """The cleaned texts."""
        content = self.file("texts").read_bytes().decode()
        return content.split(SEPARATOR) if content else []

    def save_texts(self, texts: list[str]) -> None:
        """Write the cleaned texts."""
        self.file("texts").write_bytes(SEPARATOR.join(texts).encode())

    def kept_texts(self) -> list[str]:
        """The cleaned texts that are kept."""
        return list(compress(self.texts(), self.load("keep").tolist()))

    def facts(self, stage: str) -> dict[str, Any]:
        """What a stage (`clean`, `encode`) recorded when it finished; empty before that."""
        file = self.file(f"{stage}.json")
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def is_finished(self, stage: str, origin: str) -> bool:
        """Whether a stage has finished on input with this digest."""
        return self.facts(stage).get("origin") == origin

    def begin(self, stage: str) -> None:
        """Mark a stage as unfinished before its files are overwritten."""
        self.file(f"{stage}.json").unlink(missing_ok=True)

    def finish(self, stage: str, origin: str, facts: dict[str, Any]) -> None:
        """Mark a stage as finished on input with this digest, and record its facts."""
        write_text(self.file(f"{stage}.json"), json.dumps({"origin": origin, **facts}))


@dataclass(frozen=True)
class Choice:
    """The decisions that need all cleaned parts: the documents to keep (`keep` of each part) and the tokenizer."""

    origin: str  # digest of everything they depend on
    parts: int  # of the sources
    validation_parts: int  # of the validation texts, if there are any
    tokenizer_hash: str
    dropped: dict[str, int]  # documents, by reason


@dataclass(frozen=True)
class Workspace:
    """All parts of a corpus: those of its sources, then of the validation texts, then of the held-out texts."""

    folder: Path

    def part(self, number: int) -> Part:
        """One part's files."""
        return Part(self.folder, number)

    def save_counts(self, counts: dict[str, int], settings: dict[str, Any]) -> None:
        """Record how many parts there are of each kind, and with which settings they were cleaned."""
        write_text(self.folder / "parts.json", json.dumps(counts | {"settings": settings}))

    @property
    def settings(self) -> dict[str, Any] | None:
        """What the first jobs were given; None before one of them has ended."""
        file = self.folder / "parts.json"
        return json.loads(file.read_text(encoding="utf-8")).get("settings") if file.exists() else None

    def cleaned_parts(self) -> tuple[list[Part], list[Part], list[Part]]:
        """The parts of sources, of validation texts and of held-out ones; raises UserError for parts not cleaned."""
        file = self.folder / "parts.json"
        if not file.exists():
            run = self.folder.parent
            raise UserError(f"{run}: nothing to merge; run the jobs with `bertpre prepare RECIPE --shard 1/N` first")
        counts = json.loads(file.read_text(encoding="utf-8"))
        first = counts["parts"]
        second = first + counts.get("validation", 0)  # none in a workspace of an older version
        parts = [self.part(number) for number in range(second + counts["held_out"])]
        refuse_unfinished([part for part in parts if not part.facts("clean")])
        return parts[:first], parts[first:second], parts[second:]

    @property
    def choice(self) -> Choice | None:
        """What was chosen among the cleaned parts; None before that, and after a version that recorded other facts."""
        file = self.folder / "chosen.json"
        facts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return Choice(**facts) if facts.keys() == {each.name for each in fields(Choice)} else None

    def save_choice(self, choice: Choice) -> None:
        """Record what was chosen."""
        write_text(self.folder / "chosen.json", json.dumps(asdict(choice)))

    def forget_choice(self) -> None:
        """Mark the choice as open again, before `keep` of the parts is overwritten."""
        (self.folder / "chosen.json").unlink(missing_ok=True)


def refuse_unfinished(parts: list[Part]) -> None:
    """Raise UserError where there are parts that no job has finished."""
    if parts:
        numbers = ", ".join(str(part.number) for part in parts[:10]) + (", ..." if len(parts) > 10 else "")
        folder = parts[0].folder
        raise UserError(f"{folder}: some parts are not done ({numbers}); run their jobs again")
