"""How far a gradient in bf16 is from that in fp32, by the number of micro-batches; prints one JSON line.

python benchmarks/micro_batch_gradients.py RUN [ROWS]        (a run with prepared data; default: 512 rows)

A `bert` of 2 x 64 is trained in fp32 for 100 steps of 32 rows on the run's text. Then the gradient of one more batch is
computed in several numbers of passes. The figures are the norm of the difference, divided by that of the gradient:

- in_bf16: the working copy's own gradients add up, as before 2026-11-29;
- in_fp32: those of each pass are added in fp32, as a step of one process does;
- shared: likewise, and the sum is rounded before the last pass, as DDP shares it;
- autocast: torch's, on weights in fp32.
"""

import json
import sys

import torch

from bertpre.data import TokenStore
from bertpre.data.masking import MaskingCollator
from bertpre.data.sampler import PairDataset, Position
from bertpre.model import BertPreConfig, BertPreForPreTraining
from bertpre.training.precision import WorkingCopy

LENGTH, STEPS, ROWS, PASSES = 128, 100, 32, (8, 64, 512)
MODES = ("in_bf16", "in_fp32", "shared", "autocast")


def gradient(model: BertPreForPreTraining, batches: list[dict[str, torch.Tensor]], mode: str) -> torch.Tensor:
    """The gradient of the mean over all targets, as one vector."""
    model.zero_grad()
    working = WorkingCopy(model, torch.float32 if mode in ("fp32", "autocast") else torch.bfloat16)
    targets = sum(batch["labels"].ne(-100).sum() for batch in batches).float()
    pairs = sum(batch["next_sentence_label"].ne(-100).sum() for batch in batches).float()
    for number, batch in enumerate(batches, start=1):
        if mode == "shared" and number == len(batches):
            working.return_gradients()
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            loss = working.model(**batch, num_items_in_batch=targets, num_pairs_in_batch=pairs).loss
        loss.backward()
        if mode != "in_bf16" and number < len(batches):
            working.add_gradients()
    working.collect_gradients()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def main(run: str, rows: int = 512) -> None:
    """Train, measure and print."""
    store = TokenStore(run)
    tokenizer = store.tokenizer
    dataset = PairDataset(store.shards("train"), LENGTH, 0, kind="nsp", sep_token_id=tokenizer.sep_token_id)
    collate = MaskingCollator.from_tokenizer(tokenizer, LENGTH)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    model = BertPreForPreTraining(BertPreConfig(architecture="bert", vocab_size=len(tokenizer), **sizes)).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    optimizer, position = torch.optim.AdamW(model.parameters(), lr=1e-3), Position()
    for _ in range(STEPS):
        examples, position = dataset.take(position, ROWS)
        model(**collate(examples)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    examples, _ = dataset.take(position, rows)
    batches = [collate(examples[start : start + 1]) for start in range(rows)]
    errors: dict[str, dict[int, float]] = {mode: {} for mode in MODES}
    for passes in [count for count in PASSES if rows % count == 0]:
        size = rows // passes
        parts = [
            {name: torch.cat([batch[name] for batch in batches[start : start + size]]) for name in batches[0]}
            for start in range(0, rows, size)
        ]
        reference = gradient(model, parts, "fp32")
        for mode in MODES:
            error = (gradient(model, parts, mode) - reference).norm() / reference.norm()
            errors[mode][passes] = round(error.item(), 4)
    print(json.dumps({"benchmark": "micro_batch_gradients", "rows": rows, "threads": torch.get_num_threads()} | errors))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
