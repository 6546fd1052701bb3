"""`bertpre prepare`: corpus -> tokenizer -> store of token ids."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bertpre.data.audit import audit_lengths, audit_lines, audit_pairs
from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import Document, read_documents
from bertpre.data.duplicates import bands_of, digests_of, first_of_like
from bertpre.data.parts import (
    Cut,
    Sieve,
    clean_part,
    cut_into_parts,
    encode_part,
    is_encoded,
    read_bands,
    read_digests,
    read_facts,
    read_lines,
    read_texts,
    read_token_counts,
    write_keep,
)
from bertpre.data.sampler import PairDataset
from bertpre.data.store import SPLITS, entropy, finish_store, join_shards, open_shards, read_manifest
from bertpre.data.tokenizer import fingerprint, learn_tokenizer, load_tokenizer
from bertpre.data.workers import map_calls
from bertpre.errors import UserError
from bertpre.recipe import Corpus, Recipe, Source
from bertpre.run_directory import claim, is_finished, write_results, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Item = TypeVar("Item")
LEARNED_PARTS = 64  # the vocabulary is learned from so many, a thousand million characters
AUDITED_SHARDS = 32
FROM_MANIFEST = (
    "documents", "sentences", "tokens", "vocab_size", "unigram_entropy", "unknown_share", "repeated_line_share",
    "dropped",
)  # fmt: skip


def prepare(recipe: Recipe, shard: str | None = None, merge: bool = False) -> dict[str, Any] | None:
    """Read, clean, split and encode the corpus; returns the figures for `results.json` once the store is whole.

    `shard` ("2/8") does one job's share of what can be done now, for array jobs on a shared file system; `merge` does
    what needs all of them. Jobs, merge, jobs, merge make the same bytes as one call without either.
    """
    folder = claim(recipe)
    start = time.perf_counter()
    if is_finished(folder, "prepare"):
        raise UserError(f"{folder}/data exists: this run is prepared; `bertpre run` goes on with it")
    if shard is not None:
        do_share(recipe, folder, *read_share(shard))
        return None
    # A run killed behind the store's last rename has its data whole, and lacks the figures only.
    if not (folder / "data").exists():
        if merge and not is_chosen(folder):
            choose_documents(recipe, folder, count_parts(folder))
            print("prepare: the vocabulary is learned; now the jobs again with --shard, then --merge")
            return None
        if not merge:
            write_parts(recipe, folder)
        merge_parts(recipe, folder)
    manifest = read_manifest(folder / "data")
    figures = {key: manifest[key] for key in FROM_MANIFEST} | audit(folder, recipe)
    figures |= {"pairs_kind": recipe.pairs.kind, "seconds": time.perf_counter() - start}
    write_results(folder, "prepare", figures)
    print(f"prepare: {figures['seconds']:.0f} s")
    print("\n".join(f"  {line}" for line in audit_lines(figures)))
    return figures


def read_share(shard: str) -> tuple[int, int]:
    """Job number (from 0) and number of jobs of "2/8"; raises UserError for anything else."""
    job, _, jobs = shard.partition("/")
    if not (job.isdigit() and jobs.isdigit() and 1 <= int(job) <= int(jobs)):
        raise UserError(f"--shard {shard!r}: write JOB/JOBS, from 1/8 to 8/8")
    return int(job) - 1, int(jobs)


def do_share(recipe: Recipe, folder: Path, job: int, jobs: int) -> None:
    """One job's parts: cleaned, or, where the documents are chosen, encoded."""
    if is_chosen(folder):
        encode_parts(recipe, folder, job, jobs)
        print("prepare: this share is encoded; when all are, bertpre prepare --merge")
    else:
        clean_parts(recipe, folder, job, jobs)
        print("prepare: this share is cleaned; when all are, bertpre prepare --merge")


def write_parts(recipe: Recipe, folder: Path) -> None:
    """Everything up to the encoded parts.

    Parts of the corpus are cleaned, repeats are found among all of them, the vocabulary is learned from what is left,
    and the parts are encoded. What a killed run had finished is not done again.
    """
    clean_parts(recipe, folder)
    choose_documents(recipe, folder, count_parts(folder))
    encode_parts(recipe, folder)


def clean_parts(recipe: Recipe, folder: Path, job: int = 0, jobs: int = 1) -> None:
    """Clean a job's share of the parts; each job reads the whole corpus, which costs little beside the rest."""
    work, corpus = work_folder(folder), recipe.corpus
    if corpus.near_duplicates and find_spec("rensa") is None:
        raise UserError("corpus.near_duplicates needs the package rensa: pip install 'bertpre[dedup]'")
    work.mkdir(exist_ok=True)
    total = 0

    def calls() -> Iterator[tuple[Path, int, list[str], Sieve]]:
        nonlocal total
        for key, source in sources(recipe):
            sieve = Sieve(corpus.min_characters, source.weight, recipe.seed, corpus.near_duplicates)
            for texts in cut_into_parts(document.text for document in source_documents(source, key)):
                if total % jobs == job:
                    yield work, total, texts, sieve
                total += 1

    for _ in map_calls(clean_part, calls(), recipe.prepare.workers, recipe.prepare.engine):
        pass
    write_text(work / "parts.json", json.dumps({"parts": total}))


