"""`bertpre prepare`: corpus -> tokenizer -> store of token ids."""

import time
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.console import console, is_one_of_several, time_text
from bertpre.data.audit import audit_frequencies, audit_lines, audit_store
from bertpre.data.build import StoreBuilder
from bertpre.data.corpus import TextSource, place_beside
from bertpre.data.corpus_tokenizer import TokenizerOptions
from bertpre.data.local_files import local_files
from bertpre.data.parts import PART_CHARACTERS
from bertpre.data.store import SPLITS, open_shards, read_token_counts
from bertpre.data.tokenizer import load_tokenizer, maskable_ids, tokenizer_fingerprint
from bertpre.errors import ArgumentError, UserError
from bertpre.files import file_checksum, locked, refuse_unknown_model, save_tokenizer
from bertpre.recipe import Recipe, Source, differences, flatten
from bertpre.run_directory import (
    ARTEFACTS,
    claim,
    data_folder,
    is_finished,
    is_prepared,
    is_run,
    load_run,
    model_of,
    read_results,
    refuse_unknown_starts,
    write_results,
)

CHANGED_CORPUS = (
    "the corpus has other files than when this run was prepared, and the run trains on the texts as they were; to "
    "prepare it again, give another folder with output_dir=FOLDER; to train this run's model further there, add "
    "training.init and tokenizer.path with this run's folder"
)
KEYS = {"validation_fraction": "pairs.validation_fraction", "workers": "prepare.workers"}  # by argument
CONTINUE = {
    "clean": "this share is cleaned; when all shares are, run bertpre prepare RECIPE --merge",
    "choose": "the vocabulary is learned; run the jobs again with --shard, then --merge",
    "encode": "this share is encoded; when all shares are, run bertpre prepare RECIPE --merge",
}


def prepare(
    recipe: Recipe, shard: str | None = None, merge: bool = False, part_characters: int = PART_CHARACTERS
) -> dict[str, Any] | None:
    """Build the run's store, or check that of `data.path`, and audit it; returns the metrics for `results.json`.

    Returns None as long as the store is not complete.

    `shard` ("2/8") runs one job's share of the step that is due, for array jobs on a shared file system; `merge` runs
    the steps that need every job's output. Jobs, merge, jobs, merge write the same bytes as one call without either.
    """
    start = time.perf_counter()
    refuse_impossible(recipe)
    share = None if shard is None else read_share(shard)
    if share is not None and merge:
        raise UserError("--merge: runs after all shares are done; give it without --shard")
    if share is None and is_one_of_several():
        raise UserError(
            "prepare works in one process, with prepare.workers of its own: start it without a launcher; "
            "`accelerate launch` and torchrun are for -m bertpre.pretrain and -m bertpre.finetune"
        )
    if recipe.data.path is not None and (share or merge):
        raise UserError("data.path: its data is prepared already; leave --shard and --merge out")
    data_folder(recipe)  # a mistake in data.path shows before anything is written
    folder = claim(recipe)
    if is_prepared(recipe):
        changed = f"; {CHANGED_CORPUS}" if corpus_has_changed(recipe, folder) else ""
        raise UserError(f"{folder}/data exists: this run is prepared; continue with `bertpre run`{changed}")
    step = None
    if recipe.data.path is None:
        builder = store_builder(recipe, folder, part_characters)
        with nullcontext() if share else locked(folder):  # the jobs of an array share the folder
            step = run_step(builder, share, merge)
    else:
        take_over_tokenizer(recipe, folder)
    if step is not None:
        console.erase()
        print(f"prepare: {CONTINUE[step]}")
        return None
    console.draw("prepare: measuring the data")
    pair_options = recipe.pairs.model_dump(exclude={"validation_fraction"})
    data = data_folder(recipe)
    metrics = audit_store(data, recipe.training.phases[0].max_length, recipe.seed, **pair_options)
    tokenizer = load_tokenizer(folder / "tokenizer")
    refuse_unknown_text(data, maskable_ids(tokenizer))
    metrics |= audit_frequencies(read_token_counts(data), tokenizer, recipe.training.mask_split)
    metrics |= {"data_sha256": file_checksum(data / "manifest.json")}  # the manifest has the checksums of all files
    refuse_other_data(folder, metrics["data_sha256"])
    metrics |= corpus_size(recipe, folder) if recipe.data.path is None else {}
    metrics |= {"pairs_kind": recipe.pairs.kind, "seconds": time.perf_counter() - start}
    write_results(folder, "prepare", metrics)
    console.erase()
    console.show(f"prepare: {time_text(metrics['seconds'])}")
    for line in audit_lines(metrics):
        (console.show if line.startswith("warning: ") else console.say)(f"  {line}")
    return metrics


