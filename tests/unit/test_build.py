"""StoreBuilder driven directly: what becomes of each document, and what another attempt does again."""

import json
import math
import os
import re
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizer

from bertpre.data import sample
from bertpre.data.audit import audit_store
from bertpre.data.build import StoreBuilder, groups_of, repeated_share
from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import TextSource
from bertpre.data.corpus_tokenizer import TokenizerOptions
from bertpre.data.parts import CleanOptions, EncodeOptions, clean_part, encode_part, is_encoded
from bertpre.data.sentences import split_sentences
from bertpre.data.store import open_shards, read_store_manifest, read_token_counts
from bertpre.data.tokenizer import SPECIAL_TOKENS, load_tokenizer
from bertpre.data.workspace import Part
from bertpre.errors import ArgumentError, UserError
from tests.helpers import tree_hash

TEXTS = [document.text for document in sample.generate("articles", 120)]
OPTIONS = TokenizerOptions(vocab_size=512, lowercase=True, max_length=64)


def write_texts(file: Path, texts: list[str]) -> TextSource:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return TextSource(str(file))


def builder(folder: Path, sources: list[TextSource], **changes: object) -> StoreBuilder:
    folder.mkdir(exist_ok=True)
    options = {"tokenizer": OPTIONS, "validation_fraction": 0.2, "seed": 3, "workers": 1, "part_characters": 5000}
    return StoreBuilder(folder=folder, sources=sources, **options | changes)


def stored(run: StoreBuilder, split: str) -> list[tuple[int, ...]]:
    """The token ids of every document of a split."""
    documents = []
    for shard in open_shards(run.store, split):
        offsets = shard.sentences[shard.documents]
        documents += [tuple(shard.tokens[start:end].tolist()) for start, end in pairwise(offsets)]
    return documents


def encoded(run: StoreBuilder, texts: list[str]) -> list[tuple[int, ...]]:
    """The token ids of the texts as the stock tokenizer gives them."""
    tokenizer = load_tokenizer(run.folder / "tokenizer")
    documents = [split_sentences(clean_text(text)) for text in texts]
    return [sum((tuple(tokenizer.encode(s, add_special_tokens=False)) for s in document), ()) for document in documents]


def test_every_document_is_in_one_split_in_order(tmp_path: Path) -> None:
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", TEXTS)])
    run.build()
    train, validation = stored(run, "train"), stored(run, "validation")
    expected = encoded(run, TEXTS)
    assert [document for document in expected if document in set(train)] == train
    assert [document for document in expected if document in set(validation)] == validation
    assert len(train) + len(validation) == len(expected) == len({*train, *validation})
    assert 8 <= len(validation) <= 40  # four standard deviations around 24
    other = builder(tmp_path / "other", run.sources, seed=4)
    other.build()
    assert set(stored(other, "validation")) != set(validation)
    tokens = np.concatenate([np.array(document) for document in train])
    counts = read_token_counts(run.store)
    assert counts.tolist() == np.bincount(tokens, minlength=len(counts)).tolist()
    assert not (tmp_path / "run" / "data.partial").exists()
    assert {file.name.split(".")[-1] for file in run.store.iterdir()} == {"npy", "json"}


def test_duplicates_of_earlier_sources_and_of_all_held_out_texts_are_dropped(tmp_path: Path) -> None:
    first = replace(write_texts(tmp_path / "a.jsonl", TEXTS), limit=100)
    second = write_texts(tmp_path / "b.jsonl", [*TEXTS[90:], "A text that is only here.", "Ten, long.", "Nine long"])
    write_texts(tmp_path / "test.jsonl", ["elsewhere"] * 110 + TEXTS[:7])
    held_out = first.beside(str(tmp_path / "test.jsonl"), "held_out")  # the limit of the source does not apply to it
    run = builder(tmp_path / "run", [first, second], held_out=held_out, min_characters=10)
    run.build()
    assert read_store_manifest(run.store)["dropped"] == {"held out": 7, "duplicate": 10, "too short": 1}
    assert sorted(stored(run, "train") + stored(run, "validation")) == sorted(
        encoded(run, [*TEXTS[7:], "A text that is only here.", "Ten, long."])
    )


