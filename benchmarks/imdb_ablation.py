"""Compare pretraining choices at equal time on IMDB, by fine-tuning on few labels.

python benchmarks/imdb_ablation.py IMDB_FOLDER OUTPUT_DIR [VARIANT ...]        (default: every variant)

Each variant is the recipe imdb-mini-cpu without its causal phase and with other keys: pretraining for BUDGET, then
fine-tuning on 2,500 labelled reviews with three seeds, validated on 2,500 reviews of other films. The test split is not
read. Prints one JSON line per variant: validation MLM loss (of its own masks), NSP or SOP accuracy, steps, tokens,
validation accuracy. A finished variant is not trained again.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

BUDGET = "5m"
FEW_LABELS = [
    "finetune.limit=5000", "finetune.validation_fraction=0.49", "finetune.validation_block=25", "finetune.seeds=3",
    "finetune.epochs=2", "finetune.max_length=128", "finetune.unlabelled=null",
    "training.phases=[{max_length: 128}]",  # no causal phase: pairs cannot have one
]  # fmt: skip
VARIANTS: dict[str, list[str]] = {
    "recipe": [],
    "nsp": ["pairs.kind=nsp"],
    "sop": ["pairs.kind=sop"],
    "whole words": ["training.masking=words"],
    "spans": ["training.masking=spans"],
    "masks 15 %": ["training.masked_lm_prob=0.15"],
    "masks 30 to 15 %": ["training.masked_lm_prob=0.3", "training.masked_lm_prob_end=0.15"],
    "only [MASK]": ["training.mask_split=[1,0,0]"],
    "bert": ["model.architecture=bert", "model.intermediate_size=1024", "finetune.pooling=cls"],
    "adamw": ["training.optimizer=adamw", "training.learning_rate=1e-3"],
    "lamb": ["training.optimizer=lamb", "training.learning_rate=5e-3"],
    "no pretraining": ["finetune.init=random"],
    "recipe, seed 1": ["seed=1"],  # variation by chance
}


def bertpre(verb: str, folder: str, output: Path, overrides: list[str]) -> None:
    """Run one command on the recipe."""
    code = "from bertpre.cli import main; main()"
    paths = [f"corpus.path={folder}", f"finetune.path={folder}", f"output_dir={output}"]
    command = [sys.executable, "-c", code, verb, "imdb-mini-cpu", *paths, f"training.budget={BUDGET}", *overrides]
    subprocess.run(command, check=True, stdout=sys.stderr)


def measure(folder: str, output: Path, name: str) -> dict[str, object]:
    """Train one variant and return its results."""
    overrides = [*FEW_LABELS, *VARIANTS[name]]
    data = [override for override in overrides if override.startswith(("pairs.", "seed="))]
    prepared, run = output / "-".join(["prepared", *data]), output / name
    if not run.exists():
        if not prepared.exists():
            bertpre("prepare", folder, prepared, data)
        shutil.copytree(prepared, run)
    stages = ["finetune"] if "finetune.init=random" in overrides else ["pretrain", "finetune"]
    for stage in stages:
        if stage not in json.loads((run / "results.json").read_text()):
            bertpre(stage, folder, run, overrides)
    results = json.loads((run / "results.json").read_text())
    accuracy = results["finetune"]["spread"]["accuracy"]
    return {"variant": name, **results.get("pretrain", {}), "accuracy": accuracy}


if __name__ == "__main__":
    for variant in sys.argv[3:] or VARIANTS:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), variant)), flush=True)
