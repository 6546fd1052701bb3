"""The store gives back every token of every document, whatever they are and however they are cut into shards."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertpre.data.store import SPLITS, Shard, StoreWriter, open_shards

VOCABULARY = 70_000
sentence = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
documents = st.lists(
    st.tuples(st.sampled_from(SPLITS), st.lists(sentence, min_size=1, max_size=5)), min_size=1, max_size=12
)


def read_back(shard: Shard) -> list[list[list[int]]]:
    """The documents of a shard."""
    sentences = [part.tolist() for part in np.split(shard.tokens, shard.sentences[1:-1])]
    return [sentences[start:end] for start, end in zip(shard.documents, shard.documents[1:], strict=False)]


@settings(max_examples=40, deadline=None)
@given(documents, st.integers(1, 40))
def test_documents_come_back_as_they_were_written(
    written: list[tuple[str, list[list[int]]]], shard_tokens: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "data"
        writer = StoreWriter(store, VOCABULARY, shard_tokens)
        for split, document in written:
            writer.add(split, document)
        manifest = writer.close()
        for split in SPLITS:
            expected = [document for other, document in written if other == split]
            assert [document for shard in open_shards(store, split) for document in read_back(shard)] == expected
        tokens = [token for _, document in written for sentence in document for token in sentence]
        assert manifest["tokens"] == len(tokens)
        assert manifest["documents"] == len(written)
        assert manifest["sentences"] == sum(len(document) for _, document in written)
