"""Builds a store from a corpus: clean its parts, choose documents and vocabulary, encode the parts, join the shards."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.console import console
from bertpre.data.corpus import TextSource, mention_unread_splits
from bertpre.data.corpus_tokenizer import (
    TokenizerOptions,
    given_tokenizer,
    obtain_tokenizer,
    some_texts,
    tokenizer_notes,
)
from bertpre.data.duplicates import first_of_duplicates
from bertpre.data.groups import cut_into_parts
from bertpre.data.parts import (
    PART_CHARACTERS,
    CleanOptions,
    EncodeOptions,
    clean_part,
    encode_part,
    is_encoded,
    validation_draws,
)
from bertpre.data.store import SIZES, SPLITS, finish_store, join_shards, tidy_store
from bertpre.data.tables import named
from bertpre.data.texts import GivenTexts
from bertpre.data.tokenizer import NOTABLE_SHARE, load_tokenizer, most_unknown, tokenizer_fingerprint
from bertpre.data.workers import map_calls, release_memory
from bertpre.data.workspace import Choice, Part, Workspace, refuse_unfinished
from bertpre.errors import ArgumentError, UserError
from bertpre.files import save_tokenizer

MOST_SHARDS = 4096  # a training keeps three files of each open and mapped; Linux allows 65,530 maps
VALIDATION_TOKENS = 4_000_000  # in a shard: a training plans four of them to draw its validation examples
LINES_COUNTED = 10_000_000  # of the rarer sentences whose repetitions are counted, about
FREQUENT = 1e-4  # share of the sentences
Entry = dict[str, Any]  # of a shard, as in the store's manifest


@dataclass(frozen=True, kw_only=True)
class StoreBuilder:
    """Builds `data/` and `tokenizer/` in a folder, in four steps.

    Each step reads what the one before it left in the workspace, `data.partial/`, and skips what is finished there. So
    an interrupted `build` resumes, and array jobs can share the work: every job runs `run_share`, one process runs
    `merge`, then both once more. The bytes are the same in every case.

    `settings` are the caller's keys and values, by which later jobs are compared with the first.
    """

    folder: Path
    sources: list[TextSource]  # not empty; messages about the whole corpus name the first
    tokenizer: TokenizerOptions
    validation_fraction: float
    seed: int
    validation: TextSource | None = None  # texts to validate on, instead of a fraction of the documents
    held_out: TextSource | None = None  # texts that are dropped from the sources
    min_characters: int = 1
    near_duplicates: bool = False
    workers: int | None = None
    engine: str = "local"
    part_characters: int = PART_CHARACTERS
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        """The finished store."""
        return self.folder / "data"

    @property
    def workspace(self) -> Workspace:
        """The partial files that the steps pass on to each other."""
        return Workspace(self.folder / "data.partial")

    def build(self) -> None:
        """Run all steps in this process and its workers."""
        if not self.store.exists():
            self.clean()
            self.choose()
            self.encode()
            self.join()
        tidy_store(self.store)

    def run_share(self, job: int, jobs: int) -> str:
        """Run a job's share of the step that is due, `clean` or `encode`; returns its name."""
        self.refuse_other_settings()
        if self.store.exists():
            raise UserError(f"{self.store} exists: the shares are joined; there is no share left to do")
        step, function = ("clean", self.clean) if self.workspace.choice is None else ("encode", self.encode)
        function(job, jobs)
        return step

    def merge(self) -> bool:
        """Run the step that needs every job's output, `choose` or `join`; returns whether the store is complete."""
        if not self.store.exists():
            self.refuse_other_settings()
            if self.workspace.choice is None:
                self.choose()
                return False
            self.join()
        tidy_store(self.store)
        return True

    def clean(self, job: int = 0, jobs: int = 1) -> None:
        """Step 1: clean this job's parts; each job reads the whole corpus, which costs little beside the rest."""
        beside = {"validation": self.validation, "held_out": self.held_out}
        sources = [("parts", source) for source in self.sources]
        sources += [(kind, source) for kind, source in beside.items() if source is not None]
        counts = dict.fromkeys(("parts", *beside), 0)
        mention_unread_splits([source for _, source in sources if not isinstance(source, GivenTexts)])

        def calls() -> Iterator[tuple[Part, list[str], CleanOptions]]:
            for kind, source in sources:
                options = CleanOptions(self.min_characters, source.weight, self.seed, self.near_duplicates)
                texts = counted(source.documents())
                for part_texts in cut_into_parts(texts, self.part_characters):
                    number = sum(counts.values())
                    if number % jobs == job:
                        yield self.workspace.part(number), part_texts, options
                    counts[kind] += 1

        self.workspace.folder.mkdir(exist_ok=True)
        self.run(clean_part, calls())
        self.workspace.save_counts(counts, self.settings)

    def choose(self) -> None:
        """Step 2: mark the documents that are kept and obtain the tokenizer, unless this was done for the same parts.

        The first of several duplicates is kept, that in the validation texts before all others, and none of a held-out
        document.
        """
        console.draw("prepare: removing duplicates and learning the vocabulary")
        training, validation, held_out = self.workspace.cleaned_parts()
        parts = validation + training
        no_text = UserError(f"{self.sources[0]} contains no text")
        if not training:
            raise no_text
        all_digests = [part.load("digests") for part in held_out + parts]
        sizes = [len(digests) for digests in all_digests]
        digests, num_held_out = np.concatenate(all_digests), sum(sizes[: len(held_out)])
        given = None if self.tokenizer.path is None else tokenizer_fingerprint(given_tokenizer(self.tokenizer.path))
        dropped_before = [part.facts("clean")["dropped"] for part in parts]
        settings = self.tokenizer, given, num_held_out, self.near_duplicates, sizes, dropped_before, len(validation)
        origin = hashlib.blake2b(digests.tobytes() + repr(settings).encode()).hexdigest()
        if (known := self.workspace.choice) and known.origin == origin:
            return
        self.workspace.forget_choice()
        signatures = (part.load("minhashes") for part in held_out + parts) if self.near_duplicates else None
        keep, dropped = first_of_duplicates(digests, signatures, num_held_out)
        dropped += sum(map(Counter, dropped_before), Counter())
        kept = np.split(keep, np.cumsum(sizes[len(held_out) :])[:-1])
        if not any(rows.any() for rows in kept[len(validation) :]):
            raise UserError(f"{no_text}{reasons(dropped)}")
        for part, rows in zip(parts, kept, strict=True):
            part.save("keep", rows)
        tokenizer = obtain_tokenizer(self.tokenizer, training)
        save_tokenizer(tokenizer, self.folder / "tokenizer", self.tokenizer.max_length)
        tokenizer_hash = tokenizer_fingerprint(tokenizer)
        self.workspace.save_choice(Choice(origin, len(training), len(validation), tokenizer_hash, dict(dropped)))

    def encode(self, job: int = 0, jobs: int = 1) -> None:
        """Step 3: encode this job's parts."""
        choice = self.workspace.choice
        assert choice is not None  # step 2 is done
        todo = self.parts_to_encode(choice)[job::jobs]
        console.draw("prepare: encoding")
        release_memory()
        self.run(encode_part, iter(todo), len(todo))

    def join(self) -> None:
        """Step 4: join the validation shards and small training shards, and move the store into place."""
        workspace, choice = self.workspace, self.workspace.choice
        assert choice is not None  # step 2 is done
        encoded = self.parts_to_encode(choice)
        refuse_unfinished([part for part, options in encoded if not is_encoded(part, options)])
        parts = [part for part, _ in encoded]
        facts = [part.facts("encode") for part in parts]
        train, validation = (
            [entry for fact in facts for entry in fact["shards"] if entry["split"] == split] for split in SPLITS
        )
        self.refuse_too_small(parts, train, validation, choice.dropped)
        groups = [*groups_of(train, len(train) / MOST_SHARDS), *groups_of(validation, math.inf, VALIDATION_TOKENS)]
        entries = [
            group[0] if len(group) == 1 else join_shards(workspace.folder, f"{group[0]['name']}.joined", group)
            for group in groups
        ]
        counts = reduce(np.add, (part.load("counts") * part.facts("clean")["repeats"] for part in parts))
        tokenizer = load_tokenizer(self.folder / "tokenizer")
        dropped = Counter(choice.dropped) + Counter({"no token": sum(fact["no_token"] for fact in facts)})
        texts, has_unknown = some_texts(parts), counts[tokenizer.unk_token_id] > NOTABLE_SHARE * counts.sum()
        sizes = {key: sum(entry[key] for entry in train + validation) for key in SIZES}  # joining may repeat documents
        totals = sizes | {
            "vocab_size": len(tokenizer),
            "tokenizer_hash": choice.tokenizer_hash,
            "tokenizer_notes": tokenizer_notes(self.tokenizer, tokenizer, texts),
            "unknown_words": most_unknown(tokenizer, texts) if has_unknown else {},
            "repeated_line_share": repeated_share(lambda: (part.load("lines") for part in parts)),
            "dropped": dict(dropped),
        }
        totals |= what_cleaning_removed([part.facts("clean")["cleaning"] for part in parts])
        finish_store(workspace.folder, self.store, entries, counts, totals)

    def run(self, function: Callable[..., None], calls: Iterator[tuple[Any, ...]], total: int = 0) -> None:
        """Run calls of a function on the workers; shows how many of them are done where their number is known."""
        try:
            for done, _ in enumerate(map_calls(function, calls, self.workers, self.engine), start=1):
                if total:
                    console.draw("prepare: encoding", f"{done:,} of {total:,} parts", done / total)
        except BrokenProcessPool:
            raise ArgumentError(
                "workers",
                "a worker process was killed, probably because memory ran out; run the same command again with fewer "
                "workers, down to 1 (finished parts are kept)",
            ) from None

    def refuse_other_settings(self) -> None:
        """Raise UserError where earlier jobs had other settings."""
        if (known := self.workspace.settings) is None:
            return
        sizes = {key for key in ("corpus_files", "corpus_bytes") if known.get(key) and self.settings.get(key)}
        if any(known[key] != self.settings[key] for key in sizes):  # not where a merge has no corpus at hand
            raise UserError(
                f"{self.workspace.folder}: the corpus has other files now than for the first jobs; remove that folder "
                "to start over"
            )
        keys = sorted((known.keys() | self.settings.keys()) - {"corpus_files", "corpus_bytes"})
        if changed := [key for key in keys if known.get(key) != self.settings.get(key)]:
            raise UserError(
                f"{self.workspace.folder}: the first jobs had another {', '.join(changed)}; give the old value, or "
                "remove that folder to start over"
            )

    def parts_to_encode(self, choice: Choice) -> list[tuple[Part, EncodeOptions]]:
        """The parts of the corpus and of the validation texts, and how each is encoded."""
        tokenizer = str(self.folder / "tokenizer")
        fraction = self.validation_fraction if self.validation is None else 0.0
        fractions = [fraction] * choice.parts + [1.0] * choice.validation_parts
        return [
            (self.workspace.part(number), EncodeOptions(tokenizer, choice.tokenizer_hash, each, self.seed))
            for number, each in enumerate(fractions)
        ]

    def refuse_too_small(
        self, parts: list[Part], train: list[Entry], validation: list[Entry], dropped: dict[str, int]
    ) -> None:
        """Raise UserError where a split has fewer than two documents; `dropped` are the others, by reason."""
        kept = num_documents(train) + num_documents(validation)
        read = f"of {kept + sum(dropped.values()):,} read{reasons(dropped, ' of them')}"
        if num_documents(train) < 2:
            unit = ""
            if kept < 2 and not isinstance(self.sources[0], GivenTexts):
                key = named(self.sources[0].key, "text_unit")
                unit = f"; if it is several documents, {key} says where one ends: line, paragraph or document"
            raise UserError(
                f"{self.sources[0]} leaves fewer than two documents to train on, {read}; give more text{unit}"
            )
        if num_documents(validation) < 2 and self.validation is not None:
            raise UserError(f"{self.validation} leaves fewer than two documents to validate on; give more text")
        if num_documents(validation) < 2:
            draws = np.sort(np.concatenate([validation_draws(part, self.seed) for part in parts]))
            second = draws[1 + len(draws) - kept]  # even if the first ones are of documents without a token
            enough = math.floor(1000 * second + 1) / 1000
            has_enough = kept >= 4 and enough < 0.5  # two for each part, and the recipe allows no larger share
            advice = f" or a larger share, {enough:g} or more" if has_enough else ""
            reason = (
                f"{self.validation_fraction:g} of the documents leaves fewer than two documents for validation, {read}"
                f"; give more text{advice}"
            )
            raise ArgumentError("validation_fraction", reason)