def refuse_other_data(folder: Path, data_sha256: str) -> None:
    """Raise UserError where a pretraining has begun on other data, which was deleted."""
    known = read_results(folder).get("prepare", {}).get("data_sha256", data_sha256)
    if known != data_sha256 and (folder / ARTEFACTS["pretrain"]).exists():
        raise UserError(
            f"{folder}: the data that this run has begun to train on is gone, and the corpus gives other data now; "
            "begin another run with output_dir=FOLDER"
        )


def corpus_size(recipe: Recipe, folder: Path) -> dict[str, int]:
    """The number of local files of the corpus, and their bytes; empty where the corpus is not on this machine.

    The files of the run in `folder` do not count: it may lie in the corpus, as with `corpus.path=.`.
    """
    if recipe.corpus is None:
        return {}
    corpus = recipe.corpus
    beside = [place_beside(place, corpus.path)[0] for place in (corpus.validation, corpus.held_out) if place]
    paths = {corpus.path, *(source.path for source in corpus.more), *beside}
    files = [file for path in paths for file in local_files(path)]
    sizes = [file.stat().st_size for file in files if folder.resolve() not in file.resolve().parents]
    return {"corpus_files": len(sizes), "corpus_bytes": sum(sizes)} if sizes else {}


def corpus_has_changed(recipe: Recipe, folder: Path) -> bool:
    """Whether the corpus has other files than when the run in `folder` was prepared; not where they are gone."""
    now, before = corpus_size(recipe, folder), read_results(folder)["prepare"]
    return any(value != before.get(key, value) for key, value in now.items())


def refuse_unknown_text(data: Path, maskable: np.ndarray) -> None:
    """Raise UserError where no token of a split is one that can be masked: the tokenizer is another language's."""
    for split in SPLITS:
        if not any(np.isin(shard.tokens, maskable).any() for shard in open_shards(data, split, verify=False)):
            raise UserError(
                f"tokenizer: every token of the {split} part of the corpus is unknown; leave tokenizer.path out to "
                "learn a vocabulary from the corpus, or give a tokenizer of its language"
            )


def take_over_tokenizer(recipe: Recipe, folder: Path) -> None:
    """Copy the tokenizer of `data.path`'s run, after checking every file of its data; raises UserError for damage."""
    data = data_folder(recipe)
    tokenizer = load_tokenizer(model_of(str(recipe.data.path), "tokenizer"))
    for split in SPLITS:
        open_shards(data, split, tokenizer_fingerprint(tokenizer))
    save_tokenizer(tokenizer, folder / "tokenizer", recipe.model.max_position_embeddings)
    console.say(f"prepare: uses {data}, which matches its checksums")


