"""`bertpre probe`: how good a masked language model is before fine-tuning."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.cleaning import clean_text
from bertpre.data.local_files import is_table
from bertpre.data.store import open_shards, read_token_counts
from bertpre.errors import UserError, unreadable
from bertpre.finetuning.acceptability import SentenceScorer, encode, share_preferred
from bertpre.finetuning.loading import load_masked_lm, readable_length
from bertpre.finetuning.pseudo_likelihood import refuse_without_causal_mask, running_text
from bertpre.model.casting import in_type
from bertpre.run_directory import data_folder, is_run, load_run
from bertpre.runtime import choose_dtype, start_accelerator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Two of BLiMP's files have a term of their own; the paper counts them among the nine of argument structure.
SAME_PHENOMENON = {"s-selection": "argument_structure"}


def probe(
    model: str,
    texts: str | None = None,
    pairs: str | None = None,
    limit: int = 100,
    max_length: int = 128,
    causal: bool = False,
) -> dict[str, Any]:
    """Print and return how well a masked language model predicts running text, and prefers acceptable sentences.

    `model` is a run directory, or the folder or Hub id of any masked language model. `texts` is a file with one text a
    line, by default the run's held-out documents; of the first `limit` texts the first tokens are scored, `max_length`
    with [CLS] and [SEP]. How often a token occurs is counted in the run's training text, or, without it, in `texts`.
    `pairs` is a JSONL file, or a folder of them, with `sentence_good` and `sentence_bad` in each line (BLiMP's layout,
    Warstadt et al. 2020); with `causal` each of their tokens is scored from those before it, which a model with a mixed
    phase has learned. Raises UserError if there is nothing to probe.
    """
    if causal and pairs is None:
        raise UserError("--causal: is about pairs; give them with --pairs, or leave it out")
    if causal and is_run(model) and all(phase.objective == "masked" for phase in load_run(model)[1].training.phases):
        print("warning: no phase of this run predicted the next token; --causal asks for what it has not learned")
    accelerator = start_accelerator()
    network, tokenizer = load_masked_lm(model)
    network.to(accelerator.device)
    pairs_of = {} if pairs is None else read_pair_files(Path(pairs))  # before the texts, which may take minutes
    max_length = min(max_length, readable_length(network) or max_length)
    store = prepared_data(model, is_needed=texts is None and pairs is None)
    metrics: dict[str, Any] = {}
    if texts is not None or store is not None:
        rows, counts = rows_and_counts(tokenizer, texts, store, limit, max_length - 2)
        working = in_type(network, choose_dtype("auto", accelerator.device))
        metrics |= running_text(working, tokenizer, rows, counts)
        print_running_text(metrics, "the training text" if store is not None else str(texts))
    if pairs is not None:
        metrics["acceptability"] = acceptability(network, tokenizer, Path(pairs), pairs_of, causal)
    if not metrics:
        raise UserError("nothing to probe: give --texts FILE, one text a line, or --pairs FILE.jsonl")
    return metrics


def rows_and_counts(
    tokenizer: "PreTrainedTokenizerBase", texts: str | None, store: Path | None, limit: int, longest: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """The token ids of the texts to score, and how often each token occurs (V,) in the training text, else in `texts`.

    Raises UserError where the file `texts` is a table or has no text.
    """
    if texts is None:
        assert store is not None  # there is something to score
        return held_out(store, limit, longest), read_token_counts(store)
    if is_table(texts):
        raise UserError(f"--texts: {texts} is a table; give a file with one text a line")
    lines = [line for line in map(clean_text, read_lines(texts, "--texts")) if line]
    if not lines:
        raise UserError(f"--texts: {texts} holds only markup")
    rows = [ids[:longest] for ids in encode(tokenizer, lines[:limit]) if len(ids)]
    if not rows:
        raise UserError(f"--texts: the first {limit} lines of {texts} hold no token")
    if store is not None:
        return rows, read_token_counts(store)
    return rows, np.bincount(np.concatenate(encode(tokenizer, lines)), minlength=len(tokenizer))


def prepared_data(model: str, is_needed: bool) -> Path | None:
    """The prepared data of a run directory, where it is there; raises UserError where it is needed and unusable."""
    if not is_run(model):
        return None
    try:
        store = data_folder(load_run(model)[1])
    except UserError:
        if is_needed:
            raise
        return None
    return store if store.is_dir() else None


def read_lines(file: str, option: str) -> list[str]:
    """The lines of a file, with empty ones; raises UserError if no line holds text."""
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").split("\n")  # splitlines() also cuts within sentences
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option}: {file} cannot be read as text: {unreadable(error)}") from None
    if not any(map(str.strip, lines)):
        raise UserError(f"{option}: {file} holds no text")
    return lines


def held_out(store: Path, limit: int, longest: int) -> list[np.ndarray]:
    """The beginnings of documents in the run's validation part."""
    rows: list[np.ndarray] = []
    for shard in open_shards(store, "validation"):
        bounds = shard.sentences[shard.documents]
        for start, end in zip(bounds[:-1], bounds[1:], strict=True):
            if len(rows) == limit:
                return rows
            rows.append(np.array(shard.tokens[start : min(end, start + longest)], dtype=np.int64))
    return rows


