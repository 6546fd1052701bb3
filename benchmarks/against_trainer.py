"""Compare the held-out MLM loss of bertpre and of transformers' Trainer after equal time; prints one JSON line.

python benchmarks/against_trainer.py IMDB_FOLDER [MINUTES]        (default: 10 minutes each, one after the other)

Same text (IMDB, train and unsupervised), same tokenizer (16,384 words, learned by bertpre), same size (4 x 256):
- trainer: BertForMaskedLM, DataCollatorForLanguageModeling and Trainer on blocks of 128 tokens, as run_mlm.py makes
  them, at its best. Each rate of RATES with each batch of BATCHES, in bf16 where the processor multiplies it, compiled
  where that is faster, warmed up over 5 % of the time and decayed linearly to its end; the time includes compilation.
  `best` names the one with the lowest held-out loss;
- bert, modern: bertpre's recipe imdb-mini-cpu in both architectures, exported to stock classes.
All are measured on the same blocks of held-out text with the same masks (15 %), by the same code. The best setting is
chosen on these blocks, which favours trainer.
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
from bertpre.hardware import has_native_bf16

LENGTH, BLOCKS, BATCH = 128, 1000, 50
RATES, BATCHES, WARMUP, TIMED_STEPS = (3e-4, 1e-3), (8, 64), 0.05, 10
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
    """Ends a training after a number of seconds, and notes when each step ended."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds, self.steps = time.perf_counter(), seconds, list[float]()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        self.steps.append(time.perf_counter())
        if self.progress() >= 1:
            control.should_training_stop = True

    def progress(self) -> float:
        """The share of the time that has passed."""
        return (time.perf_counter() - self.start) / self.seconds

    def factor(self, _: int) -> float:
        """The learning rate, as a share of its peak: a linear warm-up, then a linear decay."""
        progress = min(self.progress(), 1)
        return min(progress / WARMUP, (1 - progress) / (1 - WARMUP))


def train_stock(
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict[str, list[int]]],
    seconds: float,
    rate: float,
    **arguments: Any,  # of TrainingArguments
) -> tuple[BertForMaskedLM, Deadline, dict[str, Any]]:
    """Train with Trainer for some seconds."""
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), intermediate_size=1024, **SIZES))
    deadline, optimizer = Deadline(seconds), torch.optim.AdamW(model.parameters(), rate, fused=True)
    optimizers = optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, deadline.factor)
    with tempfile.TemporaryDirectory() as place:
        common = {"use_cpu": True, "save_strategy": "no", "report_to": "none", "learning_rate": rate}
        trainer = Trainer(
            model, TrainingArguments(place, **common, **arguments), train_dataset=rows, optimizers=optimizers,
            data_collator=DataCollatorForLanguageModeling(tokenizer), callbacks=[deadline],
        )  # fmt: skip
        trainer.train()
    tokens = trainer.state.global_step * trainer.args.per_device_train_batch_size * LENGTH
    taken = round(deadline.steps[-1] - deadline.start)
    return model, deadline, {"steps": trainer.state.global_step, "tokens": tokens, "seconds": taken}


def fastest(tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, list[int]]], batch_size: int) -> dict[str, Any]:
    """The arguments of Trainer's fastest steps at a batch size: bf16 and torch.compile where they help."""
    seconds = {}
    for compiled in (False, True):
        arguments = {"bf16": has_native_bf16(torch.device("cpu")), "torch_compile": compiled,
                     "per_device_train_batch_size": batch_size}  # fmt: skip
        _, deadline, _ = train_stock(tokenizer, rows, 1e9, RATES[0], max_steps=TIMED_STEPS, **arguments)
        seconds[compiled] = (deadline.steps[-1] - deadline.steps[TIMED_STEPS // 2]) / (TIMED_STEPS - TIMED_STEPS // 2)
    return arguments | {"torch_compile": seconds[True] < seconds[False]}


def train_tuned(
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict[str, list[int]]],
    held_out: list[dict[str, torch.Tensor]],
    seconds: float,
) -> list[dict[str, Any]]:
    """Trainer with every rate and batch size, each for the same time; the lowest held-out loss first."""
    tried = []
    for batch_size in BATCHES:
        arguments = fastest(tokenizer, rows, batch_size)
        for rate in RATES:
            model, _, facts = train_stock(tokenizer, rows, seconds, rate, **arguments)
            tried.append(arguments | {"rate": rate, **facts, "held_out_mlm_loss": held_out_loss(model, held_out)})
            print(json.dumps(tried[-1]), file=sys.stderr, flush=True)
    return sorted(tried, key=lambda each: each["held_out_mlm_loss"])


def main(imdb: str, minutes: float) -> None:
    """Measure and print."""
    results = {}
    with tempfile.TemporaryDirectory() as place:
        runs = {name: Path(place) / name for name in VARIANTS}
        for name, sizes in VARIANTS.items():
            recipe = ["imdb-mini-cpu", f"output_dir={runs[name]}", f"corpus.path={imdb}", "finetune=null", *sizes]
            recipe += [f"model.architecture={name}", f"training.budget={minutes}m", "training.eval_pairs=256"]
            recipe += ["training.phases=[{max_length: 128}]"]  # no causal phase, as in the published figures
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
        train = [{"input_ids": row} for row in blocks(runs["bert"], "train", tokenizer).tolist()]
        best, *others = train_tuned(tokenizer, train, held_out, 60 * minutes)
    references = {key: own[key] for key in ("context_free_loss", "unigram_entropy")}
    line = {"benchmark": "against_trainer", "minutes_each": minutes, **references, **results}
    print(json.dumps(line | {"trainer": {"best": best, "others": others}, "hardware": hardware()}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 10)