def sources(recipe: Recipe) -> Iterator[tuple[str, Source]]:
    """The sources of the corpus, with the keys that errors name."""
    yield "corpus", recipe.corpus
    for number, source in enumerate(recipe.corpus.more):
        yield f"corpus.more.{number}", source


def source_documents(source: Source, key: str) -> Iterator[Document]:
    """A source's documents, as they come."""
    return read_documents(
        source.path,
        source.name,
        source.split,
        source.text_column,
        limit=source.limit,
        key=key,
        text_unit=source.text_unit,
        streaming=source.streaming,
    )


def count_parts(folder: Path) -> int:
    """How many parts the corpus has; raises UserError where some are not cleaned."""
    file = work_folder(folder) / "parts.json"
    if not file.exists():
        raise UserError(f"nothing to merge in {folder}: run the jobs with `bertpre prepare RECIPE --shard 1/N` first")
    total = json.loads(file.read_text())["parts"]
    refuse_missing([number for number in range(total) if read_facts(work_folder(folder), number, "clean") is None])
    return total


def refuse_missing(numbers: list[int]) -> None:
    """Raise UserError where there are parts that no job has done."""
    if numbers:
        named = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
        raise UserError(f"{len(numbers)} parts are not done ({named}): run the jobs again; finished parts are kept")


def encode_parts(recipe: Recipe, folder: Path, job: int = 0, jobs: int = 1) -> None:
    """Encode a job's share of the parts."""
    chosen, work = read_chosen(folder), work_folder(folder)
    cut = cut_of(recipe, folder, chosen)
    calls = ((work, number, cut) for number in range(job, chosen["parts"], jobs))
    for _ in map_calls(encode_part, calls, recipe.prepare.workers, recipe.prepare.engine):
        pass


def cut_of(recipe: Recipe, folder: Path, chosen: dict[str, Any]) -> Cut:
    """How the recipe's parts are encoded."""
    tokenizer = str(folder / "tokenizer")
    return Cut(tokenizer, chosen["tokenizer_hash"], recipe.pairs.validation_fraction, recipe.seed)


def work_folder(folder: Path) -> Path:
    """Where parts lie until the store is whole."""
    return folder / "data.partial"


def is_chosen(folder: Path) -> bool:
    """Whether the documents are chosen and the vocabulary is learned."""
    return (work_folder(folder) / "chosen.json").exists()


def read_chosen(folder: Path) -> dict[str, Any]:
    """What `choose_documents` wrote down."""
    return json.loads((work_folder(folder) / "chosen.json").read_text())


def choose_documents(recipe: Recipe, folder: Path, parts: int) -> None:
    """Mark the documents that stay, and obtain the tokenizer; what was decided before on the same parts stays decided.

    The first of documents that are alike stays, and none that is like one of the held-out split.
    """
    work, corpus, numbers = work_folder(folder), recipe.corpus, range(parts)
    held_out = held_out_texts(corpus)
    sizes = [len(read_digests(work, number)) for number in numbers]
    digests = np.concatenate([digests_of(held_out), *(read_digests(work, number) for number in numbers)])
    settings = (
        recipe.tokenizer.model_dump(),
        recipe.model.max_position_embeddings,
        len(held_out),
        corpus.near_duplicates,
    )
    origin = hashlib.blake2b(digests.tobytes() + repr(settings).encode()).hexdigest()
    if is_chosen(folder) and read_chosen(folder)["origin"] == origin:
        return
    (work / "chosen.json").unlink(missing_ok=True)
    bands = None
    if corpus.near_duplicates:
        bands = np.concatenate([bands_of(held_out), *(read_bands(work, number) for number in numbers)])
    keep, dropped = first_of_like(digests, bands, len(held_out))
    for number, rows in enumerate(np.split(keep, np.cumsum(sizes)[:-1])):
        write_keep(work, number, rows)
        dropped += Counter(read_facts(work, number, "clean")["dropped"])
    if not keep.any():
        raise UserError(f"corpus: {corpus.path} (split {corpus.split}) holds no text")
    tokenizer = obtain_tokenizer(recipe, folder, parts)
    chosen = {"origin": origin, "parts": parts, "tokenizer_hash": fingerprint(tokenizer), "dropped": dict(dropped)}
    write_text(work / "chosen.json", json.dumps(chosen))


