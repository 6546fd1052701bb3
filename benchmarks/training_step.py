"""Compare bertpre's training step of recipe imdb-mini-cpu on a CPU with autocast and sdpa; prints one JSON line.

python benchmarks/training_step.py [ROUNDS]        (default: 9; the variants take turns, medians are reported)
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
import transformers
from torch import nn

from bertpre.data.sampler import Position
from bertpre.hardware import cpu_name, measured_flops
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.pretraining.build import freeze_pair_head, place_model
from bertpre.pretraining.objective import PretrainingObjective
from bertpre.recipe import load_recipe
from bertpre.runtime import choose_deterministic, start_accelerator
from bertpre.training.batches import StepBatch, to_device
from bertpre.training.optimizer import build_optimizers
from bertpre.training.precision import WorkingCopy
from bertpre.training.step import Arithmetic, TrainingStep

BATCH_SIZE, LENGTH, VOCABULARY, MASKED_SHARE = 64, 128, 16384, 0.2
VARIANTS = {  # type of the working copy's weights, autocast or not, attention kernel
    "bf16_copy_eager": (torch.bfloat16, False, "eager"),  # bertpre's choice
    "bf16_copy_sdpa": (torch.bfloat16, False, "sdpa"),
    "autocast_eager": (torch.float32, True, "eager"),
    "fp32_eager": (torch.float32, False, "eager"),
}


class Variant:
    """One way to do a step: a model, compiled or not, with its optimizers."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        dtype: torch.dtype = torch.float32,
        autocast: bool = False,
        compiled: bool = True,
    ) -> None:
        self.master, self.optimizers, self.autocast = model.train(), optimizers, autocast
        self.working, self.device = WorkingCopy(model, dtype), next(model.parameters()).device
        if compiled:
            self.working.model.compile(dynamic=False)

    def step(self, batch: dict[str, torch.Tensor], timed: bool = True) -> dict[str, float]:
        """One step; returns the seconds of its phases. If it is not `timed`, nothing waits for a GPU."""
        seconds, start = {}, time.perf_counter()

        def mark(phase: str) -> None:
            nonlocal start
            if timed and self.device.type == "cuda":
                torch.cuda.synchronize()
            start, begun = time.perf_counter(), start
            seconds[phase] = start - begun

        with torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext():
            loss = self.working.model(**batch).loss
        mark("forward")
        loss.backward()
        mark("backward")
        self.working.collect_gradients()
        mark("gradients to fp32")
        torch.nn.utils.clip_grad_norm_(self.master.parameters(), 1.0)
        mark("clipping")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        mark("optimizer")
        self.working.update()
        mark("weights to bf16")
        return seconds


class LossOnly(PretrainingObjective):
    """The objective without its accuracies, which a step of the stock classes does not compute either."""

    def measure(self, outputs: object, batch: object, counts: object) -> dict[str, torch.Tensor]:
        return {}


def adamw(model: nn.Module) -> list[torch.optim.Optimizer]:
    """bertpre's AdamW."""
    return build_optimizers(model, "adamw", learning_rate=1e-4, weight_decay=0.01)


class OwnStep:
    """bertpre's step as its trainer does it, on one batch over and over: without the loop around it."""

    def __init__(
        self,
        model: BertPreForPreTraining,
        batch: Mapping[str, torch.Tensor],
        optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]] = adamw,
        compiled: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        micro_batches: int = 1,
        dynamic: bool = False,
    ) -> None:
        accelerator, objective = start_accelerator(), LossOnly("next_sentence_label" in batch)
        if not objective.has_pairs:
            freeze_pair_head(model)
        place_model(model, accelerator, dtype)
        deterministic = choose_deterministic("auto", accelerator.device)
        arithmetic = Arithmetic(dtype, compiled, dynamic, deterministic=deterministic)
        self.training_step = TrainingStep(accelerator, model, optimizers(model), objective, arithmetic, seed=0)
        self.counts = {name: micro_batches * count for name, count in objective.counts(batch).items()}
        self.batch, self.number = StepBatch([to_device(batch, accelerator.device)] * micro_batches, Position()), 0

    def __call__(self) -> None:
        """Do one step."""
        self.training_step.run(self.number, self.batch, self.counts, 1.0, lambda measured: None)
        self.number += 1


def build(dtype: torch.dtype, autocast: bool, attention: str) -> Variant:
    """The model of the recipe with its optimizers."""
    torch.manual_seed(0)
    recipe = load_recipe("imdb-mini-cpu")
    model = BertPreForPreTraining(BertPreConfig(**recipe.model.model_dump(), vocab_size=VOCABULARY))
    model.set_attn_implementation(attention)
    freeze_pair_head(model)
    return Variant(model, build_optimizers(model, "muon", 3e-3, 0.01), dtype, autocast)


def random_batch(batch_size: int, length: int, vocab_size: int, masked_share: float) -> dict[str, torch.Tensor]:
    """Full-length pairs of random tokens, some of them masked."""
    slots = round(masked_share * length)
    ids = torch.randint(5, vocab_size, (batch_size, length))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": (torch.arange(length) >= length // 2).long().expand(batch_size, -1),
        "masked_positions": torch.rand(batch_size, length).argsort(1)[:, :slots],
        "labels": torch.randint(5, vocab_size, (batch_size, slots)),
        "next_sentence_label": torch.randint(0, 2, (batch_size,)),
    }


def take_turns(
    variants: dict[str, tuple[Variant, dict[str, torch.Tensor]]], rounds: int
) -> dict[str, dict[str, float]]:
    """Each variant's median seconds of a step and of its phases."""
    for variant, batch in variants.values():
        variant.step(batch), variant.step(batch)  # compiles, then fills the optimizers' state
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, (variant, batch) in variants.items():
            phases = variant.step(batch)
            rows[name].append(phases | {"all": sum(phases.values())})
    return {name: {key: statistics.median(row[key] for row in rows[name]) for key in rows[name][0]} for name in rows}


def hardware(device: str = "cpu") -> dict[str, object]:
    """The machine and versions that a measurement belongs to."""
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    gflops = round(measured_flops(torch.device(device), torch.bfloat16) / 1e9)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    if device == "cuda":
        versions["cudnn"] = str(torch.backends.cudnn.version())
    return {"device": name, "threads": torch.get_num_threads(), **versions, "bf16_gflops": gflops}


def shares(phases: dict[str, float]) -> dict[str, float]:
    """Each phase's fraction of a step."""
    return {name: round(seconds / phases["all"], 3) for name, seconds in phases.items() if name != "all"}


def measure(rounds: int) -> dict[str, object]:
    """Median seconds of a step, and each variant's ratio to bertpre's own."""
    batch = random_batch(BATCH_SIZE, LENGTH, VOCABULARY, MASKED_SHARE)
    del batch["next_sentence_label"]  # the recipe trains no pairs
    phases = take_turns({name: (build(*choices), batch) for name, choices in VARIANTS.items()}, rounds)
    medians = {name: seconds["all"] for name, seconds in phases.items()}
    own = medians["bf16_copy_eager"]
    return {
        "benchmark": "training_step",
        "shape": {"batch_size": BATCH_SIZE, "max_length": LENGTH, "vocab_size": VOCABULARY},
        "rounds": rounds,
        "seconds": {name: round(value, 4) for name, value in medians.items()},
        "time_of_bf16_copy_eager_relative_to": {name: round(own / value, 3) for name, value in medians.items()},
        "phases_of_bf16_copy_eager": shares(phases["bf16_copy_eager"]),
        "hardware": hardware(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 9)))
