"""Film reviews with labels for the notebooks: IMDB where it can be had, else bertpre's embedded corpus."""

import os
import random
import warnings


def load_reviews(count: int, split: str = "train", seed: int = 0) -> tuple[list[str], list[int], str]:
    """`count` texts drawn at random, their labels (1: positive), and the name of the corpus.

    The folder in the environment variable IMDB is read first, then the Hub's stanfordnlp/imdb. Without either the
    texts come from the corpus that a program has written for bertpre's quickstart.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # without ipywidgets, which draw progress bars
        from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    try:
        table = load_dataset(os.environ.get("IMDB", "stanfordnlp/imdb"), split=split)
        name = "IMDB"
    except Exception as error:  # no network, no such folder: the libraries raise many kinds
        print(f"IMDB cannot be loaded ({type(error).__name__}); the embedded synthetic corpus is used instead")
        from bertpre.data.sample import generate

        rows = [(document.text, document.label) for document in generate(split, count, seed)]
        return [text for text, _ in rows], [label for _, label in rows], "the embedded corpus"
    chosen = random.Random(seed).sample(range(len(table)), count)
    part = table.select(chosen)
    return list(part["text"]), list(part["label"]), name
