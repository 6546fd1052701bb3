"""`bertpre prepare`: corpus -> tokenizer -> store of token ids."""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bertpre.data.audit import audit_lengths, audit_lines, audit_pairs
from bertpre.data.corpus import Document, held_out_place, read_documents
from bertpre.data.duplicates import first_of_like
from bertpre.data.encoder import Encoder
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
    texts_size,
    write_keep,
)
from bertpre.data.sampler import PairDataset
from bertpre.data.sentences import split_sentences
from bertpre.data.store import SPLITS, entropy, finish_store, join_shards, open_shards, read_store_manifest, tidy_store
from bertpre.data.tokenizer import learn_tokenizer, load_tokenizer, tokenizer_fingerprint
from bertpre.data.workers import give_memory_back, map_calls
from bertpre.errors import UserError
from bertpre.files import write_text
from bertpre.recipe import Recipe, Source, flatten
from bertpre.run_directory import claim, is_finished, model_of, write_results

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Item = TypeVar("Item")
LEARNED_SHARE, LEAST_LEARNED, MOST_LEARNED = 0.125, 1 << 24, 1 << 30  # bytes of text for the vocabulary
AUDITED_SHARDS, PLANNED_SHARDS = 32, 2
FROM_MANIFEST = (
    "documents", "sentences", "tokens", "vocab_size", "unigram_entropy", "unknown_share", "repeated_line_share",
    "dropped",
)  # fmt: skip


def prepare(recipe: Recipe, shard: str | None = None, merge: bool = False) -> dict[str, Any] | None:
    """Read, clean, split and encode the corpus; returns the figures for `results.json` once the store is whole.

    `shard` ("2/8") does one job's share of what can be done now, for array jobs on a shared file system; `merge` does
    what needs all of them. Jobs, merge, jobs, merge make the same bytes as one call without either.
    """
    if recipe.corpus is None:
        raise UserError("this recipe has no corpus section: say which text to pretrain on with corpus.path=...")
    folder = claim(recipe)
    start = time.perf_counter()
    if is_finished(folder, "prepare"):
        raise UserError(f"{folder}/data exists: this run is prepared; `bertpre run` goes on with it")
    if is_chosen(folder) and (merge or shard is not None):
        refuse_changed(recipe, folder)
    if shard is not None:
        do_share(recipe, folder, *read_share(shard))
        return None
    # A run killed behind the store's last rename has its data whole, and lacks the figures only.
    if not (folder / "data").exists():
        if merge and not is_chosen(folder):
            choose_documents(recipe, folder, *count_parts(folder))
            print("prepare: the vocabulary is learned; now the jobs again with --shard, then --merge")
            return None
        if not merge:
            write_parts(recipe, folder)
        merge_parts(recipe, folder)
    tidy_store(folder / "data")
    manifest = read_store_manifest(folder / "data")
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
    choose_documents(recipe, folder, *count_parts(folder))
    encode_parts(recipe, folder)


def clean_parts(recipe: Recipe, folder: Path, job: int = 0, jobs: int = 1) -> None:
    """Clean a job's share of the parts; each job reads the whole corpus, which costs little beside the rest."""
    work, corpus = work_folder(folder), recipe.corpus
    if corpus.near_duplicates and find_spec("rensa") is None:
        raise UserError("corpus.near_duplicates needs the package rensa: pip install 'bertpre[dedup]'")
    work.mkdir(exist_ok=True)
    counts = {"parts": 0, "held_out": 0}

    def calls() -> Iterator[tuple[Path, int, list[str], Sieve]]:
        for kind, key, source in sources(recipe):
            sieve = Sieve(corpus.min_characters, source.weight, recipe.seed, corpus.near_duplicates)
            for texts in cut_into_parts(document.text for document in source_documents(source, key)):
                number = sum(counts.values())
                if number % jobs == job:
                    yield work, number, texts, sieve
                counts[kind] += 1

    for _ in map_calls(clean_part, calls(), recipe.prepare.workers, recipe.prepare.engine):
        pass
    write_text(work / "parts.json", json.dumps(counts))


def sources(recipe: Recipe) -> Iterator[tuple[str, str, Source]]:
    """The sources of the corpus, then its held-out split: what its parts count as, the key that errors name, itself."""
    corpus = recipe.corpus
    yield "parts", "corpus", corpus
    for number, source in enumerate(corpus.more):
        yield "parts", f"corpus.more.{number}", source
    if corpus.held_out:
        path, split = held_out_place(corpus.held_out, corpus.path)
        given = {"path": path, "split": split, "limit": None, "weight": 1.0}
        yield "held_out", "corpus", corpus.model_copy(update=given | ({} if path == corpus.path else {"name": None}))


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


def count_parts(folder: Path) -> tuple[int, int]:
    """How many parts the corpus has, and its held-out split; raises UserError where some are not cleaned."""
    file = work_folder(folder) / "parts.json"
    if not file.exists():
        raise UserError(f"nothing to merge in {folder}: run the jobs with `bertpre prepare RECIPE --shard 1/N` first")
    counts = json.loads(file.read_text())
    parts, held_out = counts["parts"], counts["held_out"]
    numbers = range(parts + held_out)
    refuse_missing([number for number in numbers if read_facts(work_folder(folder), number, "clean") is None])
    return parts, held_out


def refuse_missing(numbers: list[int]) -> None:
    """Raise UserError where there are parts that no job has done."""
    if numbers:
        named = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
        raise UserError(f"{len(numbers)} parts are not done ({named}): run the jobs again; finished parts are kept")


