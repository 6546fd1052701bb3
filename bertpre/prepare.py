"""`bertpre prepare`: corpus -> tokenizer -> store of token ids."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.audit import audit_lengths, audit_pairs
from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import Document, read_documents
from bertpre.data.parts import (
    Cut,
    clean_part,
    cut_into_parts,
    digests_of,
    encode_part,
    read_digests,
    read_texts,
    read_token_counts,
)
from bertpre.data.sampler import PairDataset
from bertpre.data.store import SPLITS, entropy, finish_store, join_shards, open_shards, read_manifest
from bertpre.data.tokenizer import fingerprint, learn_tokenizer, load_tokenizer
from bertpre.data.workers import available_cores, map_calls
from bertpre.errors import UserError
from bertpre.recipe import Recipe
from bertpre.run_directory import claim, is_finished, write_results

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FROM_MANIFEST = (
    "documents", "sentences", "tokens", "vocab_size", "unigram_entropy", "unknown_share", "repeated_line_share",
    "dropped",
)  # fmt: skip


def prepare(recipe: Recipe) -> dict[str, Any]:
    """Read, clean, split and encode the corpus; returns the figures for `results.json`."""
    folder = claim(recipe)
    start = time.perf_counter()
    if is_finished(folder, "prepare"):
        raise UserError(f"{folder}/data exists: this run is prepared; `bertpre run` goes on with it")
    # A run killed behind the store's last rename has its data whole, and lacks the figures only.
    manifest = read_manifest(folder / "data") if (folder / "data").exists() else write_store(recipe, folder)
    figures = {key: manifest[key] for key in FROM_MANIFEST} | audit(folder, recipe)
    figures["seconds"] = time.perf_counter() - start
    write_results(folder, "prepare", figures)
    print("\n".join(closing_lines(figures)))
    return figures


def write_store(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The tokenizer and the store of the recipe's corpus; returns the store's manifest.

    Parts of the corpus are cleaned, repeats are found among all of them, the vocabulary is learned from what is left,
    and the parts are encoded. What a killed run had finished is not done again.
    """
    work, workers = folder / "data.partial", recipe.prepare.workers or available_cores()
    work.mkdir(exist_ok=True)
    parts = enumerate(cut_into_parts(document.text for document in corpus_documents(recipe)))
    calls = ((work, number, texts, recipe.corpus.min_characters) for number, texts in parts)
    cleaned = list(map_calls(clean_part, calls, workers))
    dropped = sum((Counter(facts["dropped"]) for facts in cleaned), Counter())
    keep = choose_documents(recipe, work, len(cleaned), dropped)
    tokenizer = obtain_tokenizer(recipe, folder, work, keep)
    cut = Cut(str(folder / "tokenizer"), fingerprint(tokenizer), recipe.pairs.validation_fraction, recipe.seed)
    encoded = list(map_calls(encode_part, ((work, number, rows, cut) for number, rows in enumerate(keep)), workers))
    dropped["no token"] = sum(facts["no_token"] for facts in encoded)
    return merge(recipe, folder, encoded, tokenizer, +dropped)


def corpus_documents(recipe: Recipe, split: str | None = None) -> Iterator[Document]:
    """The documents of the recipe's corpus, as they come, or of another split of it."""
    corpus = recipe.corpus
    return read_documents(
        corpus.path,
        corpus.name,
        split or corpus.split,
        corpus.text_column,
        limit=corpus.limit if split is None else None,
        text_unit=corpus.text_unit,
        streaming=corpus.streaming,
    )


def choose_documents(recipe: Recipe, work: Path, parts: int, dropped: Counter[str]) -> list[np.ndarray]:
    """Which cleaned documents of each part stay: the first of equal ones, and none that is in the held-out split."""
    digests = [read_digests(work, number) for number in range(parts)]
    held_out = recipe.corpus.held_out
    texts = (clean_text(document.text) for document in corpus_documents(recipe, held_out)) if held_out else ()
    forbidden = digests_of(list(filter(None, texts)))
    everything = np.concatenate([forbidden, *digests])
    _, first, group = np.unique(everything, axis=0, return_index=True, return_inverse=True)
    first_equal = first[group.reshape(-1)][len(forbidden) :]
    is_forbidden = first_equal < len(forbidden)
    is_first = first_equal == np.arange(len(forbidden), len(everything))
    dropped["held out"] += int(is_forbidden.sum())
    dropped["duplicate"] += int((~is_first & ~is_forbidden).sum())
    return np.split(is_first, np.cumsum([len(rows) for rows in digests])[:-1]) if parts else []


