"""GLUE (Wang et al. 2019): its nine tasks, from the Hub or from the original folders of TSV files."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertpre.console import log_once
from bertpre.data.corpus import Table
from bertpre.errors import UserError


@dataclass(frozen=True)
class GlueTask:
    """A task: its columns on the Hub, official metrics, splits it is measured on; folder and columns of its TSV files.

    `tsv_columns` are names in the header, which is `tsv_header` if the file has none; the last one is the label.
    """

    folder: str
    columns: tuple[str, ...]
    tsv_columns: tuple[str, ...]
    classes: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    splits: tuple[str, ...] = ("validation",)
    tsv_labels: tuple[str, ...] = ("0", "1")
    tsv_header: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Its `finetune.task`."""
        return "classification" if self.classes else "regression"


PAIR = ("sentence1", "sentence2", "label")
ENTAILED = ("entailment", "not_entailment")
INFERENCE = ("entailment", "neutral", "contradiction")
SAME = ("not_duplicate", "duplicate")
MATCHED = ("validation_matched", "validation_mismatched")
TASKS = {
    "cola": GlueTask(
        "CoLA",
        ("sentence", "label"),
        ("sentence", "label"),
        ("unacceptable", "acceptable"),
        ("matthews",),
        tsv_header=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueTask("SST-2", ("sentence", "label"), ("sentence", "label"), ("negative", "positive")),
    "mrpc": GlueTask(
        "MRPC", PAIR, ("#1 String", "#2 String", "Quality"), ("not_equivalent", "equivalent"), ("f1", "accuracy")
    ),
    "stsb": GlueTask("STS-B", PAIR, ("sentence1", "sentence2", "score"), (), ("pearson", "spearman")),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2", "label"),
        ("question1", "question2", "is_duplicate"),
        SAME,
        ("f1", "accuracy"),
    ),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis", "label"),
        ("sentence1", "sentence2", "gold_label"),
        INFERENCE,
        splits=MATCHED,
        tsv_labels=INFERENCE,
    ),
    "qnli": GlueTask(
        "QNLI", ("question", "sentence", "label"), ("question", "sentence", "label"), ENTAILED, tsv_labels=ENTAILED
    ),
    "rte": GlueTask("RTE", PAIR, PAIR, ENTAILED, tsv_labels=ENTAILED),
    "wnli": GlueTask("WNLI", PAIR, PAIR, ("not_entailment", "entailment")),
}
FILES = {
    "train": "train.tsv",
    "validation": "dev.tsv",
    "validation_matched": "dev_matched.tsv",
    "validation_mismatched": "dev_mismatched.tsv",
}


@dataclass(frozen=True)
class GlueFile:
    """A split of a task from its TSV file, under the Hub's column names."""

    task: GlueTask
    file: Path
    chosen: tuple[str, ...]
    features: None = None

    @property
    def column_names(self) -> tuple[str, ...]:
        """The Hub's columns."""
        return self.task.columns

    def select_columns(self, columns: list[str]) -> "GlueFile":
        """The same file with only these columns."""
        return GlueFile(self.task, self.file, tuple(columns))

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        """Each line as a batch; raises UserError for a line with too few fields.

        The original QQP has a few such lines, which are skipped. MRPC's files begin with a byte order mark.
        """
        short = 0
        with self.file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
            header = list(self.task.tsv_header) or next(reader, [])
            if missing := [column for column in self.task.tsv_columns if column not in header]:
                raise UserError(f"{self.file} has no column {missing[0]!r}; its columns are {', '.join(header)}")
            places = [header.index(column) for column in self.task.tsv_columns]
            for fields in reader:
                if len(fields) <= max(places):
                    if self.task is TASKS["qqp"]:
                        short += 1
                        continue
                    raise UserError(f"line {reader.line_num} of {self.file} has only {len(fields)} fields")
                values = [fields[place] for place in places]
                row = dict(zip(self.task.columns, [*values[:-1], self.label(values[-1], reader.line_num)], strict=True))
                yield {name: [row[name]] for name in self.chosen}
        if short:
            log_once(f"{self.file}: {short} lines with too few fields are left out")

    def label(self, text: str, line: int) -> int | float:
        """The Hub's number for a label."""
        if not self.task.classes:
            try:
                return float(text)
            except ValueError:
                raise UserError(f"line {line} of {self.file}: the score {text!r} is not a number") from None
        if text not in self.task.tsv_labels:
            raise UserError(
                f"line {line} of {self.file}: the label {text!r} is not one of {', '.join(self.task.tsv_labels)}"
            )
        return self.task.tsv_labels.index(text)


def is_glue(path: str) -> bool:
    """Whether a Hub id or a folder is all of GLUE, which has no columns of its own."""
    return path == "nyu-mll/glue" or (Path(path) / "CoLA").is_dir()


def open_glue(path: str, name: str | None, split: str, key: str) -> Table | None:
    """A split of a task if `path` is a folder of the original TSV files; None otherwise."""
    task = TASKS.get(name or "")
    if task is None or not (file := Path(path) / task.folder / FILES.get(split, f"{split}.tsv")).is_file():
        return None
    return Table(GlueFile(task, file, task.columns), path, name, split, key)