def counted(texts: Iterator[str]) -> Iterator[str]:
    """The texts; shows how many were read."""
    for number, text in enumerate(texts, start=1):
        if number < 1000 or number % 1000 == 0:  # to ask whether to draw takes longer than to read a line
            console.draw("prepare: cleaning", f"{number:,} documents read")
        yield text


def repeated_share(read: Callable[[], Iterator[np.ndarray]]) -> float:
    """The share of lines that are repetitions; `read` gives their checksums, (N,), uint64, in several arrays.

    Of very many, the frequent ones are counted, and of the others an unbiased sample: all copies of a line or none.
    """
    total = sum(map(len, read()))
    every = max(1, total // LINES_COUNTED)
    values, counts = np.unique(np.concatenate([lines[::every] for lines in read()]), return_counts=True)
    frequent = values[counts > max(1, FREQUENT * counts.sum())]
    num_frequent, others = 0, []
    for lines in read():
        is_frequent = np.isin(lines, frequent)
        num_frequent += int(is_frequent.sum())
        others.append(lines[~is_frequent & (lines % np.uint64(every) == 0)])
    sampled = np.concatenate(others)
    share = 1 - len(np.unique(sampled)) / max(len(sampled), 1)
    return (num_frequent - len(frequent) + share * (total - num_frequent)) / max(total, 1)


def reasons(dropped: Mapping[str, int], of_them: str = "") -> str:
    """Why documents were dropped, and how many, as the end of a message."""
    return "".join(f", {count:,}{of_them} dropped as {why}" for why, count in dropped.items() if count)


def what_cleaning_removed(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The same facts as of each part, of all parts together; the example is the first one."""
    characters, removed, mostly = (sum(part[key] for part in parts) for key in ("characters", "removed", "lost_most"))
    return {
        "removed_share": removed / characters,
        "mostly_removed": mostly,
        "mostly_removed_example": next((part["example"] for part in parts if part["example"]), ""),
    }


def groups_of(shards: list[Entry], size: float, tokens: float = math.inf) -> list[list[Entry]]:
    """Group neighbouring shards: a group ends once it has `size` shards or so many tokens.

    But each has two documents, since a random segment needs another document.
    """
    groups: list[list[Entry]] = [[]]
    for shard in shards:
        group = groups[-1]
        is_full = len(group) >= size or sum(each["tokens"] for each in group) >= tokens
        if is_full and num_documents(group) >= 2:
            groups.append([])
        groups[-1].append(shard)
    if len(groups) > 1 and num_documents(groups[-1]) < 2:
        last = groups.pop()
        groups[-1] += last
    return groups


def num_documents(shards: list[Entry]) -> int:
    """The documents of some shards together."""
    return sum(shard["documents"] for shard in shards)