def obtain_tokenizer(recipe: Recipe, folder: Path, work: Path, keep: list[np.ndarray]) -> "PreTrainedTokenizerBase":
    """The recipe's tokenizer, loaded or learned, and saved in the run."""
    if not any(rows.any() for rows in keep):
        raise UserError(f"corpus: {recipe.corpus.path} (split {recipe.corpus.split}) holds no text")
    settings = recipe.tokenizer
    if settings.path:
        tokenizer = load_tokenizer(settings.path)
    else:
        texts = (text for number, rows in enumerate(keep) for text in read_texts(work, number, rows))
        longest = recipe.model.max_position_embeddings
        tokenizer = learn_tokenizer(texts, settings.vocab_size, settings.lowercase, longest)
    tokenizer.save_pretrained(folder / "tokenizer")
    return tokenizer


def merge(
    recipe: Recipe,
    folder: Path,
    parts: list[dict[str, Any]],
    tokenizer: "PreTrainedTokenizerBase",
    dropped: Counter[str],
) -> dict[str, Any]:
    """Make the encoded parts a store, with one validation shard and the audit's figures; returns the manifest."""
    work = folder / "data.partial"
    shards = {
        split: [shard for facts in parts for shard in facts["shards"] if shard["split"] == split] for split in SPLITS
    }
    check_size(recipe, shards)
    groups = [*with_two_documents(shards["train"]), shards["validation"]]
    entries = [
        group[0] if len(group) == 1 else join_shards(work, f"{group[0]['name']}.joined", group) for group in groups
    ]
    counts = sum(read_token_counts(work, number) for number in range(len(parts)))
    lines = [line for facts in parts for line in facts["lines"]]
    facts = {
        "vocab_size": len(tokenizer),
        "tokenizer_hash": fingerprint(tokenizer),
        "unigram_entropy": entropy(counts),
        "unknown_share": float(counts[tokenizer.unk_token_id] / counts.sum()),
        "repeated_line_share": 1 - len(set(lines)) / len(lines) if lines else 0.0,
        "dropped": dict(dropped),
    }
    return finish_store(work, folder / "data", entries, facts)


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
    """What the training part holds: quantiles of lengths, and the first epoch's pairs."""
    shards, pairs = open_shards(folder / "data", "train"), recipe.pairs
    longest = recipe.training.phases[0].max_length
    probabilities = pairs.short_seq_prob, pairs.random_next_prob
    dataset = PairDataset(shards, longest, recipe.seed, *probabilities, pairs.kind)
    counts = {"pairs": sum(len(dataset.plan_shard(0, number)) for number in range(len(shards)))}
    balance = audit_pairs(dataset.plan(0)[0][:, 2:]) if pairs.kind != "none" else {}
    return counts | balance | audit_lengths(shards)


def closing_lines(figures: dict[str, Any]) -> Iterator[str]:
    """The figures as a user reads them."""
    yield (
        f"prepare: {figures['documents']:,} documents, {figures['sentences']:,} sentences, "
        f"{figures['tokens']:,} tokens, {figures['pairs']:,} pairs in {figures['seconds']:.0f} s"
    )
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in figures["dropped"].items()) or "none"
    yield f"  dropped documents: {dropped}"
    for name in ("tokens_in_document", "tokens_in_sentence"):
        quantiles = ", ".join(f"{quantile} {value:,}" for quantile, value in figures[name].items())
        yield f"  {name.replace('_', ' ')}: {quantiles}"
    yield (
        f"  unknown tokens {figures['unknown_share']:.3%}, repeated lines {figures['repeated_line_share']:.1%}; "
        f"unigram entropy {figures['unigram_entropy']:.3f} nats: the MLM loss of a model that ignores context"
    )
    if "lengths_tell" in figures:
        yield (
            f"  pairs: {figures['random_next_share']:.1%} with label 1; lengths alone beat the commoner label by "
            f"{figures['lengths_tell']:+.1%}"
        )
