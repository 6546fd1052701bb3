"""Compare a training step of bertpre with steps of the stock classes, time and memory; prints one JSON line.

python benchmarks/against_stock.py [ROUNDS]        (default: 5; the variants take turns, medians are reported)

All train networks of one size with AdamW on full pairs with 15 % masked, dropout 0.1, each in its own process:
- stock_fp32: BertForPreTraining as most people run it (not measured on a GPU);
- stock_bf16_compiled: as an expert would run it, with sdpa, bf16 autocast, torch.compile and a fused optimizer;
- stock_modernbert: ModernBertForMaskedLM with full attention, run the same way (measured on a GPU);
- bertpre: fp32 masters and a bf16 copy, vocabulary logits at masked positions only, torch.compile;
- bertpre_modern: the same for architecture "modern" (measured on a GPU).
"""

import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from training_step import Variant, hardware, random_batch, shares
from transformers import BertConfig, BertForPreTraining, ModernBertConfig, ModernBertForMaskedLM

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.flops import flops_per_token
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.runtime import keep_freed_memory
from bertpre.training.optimizer import build_optimizers

MASKED_SHARE, WARM_UP_STEPS = 0.15, 3
MINI = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
SHAPES = {  # device, batch size, tokens in a pair, sizes that differ from BERT-base's
    "base": ("cpu", 8, 128, {"vocab_size": 30522}),
    "mini": ("cpu", 32, 128, {"vocab_size": 30522} | MINI),
    "mini_8k": ("cpu", 32, 128, {"vocab_size": 8192} | MINI),
    "base_128": ("cuda", 256, 128, {"vocab_size": 30528}),
    "base_512": ("cuda", 64, 512, {"vocab_size": 30528}),
}
VARIANTS = {
    "cpu": ("stock_fp32", "stock_bf16_compiled", "bertpre"),
    "cuda": ("stock_bf16_compiled", "stock_modernbert", "bertpre", "bertpre_modern"),
}
MODERN = {"intermediate_size": 2048, "hidden_act": "gelu"}  # GeGLU has a third matrix, so it is narrower


def bertpre_config(name: str, sizes: dict[str, int]) -> BertPreConfig:
    """The configuration of a bertpre variant."""
    return BertPreConfig(**sizes | (MODERN | {"architecture": "modern"} if name == "bertpre_modern" else {}))


def stock_model(name: str, sizes: dict[str, int]) -> nn.Module:
    """The stock class of a variant."""
    if name == "stock_modernbert":
        full = {"global_attn_every_n_layers": 1, "num_hidden_layers": 12, "mlp_dropout": 0.1, "attention_dropout": 0.1}
        ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        config = ModernBertConfig(**sizes, intermediate_size=2048, embedding_dropout=0.1, **full, **ids)
        return ModernBertForMaskedLM(config)
    return BertForPreTraining(BertConfig(**sizes))


def prepare(name: str, shape: str) -> tuple[Variant, dict[str, torch.Tensor]]:
    """A variant of a shape, and a batch in its format."""
    torch.manual_seed(0)
    device, batch_size, length, sizes = SHAPES[shape]
    batch = {
        key: value.to(device)
        for key, value in random_batch(batch_size, length, sizes["vocab_size"], MASKED_SHARE).items()
    }
    if name.startswith("bertpre"):
        model = BertPreForPreTraining(bertpre_config(name, sizes)).to(device)
        if device == "cpu":  # as `bertpre pretrain` does
            keep_freed_memory()
            model.set_attn_implementation("eager")
        return Variant(model, build_optimizers(model, "adamw", 1e-4, 0.01), torch.bfloat16), batch
    targets = torch.full_like(batch["input_ids"], -100)  # the stock classes want a label for every token
    batch["labels"] = targets.scatter(1, batch.pop("masked_positions"), batch["labels"])
    if name == "stock_modernbert":
        del batch["token_type_ids"], batch["next_sentence_label"]
    model, is_expert = stock_model(name, sizes).to(device), name != "stock_fp32"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=is_expert or None)
    return Variant(model, [optimizer], autocast=is_expert, compiled=is_expert), batch


def work(name: str, shape: str) -> None:
    """Run one step of a variant for each line read, print the seconds of its phases, and finally the peak memory."""
    variant, batch = prepare(name, shape)
    for _ in range(WARM_UP_STEPS):  # compiles, then fills the optimizer's state
        variant.step(batch)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(variant.step(batch)), flush=True)
    on_gpu = SHAPES[shape][0] == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(peak // 2**20)


def take_turns(shape: str, rounds: int) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Each variant's median seconds of a step and of its phases, and its peak memory in MB."""
    workers, rows = {}, {}
    for name in VARIANTS[SHAPES[shape][0]]:
        command = [sys.executable, __file__, name, shape]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert workers[name].stdout.readline().strip() == "ready", f"{name} failed"
        rows[name] = []
    for _ in range(rounds):
        for name, worker in workers.items():
            time.sleep(0.5)  # let the previous worker become idle
            print(file=worker.stdin, flush=True)
            phases = json.loads(worker.stdout.readline())
            rows[name].append(phases | {"all": sum(phases.values())})
    memory = {name: int(worker.communicate()[0]) for name, worker in workers.items()}
    medians = {name: {key: statistics.median(row[key] for row in rows[name]) for key in rows[name][0]} for name in rows}
    return medians, memory


def measure(shape: str, rounds: int) -> dict[str, object]:
    """A shape's results: tokens per second, ratios, fractions of the rate of a bf16 matrix product, and more."""
    device, batch_size, length, sizes = SHAPES[shape]
    medians, memory = take_turns(shape, rounds)
    rates = {name: batch_size * length / seconds["all"] for name, seconds in medians.items()}
    peak = hardware(device)["bf16_gflops"] * 1e9
    own = {name: flops_per_token(bertpre_config(name, sizes), length, MASKED_SHARE) for name in rates if "pre" in name}
    return {
        "tokens_per_second": {name: round(rate) for name, rate in rates.items()},
        "bertpre_over": {name: round(rates["bertpre"] / rate, 2) for name, rate in rates.items() if name != "bertpre"},
        "flops_utilization": {name: round(rates[name] * flops / peak, 3) for name, flops in own.items()},
        "phases_of_bertpre": shares(medians["bertpre"]),
        "peak_memory_mb": memory,
    }


def main(rounds: int) -> None:
    """Measure and print."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = {shape: measure(shape, rounds) for shape in SHAPES if SHAPES[shape][0] == device}
    print(json.dumps({"benchmark": "against_stock", "rounds": rounds} | shapes | {"hardware": hardware(device)}))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        work(sys.argv[1], sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
