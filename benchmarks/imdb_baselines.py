"""TF-IDF + logistic regression on IMDB's official split, with words and with words and bigrams; prints one JSON line.

python benchmarks/imdb_baselines.py [FOLDER OR HUB ID]        (default: stanfordnlp/imdb)
"""

import json
import sys
import time

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from bertpre.data.classification import read_labelled
from bertpre.recipe import Finetune


def measure(path: str) -> dict[str, dict[str, float]]:
    """Test accuracy and seconds for each set of features."""
    source = Finetune(path=path)
    training, test = read_labelled(source, "train"), read_labelled(source, "test")
    figures = {}
    for name, longest in (("words", 1), ("words_and_bigrams", 2)):
        start = time.perf_counter()
        vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, longest))
        features = vectorizer.fit_transform(training.texts)
        classifier = LogisticRegression(C=10, max_iter=1000).fit(features, training.labels)
        accuracy = classifier.score(vectorizer.transform(test.texts), test.labels)
        figures[name] = {
            "accuracy": float(accuracy),
            "seconds": time.perf_counter() - start,
            "examples": len(test.texts),
        }
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1] if len(sys.argv) > 1 else "stanfordnlp/imdb")))
