"""TF-IDF + logistic regression on IMDB's official split, with words and with words and bigrams; prints one JSON line.

python benchmarks/imdb_baselines.py [FOLDER OR HUB ID]        (default: stanfordnlp/imdb)

Reports the test accuracy after training on all training reviews, and the accuracy on a tenth of the training split
after training on the other nine: drawn review by review, and in blocks of 125 neighbours, which review the same films.
"""

import json
import sys
import time

from bertpre.finetuning.examples import Examples, read_examples
from bertpre.finetuning.linear import Predictor, fit_tfidf
from bertpre.finetuning.splits import split_off_validation
from bertpre.recipe import Finetune, Recipe

BLOCKS = {"reviews": 1, "blocks": 125}


def accuracy(predict: Predictor, examples: Examples) -> float:
    """Accuracy."""
    return float((predict(examples).argmax(1) == examples.labels).mean())


def measure(path: str) -> dict[str, dict[str, float]]:
    """Test and validation accuracy and seconds for each set of features."""
    source = Finetune(path=path, init="none")
    training = read_examples(source, "train")
    test = read_examples(source, "test", encoder=training.encoder)
    figures: dict[str, dict[str, float]] = {}
    for name, longest in (("words", 1), ("words_and_bigrams", 2)):
        start = time.perf_counter()
        tested = accuracy(fit_tfidf(training, longest=longest), test)
        figures[name] = {"accuracy": tested, "seconds": time.perf_counter() - start, "examples": len(test)}
        for kind, size in BLOCKS.items():
            chosen = source.model_copy(update={"validation_fraction": 0.1, "validation_block": size})
            parts = split_off_validation(Recipe(output_dir="none", finetune=chosen), training)
            figures[name][f"validation_by_{kind}"] = accuracy(fit_tfidf(parts[0], longest=longest), parts[1])
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1] if len(sys.argv) > 1 else "stanfordnlp/imdb")))