def test_validation_texts_are_validated_on_and_never_trained_on(tmp_path: Path) -> None:
    source = replace(write_texts(tmp_path / "a.jsonl", [*TEXTS[:100], "rare " * 50]), weight=2)
    test = write_texts(tmp_path / "test.jsonl", TEXTS[115:])
    beside = source.beside(str(write_texts(tmp_path / "b.jsonl", [*TEXTS[90:], "zyx " * 50]).path), "validation")
    run = builder(tmp_path / "run", [source], validation=beside, held_out=test)
    run.build()
    assert stored(run, "validation") == encoded(run, [*TEXTS[90:115], "zyx " * 50])
    assert sorted(stored(run, "train")) == sorted(encoded(run, [*TEXTS[:90], "rare " * 50]) * 2)
    counts = read_token_counts(run.store)
    assert counts.tolist() == np.bincount(sum(stored(run, "train"), ()), minlength=len(counts)).tolist()
    assert read_store_manifest(run.store)["dropped"] == {"held out": 5, "duplicate": 10}
    vocabulary = load_tokenizer(run.folder / "tokenizer").get_vocab()
    assert "rare" in vocabulary
    assert "zyx" not in vocabulary  # nothing is learned from it
    jobs = builder(tmp_path / "jobs", [source], validation=beside, held_out=test)
    for _ in range(2):
        for job in (2, 0, 1):
            jobs.run_share(job, 3)
        jobs.merge()
    assert tree_hash(jobs.store) == tree_hash(run.store)


def test_a_weight_repeats_training_documents_only(tmp_path: Path) -> None:
    sources = [write_texts(tmp_path / "a.jsonl", TEXTS[:60]), write_texts(tmp_path / "b.jsonl", TEXTS[60:])]
    run = builder(tmp_path / "run", [sources[0], replace(sources[1], weight=2)])
    run.build()
    train, validation = stored(run, "train"), stored(run, "validation")
    once, twice = (set(encoded(run, texts)) for texts in (TEXTS[:60], TEXTS[60:]))
    assert {train.count(document) for document in once & {*train}} == {1}
    assert {train.count(document) for document in twice & {*train}} == {2}
    assert len(validation) == len(set(validation))
    assert read_store_manifest(run.store)["documents"] == 120


def test_a_document_that_joining_repeats_counts_once(tmp_path: Path) -> None:
    sources = [write_texts(tmp_path / "a.jsonl", TEXTS[:1]), write_texts(tmp_path / "b.jsonl", TEXTS[1:])]
    run = builder(tmp_path / "run", [replace(sources[0], weight=50), sources[1]])
    run.build()
    assert read_store_manifest(run.store)["documents"] == 120


@pytest.mark.parametrize("added", [" ", "\n\n" * 200])
def test_a_corpus_that_changed_in_white_space_only_is_chosen_from_again(added: str, tmp_path: Path) -> None:
    """The cleaned texts are the same, but the parts begin elsewhere, or more texts are dropped."""
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", TEXTS)])
    run.clean()
    run.choose()
    write_texts(tmp_path / "a.jsonl", [text.replace(" ", added + " ", 40) for text in TEXTS] + [""] * 7)
    run.build()
    assert read_store_manifest(run.store)["dropped"] == {"empty": 7}
    assert len(stored(run, "train")) + len(stored(run, "validation")) == 120


def test_no_share_is_left_once_the_store_is_there(tmp_path: Path) -> None:
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", TEXTS)])
    run.build()
    with pytest.raises(UserError, match="the shares are joined"):
        run.run_share(0, 2)
    assert not run.workspace.folder.exists()


def test_jobs_share_both_steps_and_write_the_same_store(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "a.jsonl", TEXTS)
    jobs, alone = (builder(tmp_path / name, [source], settings={"corpus.limit": None}) for name in ("jobs", "alone"))
    for step, ending in (("clean", "texts"), ("encode", "lines.npy")):
        assert jobs.run_share(0, 2) == step
        written = sorted(file.name for file in jobs.workspace.folder.glob(f"*.{ending}"))
        assert written == [f"part-{number:05d}.{ending}" for number in range(0, 2 * len(written), 2)]
        with pytest.raises(UserError, match=r"parts are not done \(1, 3, "):
            jobs.merge()
        assert jobs.run_share(1, 2) == step
        assert jobs.merge() == (step == "encode")
    alone.build()
    assert read_store_manifest(jobs.store) == read_store_manifest(alone.store)  # with the checksums of all files


