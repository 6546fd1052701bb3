"""Compare a training step of bertpre with steps of the stock classes, time and memory; a JSON line for each shape.

python benchmarks/against_stock.py [ROUNDS] [TEXT] [KIND] [SHAPE ...]
    (default: 5 rounds, random ids, none, the shapes of this device; the variants take turns, medians are reported)

All train networks of one size with AdamW, 15 % masked, dropout 0.1, each in its own process (turns.py):
- stock_fp32: the stock class as most people run it (not measured on a GPU);
- stock_bf16_compiled: as an expert would run it, with sdpa, bf16 autocast, torch.compile and a fused optimizer;
- stock_modernbert: ModernBertForMaskedLM with full attention, run the same way (measured on a GPU);
- bertpre: the trainer's own step (TrainingStep) with what it chooses on this device, without its accuracies;
- bertpre_modern: the same for architecture "modern" (measured on a GPU).

Without TEXT, or with `random`, all read full pairs of random ids with an attention mask and train both losses
(BertForPreTraining): every slot is a token. With TEXT (IMDB in the Hub's layout, `sample`, or a run directory that is
prepared) each side reads that text in its own rows (real_rows.py):
- KIND none: without pairs. Stock: BertForMaskedLM on blocks of joined documents, none padded and none masked out, which
  is its best. bertpre: packed rows.
- KIND nsp: pairs. Stock: google's pairs, padded to the length. bertpre: its own pairs.
A slot is a place in a row; a token is a slot that is not padding. `filled` is counted in thousands of rows.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from real_rows import own_rows, prepared_run, stock_rows
from torch import nn
from training_step import OwnStep, Variant, hardware, random_batch
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, ModernBertConfig, ModernBertForMaskedLM
from turns import do_turns, take_turns

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.flops import flops_per_token
from bertpre.model.modeling_bertpre import BertPreForPreTraining

MASKED_SHARE = 0.15
MINI = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
SHAPES = {  # variants, batch size, tokens in a row, sizes that differ from BERT-base's
    "base": ("cpu", 8, 128, {"vocab_size": 30522}),
    "mini": ("cpu", 32, 128, {"vocab_size": 30522} | MINI),
    "mini_8k": ("cpu", 32, 128, {"vocab_size": 8192} | MINI),
    "base_128": ("cuda", 128, 128, {"vocab_size": 30528}),
    "base_512": ("cuda", 32, 512, {"vocab_size": 30528}),
    "tiny": ("smoke", 4, 32, {"vocab_size": 4096} | TINY),  # shows in seconds that everything works
}
VARIANTS = {
    "cpu": ("stock_fp32", "stock_bf16_compiled", "bertpre"),
    "cuda": ("stock_bf16_compiled", "stock_modernbert", "bertpre", "bertpre_modern"),
    "smoke": ("stock_fp32", "stock_bf16_compiled", "stock_modernbert", "bertpre", "bertpre_modern"),
}
MODERN = {"hidden_act": "gelu"}
RANDOM = "random"
Batch = dict[str, torch.Tensor]


def bertpre_config(name: str, sizes: dict[str, int]) -> BertPreConfig:
    """The configuration of a bertpre variant."""
    if name != "bertpre_modern":
        return BertPreConfig(**sizes)
    return BertPreConfig(**sizes | MODERN | {"architecture": "modern", "intermediate_size": geglu_width(sizes)})


def geglu_width(sizes: dict[str, int]) -> int:
    """The width of the feed-forward layers of the modern architecture: GeGLU has a third matrix, so it is narrower."""
    return sizes.get("intermediate_size", 3072) * 2 // 3


def stock_model(name: str, sizes: dict[str, int], has_pairs: bool) -> nn.Module:
    """The stock class of a variant."""
    if name == "stock_modernbert":
        full = {"global_attn_every_n_layers": 1, "mlp_dropout": 0.1, "attention_dropout": 0.1, "embedding_dropout": 0.1}
        ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        sizes = {"num_hidden_layers": 12} | sizes | {"intermediate_size": geglu_width(sizes)}
        return ModernBertForMaskedLM(ModernBertConfig(**sizes, **full, **ids))
    return (BertForPreTraining if has_pairs else BertForMaskedLM)(BertConfig(**sizes))


def stock_labels(batch: Batch) -> Batch:
    """A batch of ours in the format of the stock classes, which want a label for every token."""
    targets = torch.full_like(batch["input_ids"], -100)
    labels = targets.scatter(1, batch["masked_positions"], batch["labels"])
    return {name: value for name, value in batch.items() if name != "masked_positions"} | {"labels": labels}


def rows_of(name: str, shape: str, text: str, kind: str) -> tuple[Batch, float]:
    """A batch in a variant's format, and the share of slots that hold tokens; `text` is a run directory, or random."""
    _, size, length, sizes = SHAPES[shape]
    if text == RANDOM:
        batch = random_batch(size, length, sizes["vocab_size"], MASKED_SHARE)
        return (batch if is_own(name) else stock_labels(batch)), 1.0
    rows = own_rows if is_own(name) else stock_rows
    batch, filled = rows(Path(text), size, length, kind, MASKED_SHARE)
    assert int(batch["input_ids"].max()) < sizes["vocab_size"], f"{text} has a larger vocabulary than {shape}"
    return batch, filled


