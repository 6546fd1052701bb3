"""Parts: no text is lost or duplicated, and the store's bytes depend only on the documents."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertpre.data.cleaning import clean_text
from bertpre.data.duplicates import text_digests
from bertpre.data.formats import WIKI, read_articles, recognize
from bertpre.data.groups import cut_into_parts
from bertpre.data.parts import CleanOptions, EncodedDocuments, clean_part
from bertpre.data.store import load_shard, write_shard
from bertpre.data.tables import TextFiles
from bertpre.data.workspace import Part

texts = st.lists(st.text(max_size=30), max_size=30)
sentence = st.lists(st.integers(0, 65535), max_size=6)
documents = st.lists(st.lists(sentence, max_size=5), min_size=1, max_size=12)


@given(texts, st.integers(1, 60))
def test_parts_hold_every_text_once_and_in_order(texts: list[str], characters: int) -> None:
    parts = list(cut_into_parts(iter(texts), characters))
    assert [text for part in parts for text in part] == texts
    sizes = [sum(map(len, part)) for part in parts]
    assert all(size >= characters for size in sizes[:-1])
    assert len(parts) < 2 or sizes[-1] >= characters // 2
    assert all(parts)


def test_a_remainder_of_half_the_size_is_a_part_and_a_smaller_one_is_not() -> None:
    assert list(cut_into_parts(["aaaa", "bb"], 4)) == [["aaaa"], ["bb"]]
    assert list(cut_into_parts(["aaaa", "b"], 4)) == [["aaaa", "b"]]


lines = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12).filter(
    lambda line: line.strip() != "</doc>"
)
articles = st.lists(st.tuples(lines.map(str.strip), st.lists(lines, max_size=4)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(articles, st.data(), st.integers(1, 40))
def test_articles_are_never_cut_however_they_are_divided_into_files_and_parts(
    articles: list[tuple[str, list[str]]], data: st.DataObject, characters: int
) -> None:
    files: list[list[str]] = [[]]
    for title, text in articles:
        if data.draw(st.booleans()):
            files.append([])
        body = "\n".join(text)
        files[-1].append(f'<doc id="1" url="u" title="{title}">\n{title}\n\n{body}\n\n</doc>\n')
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name, f"wiki_{number:02d}") for number, blocks in enumerate(files)]
        for path, blocks in zip(paths, files, strict=True):
            path.write_text("".join(blocks), encoding="utf-8")
        assert {recognize(str(path)) for path in paths if path.stat().st_size} == {WIKI}
        read = [text for batch in TextFiles(list(map(str, paths)), read_articles).iter(3) for text in batch["text"]]
    if all(title for title, _ in articles):
        assert read == ["\n".join(text).strip() for _, text in articles]
    assert len(read) == len(articles)
    assert [text for part in cut_into_parts(iter(read), characters) for text in part] == read


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(1, 5))
def test_cleaned_texts_come_back_with_a_digest_each(texts: list[str], min_characters: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        part = Part(Path(name), 3)
        clean_part(part, texts, CleanOptions(min_characters))
        cleaned, dropped = part.texts(), part.facts("clean")["dropped"]
        assert len(cleaned) == len(texts) - sum(dropped.values())
        assert all(len(text) >= min_characters for text in cleaned)
        assert dropped.get("empty", 0) == sum(not clean_text(text) for text in texts)
        digests = part.load("digests")
        assert digests.tolist() == text_digests(cleaned).tolist()
        assert len(np.unique(digests, axis=0)) == len(set(cleaned))
        part.save("keep", np.arange(len(cleaned)) % 2 == 0)
        assert part.kept_texts() == cleaned[::2]
        files = {file: file.stat().st_mtime_ns for file in part.folder.iterdir()}
        clean_part(part, texts, CleanOptions(min_characters))
        assert files == {file: file.stat().st_mtime_ns for file in part.folder.iterdir()}  # nothing to do


def test_a_weight_below_one_keeps_that_share_of_the_documents_however_they_are_grouped(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(4000)]
    parts, kept = [Part(tmp_path, number) for number in range(2)], {}
    for weight in (0.25, 0.5, 1.0, 3.0):
        for part, some in zip(parts, (texts[:1000], texts[1000:]), strict=True):
            clean_part(part, some, CleanOptions(weight=weight))
            assert part.facts("clean")["repeats"] == (3 if weight == 3 else 1)
        kept[weight] = {text for part in parts for text in part.texts()}
    assert kept[0.25] < kept[0.5] < kept[1.0] == kept[3.0] == set(texts)
    assert abs(len(kept[0.25]) - 1000) < 4 * (4000 * 0.25 * 0.75) ** 0.5
    clean_part(parts[0], texts, CleanOptions(weight=0.25))
    assert set(parts[0].texts()) == kept[0.25]
    assert parts[0].facts("clean")["dropped"] == {"weight": 4000 - len(kept[0.25])}
    clean_part(parts[0], texts, CleanOptions(weight=0.25, seed=1))
    assert set(parts[0].texts()) != kept[0.25]


@settings(max_examples=60, deadline=None)
@given(documents, st.randoms(use_true_random=False))
def test_selected_documents_are_written_completely(documents: list[list[list[int]]], random: object) -> None:
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([token for sentence in sentences for token in sentence], dtype=np.uint16)
    offsets = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])]).astype(np.int64)
    encoded = EncodedDocuments(tokens, offsets, np.array(list(map(len, documents))))
    chosen = np.array([random.random() < 0.5 for _ in documents])
    expected = [
        list(filter(None, document)) for document, is_chosen in zip(documents, chosen, strict=True) if is_chosen
    ]
    with tempfile.TemporaryDirectory() as name:
        entry = write_shard(Path(name), "a", "train", *encoded.select(chosen))
        shard = load_shard(Path(name), "a")
        parts = [part.tolist() for part in np.split(shard.tokens, shard.sentences[1:-1])] if len(shard.tokens) else []
        read = [parts[start:end] for start, end in zip(shard.documents, shard.documents[1:], strict=False)]
    assert read == list(filter(None, expected))
    assert entry["documents"] == len(read)
    assert entry["tokens"] == sum(len(sentence) for document in read for sentence in document)