def test_jobs_with_other_settings_are_refused(tmp_path: Path) -> None:
    first = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", TEXTS)], settings={"corpus.limit": None})
    other = replace(first, settings={"corpus.limit": 7})
    for finish in (first.clean, first.choose):
        finish()
        for step in (other.merge, lambda: other.run_share(0, 1)):
            with pytest.raises(UserError, match="the first jobs had another corpus.limit; give the old value"):
                step()


def test_jobs_that_find_another_corpus_are_refused(tmp_path: Path) -> None:
    size = {"corpus_files": 1, "corpus_bytes": 100}
    first = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", TEXTS)], settings=size)
    first.run_share(0, 2)
    with pytest.raises(UserError, match="the corpus has other files now than for the first jobs"):
        replace(first, settings=size | {"corpus_bytes": 101}).run_share(1, 2)
    first.run_share(1, 2)
    assert not replace(first, settings={}).merge()  # on a machine without the corpus


def test_another_attempt_decides_again_if_the_options_changed(tmp_path: Path) -> None:
    near = [f"{text} The end, said somebody." for text in TEXTS[:30]]
    source = write_texts(tmp_path / "a.jsonl", TEXTS + near)
    changes = [{"near_duplicates": True}, {"tokenizer": replace(OPTIONS, vocab_size=256)}, {"seed": 4}]
    for number, change in enumerate(changes):
        again, fresh = (builder(tmp_path / f"{name}{number}", [source], **change) for name in ("again", "fresh"))
        first = builder(again.folder, [source])
        first.clean()
        first.choose()
        first.encode()
        again.build()
        fresh.build()
        assert read_store_manifest(again.store) == read_store_manifest(fresh.store)


def test_messages_name_the_argument_or_the_source(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "a.jsonl", TEXTS[:20])
    with pytest.raises(ArgumentError, match="validation_fraction: .* leaves fewer than two documents") as caught:
        builder(tmp_path / "few", [source], validation_fraction=1e-6).build()
    assert caught.value.argument == "validation_fraction"
    share = float(re.search(r"larger share, ([\d.]+) or more$", caught.value.reason)[1])
    with pytest.raises(ArgumentError):
        builder(tmp_path / "few", [source], validation_fraction=share - 0.001).build()
    builder(tmp_path / "few", [source], validation_fraction=share).build()
    with pytest.raises(UserError, match="fewer than two documents to train on"):
        builder(tmp_path / "none", [source], validation_fraction=1 - 1e-6).build()
    three = write_texts(tmp_path / "three.jsonl", TEXTS[:3])  # no share leaves two for each part
    with pytest.raises(ArgumentError, match="for validation, of 3 read; give more text$"):
        builder(tmp_path / "three", [three], validation_fraction=1e-6).build()
    few = write_texts(tmp_path / "one.jsonl", TEXTS[40:41])
    with pytest.raises(UserError, match=r"corpus.validation: .*one.jsonl leaves fewer than two documents to validate"):
        builder(tmp_path / "one", [source], validation=source.beside(few.path, "validation")).build()
    with pytest.raises(UserError, match=r"corpus: .*a.jsonl contains no text, 20 dropped as duplicate"):
        builder(tmp_path / "same", [source], validation=source.beside(source.path, "validation")).build()
    with pytest.raises(ArgumentError, match="tokenizer.path: no tokenizer in"):
        builder(tmp_path / "path", [source], tokenizer=replace(OPTIONS, path=str(tmp_path / "nowhere"))).build()
    with pytest.raises(UserError, match=r"corpus: .*b.jsonl contains no text"):
        builder(tmp_path / "empty", [write_texts(tmp_path / "b.jsonl", ["<br/>"])]).build()


