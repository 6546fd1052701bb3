"""Compare training steps whose last layer computes what is read with steps that compute it in full; one JSON line.

python benchmarks/last_layer.py [CASE ...]        (default: all; the two take turns, medians of 15 steps are reported)

Compiled, on a CPU, bf16 copy of the weights, AdamW, no dropout, rows of 128 tokens, 15 % masked. `in_full` is as
bertpre computed before: a hook makes the last layer compute all positions, and the pooler runs without pairs too.
One thread and its CPU time are measured, since other programs change these little.
"""

import json
import statistics
import sys
import time

import torch
from training_step import Variant, hardware, random_batch

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.pretraining.build import freeze_pair_head
from bertpre.training.optimizer import build_optimizers

LENGTH, VOCABULARY, MASKED_SHARE = 128, 8192, 0.15
WARM_UP_STEPS, ROUNDS = 2, 15
MINI = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
NARROW = {"intermediate_size": 688}  # GeGLU has a third matrix
CASES: dict[str, tuple[int, bool, dict[str, object]]] = {  # rows, pairs or not, fields of the configuration
    "bert_mini": (32, False, {"architecture": "bert"} | MINI),
    "bert_mini_pairs": (32, True, {"architecture": "bert"} | MINI),
    "modern_mini": (32, False, {"architecture": "modern"} | MINI | NARROW),
    "bert_base_pairs": (4, True, {"architecture": "bert"}),
}


def build(case: str, in_full: bool) -> tuple[Variant, dict[str, torch.Tensor]]:
    """The model with its optimizers, and a batch."""
    rows, pairs, fields = CASES[case]
    torch.manual_seed(0)
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertPreForPreTraining(BertPreConfig(vocab_size=VOCABULARY, **fields, **dropout))
    model.set_attn_implementation("eager")
    batch = random_batch(rows, LENGTH, VOCABULARY, MASKED_SHARE)
    if not pairs:
        freeze_pair_head(model)
        batch["next_sentence_label"] = torch.full((rows,), -100)
    if in_full:
        model.bert.encoder.register_forward_hook(lambda *_: None)
    elif not pairs:
        del batch["next_sentence_label"]
    return Variant(model, build_optimizers(model, "adamw", 1e-4, 0.01), torch.bfloat16), batch


def measure(case: str) -> dict[str, float]:
    """Median CPU seconds of a step of each kind, and the median ratio of neighbouring steps."""
    variants = {"in_full": build(case, True), "as_read": build(case, False)}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(WARM_UP_STEPS + ROUNDS):
        for name, (variant, batch) in variants.items():
            start = time.process_time()
            variant.step(batch)
            if turn >= WARM_UP_STEPS:  # they compile, then fill the optimizers' state
                seconds[name].append(time.process_time() - start)
    ratios = [part / full for full, part in zip(seconds["in_full"], seconds["as_read"], strict=True)]
    medians = {name: round(statistics.median(values), 4) for name, values in seconds.items()}
    return medians | {"ratio": round(statistics.median(ratios), 3)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {case: measure(case) for case in sys.argv[1:] or CASES}
    print(json.dumps({"benchmark": "last_layer", "cpu_seconds_of_a_step": results, "hardware": hardware()}))
