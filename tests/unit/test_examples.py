"""Labelled examples: reading, what labels mean, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertpre.data import sample
from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples, read_examples
from bertpre.finetuning.labels import LabelEncoder
from bertpre.finetuning.rows import Rows
from bertpre.finetuning.splits import read_parts
from bertpre.finetuning.task import build_task
from bertpre.recipe import Finetune, Recipe


def examples_of(texts: list[Any], pairs: list[str] | None = None, labels: Any = None) -> Examples:
    labels = np.arange(len(texts)) % 2 if labels is None else labels
    return Examples([f"train/{number}" for number in range(len(texts))], texts, pairs, labels, ("no", "yes"))


def recipe_of(**options: Any) -> Recipe:
    return Recipe(output_dir="out", finetune={"path": "sample", "init": "a/model", **options})


def write_rows(file: Path, rows: list[dict[str, Any]]) -> str:
    """Rows as JSONL, CSV, TSV or Parquet, by the file's ending."""
    if file.suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    elif file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        pd.DataFrame(rows).to_csv(file, index=False, sep="\t" if file.suffix == ".tsv" else ",")
    return str(file)


TAGGED = "-DOCSTART- -X- O\n\nMira NNP B-PER\nsaw VBD O\n1\u00a0000 CD O\n\nOslo\tNNP\tB-LOC\n \n\n# SYM O"


@pytest.mark.parametrize("name", ["train.txt", "train.conll"])
def test_words_with_tags_are_read_from_conll_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TAGGED)
    for place in (tmp_path, tmp_path / name):
        read = read_examples(Finetune(path=str(place), task="tokens"), "train")
        assert read.texts == [["Mira", "saw", "1\u00a0000"], ["Oslo"], ["#"]]
        assert read.classes == ("B-LOC", "B-PER", "O")
        assert [labels.tolist() for labels in read.labels] == [[1, 2, 2], [0], [2]]


def test_comments_before_sentences_are_no_words(tmp_path: Path) -> None:
    text = "# id 5239\tdomain=en\nMira _ _ B-PER\n# _ _ O\n\n# sent_id = 2\n# newdoc\n# _ _ O\nsaw _ _ O\n"
    (tmp_path / "words.txt").write_text(text)
    read = read_examples(Finetune(path=str(tmp_path / "words.txt"), task="tokens"), "train")
    assert (read.texts, read.classes) == ([["Mira", "#"], ["#", "saw"]], ("B-PER", "O"))


def test_a_first_column_that_numbers_the_words_is_refused(tmp_path: Path) -> None:
    sentence = "1\tMira\tB-PER\t-\n2-3\tsaw\tO\t-\n4\tOslo\tB-LOC\t-\n"
    (tmp_path / "words.txt").write_text("\n".join([sentence] * 3))
    with pytest.raises(UserError, match="first column of .*words.txt numbers the words; put the word first"):
        read_examples(Finetune(path=str(tmp_path / "words.txt"), task="tokens"), "train")
    counting = "1 O\n2 O\n3 O\n"
    (tmp_path / "words.txt").write_text("\n".join([counting, counting, "Mira B-PER\n", counting]))
    assert len(read_examples(Finetune(path=str(tmp_path / "words.txt"), task="tokens"), "train").texts) == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Mira O\nsaw\n", "line 2 of .*words.txt has no tag: 'saw'"),
        ("Mira NNP O\nsaw O\n", "line 2 of .*words.txt has 2 columns, and those before have 3"),
        ("Mira O\n\n O\n", "line 3 of .*words.txt has no tag: 'O'"),
    ],
)
def test_a_word_without_a_tag_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(text)
    with pytest.raises(UserError, match=problem):
        read_examples(Finetune(path=str(tmp_path / "words.txt"), task="tokens"), "train")


