"""What a pretraining step in fp32 gains on an AMD processor where MKL takes its code for Intel's; prints one JSON line.

python benchmarks/mkl_on_amd.py [ROUNDS]        (default: 11; needs gcc)

torch multiplies fp32 matrices with MKL, which has slower code for processors of other makers. A library of one
function, loaded before torch, makes it take the faster one (docs/troubleshooting.md). The steps are of recipe
imdb-mini-cpu, 64 rows of 128 random tokens; both ways take turns, each in its own process (turns.py).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from training_step import BATCH_SIZE, LENGTH, MASKED_SHARE, VOCABULARY, OwnStep, random_batch
from turns import do_turns, take_turns

from bertpre.hardware import cpu_name
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.recipe import load_recipe
from bertpre.training.optimizer import build_optimizers

FUNCTION = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


def work() -> None:
    """Do this process's turns."""
    torch.manual_seed(0)
    recipe = load_recipe("imdb-mini-cpu")
    model = BertPreForPreTraining(BertPreConfig(**recipe.model.model_dump(), vocab_size=VOCABULARY))
    batch = random_batch(BATCH_SIZE, LENGTH, VOCABULARY, MASKED_SHARE)
    del batch["next_sentence_label"]  # the recipe trains no pairs
    do_turns(OwnStep(model, batch, lambda model: build_optimizers(model, "muon", 3e-3, 0.01), dtype=torch.float32))


def main(rounds: int) -> None:
    """Measure and print the line."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "mkl.c"), Path(folder, "mkl.so")
        source.write_text(FUNCTION)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
        own = [sys.executable, __file__, "--work"]
        ways = {"as_it_is": own, "intels_code": ["env", f"LD_PRELOAD={library}", *own]}
        seconds = {way: turn["seconds"] for way, turn in take_turns(ways, rounds).items()}
    line = {
        "benchmark": "mkl_on_amd",
        "rounds": rounds,
        "seconds_a_step": {way: round(value, 3) for way, value in seconds.items()},
        "gain": round(seconds["as_it_is"] / seconds["intels_code"], 3),
        "device": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    work() if "--work" in sys.argv else main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
