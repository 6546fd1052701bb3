"""`bertpre prepare`: the store is bit-identical for any number of workers and interruptions; drops are counted."""

import json
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

import bertpre.commands.prepare
from bertpre.commands.run import run
from bertpre.data import sample
from bertpre.data.corpus import read_documents
from bertpre.data.store import SPLITS, open_shards
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.files import locked
from bertpre.recipe import load_recipe
from bertpre.run_directory import claim, read_results
from tests.forked import run_forked
from tests.helpers import run_here, tree_hash

PART_CHARACTERS = 8000  # some reviews
KILLED = """
import sys
from pathlib import Path
from bertpre.commands.prepare import prepare
from bertpre.recipe import load_recipe
from tests.integration.write_faults import at_write, kill
recipe = load_recipe(sys.argv[1], sys.argv[2:])
with at_write({write}, kill, Path(recipe.output_dir)):
    prepare(recipe, part_characters={characters})
"""

Prepare = Callable[..., Path]


@pytest.fixture
def prepare(tiny_recipe: Path, tmp_path: Path) -> Prepare:
    """Prepare the tiny recipe in small parts, in a folder of the given name; returns the folder."""

    def prepare(name: str, *overrides: str) -> Path:
        recipe = load_recipe(str(tiny_recipe), [f"output_dir={tmp_path / name}", "prepare.workers=1", *overrides])
        bertpre.commands.prepare.prepare(recipe, part_characters=PART_CHARACTERS)
        return tmp_path / name

    return prepare


def write_documents(file: Path, texts: list[str]) -> Path:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def write_articles(folder: Path, texts: list[str]) -> Path:
    """Files as WikiExtractor writes them, of some articles each."""
    for number, text in enumerate(texts):
        file = folder / "AABBCC"[number % 3 : number % 3 + 2] / f"wiki_{number // 9:02d}"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as stream:
            stream.write(f'<doc id="{number}" url="u" title="Title {number}">\nTitle {number}\n\n{text}\n\n</doc>\n')
    return folder


def prepared(run: Path) -> dict[str, Any]:
    return read_results(run)["prepare"]


@pytest.mark.parametrize("workers", [2, 5])
def test_the_bytes_do_not_depend_on_the_number_of_workers(prepare: Prepare, workers: int) -> None:
    one, several = prepare("one", "prepare.workers=1"), prepare("several", f"prepare.workers={workers}")
    assert len(list((one / "data").glob("part-*.train.tokens.npy"))) > 5
    for folder in ("data", "tokenizer"):
        assert tree_hash(one / folder) == tree_hash(several / folder)


