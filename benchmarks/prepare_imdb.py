"""Compare `prepare` on all of IMDB with the tokenizer alone and an in-memory builder; prints one JSON line.

    python benchmarks/prepare_imdb.py [FOLDER OR HUB ID] [COPIES] [ROUNDS]     (default: stanfordnlp/imdb 1 3)

Each measurement is a process of its own, so its peak memory (with its worker processes') is its own. They take turns;
medians are reported. COPIES repeats the corpus, with each copy's texts made different.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

ROW_GROUP = 1000


def write_copies(path: str, copies: int, folder: str) -> None:
    """The texts that recipe imdb-mini-cpu pretrains on, `copies` times, and those it holds out, as Parquet.

    A number in front of each text keeps copies from being duplicates. Row groups are as small as `datasets` makes them:
    a reader holds a few, so their size, not the corpus's, adds to the memory.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from bertpre.data.corpus import read_documents

    for name, split, times in (("train", "train+unsupervised", copies), ("test", "test", 1)):
        texts = list(read_documents(path, split=split))
        with pq.ParquetWriter(f"{folder}/{name}.parquet", pa.schema([("text", pa.string())])) as writer:
            for copy in range(times):
                writer.write_table(
                    pa.table({"text": [f"{copy} {text}" if copy else text for text in texts]}), ROW_GROUP
                )


def prepare(folder: str) -> dict[str, float]:
    """bertpre: reading, cleaning, duplicates, vocabulary, sentences, encoding, checksums, audit, pairs."""
    from bertpre.commands.prepare import prepare
    from bertpre.recipe import load_recipe

    with tempfile.TemporaryDirectory() as output_dir:
        overrides = [f"corpus.path={folder}", "corpus.split=train", f"output_dir={output_dir}/run"]
        start = time.perf_counter()
        figures = prepare(load_recipe("imdb-mini-cpu", overrides))
        seconds = time.perf_counter() - start
        shutil.copytree(f"{output_dir}/run/tokenizer", Path(folder) / "tokenizer", dirs_exist_ok=True)
    return {"seconds": seconds, "tokens": figures["tokens"]}


def tokenizer_alone(folder: str) -> dict[str, float]:
    """`encode_batch_fast` of the tokenizers library on the same texts, in memory, on all cores."""
    from tokenizers import Tokenizer

    texts = read_texts_of(folder)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer/tokenizer.json")
    start, tokens = time.perf_counter(), 0
    for first in range(0, len(texts), 1000):
        encodings = tokenizer.encode_batch_fast(texts[first : first + 1000], add_special_tokens=False)
        tokens += sum(len(encoding.ids) for encoding in encodings)
    return {"seconds": time.perf_counter() - start, "tokens": tokens}


def in_memory(folder: str) -> dict[str, float]:
    """A quickly written script: all texts in a list, sentences at ". ", one tokenizer call each, Python lists."""
    from transformers import BertTokenizer

    tokenizer = BertTokenizer.from_pretrained(f"{folder}/tokenizer")
    start = time.perf_counter()
    texts = read_texts_of(folder)
    sentences = [text.split(". ") for text in texts]
    ids = [[tokenizer.encode(sentence, add_special_tokens=False) for sentence in document] for document in sentences]
    return {"seconds": time.perf_counter() - start, "tokens": sum(len(part) for document in ids for part in document)}


def read_texts_of(folder: str) -> list[str]:
    """The texts of the Parquet file that `write_copies` made."""
    import pyarrow.parquet as pq

    return pq.read_table(f"{folder}/train.parquet").column("text").to_pylist()


def measured(name: str, folder: Path) -> dict[str, float]:
    """Run one of the functions in its own process; adds its peak memory, with its workers', in MB."""
    code = f"import json, benchmarks.prepare_imdb as b; print(json.dumps(b.{name}({str(folder)!r})))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory(psutil.Process(process.pid)))
            time.sleep(0.5)
        figures = json.loads(process.stdout.read().splitlines()[-1])
    return figures | {"peak_memory_mb": peak / 1e6}


def memory(process: psutil.Process) -> int:
    """Memory of a process and of those it started, in bytes; shared memory counts once."""
    total = 0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += member.memory_full_info().pss
    return total


def main(path: str, copies: int, rounds: int) -> None:
    """Measure and print."""
    names = ("prepare", "tokenizer_alone") + (("in_memory",) if copies == 1 else ())
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        code = f"import benchmarks.prepare_imdb as b; b.write_copies({path!r}, {copies}, {folder!r})"
        subprocess.run([sys.executable, "-c", code], check=True)
        for _ in range(rounds):
            for name in names:
                figures[name].append(measured(name, Path(folder)))
    line = {"benchmark": "prepare_imdb", "copies": copies, "rounds": rounds, "cores": len(os.sched_getaffinity(0))}
    for name, rows in figures.items():
        medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        line[name] = {key: round(value, 1) for key, value in medians.items()}
        line[name]["tokens_per_second"] = round(medians["tokens"] / medians["seconds"])
    own = line["prepare"]["tokens_per_second"]
    line["prepare_relative_to"] = {name: round(own / line[name]["tokens_per_second"], 2) for name in names}
    print(json.dumps(line))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        arguments[0] if arguments else "stanfordnlp/imdb",
        int(arguments[1]) if len(arguments) > 1 else 1,
        int(arguments[2]) if len(arguments) > 2 else 3,
    )
