"""A training step of bertpre's BERT next to stock BertForPreTraining, and the memory it takes; prints one JSON line.

python benchmarks/against_stock.py [ROUNDS]        (default: 5; the variants take turns, medians are reported)

All train the same network with AdamW on pairs of 128 tokens with 15 % masked, dropout 0.1:
- stock_fp32: as most people run it;
- stock_bf16_compiled: as an expert would, with bf16 autocast and torch.compile;
- bertpre: fp32 masters and a bf16 copy, scores of the vocabulary at masked positions only, torch.compile;
- bertpre_autocast: the same with autocast in place of the copy.
"""

import json
import resource
import subprocess
import sys

import torch
from training_step import Variant, hardware, random_batch, shares, take_turns
from transformers import BertConfig, BertForPreTraining

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.flops import flops_per_token
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.training.optimizer import build_optimizers

LENGTH, MASKED_SHARE, MEMORY_STEPS = 128, 0.15, 3
MINI = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
SHAPES = {  # batch size, sizes that differ from BERT-base's
    "base": (8, {"vocab_size": 30522}),
    "mini": (32, {"vocab_size": 30522} | MINI),
    "mini_8k": (32, {"vocab_size": 8192} | MINI),
}
VARIANTS = ("stock_fp32", "stock_bf16_compiled", "bertpre_autocast", "bertpre")


def prepare(name: str, shape: str) -> tuple[Variant, dict[str, torch.Tensor]]:
    """A variant of a shape, and a batch as it wants it."""
    torch.manual_seed(0)
    batch_size, sizes = SHAPES[shape]
    batch = random_batch(batch_size, LENGTH, sizes["vocab_size"], MASKED_SHARE)
    if name.startswith("bertpre"):
        model, autocast = BertPreForPreTraining(BertPreConfig(**sizes)), name == "bertpre_autocast"
        model.set_attn_implementation("eager")
        dtype = torch.float32 if autocast else torch.bfloat16
        return Variant(model, build_optimizers(model, "adamw", 1e-4, 0.01), dtype, autocast), batch
    targets = torch.full_like(batch["input_ids"], -100)  # the stock class wants a label for every token
    batch["labels"] = targets.scatter(1, batch.pop("masked_positions"), batch["labels"])
    model = BertForPreTraining(BertConfig(**sizes))
    is_expert = name == "stock_bf16_compiled"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=is_expert or None)
    return Variant(model, [optimizer], autocast=is_expert, compiled=is_expert), batch


def speeds(shape: str, rounds: int) -> dict[str, object]:
    """Tokens a second of each variant, ratios, the share of a bf16 matrix product's rate, and the phases of a step."""
    batch_size, sizes = SHAPES[shape]
    torch.compiler.reset()  # else the shapes add up to more programs than the compiler keeps
    medians = take_turns({name: prepare(name, shape) for name in VARIANTS}, rounds)
    rates = {name: batch_size * LENGTH / seconds["all"] for name, seconds in medians.items()}
    ratios = {f"bertpre_over_{name}": round(rates["bertpre"] / rates[name], 2) for name in VARIANTS[:-1]}
    per_second = rates["bertpre"] * flops_per_token(BertPreConfig(**sizes), LENGTH, MASKED_SHARE)
    utilization = per_second / (hardware()["bf16_gflops"] * 1e9)
    own = {"flops_utilization": round(utilization, 3), "phases": shares(medians["bertpre"])}
    return {name: round(rate) for name, rate in rates.items()} | ratios | own


def peak_memory(name: str, shape: str) -> int:
    """Peak memory in MB of a few steps of one variant, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, name, shape], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main(rounds: int) -> None:
    """Measure and print."""
    line = {"benchmark": "against_stock", "rounds": rounds, "max_length": LENGTH}
    memory = {shape: {name: peak_memory(name, shape) for name in VARIANTS} for shape in SHAPES}
    line |= {"tokens_per_second": {shape: speeds(shape, rounds) for shape in SHAPES}, "peak_memory_mb": memory}
    print(json.dumps(line | {"hardware": hardware()}))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        variant, batch = prepare(sys.argv[1], sys.argv[2])
        for _ in range(MEMORY_STEPS):
            variant.step(batch)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
