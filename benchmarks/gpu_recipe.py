"""Pretrain recipe imdb-small-gpu for some minutes and export the model; prints one JSON line.

python benchmarks/gpu_recipe.py [--smoke] [RUN] [KEY=VALUE ...]

RUN is a run directory that `bertpre prepare imdb-small-gpu` has prepared; it is copied, not changed. Without it, or
with `--smoke`, the embedded corpus is prepared. Without `training.budget=` it trains for four minutes, start-up and
compiling included. The recipe's fine-tuning is left out, since it reads its texts through the package datasets.
`--smoke` takes a tiny model and a few steps.
"""

import json
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import torch
from training_step import hardware

from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.model.export import export_model
from bertpre.recipe import load_recipe

CORPUS = "corpus={path: sample, split: train+unsupervised+articles}"
BUDGET = ["finetune=null", "training.budget=4m", "training.compile=true"]  # a failure to compile must show
SMOKE = [
    "corpus.limit=300", "tokenizer.vocab_size=1024", "model.hidden_size=32", "model.num_hidden_layers=1",
    "model.num_attention_heads=2", "model.intermediate_size=64", "training.global_batch_size=8",
    "training.phases.1.global_batch_size=4", "training.max_steps=8", "training.eval_pairs=16", "training.log_every=2",
]  # fmt: skip
KEYS = ("steps", "tokens", "seconds", "parameters", "validation", "context_free_loss")
LOGGED = ("tokens_per_second", "flops_utilization", "data_wait_fraction", "peak_memory_mb")


def main(arguments: list[str]) -> None:
    """Train, export and print."""
    smoke = SMOKE if "--smoke" in arguments else []
    overrides = [*BUDGET, *(argument for argument in arguments if "=" in argument)]
    given = next((argument for argument in arguments if "=" not in argument and argument != "--smoke"), None)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        run = Path(folder) / "run"
        if given is None or smoke:
            prepare(load_recipe("imdb-small-gpu", [f"output_dir={run}", CORPUS, *smoke, *overrides]))
        else:
            shutil.copytree(given, run)
        results = pretrain(load_recipe(str(run), [*overrides, f"output_dir={run}"]))
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        difference = export_model(run / "model", None, Path(folder) / "exported")
    logged = [row for row in rows if row["split"] == "train"]
    phases = {"first_phase": logged[len(logged) // 3], "last_phase": logged[-1]}
    line = {"benchmark": "gpu_recipe", "data": "sample" if given is None or smoke else "given"}
    line |= {key: results[key] for key in KEYS}
    line |= {name: {key: row[key] for key in LOGGED if key in row} for name, row in phases.items()}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(json.dumps(line | {"export_difference": difference, "hardware": hardware(device)}))


if __name__ == "__main__":
    main(sys.argv[1:])
