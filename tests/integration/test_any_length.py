"""Fine-tuning compiles one program for batches of every length, whichever model it starts from."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
)

from bertpre.finetuning.task import Task, TaskModel
from bertpre.model import BertPreConfig, BertPreForSequenceClassification

SIZES = {
    "vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 64, "num_labels": 2,
}  # fmt: skip
MODELS = {
    "bert": lambda: BertPreForSequenceClassification(BertPreConfig(**SIZES)),
    "modern": lambda: BertPreForSequenceClassification(BertPreConfig(**SIZES, architecture="modern")),
    "stock bert": lambda: BertForSequenceClassification(BertConfig(**SIZES)),
    "stock modernbert": lambda: ModernBertForSequenceClassification(ModernBertConfig(**SIZES, pad_token_id=0)),
}


@pytest.mark.parametrize(
    ("name", "soft"),
    [
        ("bert", False),
        ("bert", True),
        ("modern", False),
        *(pytest.param(f"stock {each}", False, marks=pytest.mark.slow) for each in ("bert", "modernbert")),
    ],
)
def test_one_program_for_every_length(name: str, soft: bool) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    model = TaskModel(MODELS[name]().train(), Task("classification", ("no", "yes")))
    model.compile(dynamic=True, backend=counter)
    for length in (64, 8, 40, 24):
        ids = torch.randint(5, 128, (4, length))
        mask = torch.ones_like(ids)
        mask[0, length // 2 :] = 0
        labels = torch.rand(4, 2) if soft else torch.tensor([0, 1, 1, 0])
        one = torch.ones(())
        model(input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=one).loss.backward()
    assert counter.frame_count == 1