def test_wikiextractor_folder_makes_the_bytes_of_its_articles(
    prepare: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_articles(tmp_path / "wiki", [document.text for document in sample.generate("articles", 60)])
    texts = list(read_documents(str(folder)))
    assert len(texts) == 60
    rows = write_documents(tmp_path / "rows.jsonl", texts)
    blocks = prepare("blocks", f"corpus.path={folder}", "corpus.split=train", "prepare.workers=2")
    lines = prepare("lines", f"corpus.path={rows}", "corpus.split=train", "prepare.workers=1")
    assert f"corpus: {folder} is read as articles of WikiExtractor, which its content shows" in caplog.messages
    assert prepared(blocks)["documents"] == 60 and len(list((blocks / "data").glob("part-*.train.tokens.npy"))) > 2
    for name in ("data", "tokenizer"):
        assert tree_hash(blocks / name) == tree_hash(lines / name)


def test_array_jobs_make_the_same_bytes(tiny_recipe: Path, prepare: Prepare, tmp_path: Path) -> None:
    whole, target = prepare("whole"), tmp_path / "jobs"

    def run(*overrides: str, **options: Any) -> None:
        recipe = load_recipe(str(tiny_recipe), [f"output_dir={target}", "prepare.workers=1", *overrides])
        bertpre.commands.prepare.prepare(recipe, part_characters=PART_CHARACTERS, **options)

    with pytest.raises(UserError, match="nothing to merge"):
        run(merge=True)
    run(shard="3/3")
    run(shard="1/3")
    with pytest.raises(UserError, match=r"parts are not done \(1, 4, "):
        run(merge=True)
    run(shard="2/3")
    run(merge=True)
    assert not (target / "data").exists()
    for options in ({"merge": True}, {"shard": "1/2"}):
        with pytest.raises(UserError, match=r"the first jobs had another corpus.limit, tokenizer.vocab_size"):
            run("tokenizer.vocab_size=256", "corpus.limit=7", **options)
    run(shard="1/2")
    with pytest.raises(UserError, match=r"parts are not done \(1, 3, "):
        run(merge=True)
    run(shard="2/2")
    run(merge=True)
    for folder in ("data", "tokenizer"):
        assert tree_hash(whole / folder) == tree_hash(target / folder)


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0"])
def test_an_impossible_share_is_refused(shard: str, tiny_recipe: Path) -> None:
    with pytest.raises(UserError, match="write JOB/JOBS"):
        bertpre.commands.prepare.prepare(load_recipe(str(tiny_recipe)), shard=shard)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_two_preparations_in_one_folder_are_refused_and_the_jobs_of_an_array_are_not(tiny_recipe: Path) -> None:
    recipe = load_recipe(str(tiny_recipe))
    with locked(claim(recipe)):
        with pytest.raises(UserError, match="output_dir: another process works in"):
            bertpre.commands.prepare.prepare(recipe)
        with pytest.raises(UserError, match="output_dir: another process works in"):
            bertpre.commands.prepare.prepare(recipe, merge=True)
        bertpre.commands.prepare.prepare(recipe, shard="1/1")
    assert not (Path(recipe.output_dir) / "data").exists()


def test_an_interrupted_prepare_resumes_to_the_same_bytes(prepare: Prepare, tiny_recipe: Path, tmp_path: Path) -> None:
    whole, target = prepare("whole", "prepare.workers=1"), tmp_path / "killed"
    arguments = (tiny_recipe, f"output_dir={target}", "prepare.workers=1")
    for write in (8, 60, 75):  # while parts are cleaned, while documents are chosen, while parts are encoded
        code = KILLED.format(write=write, characters=PART_CHARACTERS)
        done = run_forked(code, *arguments)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not (target / "data").exists()
    prepare("killed", "prepare.workers=1")
    for folder in ("data", "tokenizer"):
        assert tree_hash(whole / folder) == tree_hash(target / folder)
    assert not list(target.rglob("*.partial"))
    # Killed while it tidied up: the store is complete, and the next attempt removes what is left over.
    (target / "results.json").unlink()
    (target / "data" / "part-00000.texts").write_text("left over")
    assert run_here("prepare", *arguments) == 0
    assert tree_hash(whole / "data") == tree_hash(target / "data")


def test_a_tokenizer_that_is_not_wordpiece_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    of_bytes = Tokenizer(models.BPE(unk_token="[UNK]"))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [document.text for document in sample.generate("train", 30)]
    of_bytes.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=of_bytes, **names).save_pretrained(tmp_path / "bytes")
    with pytest.raises(UserError, match="tokenizer.path: .* is not a WordPiece tokenizer .* of a word, but BPE; "):
        prepare("refused", f"tokenizer.path={tmp_path / 'bytes'}")


def test_a_tokenizer_with_tokens_of_two_words_or_gaps_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(prepare("plain") / "tokenizer")
    tokenizer.add_tokens(["zork quux"])
    tokenizer.save_pretrained(tmp_path / "two words")
    with pytest.raises(UserError, match="tokenizer.path: .* has added tokens with spaces, such as 'zork quux'"):
        prepare("refused", f"tokenizer.path={tmp_path / 'two words'}")
    (tmp_path / "gaps").mkdir()
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "film", "the"]
    (tmp_path / "gaps" / "vocab.txt").write_text("\n".join(lines) + "\n")
    BertTokenizer(vocab=str(tmp_path / "gaps" / "vocab.txt")).save_pretrained(tmp_path / "gaps")
    with pytest.raises(UserError, match=r"tokenizer.path: .* has 7 tokens, but ids up to 7; does its vocab.txt"):
        prepare("refused", f"tokenizer.path={tmp_path / 'gaps'}")


