"""Is next-sentence prediction worth it? The same recipe with NSP, without pairs and with SOP, then tasks on pairs.

python benchmarks/pair_objectives.py WIKIPEDIA OUTPUT_DIR [--steps N | --minutes M] [--task FOLDER ...] [KEY=VALUE ...]

WIKIPEDIA is a folder in the layout of wikimedia/wikipedia. Each objective pretrains recipe wikipedia-mini-cpu for the
same number of steps or the same time, then three seeds are fine-tuned on each task. KEY=VALUE are keys of the recipe:
`model.hidden_size=128`, `finetune.epochs=5`. A finished part is not repeated and an interrupted one resumes, so the
same command may be given again. Prints one JSON line.

Task `article`: do two passages come from the same article? A quarter of the articles is kept for it and is in no
pretraining text. The passages are from different paragraphs, none from the first. Two pairs whose second passages are
about as long either both keep them or exchange them, so that every passage occurs once and lengths tell nothing:
`audit` is the AUC of boosted trees that see lengths and positions alone (chance: 0.5). It is close to what NSP asks.
`--task`: a folder with MRPC (Dolan and Brockett 2005, msr-para-*.tsv) or SICK (Marelli et al. 2014, SICK_*.txt), as in
data/para/msr and data/sts/sick2014 of the repository brmson/dataset-sts. Not stored here.

Baselines: the majority class; a bag of words of both texts (`evaluate`'s, which cannot compare them); how many words
the two share (logistic regression on the cosine of TF-IDF vectors and the shares of common words); and the same network
without pretraining.
"""

import argparse
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertpre
from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import read_documents
from bertpre.data.sentences import split_sentences
from bertpre.hardware import cpu_name, measured_flops

RECIPE, OBJECTIVES, SEEDS = "wikipedia-mini-cpu", ("nsp", "none", "sop"), 3
TASK_SHARE = 25  # per cent of the articles
PARTS = {"train": 70, "validation": 10, "test": 20}  # per cent of those
PASSAGE_WORDS, PAIRS_OF_ARTICLE = range(20, 51), 10
# The files of the three parts, and the columns of both texts and the label.
PUBLIC = {
    "mrpc": (("msr-para-train.tsv", "msr-para-val.tsv", "msr-para-test.tsv"), ("#1 String", "#2 String", "Quality")),
    "sick": (
        ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"),
        ("sentence_A", "sentence_B", "entailment_judgment"),
    ),
}
FINETUNE = {
    "text_pair_column": "text_pair", "seeds": SEEDS, "epochs": 3, "batch_size": 32, "max_length": 128,
    "optimizer": "muon", "learning_rate": 1e-3,
}  # fmt: skip
Row = dict[str, Any]


# ---- data ------------------------------------------------------------------------------------------------------------


def write_rows(file: Path, rows: list[Row]) -> None:
    """Write JSON lines."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def read_rows(file: Path) -> list[Row]:
    """Read JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def passages(text: str) -> list[tuple[str, float]]:
    """Runs of whole sentences, one from the start of each long enough paragraph, and where that is, from 0 to 1.

    The first paragraph is left out: its style reveals its position.
    """
    paragraphs, found = [line for line in clean_text(text).split("\n") if line.strip()], []
    for number, paragraph in enumerate(paragraphs[1:], start=1):
        words: list[str] = []
        for sentence in split_sentences(paragraph):
            words += sentence.split()
            if len(words) >= PASSAGE_WORDS.start:
                break
        if len(words) in PASSAGE_WORDS:
            found.append((" ".join(words), number / len(paragraphs)))
    return found


def article_pairs(articles: list[str], generator: random.Random) -> list[Row]:
    """Pairs of passages, labelled `same` where both are from one article."""
    couples = []
    for article, text in enumerate(articles):
        found = passages(text)
        generator.shuffle(found)
        several = zip(found[::2], found[1::2], strict=False)
        couples += [(article, *couple) for couple, _ in zip(several, range(PAIRS_OF_ARTICLE), strict=False)]
    couples.sort(key=lambda couple: (len(couple[2][0].split()), len(couple[2][0])))
    rows = []
    for (article, first, second), (other, third, fourth) in zip(couples[::2], couples[1::2], strict=False):
        if article == other:
            continue
        exchanged = generator.random() < 0.5
        for one, two in ((first, fourth if exchanged else second), (third, second if exchanged else fourth)):
            texts = {"text": one[0], "text_pair": two[0], "label": "other" if exchanged else "same"}
            rows.append(texts | {"position": one[1], "position_pair": two[1]})
    generator.shuffle(rows)
    return rows


