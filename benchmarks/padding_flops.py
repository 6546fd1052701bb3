"""Count what the layers of BERT-base compute in a forward pass on padded rows; prints one JSON line for each shape.

python benchmarks/padding_flops.py        (on any machine: nothing is computed)

Four ways: with all positions or only what is read in the last layer, padded or without padding, relative to the first.
128 rows without pairs, of lengths spread evenly around their mean, 15 % of the slots read. torch counts the products of
the linear layers; attention costs 4 E for each query and key of a row.
"""

import json
from itertools import product

import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreModel
from bertpre.training.unpadding import unpadded

ROWS, READ_SHARE = 128, 0.15
SHAPES = ((128, 0.86), (512, 0.55))  # length, share of slots that are filled


def count(batch: dict[str, torch.Tensor], unpads: bool, reads: bool) -> float:
    """FLOPs of the layers."""
    length = batch["attention_mask"].shape[1]
    read = round(READ_SHARE * length)
    inputs = {"input_ids": torch.zeros(ROWS, length, dtype=torch.long), **(unpadded(batch) if unpads else batch)}
    if reads:
        inputs["read_positions"] = torch.zeros(ROWS, read, dtype=torch.long)
    config = BertPreConfig(attention_probs_dropout_prob=0.0)
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        BertPreModel(config, add_pooling_layer=False)(**inputs)
    linear = sum(flops for name, flops in counter.get_flop_counts()["Global"].items() if "attention" not in str(name))
    keys = inputs["row_bounds"].diff() if unpads else torch.full((ROWS,), length)
    last_queries = torch.where(torch.arange(len(keys)) < ROWS, read, 1) if reads else keys
    queries = (config.num_hidden_layers - 1) * keys + last_queries
    return linear + 4 * config.hidden_size * float((keys.double() * queries).sum())


def main() -> None:
    """Count and print."""
    for length, filled in SHAPES:
        lengths = length * (filled - (1 - filled) * torch.linspace(-1, 1, ROWS))
        batch = {"attention_mask": (torch.arange(length) < lengths[:, None].round()).long()}
        flops = {(unpads, reads): count(batch, unpads, reads) for unpads, reads in product((False, True), repeat=2)}
        rows, layer = ("padded", "unpadded"), ("all", "what_is_read")
        shares = {f"{rows[a]}_{layer[b]}": round(each / flops[False, False], 3) for (a, b), each in flops.items()}
        slots = len(unpadded(batch)["token_index"]) / (ROWS * length)
        print(json.dumps({"benchmark": "padding_flops", "length": length, "filled": filled, "slots": slots} | shares))


if __name__ == "__main__":
    main()