def print_running_text(metrics: dict[str, Any], counted_in: str) -> None:
    """Print the metrics as a table; `counted_in` names the text in which tokens were counted."""
    print(
        f"probe: pseudo-perplexity {metrics['pseudo_perplexity']:.2f}, accuracy {metrics['accuracy']:.1%} on "
        f"{metrics['tokens']:,} tokens of {metrics['texts']:,} texts, one masked at a time"
        + (f"; {metrics['unknown_tokens']:,} unknown tokens are left out" if metrics["unknown_tokens"] else "")
    )
    print(f"probe: occurrences per million tokens of {counted_in}:")
    print("probe: occurrences                        tokens   accuracy   loss")
    above = "and more"
    for row in metrics["by_frequency"]:
        name = f"{row['per_million_from']:g} {above if above == 'and more' else f'to {above}'}"
        print(f"probe: {name:<32} {row['tokens']:>13,} {row['accuracy']:>10.1%} {row['loss']:>6.3f}")
        above = f"{row['per_million_from']:g}"


def read_pair_files(path: Path) -> dict[Path, list[tuple[str, str, str | None]]]:
    """The pairs of a file, or of each in a folder; raises UserError if there is no file, or one has another layout."""
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"--pairs: {path} holds no .jsonl file")
    return {file: read_pairs(file) for file in files}


def acceptability(
    network: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    path: Path,
    pairs_of: dict[Path, list[tuple[str, str, str | None]]],
    causal: bool = False,
) -> dict[str, Any]:
    """How often the acceptable sentence of a pair is the likelier one: by file, by phenomenon and over all pairs.

    `pairs_of` holds the pairs of the files in `path`. Equal scores count as wrong; `ties` is their number. Phenomena
    are those of pairs with BLiMP's `linguistics_term`.
    """
    texts = [side for pairs in pairs_of.values() for pair in pairs for side in pair[:2]]
    if causal:
        refuse_without_causal_mask(network, tokenizer)
    scorer = SentenceScorer.for_texts(network, tokenizer, texts, causal)
    by_file: dict[str, np.ndarray] = {}  # the scores (N, 2) of each file's acceptable and unacceptable sentences
    phenomena: list[str | None] = []
    for file, pairs in pairs_of.items():
        name = str(file.relative_to(path).with_suffix("")) if path.is_dir() else file.stem
        try:
            by_file[name] = scorer.pair_scores([pair[:2] for pair in pairs])
        except UserError as error:
            raise UserError(f"--pairs: {file}: {error}") from None
        phenomena += [pair[2] for pair in pairs]
        print_share(name, share_preferred(by_file[name]))
    scores, names = np.concatenate(list(by_file.values())), sorted({each for each in phenomena if each})
    by_phenomenon = {each: share_preferred(scores[[other == each for other in phenomena]]) for each in names}
    overall = share_preferred(scores)
    for name, share in (by_phenomenon | {"all": overall}).items():
        print_share(name, share)
    return overall | {
        "phenomena": by_phenomenon,
        "files": {name: share_preferred(scores) for name, scores in by_file.items()},
    }


def print_share(name: str, share: dict[str, Any]) -> None:
    """Print the result of a file, a phenomenon or all pairs, with the number of ties if there are any."""
    ties = f" ({share['ties']:,} equal, counted as wrong)" if share["ties"] else ""
    print(f"probe: {name:<56} {share['accuracy']:.1%} of {share['pairs']:,} pairs{ties}", flush=True)


def read_pairs(file: Path) -> list[tuple[str, str, str | None]]:
    """Acceptable and unacceptable sentences, and BLiMP's phenomenon if it is given.

    Raises UserError, which names the line, if a line has another layout.
    """
    pairs = []
    for number, line in enumerate(read_lines(str(file), "--pairs"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            good, bad = row["sentence_good"], row["sentence_bad"]
            if not all(isinstance(side, str) and side.strip() for side in (good, bad)):
                raise ValueError("an empty sentence, or no text")
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"--pairs: line {number} of {file} is not a pair with sentence_good and sentence_bad ({error})"
            ) from None
        term = row.get("linguistics_term")
        pairs.append((good, bad, SAME_PHENOMENON.get(term, term) if isinstance(term, str) else None))
    return pairs
