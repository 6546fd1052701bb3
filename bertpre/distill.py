"""Texts without labels: NB-SVM learns from the labelled ones, and labels them for the network."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bertpre.bags import nbsvm
from bertpre.data.labelled import Examples, read_texts
from bertpre.errors import UserError

if TYPE_CHECKING:
    from bertpre.recipe import Finetune


def with_unlabelled(settings: "Finetune", training: Examples, validation: Examples | None) -> Examples:
    """The training examples, and behind them the recipe's unlabelled texts with the probabilities NB-SVM gives them.

    A text that is labelled, or in the split `held_out`, is left out. Labels become probabilities (N, C). After Hinton
    et al. 2015 (a teacher's probabilities) and Lee 2013 (pseudo-labels); the teacher is a bag of n-grams, which few
    labels suffice for. The examples as they are, where the recipe names no such texts.
    """
    if settings.unlabelled is None:
        return training
    start = time.perf_counter()
    unlabelled = read_unlabelled(settings, training, validation)
    probabilities = nbsvm(training)(unlabelled)
    print(f"finetune: NB-SVM labelled {len(unlabelled):,} texts, {time.perf_counter() - start:.0f} s", flush=True)
    certain = np.eye(len(training.classes))[training.labels]
    return replace(
        training,
        ids=training.ids + unlabelled.ids,
        texts=training.texts + unlabelled.texts,
        pairs=None if training.pairs is None else training.pairs + unlabelled.pairs,
        labels=np.concatenate([certain, probabilities]).astype(np.float32),
    )


def read_unlabelled(settings: "Finetune", training: Examples, validation: Examples | None) -> Examples:
    """The texts that the recipe names, less those that are known; raises UserError where none is left."""
    wanted = settings.unlabelled
    path = wanted.path or settings.path
    ids, texts, pairs, *_ = read_texts(settings, path, wanted.split, wanted.limit, [])
    found = Examples(ids, texts, pairs, np.zeros(len(ids), dtype=np.int64), training.classes)
    known = {each for examples in (training, validation) if examples for each in keys(examples.texts, examples.pairs)}
    if wanted.held_out:
        _, held_out, held_out_pairs, *_ = read_texts(settings, settings.path, wanted.held_out, None, [])
        known.update(keys(held_out, held_out_pairs))
    kept = [index for index, each in enumerate(keys(texts, pairs)) if each not in known]
    if not kept:
        raise UserError(f"finetune.unlabelled: every text of {path} (split {wanted.split}) is labelled or held out")
    return found.subset(kept)


def keys(texts: list[str], pairs: list[str] | None) -> list[tuple[str, ...]]:
    """What two examples are alike in when they are the same."""
    return list(zip(texts) if pairs is None else zip(texts, pairs, strict=True))
