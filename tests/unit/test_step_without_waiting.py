"""A step on a GPU reads no value back, for which the CPU would have to wait: tried on tensors that have no values.

On the device `meta` whatever asks for a value, or makes a tensor whose size depends on one, raises an error.
"""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from bertpre.finetuning.task import Task, TaskObjective
from bertpre.model import (
    BertPreConfig,
    BertPreForPreTraining,
    BertPreForSequenceClassification,
    BertPreForTokenClassification,
)
from bertpre.pretraining.objective import PretrainingObjective
from bertpre.training.batches import StepBatch
from bertpre.training.metrics import Batch, Objective
from bertpre.training.optimizer import build_optimizers
from bertpre.training.step import Arithmetic, TrainingStep

META = torch.device("meta")
ROWS, LENGTH, MASKED = 4, 32, 6
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
ACCELERATOR = SimpleNamespace(
    device=META, num_processes=1, process_index=0, prepare_model=lambda model: model, no_sync=lambda _: nullcontext()
)


def whole_numbers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device=META)


def texts() -> Batch:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: whole_numbers(ROWS, LENGTH) for name in names}


def masked(has_pairs: bool) -> tuple[type, Batch, Objective]:
    batch = texts() | {"labels": whole_numbers(ROWS, MASKED), "masked_positions": whole_numbers(ROWS, MASKED)}
    pairs = {"next_sentence_label": whole_numbers(ROWS)} if has_pairs else {}
    return BertPreForPreTraining, batch | pairs, PretrainingObjective(has_pairs)


def causal() -> tuple[type, Batch, Objective]:
    mask = torch.zeros(ROWS, 1, LENGTH, LENGTH, dtype=torch.bool, device=META)
    batch = texts() | {"labels": whole_numbers(ROWS, LENGTH), "attention_mask": mask}
    return BertPreForPreTraining, batch, PretrainingObjective(False)


def labelled(kind: str) -> tuple[type, Batch, Objective]:
    labels = {
        "classification": whole_numbers(ROWS),
        "multi_label": torch.zeros(ROWS, 2, device=META),
        "tokens": whole_numbers(ROWS, LENGTH),
    }[kind]
    model_class = BertPreForTokenClassification if kind == "tokens" else BertPreForSequenceClassification
    return model_class, texts() | {"labels": labels}, TaskObjective(Task(kind, ("no", "yes")))


KINDS: dict[str, tuple[type, Batch, Objective]] = {
    "pairs": masked(True),
    "packed": masked(False),
    "causal": causal(),
    **{kind: labelled(kind) for kind in ("classification", "multi_label", "tokens")},
}


@pytest.fixture
def fused_on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's fused optimizers run on `meta`, which has their kernels and is not on their list."""
    module = sys.modules["torch.optim.optimizer"]
    monkeypatch.setattr(module, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])


@pytest.mark.usefixtures("fused_on_meta")
@pytest.mark.parametrize("architecture", ["bert", "modern"])
@pytest.mark.parametrize(
    ("kind", "optimizer", "dtype"),
    [
        *((kind, "adamw", torch.bfloat16) for kind in KINDS),
        ("packed", "adamw", torch.float32),
        *(("packed", name, dtype) for name in ("lamb", "muon") for dtype in (torch.float32, torch.bfloat16)),
    ],
)
def test_a_step_waits_for_no_value(kind: str, optimizer: str, dtype: torch.dtype, architecture: str) -> None:
    model_class, batch, objective = KINDS[kind]
    model = model_class(BertPreConfig(architecture=architecture, vocab_size=64, num_labels=2, **SIZES)).to(META)
    step = TrainingStep(
        ACCELERATOR, model, build_optimizers(model, optimizer, 1e-3, 0.01), objective, Arithmetic(dtype), seed=0
    )
    measured: list[dict[str, torch.Tensor]] = []
    for number in range(2):  # the first makes the optimizers' state
        counts = dict.fromkeys(objective.count_names, 8)
        step.run(number, StepBatch([batch, batch], None), counts, 1.0, measured.append)
    assert len(measured) == 4
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta"):  # what waiting would look like
        step.guard.check()