def test_padding_and_truncation_of_a_given_tokenizer_are_ignored(prepare: Prepare, tmp_path: Path) -> None:
    plain = prepare("plain")
    shutil.copytree(plain / "tokenizer", tmp_path / "padding")
    file = str(tmp_path / "padding" / "tokenizer.json")
    backend = Tokenizer.from_file(file)
    backend.enable_padding(length=8)
    backend.enable_truncation(4)
    backend.save(file)
    padding = prepare("padded", f"tokenizer.path={tmp_path / 'padding'}")
    assert tree_hash(plain / "data") == tree_hash(padding / "data")


def test_a_corpus_that_changed_between_two_attempts_is_cleaned_again(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("articles", 60)]
    file = write_documents(tmp_path / "a.jsonl", texts)
    (tmp_path / "again").mkdir()
    with pytest.raises(UserError, match="pairs.validation_fraction: .* leaves fewer than two documents"):
        prepare("again", f"corpus.path={file}", "corpus.split=train", "pairs.validation_fraction=0.0001")
    write_documents(file, texts[30:])
    arguments = (f"corpus.path={file}", "corpus.split=train", "corpus.limit=null", "pairs.validation_fraction=0.3")
    again, fresh = prepare("again", *arguments), prepare("fresh", *arguments)
    assert tree_hash(again / "data") == tree_hash(fresh / "data")


