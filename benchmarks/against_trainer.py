"""Compare the held-out MLM loss of bertpre and of Trainer's defaults after equal time; prints one JSON line.

python benchmarks/against_trainer.py IMDB_FOLDER [MINUTES]        (default: 10 minutes each, one after the other)

Same text (IMDB, train and unsupervised), same tokenizer (16,384 words, learned by bertpre), same size (4 x 256):
- trainer: BertForMaskedLM, DataCollatorForLanguageModeling, Trainer with its defaults and a learning rate of 1e-4, on
  blocks of 128 tokens as run_mlm.py makes them;
- bert, modern: bertpre's recipe imdb-mini-cpu without pairs, in both architectures, exported to stock classes.
All are measured on the same blocks of held-out text with the same masks (15 %), by the same code.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training_step import hardware
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bertpre.data.store import open_shards

LENGTH, BLOCKS, BATCH = 128, 1000, 50
SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
VARIANTS = {"modern": ["model.intermediate_size=688"], "bert": ["model.intermediate_size=1024"]}


def bertpre(*arguments: object) -> None:
    """Run a command in its own process."""
    command = [sys.executable, "-c", "from bertpre.cli import main; main()", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def blocks(run: Path, split: str, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """A split's text as blocks of LENGTH tokens between [CLS] and [SEP], (N, LENGTH)."""
    shards = open_shards(run / "data", split)
    tokens = np.concatenate([np.asarray(shard.tokens) for shard in shards]).astype(np.int64)
    inside = tokens[: len(tokens) // (LENGTH - 2) * (LENGTH - 2)].reshape(-1, LENGTH - 2)
    return np.pad(np.pad(inside, ((0, 0), (1, 0)), constant_values=tokenizer.cls_token_id), ((0, 0), (0, 1)),
                  constant_values=tokenizer.sep_token_id)  # fmt: skip


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, held_out: list[dict[str, torch.Tensor]]) -> float:
    """Nats per masked token."""
    model.eval()
    losses = [float(model(input_ids=batch["input_ids"], labels=batch["labels"]).loss) for batch in held_out]
    targets = [int((batch["labels"] != -100).sum()) for batch in held_out]
    return float(np.average(losses, weights=targets))


class Deadline(TrainerCallback):
    """Ends a training after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        control.should_training_stop = time.perf_counter() > self.end


def train_stock(
    tokenizer: PreTrainedTokenizerBase, train: np.ndarray, seconds: float, place: Path
) -> tuple[BertForMaskedLM, dict[str, float]]:
    """Trainer with its defaults."""
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), intermediate_size=1024, **SIZES))
    arguments = TrainingArguments(str(place), learning_rate=1e-4, use_cpu=True, save_strategy="no", report_to="none")
    rows = [{"input_ids": row} for row in train.tolist()]
    start = time.perf_counter()
    trainer = Trainer(
        model, arguments, train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer), callbacks=[Deadline(seconds)],
    )  # fmt: skip
    trainer.train()
    steps = trainer.state.global_step
    tokens = steps * arguments.per_device_train_batch_size * LENGTH
    return model, {"steps": steps, "tokens": tokens, "seconds": round(time.perf_counter() - start)}


def main(imdb: str, minutes: float) -> None:
    """Measure and print."""
    results = {}
    with tempfile.TemporaryDirectory() as place:
        runs = {name: Path(place) / name for name in VARIANTS}
        for name, sizes in VARIANTS.items():
            recipe = ["imdb-mini-cpu", f"output_dir={runs[name]}", f"corpus.path={imdb}", "finetune=null", *sizes]
            recipe += [f"model.architecture={name}", "pairs.kind=none", f"training.budget={minutes}m"]
            bertpre("prepare", *recipe)
            bertpre("pretrain", *recipe)
            bertpre("export", runs[name], "--to", "bert" if name == "bert" else "modernbert")
        tokenizer = AutoTokenizer.from_pretrained(runs["bert"] / "tokenizer")
        torch.manual_seed(1)
        collator = DataCollatorForLanguageModeling(tokenizer)
        rows = [{"input_ids": row} for row in blocks(runs["bert"], "validation", tokenizer)[:BLOCKS].tolist()]
        held_out = [collator(rows[at : at + BATCH]) for at in range(0, len(rows), BATCH)]
        for name, run in runs.items():
            folder = run / f"export-{'bert' if name == 'bert' else 'modernbert'}"
            own = json.loads((run / "results.json").read_text())["pretrain"]
            results[name] = {key: round(own[key]) for key in ("steps", "tokens", "seconds")}
            results[name]["held_out_mlm_loss"] = held_out_loss(AutoModelForMaskedLM.from_pretrained(folder), held_out)
        entropy = own["unigram_entropy"]
        model, results["trainer"] = train_stock(
            tokenizer, blocks(runs["bert"], "train", tokenizer), 60 * minutes, Path(place) / "trainer"
        )
        results["trainer"]["held_out_mlm_loss"] = held_out_loss(model, held_out)
    line = {"benchmark": "against_trainer", "minutes_each": minutes, "unigram_entropy": entropy, **results}
    print(json.dumps(line | {"hardware": hardware()}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 10)