def refuse_impossible(recipe: Recipe) -> None:
    """Raise UserError where the recipe has no corpus, or needs a package or model that is missing."""
    if recipe.corpus is None:
        raise UserError("corpus: this recipe has no corpus section; give the text to pretrain on with corpus.path=...")
    if recipe.corpus.near_duplicates and find_spec("rensa") is None:
        raise UserError("corpus.near_duplicates: the package rensa is missing; pip install 'bertpre[dedup]'")
    if recipe.prepare.engine == "ray" and find_spec("ray") is None:
        raise UserError("prepare.engine: the package ray is missing; pip install 'bertpre[ray]'")
    refuse_unknown_starts(recipe)  # now, not after hours of preparing
    if recipe.training.init is not None and recipe.tokenizer.path is None and recipe.data.path is None:
        raise UserError(
            f"training.init: this run would learn a vocabulary of its own; set tokenizer.path={recipe.training.init}, "
            "or to where that model's tokenizer is"
        )
    if recipe.tokenizer.path is not None:
        tokenizer = model_of(recipe.tokenizer.path, "tokenizer")
        refuse_unknown_model(tokenizer, "tokenizer.path")
        try:
            known = load_tokenizer(tokenizer)
        except UserError as error:
            raise UserError(f"tokenizer.path: {error}") from None
        if recipe.training.init is not None and not is_finished(Path(recipe.output_dir), "pretrain"):
            from bertpre.pretraining.model import initial_model
            from bertpre.runtime import quiet_transformers

            quiet_transformers()
            initial_model(recipe, known)
    mention_other_validation(recipe)


def mention_other_validation(recipe: Recipe) -> None:
    """Warn where the validation documents are drawn otherwise than in the run that `training.init` names."""
    if recipe.training.init is None or recipe.data.path is not None or not is_run(recipe.training.init):
        return
    if recipe.corpus is None or recipe.corpus.validation is not None:
        return
    other, drawn_by = load_run(recipe.training.init)[1], ("seed", "pairs.validation_fraction", "corpus.validation")
    keys = [key for key in differences(other, recipe) if key in drawn_by]
    paths = [{source.path for source in (each.corpus, *each.corpus.more)} for each in (other, recipe) if each.corpus]
    if keys and len(paths) == 2 and paths[0] & paths[1]:
        print(
            f"warning: {' and '.join(keys)} of {recipe.training.init} differ: it has trained on documents that this "
            "run holds out for validation; give the same values, or the losses will be too low"
        )


def read_share(shard: str) -> tuple[int, int]:
    """Job number (from 0) and number of jobs of "2/8"; raises UserError for anything else."""
    job, _, jobs = shard.partition("/")
    if not (job.isdigit() and jobs.isdigit() and 1 <= int(job) <= int(jobs)):
        raise UserError(f"--shard {shard!r}: write JOB/JOBS, for example 1/8 to 8/8")
    return int(job) - 1, int(jobs)


def run_step(builder: StoreBuilder, share: tuple[int, int] | None, merge: bool) -> str | None:
    """Run what was asked for; returns the step after which other jobs must run, None once the store is complete."""
    try:
        if share is not None:
            return builder.run_share(*share)
        if merge:
            return None if builder.merge() else "choose"
        builder.build()
    except ArgumentError as error:
        raise UserError(f"{KEYS.get(error.argument, error.argument)}: {error.reason}") from None
    return None


def store_builder(recipe: Recipe, folder: Path, part_characters: int) -> StoreBuilder:
    """The builder of a recipe's store."""
    corpus, options = recipe.corpus, recipe.tokenizer.model_dump()
    if recipe.tokenizer.path:
        options["path"] = model_of(recipe.tokenizer.path, "tokenizer")
    assert corpus is not None  # refuse_impossible has checked it
    by_key: dict[str, Source] = {"corpus": corpus}
    by_key |= {f"corpus.more.{number}": source for number, source in enumerate(corpus.more)}
    fields = set(Source.model_fields)
    sources = [TextSource(**source.model_dump(include=fields), key=key) for key, source in by_key.items()]
    return StoreBuilder(
        folder=folder,
        sources=sources,
        validation=sources[0].beside(corpus.validation, "validation"),
        held_out=sources[0].beside(corpus.held_out, "held_out"),
        min_characters=corpus.min_characters,
        near_duplicates=corpus.near_duplicates,
        tokenizer=TokenizerOptions(**options, max_length=recipe.model.max_position_embeddings),
        validation_fraction=recipe.pairs.validation_fraction,
        seed=recipe.seed,
        workers=recipe.prepare.workers,
        engine=recipe.prepare.engine,
        part_characters=part_characters,
        settings=flatten(recipe.model_dump(mode="json", include={"seed", "corpus", "tokenizer"}))
        | corpus_size(recipe, folder),
    )