def die(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_one_message(tmp_path: Path) -> None:
    run = builder(tmp_path / "run", [TextSource("sample")], workers=2)
    with pytest.raises(ArgumentError, match="workers: a worker process was killed, probably because memory ran out"):
        run.run(die, iter([(0,), (1,)]))


def test_the_audit_of_some_shards_estimates_the_number_of_pairs(tmp_path: Path) -> None:
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", TEXTS)])
    run.build()
    options = {"max_length": 48, "seed": 0, "short_seq_prob": 0.1, "random_next_prob": 0.5}
    metrics = audit_store(run.store, kind="nsp", **options)
    assert len(open_shards(run.store, "train")) > 2
    tokens = sum(map(len, stored(run, "train")))
    assert 0.7 * tokens / 45 < metrics["pairs"] < 2.5 * tokens / 45
    assert "pair_ends_auc" in metrics and "pair_ends_auc" not in audit_store(run.store, kind="none", **options)
    lengths = sorted(map(len, stored(run, "train")))
    assert (metrics["tokens_in_document"]["smallest"], metrics["tokens_in_document"]["largest"]) == (
        lengths[0],
        lengths[-1],
    )


@given(st.lists(st.integers(1, 3), min_size=2, max_size=7))
def test_joining_small_shards_loses_none(documents: list[int]) -> None:
    shards = [{"name": str(number), "documents": count, "tokens": 9 * count} for number, count in enumerate(documents)]
    groups = groups_of(shards, 1)
    assert [shard for group in groups for shard in group] == shards
    assert all(sum(shard["documents"] for shard in group) >= 2 for group in groups)


def test_the_shards_of_a_large_corpus_are_few() -> None:
    """Each keeps three files open in every process of a training."""
    shards = [{"name": str(number), "documents": 5, "tokens": 100} for number in range(100)]
    groups = groups_of(shards, 10)
    assert [shard for group in groups for shard in group] == shards
    assert len(groups) == 10 and {len(group) for group in groups} == {10}
    assert len(groups_of(shards, 6.25)) == 15
    assert [len(group) for group in groups_of(shards[:50], math.inf, tokens=1950)] == [20, 20, 10]


def test_the_share_of_repeated_lines_is_that_of_a_sample_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = np.random.default_rng(0).integers(0, 1 << 63, 60_000, dtype=np.uint64)
    lines = np.concatenate([lines, lines[:30_000], lines[:10_000]])
    assert repeated_share(lambda: iter([lines])) == 0.4
    monkeypatch.setattr("bertpre.data.build.LINES_COUNTED", 10_000)
    assert repeated_share(lambda: iter([lines[:70_000], lines[70_000:]])) == pytest.approx(0.4, abs=0.02)
    for signature in (12, 13):  # of one line that is half of all either none is in a sample of one in ten, or all
        signed = np.concatenate([lines[:50_000], np.full(50_000, signature, dtype=np.uint64)])
        assert repeated_share(lambda signed=signed: iter(np.array_split(signed, 3))) == pytest.approx(0.5, abs=0.01)
    assert repeated_share(lambda: iter([lines[:0]])) == 0


@pytest.mark.parametrize("line", ["Sent from my iPhone.", "Visit us again soon.", "All rights reserved."])
def test_one_line_in_every_document_counts_as_repeated(line: str, tmp_path: Path) -> None:
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", [f"{text}\n{line}" for text in TEXTS])])
    run.build()
    sentences = [each for text in TEXTS for each in split_sentences(clean_text(f"{text}\n{line}"))]
    expected = 1 - len(set(sentences)) / len(sentences)
    assert read_store_manifest(run.store)["repeated_line_share"] == pytest.approx(expected)


def test_what_cleaning_removed_is_in_the_manifest(tmp_path: Path) -> None:
    def manifest(name: str, texts: list[str]) -> dict:
        run = builder(tmp_path / name, [write_texts(tmp_path / f"{name}.jsonl", texts)])
        run.build()
        return read_store_manifest(run.store)

    plain = [f"{text}\n\n\xa0 &auml; a\u0308 {number}" for number, text in enumerate(TEXTS)]
    kept = manifest("plain", plain)
    assert (kept["removed_share"], kept["mostly_removed"], kept["mostly_removed_example"]) == (0, 0, "")
    hidden, nothing = f"Some <!--{'x' * 99}-->", f"<br> {'<p>' * 99}"  # 106 and 301 characters are removed
    found = manifest("markup", [*plain, hidden, nothing])
    characters = sum(len("".join(text.replace("&auml; a\u0308", "&&").split())) for text in [*plain, hidden, nothing])
    assert found["removed_share"] == 407 / characters and found["mostly_removed"] == 2
    assert found["mostly_removed_example"] == nothing[:80]


def test_what_a_user_should_know_about_the_tokenizer_is_in_the_manifest(tmp_path: Path) -> None:
    marked = [f"{text} कुत्ता {chr(0x4E00 + number)}" for number, text in enumerate(TEXTS)]
    two_scripts = write_texts(tmp_path / "a.jsonl", [f"{text} абвгдежзиклмнопрст" for text in TEXTS])
    source = write_texts(tmp_path / "b.jsonl", marked)

    def prepared(name: str, source: TextSource, **changes: object) -> dict:
        run = builder(tmp_path / name, [source], tokenizer=replace(OPTIONS, **changes))
        run.build()
        return read_store_manifest(run.store)

    all_known = prepared("all known", source, character_coverage=1.0)
    assert [note[:25] for note in all_known["tokenizer_notes"]] == ["accents are not stripped,"]
    assert all_known["unknown_words"] == {}
    some_unknown = prepared("some unknown", source, strip_accents=True, character_coverage=0.9)
    assert "set tokenizer.strip_accents=false" in some_unknown["tokenizer_notes"][0]
    assert set("".join(some_unknown["unknown_words"])) < set(map(chr, range(0x4E00, 0x4E00 + len(TEXTS))))
    turkish = write_texts(tmp_path / "c.jsonl", [f"{text} Iğdır ve İstanbul" for text in TEXTS])
    assert "set tokenizer.lowercase=false" in prepared("lowercased", turkish)["tokenizer_notes"][0]
    assert not any("lowercase" in note for note in prepared("cased", turkish, lowercase=False)["tokenizer_notes"])
    tight = prepared("tight", two_scripts, vocab_size=128)
    assert "vocab_size=128 leaves little room" in tight["tokenizer_notes"][0]
    with pytest.raises(ArgumentError, match=r"tokenizer.vocab_size: a .* of 64 is too small .* to at least \d+"):
        prepared("too small", two_scripts, vocab_size=64)


def test_repeated_documents_of_shards_that_are_joined_stay_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertpre.data.build.MOST_SHARDS", 4)
    run = builder(tmp_path / "run", [replace(write_texts(tmp_path / "a.jsonl", TEXTS), weight=2)])
    run.build()
    train = stored(run, "train")
    assert len(open_shards(run.store, "train")) < 10
    assert sorted(train) == sorted(list(set(train)) * 2)
    assert len(train) // 2 + len(stored(run, "validation")) == len(TEXTS)


def test_ids_of_a_large_vocabulary_are_stored_whole(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    words = [f"w{number}" for number in range(70_000)]
    BertTokenizer(vocab={word: i for i, word in enumerate([*SPECIAL_TOKENS, *words])}).save_pretrained(folder)
    texts = [" ".join(words[start::7000]) for start in range(20)]
    options = replace(OPTIONS, path=str(folder))
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", texts)], tokenizer=options)
    run.build()
    ids = [tuple(5 + int(word[1:]) for word in text.split()) for text in texts]
    assert sorted(stored(run, "train") + stored(run, "validation")) == sorted(ids)


def test_a_document_without_a_token_is_counted(tmp_path: Path) -> None:
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", [*TEXTS, "\u0301 \u0301"])])
    run.build()
    assert read_store_manifest(run.store)["dropped"] == {"no token": 1}


def test_a_part_is_encoded_again_where_other_documents_of_it_are_kept(tmp_path: Path) -> None:
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", TEXTS)])
    run.build()
    part = Part(tmp_path, 0)
    clean_part(part, TEXTS[:4], CleanOptions())
    options = EncodeOptions(str(tmp_path / "run/tokenizer"), "", 0.0, 0)
    for keep in ([True] * 4, [True, True, False, True]):
        part.save("keep", np.array(keep))
        assert not is_encoded(part, options)
        encode_part(part, options)
        assert is_encoded(part, options)
        assert part.facts("encode")["shards"][0]["documents"] == sum(keep)


def test_the_validation_documents_are_in_shards_of_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertpre.data.build.VALIDATION_TOKENS", 300)
    run = builder(tmp_path / "run", [write_texts(tmp_path / "a.jsonl", TEXTS)], validation_fraction=0.4)
    run.build()
    assert len(open_shards(run.store, "validation")) > 2
