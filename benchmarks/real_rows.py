"""Rows of real text as each side makes them, and how many of their slots hold tokens. Other benchmarks import this.

Ours come from the trainer's own batches. Stock rows without pairs are those of transformers' run_mlm.py: documents
between [CLS] and [SEP] are joined and cut into blocks, so none is padded, and DataCollatorForLanguageModeling masks
them. Stock pairs are google-research/bert's, padded to the length.
"""

import random
from pathlib import Path

import torch
from pair_form import plan_like_google
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from bertpre.commands.prepare import prepare
from bertpre.data.sampler import Position
from bertpre.data.store import Shard, open_shards
from bertpre.data.tokenizer import load_tokenizer
from bertpre.pretraining.batches import PretrainingData
from bertpre.recipe import load_recipe
from bertpre.runtime import start_accelerator
from bertpre.training.batches import tokens_in

ROWS_COUNTED = 4096
Rows = tuple[dict[str, torch.Tensor], float]  # one batch, and the share of slots that hold tokens in many


def prepared_run(text: str, vocab_size: int, folder: Path) -> Path:
    """A run directory with prepared text: `text` itself where it is one, else a new one in `folder`.

    `text` is IMDB in the Hub's layout, whose training split is read, or `sample`, a part of the embedded corpus.
    """
    if (Path(text) / "data").is_dir():
        return Path(text)
    limits = "split: unsupervised+articles, limit: 1000" if text == "sample" else "split: train"
    corpus = f"corpus={{path: {text}, {limits}}}"
    overrides = [f"output_dir={folder}", corpus, f"tokenizer.vocab_size={vocab_size}", "finetune=null"]
    prepare(load_recipe("imdb-mini-cpu", overrides))
    return folder


def own_rows(run: Path, size: int, length: int, kind: str, masked_share: float) -> Rows:
    """bertpre's rows: packed text (`none`) or pairs (`nsp`)."""
    micro_batches = max(1, ROWS_COUNTED // size)
    overrides = [
        f"pairs={{kind: {kind}}}", f"training.phases=[{{max_length: {length}, micro_batch_size: {size}}}]",
        f"training.global_batch_size={size * micro_batches}", f"training.masked_lm_prob={masked_share}",
        "training.masked_lm_prob_end=null", "finetune=null",
        "model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1",  # as the models of against_stock.py
    ]  # fmt: skip
    tokenizer = load_tokenizer(run / "tokenizer")
    data = PretrainingData(load_recipe(str(run), overrides), tokenizer, run / "data", start_accelerator())
    batches = data(Position(), 0.0).micro_batches
    filled = sum(map(tokens_in, batches)) / sum(batch["input_ids"].numel() for batch in batches)
    return dict(batches[0]), filled


def stock_rows(run: Path, size: int, length: int, kind: str, masked_share: float) -> Rows:
    """The stock side's rows: blocks without pairs (`none`), or google's pairs (`nsp`)."""
    tokenizer = load_tokenizer(run / "tokenizer")
    shard = open_shards(run / "data", "train")[0]
    rows = blocks(shard, tokenizer, length) if kind == "none" else google_pairs(shard, tokenizer, length)
    filled = sum(len(row["input_ids"]) for row in rows) / (len(rows) * length)
    torch.manual_seed(0)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=masked_share, pad_to_multiple_of=length)
    batch = dict(collator([rows[number % len(rows)] for number in range(size)]))
    if kind == "none":  # nothing is padded, and without a mask the stock classes are faster
        del batch["attention_mask"]
    return batch, filled


def blocks(shard: Shard, tokenizer: PreTrainedTokenizerBase, length: int) -> list[dict]:
    """Documents between [CLS] and [SEP], joined and cut into rows of `length` tokens."""
    starts, joined = shard.sentences[shard.documents].tolist(), []
    for start, end in zip(starts, starts[1:], strict=False):
        joined += [tokenizer.cls_token_id, *shard.tokens[start:end].tolist(), tokenizer.sep_token_id]
        if len(joined) > ROWS_COUNTED * length:
            break
    return [{"input_ids": joined[start : start + length]} for start in range(0, len(joined) - length + 1, length)]


def google_pairs(shard: Shard, tokenizer: PreTrainedTokenizerBase, length: int) -> list[dict]:
    """Rows `[CLS] A [SEP] B [SEP]` of at most `length` tokens, in random order."""
    plan = plan_like_google(shard, random.Random(0), length)
    random.Random(0).shuffle(chosen := plan.tolist())
    return [pair_row(row, shard, tokenizer) for row in chosen[:ROWS_COUNTED]]


def pair_row(row: list[int], shard: Shard, tokenizer: PreTrainedTokenizerBase) -> dict:
    """One pair of a plan as the stock class reads it."""
    a_start, a_end, b_start, b_end, label = row
    a, b = (shard.tokens[start:end].tolist() for start, end in ((a_start, a_end), (b_start, b_end)))
    ids = [tokenizer.cls_token_id, *a, tokenizer.sep_token_id, *b, tokenizer.sep_token_id]
    types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    return {"input_ids": ids, "token_type_ids": types, "next_sentence_label": label}