def test_splits_in_whose_place_a_part_is_set_aside_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for split in ("train", "dev", "test"):
        write_rows(tmp_path / f"{split}.csv", [{"text": f"{split} {n}", "label": n % 2} for n in range(40)])
    path, own = str(tmp_path), {"validation_fraction": 0.2, "test_fraction": 0.2}
    read_parts(recipe_of(path=path, validation_split="validation"))
    assert not caplog.messages
    read_parts(recipe_of(path=path, **own))
    assert [message.rpartition("; ")[2] for message in caplog.messages] == [
        "finetune.test_fraction=0 uses that",
        "finetune.validation_split=validation uses that",
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        ([0, 1, 0], ("0", "1"), [0, 1, 0]),
        ([5, 3, 10], ("3", "5", "10"), [1, 0, 2]),
        (["good", "bad", "good"], ("bad", "good"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
    ],
)
def test_classes_are_the_values_found(
    suffix: str, labels: list[Any], classes: tuple[str, ...], numbers: list[int], tmp_path: Path
) -> None:
    rows = [{"body": f"text {number}", "stars": label} for number, label in enumerate(labels)]
    settings = Finetune(path=write_rows(tmp_path / f"a{suffix}", rows), text_column="body", label_column="stars")
    read = read_examples(settings, "train")
    assert (read.classes, read.labels.tolist()) == (classes, numbers)
    assert read.texts == ["text 0", "text 1", "text 2"]


@pytest.mark.parametrize(
    ("names", "labels", "numbers"),
    [
        (["bad", "good"], [0, 1], [0, 1]),
        (["good", "bad"], ["bad", "good"], [1, 0]),
        (["1", "2", "3"], [3, 1], [2, 0]),  # a name goes before a number
        (["-1", "0", "1"], [-1, 1], [0, 2]),
        (["1.0", "1.5", "2.0"], [2.0, 1.5, 1.0], [2, 1, 0]),
        (["1.0", "0.0"], [0.0, 1.0], [1, 0]),
        (["1", "0"], [0.0, 1.0], [1, 0]),
        (["3.1", "3.10", "3.2"], ["3.10", "3.2"], [1, 2]),
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_the_recipe_names_the_classes(
    names: list[str], labels: list[Any], numbers: list[int], ending: str, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / f"a.{ending}", [{"text": f"t {label}", "label": label} for label in labels])
    read = read_examples(Finetune(path=path, label_names=names), "train")
    assert (read.classes, read.labels.tolist()) == (tuple(names), numbers)


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_labels_and_texts_that_look_like_dates_stay_text(ending: str, tmp_path: Path) -> None:
    rows = [{"text": f"2019-01-0{day}", "label": f"202{day % 2}-01-01"} for day in range(1, 5)]
    read = read_examples(Finetune(path=write_rows(tmp_path / f"a.{ending}", rows)), "train")
    assert (read.texts[0], read.classes, read.labels.tolist()) == (
        "2019-01-01", ("2020-01-01", "2021-01-01"), [1, 0, 1, 0],
    )  # fmt: skip


def test_the_dataset_names_the_classes(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["dull", "fine"])})
    data = Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    data.to_parquet(str(tmp_path / "train.parquet"))
    for path in (tmp_path, tmp_path / "train.parquet"):
        read = read_examples(Finetune(path=str(path)), "train")
        assert (read.classes, read.labels.tolist()) == (("dull", "fine"), [1, 0])
    renamed = read_examples(Finetune(path=str(tmp_path), label_names=["bad", "good"]), "train")
    assert (renamed.classes, renamed.labels.tolist()) == (("bad", "good"), [1, 0])


def test_the_recipe_may_reorder_the_datasets_names(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["spam", "ham", "unsure"])})
    Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features).to_parquet(tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    read = read_examples(Finetune(path=path, label_names=["ham", "spam"]), "train")
    assert (read.classes, read.labels.tolist()) == (("ham", "spam"), [1, 0])
    other = ["spam", "fine", "doubtful"]
    assert read_examples(Finetune(path=path, label_names=other), "train").labels.tolist() == [0, 1]
    with pytest.raises(
        UserError, match=r"label_names \(ham, junk\) does not match the dataset's names \(spam, ham, unsure\)"
    ):
        read_examples(Finetune(path=path, label_names=["ham", "junk"]), "train")
    with pytest.raises(
        UserError, match=r"label_names \(one, two\) does not match the dataset's names \(spam, ham, uns"
    ):
        read_examples(Finetune(path=path, label_names=["one", "two"]), "train")


def test_classes_that_the_recipe_renames_are_the_same_in_a_split_with_another_order(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    def write(split: str, names: list[str]) -> str:
        features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
        table = {"text": ["a", "b", "c"], "label": ["neg", "pos", "neg"] if "neg" in names else [0, 1, 0]}
        Dataset.from_dict(table, features=features).to_parquet(file := tmp_path / f"{split}.parquet")
        return str(file)

    training = write("training", ["neg", "pos"])
    files = {name: write(name, names) for name, names in (("same", ["neg", "pos"]), ("swapped", ["pos", "neg"]))}
    for label_names in (["bad", "good"], ["pos", "neg"], None):
        settings = Finetune(path=training, label_names=label_names)
        examples = read_examples(settings, "train")
        for file in files.values():
            read = read_examples(settings, "train", path=file, encoder=examples.encoder, key="evaluate")
            assert read.labels.tolist() == examples.labels.tolist()
    for label_names in (["bad", "good"], ["pos", "neg"]):
        settings = Finetune(path=training, label_names=label_names)
        encoder = read_examples(settings, "train").encoder
        with pytest.raises(UserError, match="its classes are named one, two, but those of the training split neg, pos"):
            read_examples(settings, "train", path=write("others", ["one", "two"]), encoder=encoder)


def test_hidden_labels_of_a_split_say_what_to_test_on_instead(tmp_path: Path) -> None:
    settings = Finetune(path=write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": label} for label in (0, 1)]))
    hidden = write_rows(tmp_path / "b.jsonl", [{"text": "t", "label": -1}])
    encoder = read_examples(settings, "train").encoder
    with pytest.raises(UserError, match=r"row 1 of train has a label outside .*-1 marks a hidden label"):
        read_examples(settings, "train", path=hidden, encoder=encoder, key="evaluate")


def test_a_test_file_without_labels_may_be_one_with_hidden_labels(tmp_path: Path) -> None:
    settings = Finetune(path=write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": label} for label in (0, 1)]))
    hidden = write_rows(tmp_path / "b.jsonl", [{"text": "t"}])
    encoder = read_examples(settings, "train").encoder
    with pytest.raises(UserError, match="rename the one with the labels to 'label', or, if they are hidden, set a par"):
        read_examples(settings, "train", path=hidden, encoder=encoder, key="evaluate")


def test_a_configuration_is_that_of_its_dataset_alone(tmp_path: Path) -> None:
    several, plain = tmp_path / "several", tmp_path / "plain"
    names = ("one", "two")
    for place in (*(several / name for name in names), plain):
        place.mkdir(parents=True)
        write_rows(place / "train.csv", [{"text": place.name, "label": number} for number in range(2)])
    listed = [f"- {{config_name: {name}, data_files: {name}/train.csv}}" for name in names]
    (several / "README.md").write_text("\n".join(["---", "configs:", *listed, "---"]))
    settings = Finetune(path=str(several), name="two")
    assert read_examples(settings, "train").texts == ["two", "two"]
    assert read_examples(settings, "train", path=str(plain)).texts == ["plain", "plain"]


def test_a_readme_names_files_of_its_own_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    write_rows(tmp_path / "diary.csv", [{"text": "private", "label": number} for number in range(2)])
    for file in ("../diary.csv", tmp_path / "diary.csv"):
        (tmp_path / "theirs" / "README.md").write_text(f"---\nconfigs:\n- config_name: a\n  data_files: {file}\n---\n")
        with pytest.raises(UserError, match=r"theirs/README.md names .*diary.csv, which is not in that folder"):
            read_examples(Finetune(path=str(tmp_path / "theirs")), "train")


def test_lists_of_0_and_1_of_equal_length_are_not_lists_of_classes(tmp_path: Path) -> None:
    rows = [{"text": "t", "label": row} for row in ([0, 1], [1, 0])]
    read = read_examples(Finetune(path=write_rows(tmp_path / "a.jsonl", rows), task="multi_label"), "train")
    assert read.labels.tolist() == [[0, 1], [1, 0]]
    ragged = write_rows(tmp_path / "b.jsonl", [{"text": "t", "label": row} for row in ([0, 1], [1])])
    with pytest.raises(UserError, match=r"row 2 of train has the label \[1\], not a 0 or 1 for each class \(0, 1\)"):
        read_examples(Finetune(path=ragged, task="multi_label"), "train", path=ragged, encoder=read.encoder)
    lists = read_examples(Finetune(path=ragged, task="multi_label"), "train")
    assert lists.labels.tolist() == [[1, 1], [0, 1]]
    longer = write_rows(tmp_path / "c.jsonl", [{"text": "t", "label": row} for row in ([0, 1], [1, 0, 0])])
    lists = read_examples(Finetune(path=longer, task="multi_label"), "train")
    assert lists.labels.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_lists_of_0_and_1_have_one_number_for_each_class(names: list[str] | None, tmp_path: Path) -> None:
    rows = [{"text": f"t{row}", "label": row} for row in ([0, 1, 0], [1, 1, 0], [0, 0, 1])]
    settings = Finetune(path=write_rows(tmp_path / "a.jsonl", rows), task="multi_label", label_names=names)
    read = read_examples(settings, "train")
    assert read.classes == tuple(names or ("0", "1", "2"))
    assert read.labels.tolist() == [row["label"] for row in rows]
    other = write_rows(tmp_path / "b.jsonl", [{"text": "t", "label": [0, 0, 1]}])
    assert read_examples(settings, "train", path=other, encoder=read.encoder).labels.tolist() == [[0, 0, 1]]
    with pytest.raises(UserError, match="labels are lists of 3 zeros and ones, but there are 2 classes"):
        read_examples(settings.model_copy(update={"label_names": ["a", "b"]}), "train")


def test_the_training_split_decides_what_numbers_mean(tmp_path: Path) -> None:
    stars = ["1", "2", "3"]
    path = write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": label} for label in (0, 1, 2)])
    other = write_rows(tmp_path / "b.jsonl", [{"text": "t", "label": label} for label in (1, 2)])
    settings = Finetune(path=path, label_names=stars)
    read = read_examples(settings, "train")
    assert read.labels.tolist() == [0, 1, 2]
    assert read_examples(settings, "train", path=other, encoder=read.subset([2, 0]).encoder).labels.tolist() == [1, 2]
    named = read_examples(settings, "train", path=other)  # these alone would be names
    assert named.labels.tolist() == [0, 1]
    with pytest.raises(UserError, match=r"outside the classes \(1, 2, 3\): 0"):
        read_examples(settings, "train", path=path, encoder=named.encoder)


@pytest.mark.parametrize(
    ("training", "test", "numbers"),
    [
        (["250.00", "250.0", "V58"], ["250.00", "250.0"], [1, 0]),
        (["3.10", "3.9", "dev"], ["3.10", "3.9"], [0, 1]),
        (["1.5", "2", "V58"], ["2", "1.5"], [1, 0]),
    ],
)
def test_names_that_look_like_numbers_are_names_in_every_split(
    training: list[str], test: list[str], numbers: list[int], tmp_path: Path
) -> None:
    files = {}
    for name, labels in {"train": training, "test": test}.items():
        files[name] = write_rows(tmp_path / f"{name}.csv", [{"text": f"t {label}", "label": label} for label in labels])
    settings = Finetune(path=files["train"])
    encoder = read_examples(settings, "train").encoder
    assert read_examples(settings, "train", path=files["test"], encoder=encoder).labels.tolist() == numbers
    other = write_rows(tmp_path / "other.csv", [{"text": "t", "label": "250.000"}])
    with pytest.raises(UserError, match=r"a label outside the classes \(.*\): '250.000'"):
        read_examples(settings, "train", path=other, encoder=encoder)


def test_null_and_na_are_ordinary_texts_and_classes_in_tables(tmp_path: Path) -> None:
    rows = [{"text": "null", "label": "None"}, {"text": "NA", "label": "Billing"}]
    for place in (write_rows(tmp_path / "train.csv", rows), str(tmp_path)):  # the file, and its folder
        read = read_examples(Finetune(path=place), "train")
        assert (read.texts, read.classes) == (["null", "NA"], ("Billing", "None"))
    numbers = write_rows(tmp_path / "b.tsv", [{"text": "t", "label": label} for label in (1, 0, "NA")])
    with pytest.raises(UserError, match="beside numbers there is the label 'NA', which usually marks a missing value"):
        read_examples(Finetune(path=numbers), "train")


@pytest.mark.parametrize("other", ["G\u00fct ", "G\u00dcT", "g\u00fct\u00a0", "gu\u0308t"])
def test_labels_that_look_alike_are_a_mistake(other: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": label} for label in ("g\u00fct", "bad", other)])
    with pytest.raises(UserError, match="differ in white space, capitals or Unicode's form of a letter alone; make"):
        build_task(Finetune(path=path), read_examples(Finetune(path=path), "train"))
    settings = Finetune(path=path, label_names=["g\u00fct", "bad", other])
    named = read_examples(settings, "train")
    assert named.labels.tolist() == [0, 1, 2] and len(build_task(settings, named).classes) == 3


def test_tags_that_look_alike_are_a_mistake_too(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Mira B-PER\nsaw O\nOslo b-per\n\nno O\n")
    settings = Finetune(path=str(tmp_path / "words.txt"), task="tokens")
    with pytest.raises(UserError, match="'B-PER' and 'b-per' differ in white space, capitals or"):
        build_task(settings, read_examples(settings, "train"))


def test_a_space_after_the_comma_of_a_csv_file_is_no_part_of_the_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text, label\n"one, two", good\nthree, "bad"\n')
    read = read_examples(Finetune(path=str(tmp_path / "a.csv")), "train")
    assert (read.texts, read.classes) == (["one, two", "three"], ("bad", "good"))
    (tmp_path / "a.tsv").write_text('text\tlabel\n "Well," he said\tgood\nno\tbad\n')  # there is no comma
    assert read_examples(Finetune(path=str(tmp_path / "a.tsv")), "train").texts == ['"Well," he said', "no"]


def test_a_quote_is_text_in_a_tsv_file_whose_lines_have_all_columns(tmp_path: Path) -> None:
    def read(content: str) -> tuple[list[str], list[str] | None]:
        (tmp_path / "a.tsv").write_text(content, encoding="utf-8-sig")
        settings = Finetune(path=str(tmp_path / "a.tsv"), text_pair_column="pair" if "pair" in content else None)
        examples = read_examples(settings, "train")
        return examples.texts, examples.pairs

    assert read('text\tlabel\n" a cute film\t1\nbad\t0\n"so-so\t1\n')[0] == ['" a cute film', "bad", '"so-so']
    assert read('text\tlabel\n"fine\t1\n\na screen of 5"\t0\n')[0] == ['"fine', 'a screen of 5"']
    rows = '1\t"We declare war.\t"We declared war," he said.\n0\t"Up" and "Down"\t"said ""no"""\n'  # MRPC has such rows
    assert read(f"label\ttext\tpair\n{rows}") == (
        ['"We declare war.', '"Up" and "Down"'],
        ['"We declared war," he said.', 'said "no"'],
    )
    assert read('"label"\t"text"\n"0"\t"one"\n"1"\t"two"\n')[0] == ["one", "two"]


def test_a_quote_that_joins_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('s\ttext\tlabel\nx\t"No war.\t"No war," he said\nbad\tfine\n')
    with pytest.raises(UserError, match="a.tsv has a quote in line 2 that joins two values"):
        read_examples(Finetune(path=str(tmp_path / "a.tsv")), "train")
    (tmp_path / "b.csv").write_text('text,label\n"he said \\"hi\\" to me",1\nbad,0\n')
    with pytest.raises(UserError, match="b.csv has a backslash before a quote in line 2: double the quote"):
        read_examples(Finetune(path=str(tmp_path / "b.csv")), "train")


def test_an_unclosed_quote_is_refused(tmp_path: Path) -> None:
    short = "short\n"  # a line without all columns: others, too, may be parts of a value in quotes
    (tmp_path / "a.tsv").write_text(f'text\tlabel\n" a cute film\t1\nbad\t0\n"so-so\t1\nfine\t1\n{short}')
    with pytest.raises(UserError, match="has an unclosed quote"):
        read_examples(Finetune(path=str(tmp_path / "a.tsv")), "train")
    (tmp_path / "title.tsv").write_text('title\ttext\tlabel\n"Up\tfine\t1\n"So-so\tdull\t0\nUp\tfine\t1\n' + short)
    for path in (tmp_path / "title.tsv", tmp_path / "t*.tsv"):  # in a column that is not asked for
        with pytest.raises(UserError, match="finetune.*title.tsv has an unclosed quote"):
            read_examples(Finetune(path=str(path)), "train")
    (tmp_path / "e.tsv").write_text(
        f'text\tlabel\n"fine\t1\nbad\t0\na screen of 5"\t1\n{short}'
    )  # it closes like a whole value
    with pytest.raises(UserError, match="has an unclosed quote"):
        read_examples(Finetune(path=str(tmp_path / "e.tsv")), "train")
    (tmp_path / "c.csv").write_text('text,label\na "good" film,1\n"great, it is,1\nbad,0\n"ok",1\nx,1\n')
    with pytest.raises(UserError, match="c.csv has an unclosed quote in the row that begins at line 3: .*line 5"):
        read_examples(Finetune(path=str(tmp_path / "c.csv")), "train")
    (tmp_path / "d.csv").write_text('text,label\n"Up" is good,1\n"it said ""no"",\n,1, and left",0\n')  # none is
    read = read_examples(Finetune(path=str(tmp_path / "d.csv")), "train")
    assert [text.split() for text in read.texts] == [
        ["Up", "is", "good"],
        ["it", "said", '"no",', ",1,", "and", "left"],
    ]
    rows = [{"text": 'he said "no",\n\tthen left', "label": 0}, {"text": "a\ttab", "label": 1}]
    read = read_examples(Finetune(path=write_rows(tmp_path / "b.tsv", rows)), "train")
    assert [text.split() for text in read.texts] == [row["text"].split() for row in rows]


@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_class_names_that_are_numbers_are_not_indices(task: str, tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Sequence, Value

    stars = ClassLabel(names=["1", "2", "3", "4", "5"])
    is_list = task == "multi_label"
    features = Features({"text": Value("string"), "label": Sequence(stars) if is_list else stars})
    labels = [[number] for number in range(5)] if is_list else list(range(5))
    Dataset.from_dict({"text": list("abcde"), "label": labels}, features=features).to_parquet(tmp_path / "a.parquet")
    read = read_examples(Finetune(path=str(tmp_path / "a.parquet"), task=task), "train")
    assert read.classes == ("1", "2", "3", "4", "5")
    assert read.labels.tolist() == (np.eye(5).tolist() if is_list else labels)


def test_a_label_missing_in_training_is_outside_the_classes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", [{"text": "t", "label": label} for label in (1, 2, 5)])
    other = write_rows(tmp_path / "b.csv", [{"text": "t", "label": 0}])
    settings = Finetune(path=path)
    training = read_examples(settings, "train")
    assert training.classes == ("1", "2", "5")
    with pytest.raises(UserError, match=r"outside the classes \(1, 2, 5\): 0"):
        read_examples(settings, "train", path=other, encoder=training.encoder)


def test_a_number_and_the_same_number_as_text_are_one_class(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": "t", "label": ["a", label]}) for label in ("1", "2")))
    read = read_examples(Finetune(path=str(path), task="multi_label"), "train")
    assert read.classes == ("1", "2", "a")
    rows = Rows("here", list("abcd"), list("abcd"), None, [1, "1", 2.0, "b"])
    encoder = LabelEncoder.fit(Finetune(path=str(path)), rows)
    assert encoder.classes == ("1", "2", "b")
    assert encoder.encode(rows).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("training", "test", "classes", "numbers"),
    [
        (["01", "02", "10"], ["02", "01"], ("01", "02", "10"), [1, 0]),
        (["01", "1", "2"], ["1", "01"], ("01", "1", "2"), [1, 0]),
        (["2", "10", "1"], ["10", "2"], ("1", "2", "10"), [2, 1]),
        (["1.0", "0.0"], ["0", "1"], ("0", "1"), [0, 1]),
        (["true", "false", "unknown"], ["true", "false"], ("false", "true", "unknown"), [1, 0]),
        (["1", "2", "1A"], ["2", "1"], ("1", "1A", "2"), [2, 0]),
    ],
)
def test_labels_in_csv_files_are_names_unless_all_are_numbers(
    training: list[str], test: list[str], classes: tuple[str, ...], numbers: list[int], tmp_path: Path
) -> None:
    for name, labels in (("a", training), ("b", test)):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(f"t{label},{label}\n" for label in labels))
    settings = Finetune(path=str(tmp_path / "a.csv"))
    read = read_examples(settings, "train")
    assert read.classes == classes
    other = read_examples(settings, "train", path=str(tmp_path / "b.csv"), encoder=read.encoder)
    assert other.labels.tolist() == numbers


def test_the_recipe_names_classes_of_csv_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,01\ny,02\n")
    read = read_examples(Finetune(path=str(tmp_path / "a.csv"), label_names=["01", "02", "03"]), "train")
    assert read.labels.tolist() == [0, 1]
    (tmp_path / "b.csv").write_text("text,label\nx,1\ny,0\n")
    read = read_examples(Finetune(path=str(tmp_path / "b.csv"), label_names=["bad", "good"]), "train")
    assert (read.classes, read.labels.tolist()) == (("bad", "good"), [1, 0])


def test_columns_without_a_name_are_mentioned_and_columns_of_one_name_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(",text,label,,\n0,good,yes,,\n1,bad,no, and more,\n2,worse,no,,\n")
    settings = Finetune(path=str(file))
    assert read_examples(settings, "train").texts == ["good", "bad", "worse"]
    assert (
        f"{file}: rows with values in columns without a name, which are not read: 1 (the first is row 2)" in caplog.text
    )
    caplog.clear()
    file.write_text(",text,label\n0,good,yes\n1,bad,no\n")  # as pandas numbers rows
    assert read_examples(settings, "train").texts == ["good", "bad"] and not caplog.messages
    file.write_text("text,label,text.1\ngood,yes,a\nbad,no,b\n")
    assert read_examples(settings, "train").texts == ["good", "bad"]
    file.write_text("text,label,text\ngood,yes,a\nbad,no,b\n")
    with pytest.raises(UserError, match="has two columns of the name text; give each a name of its own"):
        read_examples(settings, "train")


def test_columns_of_a_csv_file_are_bits(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,x,y\na,1,TRUE\nb,0,FALSE\n")
    settings = Finetune(path=str(tmp_path / "a.csv"), task="multi_label", label_column=["x", "y"])
    assert read_examples(settings, "train").labels.tolist() == [[1, 1], [0, 0]]


def test_numbers_are_indices_into_the_names_of_the_training_split(tmp_path: Path) -> None:
    settings, test = Finetune(path="sample"), tmp_path / "test.csv"
    test.write_text("text,label\na film,1\nanother,0\n")
    training = read_examples(settings, "train", limit=8)
    read = read_examples(settings, "train", path=str(test), encoder=training.encoder)
    assert read.labels.tolist() == [1, 0]


def test_the_embedded_corpus_has_class_names() -> None:
    read = read_examples(Finetune(path="sample"), "test", limit=5)
    assert read.classes == sample.CLASSES


def test_every_task_is_read(tmp_path: Path) -> None:
    rows = [
        {
            "a": "one",
            "b": "two",
            "score": 0.5,
            "tags": ["x", "z"],
            "x": 1,
            "y": 0,
            "w": ["U", "N"],
            "ner": ["O", "B-L"],
        },
        {"a": "three", "b": "four", "score": 4, "tags": [], "x": 0, "y": 1, "w": ["sat"], "ner": ["O"]},
    ]
    path = write_rows(tmp_path / "a.jsonl", rows)
    pairs = Finetune(path=path, task="regression", text_column="a", text_pair_column="b", label_column="score")
    read = read_examples(pairs, "train")
    assert (read.texts, read.pairs, read.labels.tolist()) == (["one", "three"], ["two", "four"], [0.5, 4.0])
    marked = write_rows(tmp_path / "b.jsonl", [row | {"a": "a<br />b", "b": "c<br />&amp; d"} for row in rows])
    read = read_examples(pairs, "train", path=marked)
    assert (read.texts[0], read.pairs[0]) == ("a\nb", "c\n& d")  # both are cleaned
    sets = read_examples(Finetune(path=path, task="multi_label", text_column="a", label_column="tags"), "train")
    assert (sets.classes, sets.labels.tolist()) == (("x", "z"), [[1, 1], [0, 0]])
    columns = Finetune(path=path, task="multi_label", text_column="a", label_column=["x", "y"])
    assert read_examples(columns, "train").labels.tolist() == [[1, 0], [0, 1]]
    words = read_examples(Finetune(path=path, task="tokens", text_column="w", label_column="ner"), "train")
    assert words.texts == [["U", "N"], ["sat"]]
    assert (words.classes, [row.tolist() for row in words.labels]) == (("B-L", "O"), [[1, 0], [1]])


def test_large_numbers_that_differ_little_stay_apart(tmp_path: Path) -> None:
    rows = [{"text": f"t{number}", "label": 1.7e9 + number} for number in range(60)]
    read = read_examples(Finetune(path=write_rows(tmp_path / "a.jsonl", rows), task="regression"), "train")
    assert read.labels.tolist() == [row["label"] for row in rows]


@pytest.mark.parametrize("limit", [50, 100, 200])
def test_a_limit_takes_both_of_two_classes_that_alternate(limit: int, tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": ["no", "yes"][number % 2]} for number in range(400)]
    read = read_examples(Finetune(path=write_rows(tmp_path / "a.csv", rows)), "train", limit=limit)
    assert len(set(read.ids)) == limit
    assert 0.3 < read.labels.mean() < 0.7


def test_a_limit_spreads_evenly_over_the_split(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": int(number >= 50)} for number in range(100)]
    read = read_examples(Finetune(path=write_rows(tmp_path / "sorted.csv", rows)), "train", limit=10)
    assert read.labels.tolist() == [0] * 5 + [1] * 5
    assert [int(text.removeprefix("text ")) // 10 for text in read.texts] == list(range(10))  # one of each tenth


@pytest.mark.parametrize(
    ("options", "labels", "words"),
    [
        ({}, [0, -1, -1], "there is a label -1, which marks a hidden label on the Hub"),
        ({}, [0, -1, -1], 'name all classes: \'finetune.label_names=["-1", "0"]\''),
        ({"label_names": ["a", "b"]}, [0, 1, 2], "row 3 of train has a label outside the classes (a, b): 2"),
        ({"label_names": ["a", "b"]}, [0, 1, 2], "; whole numbers are places in finetune.label_names, counted from 0"),
        ({"label_names": ["a", "b"]}, ["a", "c", "c"], "2 rows (the first is row 2 of train) have a label outside"),
        ({}, [0.5, 1.0, 0.0], "numbers with fractions are for finetune.task=regression"),
        ({}, [1, 1, 1], "has one class only (1)"),
        ({}, [1, None, 0], "row 2 of train has no label"),
        ({"task": "regression"}, [1.0, math.nan, 2.0], "row 2 of train has no label"),
        ({"task": "regression"}, ["1", "2_5", "2"], "row 2 of train has a label that is not a finite number ('2_5')"),
        ({"task": "regression"}, ["1", "inf", "2"], "row 2 of train has a label that is not a finite number ('inf')"),
        ({"task": "regression"}, [2, 2, 2], "has one label only (2)"),
        ({"task": "tokens"}, ["A", "A B", "B"], "row 2 of train has not as many labels as words"),
        ({"task": "tokens"}, ["A", "A", "A"], "has one class only (A)"),
        ({"task": "multi_label", "label_names": ["a"]}, [["a"], ["b"], []], "row 2 of train has a label outside"),
        ({"task": "multi_label"}, [["a"], ["b", None], []], "row 2 of train has no label"),
        ({"task": "multi_label"}, [[], [], []], "no example has a label"),
        ({"task": "multi_label"}, ["sport", "sea change, sport", "x"], "label_column holds text ('sport')"),
        ({"task": "tokens"}, [1, 0, 1], "label_column holds int, not a tag for each word"),
        ({}, [["a"], ["b"], []], "label_column holds lists; set finetune.task to multi_label"),
        ({}, [{"start": 0}, {"start": 1}, None], "label_column holds {'start': 0}, but a label is a text, a number or"),
        ({"task": "multi_label"}, [[[0, 1]], [["a"]], []], "label_column holds [0, 1], but a label is"),
        ({"task": "regression"}, [1.0, 2e38, 1e39], "row 3 of train has a label that is not a finite number (1e+39)"),
    ],
)
def test_unusable_labels_are_refused(options: dict[str, Any], labels: list[Any], words: str, tmp_path: Path) -> None:
    rows = [{"text": f"t{number}", "label": label} for number, label in enumerate(labels)]
    with pytest.raises(UserError) as caught:
        read_parts(recipe_of(path=write_rows(tmp_path / "a.jsonl", rows), validation_fraction=0, **options))
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_unusable_texts_are_refused(tmp_path: Path) -> None:
    rows = [{"text": text, "label": number} for number, text in enumerate(["a", " ", None])]
    path = write_rows(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError, match=r"2 rows \(the first is row 2 of train\) have no text in 'text'"):
        read_examples(Finetune(path=path), "train")
    with pytest.raises(UserError, match="finetune.label_column: .* has no column 'stars'; its columns are text, label"):
        read_examples(Finetune(path=path, label_column="stars"), "train")
    with pytest.raises(UserError, match="finetune.text_pair_column: .* has no column 'b'"):
        read_examples(Finetune(path=path, text_pair_column="b"), "train")
    with pytest.raises(UserError, match=r"text_column holds int, not text \(row 1 of train\)"):
        read_examples(Finetune(path=path, text_column="label", label_column="text"), "train")
    with pytest.raises(UserError, match="text_column holds int, not words"):
        read_examples(Finetune(path=path, task="tokens", text_column="label", label_column="text"), "train")
    words = write_rows(tmp_path / "words.jsonl", [{"text": ["a", None], "label": ["O", "B-X"]}])
    with pytest.raises(UserError, match="text_column has NoneType among its words"):
        read_examples(Finetune(path=words, task="tokens"), "train")


def test_truth_values_beside_numbers_are_no_classes(tmp_path: Path) -> None:
    rows = [{"text": "t", "label": label} for label in (False, True, 0, 1)]
    with pytest.raises(UserError, match="some labels are true or false, and others numbers"):
        read_examples(Finetune(path=write_rows(tmp_path / "a.jsonl", rows)), "train")


def test_a_split_that_names_its_classes_otherwise_says_so(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features).to_parquet(str(tmp_path / "test.parquet"))
    path = write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": label} for label in (0, 1)])
    other = str(tmp_path / "test.parquet")
    settings = Finetune(path=path)
    with pytest.raises(UserError, match=r"these rows' classes have names \(neg, pos\)"):
        read_examples(settings, "train", path=other, encoder=read_examples(settings, "train").encoder)
    settings = Finetune(path=path, label_names=["neg", "pos"])
    encoder = read_examples(settings, "train").encoder
    assert read_examples(settings, "train", path=other, encoder=encoder).labels.tolist() == [0, 1]


def test_labels_of_bytes_are_refused(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_dict({"text": ["a", "b"], "label": [b"x", b"y"]}).to_parquet(str(tmp_path / "train.parquet"))
    with pytest.raises(UserError, match="label_column holds bytes"):
        read_examples(Finetune(path=str(tmp_path / "train.parquet")), "train")


def test_the_key_that_names_a_column_of_the_training_file_is_not_advised_for_another_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "test.jsonl", [{"body": "a", "label": 0}])
    with pytest.raises(
        UserError, match="^evaluate.path: .* no column 'text'; .*; rename the one with the texts to 'text'"
    ):
        read_examples(Finetune(path="sample"), "train", path=path, key="evaluate")


def test_another_split_is_read_with_the_training_splits_encoder(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": "b"}])
    settings = Finetune(path="sample")
    encoder = LabelEncoder("classification", ("a", "b"))
    assert read_examples(settings, "train", path=path, encoder=encoder).labels.tolist() == [1]
    with pytest.raises(UserError, match="outside the classes"):
        read_examples(settings, "train", path=path, encoder=replace(encoder, classes=("a", "c")))


def test_a_quote_that_swallows_the_second_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('label,text,pair\n0,a,b\n1,"open,b\n0,a,b\n1,a,shut"\n0,a,b\n')
    with pytest.raises(UserError, match="a.csv has an unclosed quote in the row that begins at line 3: .*line 5"):
        read_examples(Finetune(path=str(tmp_path / "a.csv"), text_pair_column="pair"), "train")
    lines = ["label\ttext\tpair", *["0\ta\tb"] * 150, '1\t"open\tb', "0\ta\tb", '1\ta\tshut"', "", "0\ta", "0\ta\tb"]
    (tmp_path / "b.tsv").write_text("\n".join(lines))
    with pytest.raises(UserError, match="line 152: .*; or mend line 156, which has 2 columns and the header 3"):
        read_examples(Finetune(path=str(tmp_path / "b.tsv"), text_pair_column="pair"), "train")


def test_rows_without_all_values_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text('label,text,pair\n0,a,b\n\n1,"one\nline"\n0,a,"two, and\nmore"\n1,a\n')
    read = read_examples(Finetune(path=str(tmp_path / "a.csv"), text_pair_column="pair"), "train")
    assert read.pairs == ["b", "", "two, and\nmore", ""]
    assert "fewer values than the header, which are read as if the last were empty: 2 (the first is in line 4)" in (
        caplog.text
    )
