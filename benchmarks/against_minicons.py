"""Are the scores of `bertpre probe --pairs` those of minicons (Misra 2022)? Prints one JSON line.

python benchmarks/against_minicons.py MODEL PAIRS.jsonl [COUNT]        (default: the first 100 pairs)

Both mask the later pieces of a word too (`within_word_l2r`, Kauf and Ivanova 2023). minicons reads the stock class of
the folder MODEL, in fp32, as a user without bertpre would. It is not among bertpre's dependencies:
`pip install minicons`. `seconds` includes no loading; the sentences are few, so nothing is compiled.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from minicons.scorer import MaskedLMScorer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from bertpre.commands.probe import read_pairs
from bertpre.finetuning.acceptability import SentenceScorer, share_preferred
from bertpre.finetuning.loading import load_masked_lm


def measure(model: str, file: Path, count: int) -> dict[str, object]:
    """Score the same sentences both ways."""
    texts = [side for pair in read_pairs(file)[:count] for side in pair[:2]]
    network, tokenizer = load_masked_lm(model)
    start = time.perf_counter()
    ours = SentenceScorer(tokenizer, network).scores(network, texts)
    middle = time.perf_counter()
    stock = AutoModelForMaskedLM.from_pretrained(model, dtype=torch.float32)
    stock_tokenizer = AutoTokenizer.from_pretrained(model)
    stock_tokenizer.batch_encode_plus = stock_tokenizer.__call__  # transformers 5 has no such method, minicons calls it
    scorer = MaskedLMScorer(stock, "cpu", tokenizer=stock_tokenizer)
    begin = time.perf_counter()
    theirs = []
    for text in texts:  # one at a time: a batch would be padded
        (score,) = scorer.sequence_score([text], reduction=lambda each: each.sum().item(), PLL_metric="within_word_l2r")
        theirs.append(score)
    end = time.perf_counter()
    return {
        "benchmark": "against_minicons",
        "file": file.name,
        "pairs": len(texts) // 2,
        "accuracy": {
            name: share_preferred(np.reshape(scores, (-1, 2)))
            for name, scores in (("ours", ours), ("minicons", theirs))
        },
        "largest_difference": float(np.abs(ours - np.array(theirs)).max()),
        "mean_score": float(ours.mean()),
        "seconds": {"ours": round(middle - start, 2), "minicons": round(end - begin, 2)},
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), int((sys.argv[3:] or ["100"])[0]))))
