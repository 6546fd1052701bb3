"""GLUE's tasks from the original TSV files."""

from pathlib import Path

import pytest

from bertpre.errors import UserError
from bertpre.finetuning.examples import read_examples
from bertpre.finetuning.glue import TASKS
from bertpre.recipe import Finetune

HEADERS = {  # of the original files; CoLA's have none
    "cola": "",
    "sst2": "sentence\tlabel",
    "mrpc": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
    "wnli": "index\tsentence1\tsentence2\tlabel",
}


def write_glue(folder: Path, count: int = 24) -> Path:
    """Made-up files of all tasks in the original layout; quotation marks are ordinary characters there."""
    for name, task in TASKS.items():
        (folder / task.folder).mkdir(parents=True)
        for file in ("train", *("dev" + split.removeprefix("validation") for split in task.splits)):
            lines = [HEADERS[name]] if HEADERS[name] else []
            for number in range(count):
                lines.append("\t".join(fields(name, number)))
            if name == "qqp":
                lines.append("7\tcut off")
            mark = "\ufeff" if name == "mrpc" else ""  # as in the original
            (folder / task.folder / f"{file}.tsv").write_text(mark + "\n".join(lines) + "\n")
    return folder


def fields(name: str, number: int) -> list[str]:
    """A line of a task's file."""
    task = TASKS[name]
    label = task.tsv_labels[number % len(task.tsv_labels)] if task.classes else f"{number % 5}.5"
    one, other = f'A fine film "{number}', f"A dull one {number}"
    if name == "cola":
        return ["gj04", label, "*", one]
    columns = HEADERS[name].split("\t")
    texts = dict(zip(task.tsv_columns, [one, other] if len(task.columns) == 3 else [one], strict=False))
    texts[task.tsv_columns[-1]] = label
    return [texts.get(column, "-") for column in columns]


@pytest.mark.parametrize("name", TASKS)
def test_a_tsv_file_gives_the_columns_of_the_hub(name: str, tmp_path: Path) -> None:
    task, folder = TASKS[name], write_glue(tmp_path / "glue")
    *texts, label = task.columns
    settings = Finetune(
        path=str(folder), name=name, task=task.kind, text_column=texts[0],
        text_pair_column=texts[1] if len(texts) > 1 else None, label_column=label, label_names=task.classes or None,
    )  # fmt: skip
    read = read_examples(settings, task.splits[-1], path=str(folder))
    assert len(read) == 24
    assert read.texts[3] == 'A fine film "3'
    assert (None if read.pairs is None else read.pairs[3]) == (None if len(texts) == 1 else "A dull one 3")
    expected = [number % len(task.classes) if task.classes else number % 5 + 0.5 for number in range(24)]
    assert read.labels.tolist() == expected


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = write_glue(tmp_path / "glue")
    (folder / "RTE" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tone\n")
    settings = Finetune(path=str(folder), name="rte", text_column="sentence1", text_pair_column="sentence2")
    with pytest.raises(UserError, match="line 2 of .*RTE/train.tsv has only 2 fields"):
        read_examples(settings, "train")
    (folder / "RTE" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tone\ttwo\tmaybe\n")
    with pytest.raises(UserError, match="the label 'maybe' is not one of entailment, not_entailment"):
        read_examples(settings, "train")
    scores = Finetune(
        path=str(folder), name="stsb", task="regression", text_column="sentence1", text_pair_column="sentence2"
    )
    header = (folder / "STS-B" / "train.tsv").read_text().splitlines()[0]
    (folder / "STS-B" / "train.tsv").write_text(header + "\n" + "\t".join([*"0123456", "one", "two", "high"]) + "\n")
    with pytest.raises(UserError, match="line 2 of .*STS-B/train.tsv: the score 'high' is not a number"):
        read_examples(scores, "train")