def is_own(name: str) -> bool:
    """Whether a variant is bertpre's."""
    return name.startswith("bertpre")


def prepare(name: str, shape: str, text: str = RANDOM, kind: str = "none") -> Callable[[], object]:
    """A variant's step."""
    torch.manual_seed(0)
    (batch, _), sizes = rows_of(name, shape, text, kind), SHAPES[shape][3]
    if is_own(name):
        return OwnStep(BertPreForPreTraining(bertpre_config(name, sizes)), batch)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    has_pairs = "next_sentence_label" in batch
    if name == "stock_modernbert":
        batch = {key: value for key, value in batch.items() if key not in ("token_type_ids", "next_sentence_label")}
    batch = {key: value.to(device) for key, value in batch.items()}
    model, is_expert = stock_model(name, sizes, has_pairs).to(device), name != "stock_fp32"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=is_expert or None)
    variant = Variant(model, [optimizer], autocast=is_expert, compiled=is_expert)
    return lambda: variant.step(batch, timed=False)  # turns.py waits, as for bertpre


def measure(shape: str, rounds: int, text: str, kind: str) -> dict[str, Any]:
    """A shape's results: tokens per second, ratios, fractions of the rate of a bf16 matrix product, and more."""
    group, size, length, sizes = SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        if text != RANDOM:
            text = str(prepared_run(text, sizes["vocab_size"], Path(folder) / "run"))
        commands = {name: [sys.executable, __file__, "--work", name, shape, text, kind] for name in VARIANTS[group]}
        turns = take_turns(commands, rounds)
        filled = {name: rows_of(name, shape, text, kind)[1] for name in turns}
    slots = {name: size * length / turn["seconds"] for name, turn in turns.items()}
    tokens = {name: rate * filled[name] for name, rate in slots.items()}
    peak = hardware("cuda" if torch.cuda.is_available() else "cpu")["bf16_gflops"] * 1e9
    own = {name: flops_per_token(bertpre_config(name, sizes), length, MASKED_SHARE) for name in turns if is_own(name)}
    return {
        "tokens_per_second": {name: round(rate) for name, rate in tokens.items()},
        "slots_per_second": {name: round(rate) for name, rate in slots.items()},
        "filled": {name: round(share, 4) for name, share in filled.items()},
        **{f"{name}_over": ratios(tokens, name) for name in own},
        **{f"{name}_over_in_slots": ratios(slots, name) for name in own},
        "flops_utilization": {name: round(slots[name] * flops / peak, 3) for name, flops in own.items()},
        "peak_memory_mb": {name: turn["peak_memory_mb"] for name, turn in turns.items()},
        "failed": [name for name in VARIANTS[group] if name not in turns],
    }


def ratios(rates: dict[str, float], name: str) -> dict[str, float]:
    """How many times the other variants' rates one variant's is."""
    return {other: round(rates[name] / rate, 2) for other, rate in rates.items() if other != name}


def main(rounds: int = 5, text: str = RANDOM, kind: str = "none", *shapes: str) -> None:
    """Measure and print."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    line = {"benchmark": "against_stock", "rounds": int(rounds), "rows": RANDOM if text == RANDOM else kind}
    failed: set[str] = set()
    for shape in shapes or [shape for shape in SHAPES if SHAPES[shape][0] == device]:
        result = measure(shape, int(rounds), text, kind)
        print(json.dumps(line | {shape: result, "hardware": hardware(device)}), flush=True)
        failed |= set(result["failed"])
    if failed:
        raise SystemExit(f"failed: {', '.join(sorted(failed))}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        do_turns(prepare(*sys.argv[2:]))
    else:
        main(*sys.argv[1:])