def drawn(text: str, salt: str) -> int:
    """A number from 0 to 99 that depends on the text alone, so that equal articles stay together."""
    return int.from_bytes(hashlib.sha256((salt + text).encode()).digest()[:8]) % 100


def part_of(text: str) -> str:
    """The part that an article belongs to: `pretraining`, or one of the task's."""
    if drawn(text, "task") >= TASK_SHARE:
        return "pretraining"
    limits = np.cumsum(list(PARTS.values()))
    return list(PARTS)[int(np.searchsorted(limits, drawn(text, "part"), side="right"))]


def build_data(wikipedia: str, folder: Path, name: str | None = "20231101.en") -> None:
    """Write the pretraining text and the parts of task `article`; `name` is the configuration of the data set."""
    articles: dict[str, list[str]] = {"pretraining": [], **{part: [] for part in PARTS}}
    for text in read_documents(wikipedia, name=name, split="train"):
        articles[part_of(text)].append(text)
    task = folder / "tasks" / "article"
    task.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(PARTS):
        write_rows(task / f"{part}.jsonl", article_pairs(articles[part], random.Random(number)))
    write_rows(folder / "pretraining.jsonl", [{"text": text} for text in articles["pretraining"]])


def convert_public(source: Path, tasks: Path) -> None:
    """Write a public set as JSON lines; raises SystemExit for a folder that holds none."""
    for name, (files, columns) in PUBLIC.items():
        if all((source / file).exists() for file in files):
            (tasks / name).mkdir(parents=True, exist_ok=True)
            for part, file in zip(PARTS, files, strict=True):
                write_rows(tasks / name / f"{part}.jsonl", list(read_table(source / file, columns)))
            return
    raise SystemExit(f"--task: {source} holds none of {', '.join(PUBLIC)}")