def encode_parts(recipe: Recipe, folder: Path, job: int = 0, jobs: int = 1) -> None:
    """Encode a job's share of the parts."""
    chosen, work = read_chosen(folder), work_folder(folder)
    cut = cut_of(recipe, folder, chosen)
    give_memory_back()
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


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """What the choice of documents and the vocabulary depend on."""
    return recipe.model_dump(mode="json", include={"seed", "corpus", "tokenizer"})


def refuse_changed(recipe: Recipe, folder: Path) -> None:
    """Raise UserError where the jobs began with another corpus, vocabulary or seed than the recipe has now."""
    known, wanted = flatten(read_chosen(folder)["settings"]), flatten(settings_of(recipe))
    if changed := sorted(key for key in known | wanted if known.get(key) != wanted.get(key)):
        raise UserError(
            f"the jobs in {work_folder(folder)} were begun with another {', '.join(changed)}: give the old value, or "
            "remove that folder and begin again"
        )


def choose_documents(recipe: Recipe, folder: Path, parts: int, held_out: int) -> None:
    """Mark the documents that stay, and obtain the tokenizer; what was decided before on the same parts stays decided.

    The first of documents that are alike stays, and none that is like one of the held-out split.
    """
    work, corpus = work_folder(folder), recipe.corpus
    numbers = [*range(parts, parts + held_out), *range(parts)]  # what is held out comes first
    if not parts:
        raise UserError(f"corpus: {corpus.path} (split {corpus.split}) holds no text")
    all_digests = [read_digests(work, number) for number in numbers]
    sizes = [len(digests) for digests in all_digests]
    digests, forbidden = np.concatenate(all_digests), sum(sizes[:held_out])
    settings = (recipe.tokenizer.model_dump(), recipe.model.max_position_embeddings, forbidden, corpus.near_duplicates)
    origin = hashlib.blake2b(digests.tobytes() + repr(settings).encode()).hexdigest()
    if is_chosen(folder) and read_chosen(folder)["origin"] == origin:
        return
    (work / "chosen.json").unlink(missing_ok=True)
    bands = np.concatenate([read_bands(work, number) for number in numbers]) if corpus.near_duplicates else None
    keep, dropped = first_of_like(digests, bands, forbidden)
    for number, rows in enumerate(np.split(keep, np.cumsum(sizes[held_out:])[:-1])):
        write_keep(work, number, rows)
        dropped += Counter(read_facts(work, number, "clean")["dropped"])
    if not keep.any():
        raise UserError(f"corpus: {corpus.path} (split {corpus.split}) holds no text")
    tokenizer = obtain_tokenizer(recipe, folder, parts)
    chosen = {
        "origin": origin,
        "parts": parts,
        "tokenizer_hash": tokenizer_fingerprint(tokenizer),
        "dropped": dict(dropped),
    }
    chosen["settings"] = settings_of(recipe)
    write_text(work / "chosen.json", json.dumps(chosen))


def obtain_tokenizer(recipe: Recipe, folder: Path, parts: int) -> "PreTrainedTokenizerBase":
    """The recipe's tokenizer, loaded or learned, and saved in the run."""
    settings = recipe.tokenizer
    if settings.path:
        tokenizer = load_tokenizer(model_of(settings.path, "tokenizer"))
        refuse_unlike(tokenizer, settings.path, sample_to_learn(work_folder(folder), parts))
    else:
        texts = sample_to_learn(work_folder(folder), parts)
        longest = recipe.model.max_position_embeddings
        tokenizer = learn_tokenizer(texts, settings.vocab_size, settings.lowercase, longest, settings.strip_accents)
    tokenizer.save_pretrained(folder / "tokenizer")
    return tokenizer


def refuse_unlike(tokenizer: "PreTrainedTokenizerBase", path: str, texts: Iterator[str]) -> None:
    """Raise UserError where words encoded one by one are not what the tokenizer makes of sentences."""
    sentences = [sentence for text in islice(texts, 100) for sentence in split_sentences(text)]
    backend = tokenizer.backend_tokenizer
    ids, offsets = Encoder(backend).encode(sentences)
    whole = backend.encode_batch_fast(sentences, add_special_tokens=False)
    for sentence, start, end, encoding in zip(sentences, offsets[:-1], offsets[1:], whole, strict=True):
        if ids[start:end].tolist() != encoding.ids:
            raise UserError(
                f"tokenizer.path: {path} is no WordPiece tokenizer as BERT's: it reads {sentence[:60]!r} otherwise "
                "than its words one by one; choose another, or leave tokenizer.path out to learn one"
            )


def sample_to_learn(work: Path, parts: int) -> Iterator[str]:
    """The kept texts that the vocabulary is learned from: all of a small corpus, every n-th of a larger one.

    The trainer keeps each distinct word in memory, and is slow. On IMDB a vocabulary from every third review needs
    0.02 % more tokens for other reviews, from every sixth 0.07 %, from every tenth 0.15 %.
    """
    size = sum(texts_size(work, number) for number in range(parts))
    wanted = min(max(LEARNED_SHARE * size, LEAST_LEARNED), MOST_LEARNED)
    texts = (text for number in range(parts) for text in read_texts(work, number, kept=True))
    return islice(texts, 0, None, math.ceil(size / wanted))


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
        last = groups.pop()
        groups[-1] += last
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
    planned = evenly(shards, PLANNED_SHARDS)
    longest = recipe.training.phases[0].max_length
    probabilities = pairs.short_seq_prob, pairs.random_next_prob
    plan = PairDataset(planned, longest, recipe.seed, *probabilities, pairs.kind).plan(0)[0]
    all_tokens, tokens = (sum(len(shard.tokens) for shard in some) for some in (shards, planned))
    balance = audit_pairs(plan[:, 2:]) if pairs.kind != "none" else {}
    return {"pairs": round(len(plan) * all_tokens / tokens)} | balance | audit_lengths(evenly(shards, AUDITED_SHARDS))
