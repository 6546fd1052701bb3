"""`bertpre prepare`: corpus -> tokenizer -> store of token ids."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpre.data.cleaning import clean_documents
from bertpre.data.corpus import Document, read_documents
from bertpre.data.pairs import IS_RANDOM_NEXT
from bertpre.data.randomness import uniform
from bertpre.data.sampler import PairDataset
from bertpre.data.sentences import split_sentences
from bertpre.data.store import StoreWriter, open_shards, read_manifest
from bertpre.data.tokenizer import encode_sentences, fingerprint, learn_tokenizer, load_tokenizer
from bertpre.errors import UserError
from bertpre.recipe import Recipe
from bertpre.run_directory import claim, is_finished, write_results

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_DOCUMENTS = 1000
PAIRS_SPLIT_KEY = 0x5EED  # sets the draw of the validation documents apart from the masks' numbers


def prepare(recipe: Recipe) -> dict[str, Any]:
    """Read, clean, split and encode the corpus; returns the figures for `results.json`."""
    folder = claim(recipe)
    start = time.perf_counter()
    if is_finished(folder, "prepare"):
        raise UserError(f"{folder}/data exists: this run is prepared; `bertpre run` goes on with it")
    # A run killed behind the store's last rename has its data whole, and lacks the figures only.
    manifest = read_manifest(folder / "data") if (folder / "data").exists() else write_store(recipe, folder)
    pairs, random_share = count_pairs(folder, recipe)
    figures = {
        "documents": manifest["documents"],
        "sentences": manifest["sentences"],
        "pairs": pairs,
        "random_next_share": random_share,
        "tokens": manifest["tokens"],
        "vocab_size": manifest["vocab_size"],
        "unigram_entropy": manifest["unigram_entropy"],
        "dropped": manifest["dropped"],
        "seconds": time.perf_counter() - start,
    }
    write_results(folder, "prepare", figures)
    print(
        f"prepare: {figures['documents']:,} documents, {figures['sentences']:,} sentences, "
        f"{figures['tokens']:,} tokens, {pairs:,} pairs in {figures['seconds']:.0f} s; "
        f"unigram entropy {figures['unigram_entropy']:.3f} nats; dropped {json.dumps(figures['dropped'])}"
    )
    return figures


def write_store(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The tokenizer and the store of the recipe's corpus; returns the store's manifest."""
    tokenizer = obtain_tokenizer(recipe, folder)
    dropped: Counter[str] = Counter()
    writer = StoreWriter(folder / "data", len(tokenizer))
    for number, document in enumerate(encoded_documents(recipe, tokenizer, dropped)):
        is_validation = uniform(PAIRS_SPLIT_KEY, recipe.seed, number)[0] < recipe.pairs.validation_fraction
        writer.add("validation" if is_validation else "train", document)
    check_size(writer, recipe)
    return writer.close(vocab_size=len(tokenizer), tokenizer_hash=fingerprint(tokenizer), dropped=dict(dropped))


def corpus_documents(recipe: Recipe, dropped: Counter[str]) -> Iterator[Document]:
    """The cleaned documents of the recipe's corpus."""
    corpus = recipe.corpus
    return clean_documents(
        read_documents(corpus.path, corpus.name, corpus.split, corpus.text_column, limit=corpus.limit), dropped
    )


def obtain_tokenizer(recipe: Recipe, folder: Path) -> "PreTrainedTokenizerBase":
    """The recipe's tokenizer, loaded or learned, and saved in the run."""
    if recipe.tokenizer.path:
        tokenizer = load_tokenizer(recipe.tokenizer.path)
    else:
        texts = (document.text for document in corpus_documents(recipe, Counter()))
        first = next(texts, None)
        if first is None:
            raise UserError(f"corpus: {recipe.corpus.path} (split {recipe.corpus.split}) holds no text")
        settings = recipe.tokenizer
        longest = recipe.model.max_position_embeddings
        tokenizer = learn_tokenizer(_chain(first, texts), settings.vocab_size, settings.lowercase, longest)
    tokenizer.save_pretrained(folder / "tokenizer")
    return tokenizer


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def encoded_documents(
    recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", dropped: Counter[str]
) -> Iterator[list[list[int]]]:
    """The token ids of each document's sentences; sentences are encoded many at a time."""
    batch: list[list[str]] = []
    for document in corpus_documents(recipe, dropped):
        batch.append(split_sentences(document.text))
        if len(batch) == BATCH_DOCUMENTS:
            yield from encode_batch(tokenizer, batch, dropped)
            batch = []
    yield from encode_batch(tokenizer, batch, dropped)


def encode_batch(
    tokenizer: "PreTrainedTokenizerBase", batch: list[list[str]], dropped: Counter[str]
) -> Iterator[list[list[int]]]:
    """Encode the sentences of some documents; what has no token at all is dropped."""
    encoded = iter(encode_sentences(tokenizer, [sentence for sentences in batch for sentence in sentences]))
    for sentences in batch:
        document = [ids for ids in (next(encoded) for _ in sentences) if ids]
        if document:
            yield document
        else:
            dropped["no token"] += 1


def check_size(writer: StoreWriter, recipe: Recipe) -> None:
    """Both parts need two documents: a random next segment comes from another one."""
    for split in ("train", "validation"):
        written = sum(shard["documents"] for shard in writer.shards if shard["split"] == split)
        if written + len(writer.open[split]) < 2:
            shutil.rmtree(writer.partial)
            raise UserError(
                f"corpus: {recipe.corpus.path} (split {recipe.corpus.split}) leaves fewer than two documents in the "
                f"{split} part; give more text, or a larger pairs.validation_fraction"
            )


def count_pairs(folder: Path, recipe: Recipe) -> tuple[int, float]:
    """How many pairs the first epoch has, and the share whose second segment is random."""
    dataset = PairDataset(
        open_shards(folder / "data", "train"), recipe.training.phases[0].max_length, recipe.seed,
        recipe.pairs.short_seq_prob, recipe.pairs.random_next_prob,
    )  # fmt: skip
    pairs, _ = dataset.plan(0)
    return len(pairs), float(pairs[:, 1 + IS_RANDOM_NEXT].mean())