def held_out_texts(corpus: Corpus) -> list[str]:
    """The cleaned texts of the held-out split."""
    if corpus.held_out is None:
        return []
    split = corpus.model_copy(update={"split": corpus.held_out, "limit": None})
    return list(filter(None, (clean_text(document.text) for document in source_documents(split, "corpus"))))


def obtain_tokenizer(recipe: Recipe, folder: Path, parts: int) -> "PreTrainedTokenizerBase":
    """The recipe's tokenizer, loaded or learned, and saved in the run.

    Of a large corpus it is learned from parts evenly chosen: the trainer keeps every distinct word in memory.
    """
    settings = recipe.tokenizer
    if settings.path:
        tokenizer = load_tokenizer(settings.path)
    else:
        chosen = evenly(range(parts), LEARNED_PARTS)
        texts = (text for number in chosen for text in read_texts(work_folder(folder), number, kept=True))
        longest = recipe.model.max_position_embeddings
        tokenizer = learn_tokenizer(texts, settings.vocab_size, settings.lowercase, longest, settings.strip_accents)
    tokenizer.save_pretrained(folder / "tokenizer")
    return tokenizer


def evenly(items: Sequence[Item], most: int) -> Sequence[Item]:
    """At most so many items, at equal distances."""
    return items[:: -(-len(items) // most) or 1]


def merge_parts(recipe: Recipe, folder: Path) -> None:
    """Make the encoded parts a store, with one validation shard and the audit's figures."""
    work, chosen = work_folder(folder), read_chosen(folder)
    cut, numbers = cut_of(recipe, folder, chosen), range(chosen["parts"])
    refuse_missing([number for number in numbers if not is_encoded(work, number, cut)])
    parts = [read_facts(work, number, "encode") for number in numbers]
    shards = {
        split: [shard for facts in parts for shard in facts["shards"] if shard["split"] == split] for split in SPLITS
    }
    check_size(recipe, shards)
    groups = [*with_two_documents(shards["train"]), shards["validation"]]
    entries = [
        group[0] if len(group) == 1 else join_shards(work, f"{group[0]['name']}.joined", group) for group in groups
    ]
    counts = sum(read_token_counts(work, number) for number in numbers)
    lines = np.concatenate([read_lines(work, number) for number in numbers])
    tokenizer = load_tokenizer(folder / "tokenizer")
    dropped = Counter(chosen["dropped"]) + Counter({"no token": sum(facts["no_token"] for facts in parts)})
    facts = {
        "vocab_size": len(tokenizer),
        "tokenizer_hash": chosen["tokenizer_hash"],
        "unigram_entropy": entropy(counts),
        "unknown_share": float(counts[tokenizer.unk_token_id] / counts.sum()),
        "repeated_line_share": 1 - len(np.unique(lines)) / len(lines) if len(lines) else 0.0,
        "dropped": dict(dropped),
    }
    finish_store(work, folder / "data", entries, facts)


def with_two_documents(shards: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group neighbouring shards so that each group has two documents: a random next segment comes from another one."""
    groups: list[list[dict[str, Any]]] = [[]]
    for shard in shards:
        if sum(member["documents"] for member in groups[-1]) >= 2:
            groups.append([])
        groups[-1].append(shard)
    if len(groups) > 1 and sum(member["documents"] for member in groups[-1]) < 2:
        groups[-2] += groups.pop()
    return groups


def check_size(recipe: Recipe, shards: dict[str, list[dict[str, Any]]]) -> None:
    """Both splits need two documents."""
    for split, entries in shards.items():
        if sum(entry["documents"] for entry in entries) < 2:
            raise UserError(
                f"corpus: {recipe.corpus.path} (split {recipe.corpus.split}) leaves fewer than two documents in the "
                f"{split} part; give more text, or a larger pairs.validation_fraction"
            )


def audit(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """What the training part holds: quantiles of lengths, and the first epoch's pairs.

    Of a large corpus some shards are looked at, evenly chosen, and `pairs` is an estimate.
    """
    shards, pairs = open_shards(folder / "data", "train"), recipe.pairs
    chosen = evenly(shards, AUDITED_SHARDS)
    longest = recipe.training.phases[0].max_length
    probabilities = pairs.short_seq_prob, pairs.random_next_prob
    dataset = PairDataset(chosen, longest, recipe.seed, *probabilities, pairs.kind)
    planned = sum(len(dataset.plan_shard(0, number)) for number in range(len(chosen)))
    all_tokens, tokens = (sum(len(shard.tokens) for shard in some) for some in (shards, chosen))
    balance = audit_pairs(dataset.plan(0)[0][:, 2:]) if pairs.kind != "none" else {}
    return {"pairs": round(planned * all_tokens / tokens)} | balance | audit_lengths(chosen)
