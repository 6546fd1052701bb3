"""Hypothesis strategies for documents of token ids."""

import numpy as np
from hypothesis import strategies as st

from bertpre.data.store import Shard

Lengths = list[list[int]]  # for each document the number of tokens of each of its sentences


def document_lengths(min_documents: int = 2, longest_sentence: int = 40) -> st.SearchStrategy[Lengths]:
    """Documents of one to a dozen sentences."""
    document = st.lists(st.integers(1, longest_sentence), min_size=1, max_size=12)
    return st.lists(document, min_size=min_documents, max_size=8)


def shard_of(lengths: Lengths, first_token: int = 0) -> Shard:
    """A shard of these documents; all its tokens are different."""
    sentences = np.cumsum([0, *(length for document in lengths for length in document)])
    documents = np.cumsum([0, *(len(document) for document in lengths)])
    return Shard(np.arange(first_token, first_token + sentences[-1]), sentences, documents)