def read_table(file: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a file with tabs, whose quotation marks are part of the text."""
    header, *lines = file.read_text(encoding="utf-8-sig").splitlines()
    places = [header.split("\t").index(column) for column in columns]
    for line in filter(None, lines):
        yield dict(zip(("text", "text_pair", "label"), np.array(line.split("\t"))[places].tolist(), strict=True))


# ---- what a task asks, without a network -----------------------------------------------------------------------------


def form(row: Row) -> list[float]:
    """Lengths and positions of a pair's passages, and how they differ."""
    words = [len(row[name].split()) for name in ("text", "text_pair")]
    characters = [len(row[name]) for name in ("text", "text_pair")]
    places = [row.get("position", 0.0), row.get("position_pair", 0.0)]
    return [value for pair in (words, characters, places) for value in (*pair, pair[0] - pair[1])]


def form_auc(training: list[Row], test: list[Row]) -> float:
    """AUC of boosted trees that see lengths and positions; of several classes, the mean of each against the rest."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    trees = HistGradientBoostingClassifier(max_iter=50, random_state=0)
    probabilities = trees.fit([form(row) for row in training], [row["label"] for row in training]).predict_proba(
        [form(row) for row in test]
    )
    scores = probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities
    return float(roc_auc_score([row["label"] for row in test], scores, multi_class="ovr"))


def shared_words_accuracy(training: list[Row], test: list[Row]) -> float:
    """Test accuracy of a logistic regression on how similar the two texts' words are."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    vectorizer = TfidfVectorizer(sublinear_tf=True).fit([text for row in training for text in both(row)])

    def similarities(rows: list[Row]) -> np.ndarray:
        one, other = (vectorizer.transform([both(row)[side] for row in rows]) for side in (0, 1))
        cosine = np.asarray(one.multiply(other).sum(1)).ravel()
        sets = [[set(text.lower().split()) for text in both(row)] for row in rows]
        shared = [[len(a & b) / len(a), len(a & b) / len(b), len(a & b) / len(a | b)] for a, b in sets]
        return np.column_stack([cosine, shared])

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(similarities(training), [row["label"] for row in training])
    return float(model.score(similarities(test), [row["label"] for row in test]))


def both(row: Row) -> tuple[str, str]:
    """The two texts of a pair."""
    return row["text"], row["text_pair"]


def task_facts(task: Path) -> dict[str, Any]:
    """Size and baselines of a task."""
    training, validation, test = (read_rows(task / f"{part}.jsonl") for part in PARTS)
    return {
        "examples": [len(training), len(validation), len(test)],
        "majority_class": max(Counter(row["label"] for row in test).values()) / len(test),
        "audit": round(form_auc(training, test), 4),
        "shared_words": round(shared_words_accuracy(training, test), 4),
    }


# ---- networks --------------------------------------------------------------------------------------------------------


def pretrain(output: Path, objective: str, limits: list[str], keys: list[str]) -> "bertpre.Run":
    """Pretrain with one objective, or open the finished run."""
    paths = [f"output_dir={output / objective}", f"corpus={json.dumps({'path': str(output / 'pretraining.jsonl')})}"]
    own = [key for key in keys if not key.startswith("finetune.")]
    if objective != OBJECTIVES[0]:
        own.append(f"data.path={output / OBJECTIVES[0]}")  # the same tokens, prepared once
    return bertpre.run(bertpre.load_recipe(RECIPE, [*paths, f"pairs.kind={objective}", *limits, *own]))


def save_untrained(run: "bertpre.Run", folder: Path) -> Path:
    """Save a network like the run's with random weights, and its tokenizer."""
    if not folder.exists():
        torch.manual_seed(0)
        type(run.model)(run.model.config).save_pretrained(folder)
        run.tokenizer.save_pretrained(folder)
    return folder


def fine_tune(output: Path, start: Path, task: Path, keys: list[str]) -> dict[str, Any]:
    """Fine-tune and test three seeds on a task; returns the test results."""
    architecture = bertpre.load_recipe(RECIPE, [key for key in keys if key.startswith("model.")]).model.architecture
    settings = FINETUNE | {
        "path": str(task / "train.jsonl"), "validation_path": str(task / "validation.jsonl"), "init": str(start),
        "pooling": "mean" if architecture == "modern" else "cls",
    }  # fmt: skip
    overrides = [
        f"output_dir={output}", "corpus=null", f"finetune={json.dumps(settings)}",
        f"evaluate={json.dumps({'path': str(task / 'test.jsonl')})}", *keys,
    ]  # fmt: skip
    return bertpre.run(bertpre.load_recipe(RECIPE, overrides)).results["evaluate"]


def rounded(measured: dict[str, Any]) -> dict[str, Any]:
    """What is printed of a task's test results."""
    over = measured["seeds"]["accuracy"]
    accuracies = {"mean": over["mean"], "std": over["std"], "seeds": over["values"]}
    return {name: np.round(value, 4).tolist() for name, value in accuracies.items()}


def pretraining_results(run: "bertpre.Run") -> dict[str, Any]:
    """What is printed of a pretraining."""
    results = run.results["pretrain"]
    validation = results["validation"]
    names = ("mlm_loss", "mlm_accuracy", "nsp_accuracy", "nsp_interval", "nsp_majority_share", "nsp_pairs")
    return {name: results[name] for name in ("steps", "tokens", "seconds", "parameters", "context_free_loss")} | {
        name: np.round(validation[name], 4).tolist() for name in names if name in validation
    }


def measure(wikipedia: str, output: Path, limits: list[str], sources: list[Path], keys: list[str]) -> dict[str, Any]:
    """Build the data, train every network, and return all results."""
    if not (output / "pretraining.jsonl").exists():
        build_data(wikipedia, output)
    for source in sources:
        convert_public(source, output / "tasks")
    runs = {objective: pretrain(output, objective, limits, keys) for objective in OBJECTIVES}
    starts = {objective: run.folder for objective, run in runs.items()}
    starts["not pretrained"] = save_untrained(runs["none"], output / "untrained")
    tasks: dict[str, dict[str, Any]] = {}
    for task in sorted((output / "tasks").iterdir()):
        tasks[task.name] = task_facts(task)
        for name, start in starts.items():
            measured = fine_tune(output / f"{task.name}, {name}", start, task, keys)
            tasks[task.name] |= {name: rounded(measured), "bag_of_words": measured["bag_of_words"]["accuracy"]}
    return {
        "benchmark": "pair_objectives",
        "processor": cpu_name(),
        "threads": torch.get_num_threads(),
        "fp32_gflops": round(measured_flops(torch.device("cpu"), torch.float32) / 1e9),
        "limits": limits,
        "keys": keys,
        "pretraining": {name: pretraining_results(run) for name, run in runs.items()},
        "tasks": tasks,
    }


def main() -> None:
    """Read the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wikipedia")
    parser.add_argument("output", type=Path)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--task", type=Path, action="append", default=[])
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--steps", type=int)
    limit.add_argument("--minutes", type=float)
    given = parser.parse_intermixed_args()
    limits = [f"training.budget={given.minutes}m"] if given.minutes else []
    if given.steps:
        limits = [f"training.max_steps={given.steps}", "training.budget=null"]
    with redirect_stdout(sys.stderr):
        results = measure(given.wikipedia, given.output.absolute(), limits, given.task, given.keys)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
