"""How many slots of the rows hold tokens; prints one JSON line for each store.

python benchmarks/full_rows.py STORE_OR_RUN ...        (lengths 128 and 512, up to 20,000 rows of the first epoch)

`filled` is the share of slots that are not padding, `text` the share that hold neither padding nor a special token,
`full_rows` the share of rows without padding. `nsp_no_short` are the pairs with `short_seq_prob` 0.

`computed` is the share of slots that a GPU computes where it leaves padding out, by rows in a micro-batch, and
`programs` the number of their shapes (bertpre/training/unpadding.py).
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from bertpre.data.sampler import PairDataset, Position
from bertpre.data.store import Shard, open_shards
from bertpre.training.unpadding import unpadded

LENGTHS, MOST_ROWS, MOST_SHARDS = (128, 512), 20_000, 4
MICRO_BATCHES = (16, 32, 128)  # rows
SEP = 2**16 - 1  # an id that no token of these stores has
SETTINGS = {"none": {"kind": "none"}, "nsp": {"kind": "nsp"}, "nsp_no_short": {"kind": "nsp", "short_seq_prob": 0.0}}


def measure(shards: list[Shard], max_length: int, **settings: float) -> dict[str, object]:
    """The shares of slots and rows, of one kind of rows at one length."""
    data = PairDataset(shards, max_length, seed=0, sep_token_id=SEP, **settings)
    examples, _ = data.take(Position(), min(MOST_ROWS, len(data.plan(0)[0])))
    tokens = np.array([len(example.a) + len(example.b) for example in examples])
    filled = tokens + np.array([2 + (len(example.b) > 0) for example in examples])
    inner = sum(int((example.a == SEP).sum()) for example in examples)
    slots = len(examples) * max_length
    shares = filled.sum() / slots, (tokens.sum() - inner) / slots, (filled == max_length).mean()
    named = {name: round(float(share), 4) for name, share in zip(("filled", "text", "full_rows"), shares, strict=True)}
    if not data.has_padding:
        return named
    sizes = {rows: computed_slots(filled, max_length, rows) for rows in MICRO_BATCHES}
    computed = {rows: round(float(np.mean(each)) / (rows * max_length), 4) for rows, each in sizes.items()}
    return named | {"computed": computed, "programs": {rows: len(set(each)) for rows, each in sizes.items()}}


def computed_slots(lengths: np.ndarray, max_length: int, rows: int) -> list[int]:
    """The slots of each whole micro-batch without its padding."""
    whole = torch.from_numpy(lengths[: len(lengths) // rows * rows]).view(-1, rows, 1)
    masks = (torch.arange(max_length) < each for each in whole)
    return [len(unpadded({"attention_mask": mask})["token_index"]) for mask in masks]


def main(folders: list[Path]) -> None:
    """Measure and print."""
    for folder in folders:
        shards = open_shards(folder / "data" if (folder / "data").exists() else folder, "train")[:MOST_SHARDS]
        measured = {
            f"{name}_{length}": measure(shards, length, **settings)
            for name, settings in SETTINGS.items()
            for length in LENGTHS
        }
        print(json.dumps({"benchmark": "full_rows", "store": folder.name} | measured), flush=True)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