def test_dropped_documents_are_counted_by_reason(prepare: Prepare, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [document.text for document in sample.generate("train", 40)]
    write_documents(folder / "train.jsonl", [*texts, "<br/>", texts[0] + " ", texts[1], "short", texts[39]])
    write_documents(folder / "test.jsonl", [texts[2], "elsewhere", f"<i>{texts[3]}</i>"])
    run = prepare(
        "run", f"corpus.path={folder}", "corpus.split=train", "corpus.held_out=test", "corpus.min_characters=10"
    )
    assert prepared(run)["dropped"] == {"empty": 1, "duplicate": 3, "too short": 1, "held out": 2}
    assert prepared(run)["documents"] == 38


def test_the_audit_measures_repeated_lines_and_unknown_tokens(prepare: Prepare, tmp_path: Path) -> None:
    texts = [f"{document.text} This very line is in each of them." for document in sample.generate("train", 60)]
    run = prepare("run", f"corpus.path={write_documents(tmp_path / 'a.jsonl', texts)}", "corpus.split=train")
    assert 0 < prepared(run)["repeated_line_share"] < 1
    assert prepared(run)["unknown_share"] == 0


def test_sources_are_mixed_by_their_weights(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("train", 150)]
    spans = [(0, 50), (40, 100), (100, 150)]
    files = [write_documents(tmp_path / f"{start}.jsonl", texts[start:end]) for start, end in spans]
    more = f"[{{path: {files[1]}, weight: 3}}, {{path: {files[2]}, weight: 0.5}}]"
    first = f"corpus.path={files[0]}", "corpus.split=train"
    run = prepare("mixed", *first, f"corpus.more={more}")
    figures = prepared(run)
    assert figures["dropped"]["duplicate"] == 10
    assert 10 < figures["dropped"]["weight"] < 40
    shards = open_shards(run / "data", "train")
    seen = Counter(shard.tokens.tobytes() for shard in shards)
    assert set(seen.values()) == {1, 3}
    assert sum(len(shard.documents) - 1 for shard in shards) > figures["documents"]
    with pytest.raises(UserError, match=r"corpus.more.0.path: .*nowhere.jsonl"):
        prepare("wrong", *first, "corpus.more=[{path: nowhere.jsonl}]")
    with pytest.raises(UserError, match="a whole number of passes"):
        prepare("wrong", "corpus.weight=2.5")


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_another_source_has_keys_of_its_own(streaming: str, prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("train", 50)]
    file = write_documents(tmp_path / "a.jsonl", texts[:40])
    pd.DataFrame({"body": texts[40:], "text": "another column"}).to_csv(tmp_path / "b.csv", index=False)
    more = f"[{{path: {tmp_path / 'b.csv'}, text_column: body, limit: 5, streaming: {streaming}}}]"
    run = prepare("run", f"corpus.path={file}", "corpus.split=train", f"corpus.more={more}")
    assert prepared(run)["documents"] == 45
    assert not prepared(run)["dropped"]


def test_a_file_can_be_held_out(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("train", 60)]
    file, test = (write_documents(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", texts), ("b", texts[:9])))
    arguments = (f"corpus.path={file}", "corpus.split=train", "corpus.limit=null", f"corpus.held_out={test}")
    assert prepared(prepare("run", *arguments))["dropped"]["held out"] == 9


def test_a_split_or_a_file_is_validated_on(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("train", 60)]
    folder = tmp_path / "corpus"
    folder.mkdir()
    train = write_documents(folder / "train.jsonl", texts[:50])
    valid = write_documents(folder / "validation.jsonl", texts[40:])
    others = "corpus.split=train", "corpus.limit=40"  # the limit does not apply to the validation texts
    runs = [
        prepare("split", f"corpus.path={folder}", "corpus.validation=validation", *others),
        prepare("file", f"corpus.path={train}", f"corpus.validation={valid}", *others),
    ]
    for each in runs:
        shards = {split: open_shards(each / "data", split) for split in SPLITS}
        assert [sum(len(shard.documents) - 1 for shard in shards[split]) for split in SPLITS] == [40, 20]
    assert tree_hash(runs[0] / "data") == tree_hash(runs[1] / "data")
    with pytest.raises(UserError, match=r"corpus.validation: .* Bad split: valid. Available splits"):
        prepare("wrong", f"corpus.path={folder}", "corpus.validation=valid", *others)


def test_near_duplicates_are_dropped_by_choice(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("articles", 80)]
    near = [f"{text} The end, said somebody." for text in texts[:30]]
    file = write_documents(tmp_path / "texts.jsonl", texts + near + texts[:5])
    source = f"corpus.path={file}", "corpus.split=train", "prepare.workers=1"
    assert prepared(prepare("all", *source))["dropped"] == {"duplicate": 5}
    run = prepare("fewer", *source, "corpus.near_duplicates=true")
    dropped = prepared(run)["dropped"]
    assert dropped["duplicate"] == 5
    assert 25 <= dropped["near-duplicate"] <= 30
    assert not list(run.glob("data/*bands*"))


def test_a_corpus_that_changed_after_it_was_prepared_is_mentioned(
    tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [text for text, _ in zip(read_documents("sample"), range(60), strict=False)]
    folder = tmp_path / "corpus"
    folder.mkdir()
    corpus, more = write_documents(folder / "a.jsonl", texts[:40]), write_documents(tmp_path / "b.jsonl", texts[40:])
    own = ["output_dir=" + str(folder / "run"), f"corpus.path={folder}", f"corpus.more=[{{path: {more}}}]"]
    recipe = load_recipe(str(tiny_recipe), [*own, "corpus.split=train", "corpus.limit=null", "finetune=null"])
    bertpre.commands.prepare.prepare(recipe)
    size = corpus.stat().st_size + more.stat().st_size
    assert prepared(folder / "run").items() >= {"corpus_files": 2, "corpus_bytes": size}.items()
    (folder / ".notes.swp").write_text("hidden", encoding="utf-8")
    with pytest.raises(UserError, match="continue with `bertpre run`$"):  # neither it nor the run itself counts
        bertpre.commands.prepare.prepare(recipe)
    write_documents(more, texts[41:])
    with pytest.raises(UserError, match="other files than when this run was prepared"):
        bertpre.commands.prepare.prepare(recipe)
    run(recipe)
    assert capsys.readouterr().out.count("other files than when this run was prepared") == 1
    more.unlink()  # a corpus that is gone is none that has changed
    corpus.unlink()
    with pytest.raises(UserError, match="continue with `bertpre run`$"):
        bertpre.commands.prepare.prepare(recipe)
