"""Change one choice of bertpre's training step at a time, or the size of its micro-batch; a JSON line for each group.

python benchmarks/gpu_ablation.py [GROUP ...] [--smoke]        (default: all GROUPS below)

BERT-base in bf16 on rows of random ids without pairs, as the trainer computes a step (OwnStep). The variants of a group
take turns (turns.py), the first one is the default. `--smoke` shows on a CPU that everything works.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from against_stock import MASKED_SHARE, TINY, bertpre_config
from optimizer_ops import optimizers_of
from torch import nn
from training_step import OwnStep, hardware, random_batch
from turns import do_turns, seconds_of, take_turns

from bertpre.model.flops import flops_per_token
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.training import step as step_module
from bertpre.training.step import layers_of, parts_to_compile
from bertpre.training.unpadding import unpadded

ROUNDS = 3
COMPILE = nn.Module.compile


@dataclass(frozen=True)
class Case:
    """One way to do a step."""

    rows: int = 128
    length: int = 128
    name: str = "bertpre"  # or bertpre_modern, as in against_stock.py
    optimizer: str = "adamw"  # or lamb, muon, muon_loop (torch's own Muon: one matrix after the other)
    filled: float | None = None  # share of slots that hold tokens, with an attention mask; None: all, without a mask
    unpads: bool = False  # leaves the padding out
    last_layer_in_full: bool = False  # also where it is not read
    compiled: str = "chosen"  # what TrainingStep chooses, or the whole model, each layer, or nothing
    graphs: bool = False  # record the compiled kernels as CUDA graphs: torch's "reduce-overhead"
    dynamic: bool = False  # one compiled program for all numbers of slots, as in a training that leaves padding out
    cudnn: bool = False  # lets sdpa choose cuDNN's attention, which bertpre turns off
    dropout: float = 0.1


DEFAULT = Case()
PADDED = Case(rows=32, length=512, filled=0.83, dropout=0.0)  # pairs fill 51 to 89 % (docs/pairs.md)
MODERN_PADDED = replace(PADDED, name="bertpre_modern", filled=0.55)
UNPADDED = {"unpads": True, "dynamic": True}
GROUPS = {
    "padding": {
        "padded_83": PADDED,
        "unpadded_83": replace(PADDED, **UNPADDED),
        "unpadded_83_one_size": replace(PADDED, unpads=True),
        "padded_55": replace(PADDED, filled=0.55),
        "unpadded_55": replace(PADDED, filled=0.55, **UNPADDED),
        "padded_83_cudnn": replace(PADDED, cudnn=True),
    },
    "modern_padding": {
        "modern_padded_55": MODERN_PADDED,
        "modern_unpadded_55": replace(MODERN_PADDED, **UNPADDED),
    },
    "compile": {
        "default": DEFAULT,  # on a GPU the whole model
        "each_layer": Case(compiled="layers"),
        "uncompiled": Case(compiled="no"),
        "whole_model_graphs": Case(compiled="whole", graphs=True),
        "each_layer_graphs": Case(compiled="layers", graphs=True),
    },
    "rows": {
        "default": DEFAULT,
        "mask_of_full_rows": Case(filled=1.0),
        "padded_rows": Case(filled=0.83),
        "last_layer_in_full": Case(last_layer_in_full=True),
        "cudnn": Case(cudnn=True),
    },
    "optimizer": {
        "default": DEFAULT,
        "muon": Case(optimizer="muon"),
        "muon_loop": Case(optimizer="muon_loop"),
        "lamb": Case(optimizer="lamb"),
    },
    "model": {
        "default": DEFAULT,
        "without_dropout": Case(dropout=0.0),
        "modern": Case(name="bertpre_modern"),
        "modern_without_dropout": Case(name="bertpre_modern", dropout=0.0),
    },
    "rows_of_128": {f"{rows}_rows": Case(rows=rows) for rows in (16, 32, 64, 128, 256, 512)},
    "rows_of_512": {f"{rows}_rows": Case(rows=rows, length=512) for rows in (4, 8, 16, 32, 64)},
}
SWEEP = ("rows_of_128", "rows_of_512")  # the size of the micro-batch; the largest may not fit


def build(case: Case, sizes: dict[str, int]) -> Callable[[], None]:
    """The step of a case."""
    torch.manual_seed(0)
    config = bertpre_config(case.name, sizes)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = case.dropout
    model = BertPreForPreTraining(config)
    if case.last_layer_in_full:
        model.bert.encoder.register_forward_hook(lambda *_: None)  # whoever watches sees all positions
    batch = random_batch(case.rows, case.length, config.vocab_size, MASKED_SHARE)
    del batch["next_sentence_label"]
    if case.filled is None:
        del batch["attention_mask"]
    else:  # lengths spread evenly around their mean
        lengths = (case.length * (case.filled - (1 - case.filled) * torch.linspace(-1, 1, case.rows))).round().long()
        batch["attention_mask"] = (torch.arange(case.length) < lengths[:, None]).long()
        batch["masked_positions"] %= lengths[:, None]
    batch = unpadded(batch) if case.unpads else batch
    chosen = {"whole": lambda model: [model], "layers": layers_of}
    with (
        mock.patch.object(step_module, "parts_to_compile", chosen.get(case.compiled, parts_to_compile)),
        mock.patch.object(nn.Module, "compile", compile_with_graphs if case.graphs else nn.Module.compile),
    ):
        optimizers, is_compiled = partial(optimizers_of, name=case.optimizer), case.compiled != "no"
        step = OwnStep(model, batch, optimizers, is_compiled, dynamic=case.dynamic)
    if case.cudnn:
        torch.backends.cuda.enable_cudnn_sdp(True)
    return partial(from_the_first_graph, step) if case.graphs else step


def compile_with_graphs(module: nn.Module, dynamic: bool) -> None:
    """Compile a module in place; on a GPU its kernels are recorded, and each pass replays them without Python."""
    COMPILE(module, dynamic=dynamic, mode="reduce-overhead")


def from_the_first_graph(step: OwnStep) -> None:
    """Do a step; what the graphs of the one before have returned may be overwritten."""
    torch.compiler.cudagraph_mark_step_begin()
    step()


def setting(group: str, variant: str, is_smoke: bool) -> tuple[Case, dict[str, int]]:
    """A case and its model's sizes, which are small in a smoke test."""
    case = GROUPS[group][variant]
    if not is_smoke:
        return case, {"vocab_size": 30528}
    return replace(case, rows=max(2, case.rows // 64), length=case.length // 8), TINY | {"vocab_size": 512}


def turns_of(group: str, is_smoke: bool) -> dict[str, dict[str, float]]:
    """Each variant's seconds of a step and peak memory in MB; in a smoke test only one group starts processes."""
    if is_smoke and group != "compile":
        steps = {name: build(*setting(group, name, is_smoke)) for name in GROUPS[group]}
        return {name: {"seconds": seconds_of(step, 2, "cpu"), "peak_memory_mb": 0} for name, step in steps.items()}
    command = [sys.executable, __file__, "--work", group, *(["--smoke"] if is_smoke else [])]
    return take_turns({name: [*command, name] for name in GROUPS[group]}, 1 if is_smoke else ROUNDS)


def measure(group: str, is_smoke: bool) -> dict[str, Any]:
    """A group's results: tokens and slots per second, ratios to its first variant, utilisation, memory."""
    turns = turns_of(group, is_smoke)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = hardware(device)
    results: dict[str, dict[str, float]] = {}
    for name, turn in turns.items():
        case, sizes = setting(group, name, is_smoke)
        slots = case.rows * case.length / turn["seconds"]
        computed = slots * (case.filled if case.unpads else 1.0)
        flops = flops_per_token(bertpre_config(case.name, sizes), case.length, MASKED_SHARE)
        results[name] = {
            "tokens_per_second": round(slots * (1.0 if case.filled is None else case.filled)),
            "slots_per_second": round(slots),
            "milliseconds_a_step": round(1e3 * turn["seconds"], 2),
            "flops_utilization": round(computed * flops / (machine["bf16_gflops"] * 1e9), 3),
            "peak_memory_mb": turn["peak_memory_mb"],
        }
    first = results.get(next(iter(GROUPS[group])))
    for result in results.values() if first else ():
        result["tokens_over_first"] = round(result["tokens_per_second"] / first["tokens_per_second"], 3)
    failed = [name for name in GROUPS[group] if name not in turns]
    line = {"benchmark": "gpu_ablation", "group": group, "smoke": is_smoke}
    return line | {"variants": results, "failed": failed, "hardware": machine}


def main(arguments: list[str]) -> None:
    """Do one variant's turns, or measure and print."""
    is_smoke = "--smoke" in arguments
    arguments = [argument for argument in arguments if argument != "--smoke"]
    if arguments[:1] == ["--work"]:
        do_turns(build(*setting(*arguments[1:], is_smoke)))
        return
    failed = []
    for group in arguments or GROUPS:
        line = measure(group, is_smoke)
        print(json.dumps(line), flush=True)
        if line["failed"] and (is_smoke or group not in SWEEP):
            failed.append(group)
    if failed:
        raise SystemExit(f"a variant has failed in {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
