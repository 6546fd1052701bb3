"""N-grams of token ids: ours against scikit-learn's CountVectorizer on 2,000 texts; prints one JSON line.

python benchmarks/token_ngrams.py

Learns the vocabulary from one half of the texts and transforms both. CPU seconds are medians of three rounds.
"""

import json
import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from bertpre.data import sample
from bertpre.data.tokenizer import learn_tokenizer
from bertpre.finetuning.pseudo_labels import TokenNgrams

TEXTS, ROUNDS = 2000, 3
Rows = list[np.ndarray]


def ours(training: Rows, others: Rows) -> tuple[Any, Any]:
    vectorizer = TokenNgrams.fit(training)
    return vectorizer.transform(training), vectorizer.transform(others)


def library_on_strings(training: Rows, others: Rows) -> tuple[Any, Any]:
    vectorizer = CountVectorizer(binary=True, ngram_range=(1, 3), token_pattern=r"\d+", dtype=np.float32)
    one, other = ([" ".join(map(str, row.tolist())) for row in rows] for rows in (training, others))
    return vectorizer.fit_transform(one), vectorizer.transform(other)


def library_on_tuples(training: Rows, others: Rows) -> tuple[Any, Any]:
    def analyzer(row: np.ndarray) -> list[tuple[int, ...]]:
        ids = row.tolist()
        return [*zip(ids), *zip(ids, ids[1:], strict=False), *zip(ids, ids[1:], ids[2:], strict=False)]

    vectorizer = CountVectorizer(binary=True, analyzer=analyzer, dtype=np.float32)
    return vectorizer.fit_transform(training), vectorizer.transform(others)


def measure(vectorize: Callable[[Rows, Rows], tuple[Any, Any]], rows: Rows) -> dict[str, float]:
    """Median CPU seconds, and the number of entries, which must be the same for all."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        found = vectorize(rows[::2], rows[1::2])
        seconds.append(time.process_time() - start)
    return {"cpu_seconds": statistics.median(seconds), "entries": sum(matrix.nnz for matrix in found)}


if __name__ == "__main__":
    texts = [document.text for document in islice(sample.generate("train"), TEXTS)]
    tokenizer = learn_tokenizer(iter(texts), 4096, lowercase=True, max_length=512)
    ids = [np.array(encoding.ids) for encoding in tokenizer.backend_tokenizer.encode_batch(texts)]
    print(json.dumps({each.__name__: measure(each, ids) for each in (ours, library_on_strings, library_on_tuples)}))
