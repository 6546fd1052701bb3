"""A toy model, a toy source and a trainer on them: the loop by itself, in milliseconds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from bertpre.data.sampler import Position
from bertpre.training.batches import StepBatch
from bertpre.training.checkpoint import Checkpoints
from bertpre.training.evaluation import Evaluation
from bertpre.training.metrics import Batch
from bertpre.training.optimizer import build_optimizers
from bertpre.training.schedule import Duration, lr_at
from bertpre.training.step import Arithmetic
from bertpre.training.step_log import StepLog
from bertpre.training.trackers import MetricsLog
from bertpre.training.trainer import Trainer

VOCABULARY, WIDTH, LENGTH, ROWS = 50, 8, 16, 4


@dataclass
class ToyOutput:
    """What the toy model returns."""

    loss: Tensor


class ToyModel(nn.Module):
    """Guesses a token's successor modulo the vocabulary, from the token alone, with dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, num_items_in_batch: Tensor) -> ToyOutput:
        logits = self.classifier(self.dropout(self.embeddings(input_ids)))
        targets = (input_ids + 1) % VOCABULARY
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return ToyOutput(loss / num_items_in_batch)


class ToyObjective:
    """The loss over all tokens."""

    metric_names = ("loss",)
    count_names = ("num_items_in_batch",)
    options: ClassVar[dict[str, bool]] = {}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"num_items_in_batch": batch["input_ids"].numel()}

    def measure(self, outputs: ToyOutput, batch: Batch, counts: Any) -> dict[str, Tensor]:  # noqa: ANN401
        return {"loss": outputs.loss.detach()}


class ToySource:
    """Random tokens that depend on the position alone; notes each progress that it is asked for."""

    def __init__(
        self,
        micro_batches: int = 1,
        before_largest: Callable[[], None] = lambda: None,
        choices: tuple[int, ...] | None = None,  # of micro-batch sizes
    ) -> None:
        self.micro_batch_size, self.before_largest = ROWS // micro_batches, before_largest
        self.choices = choices or (self.micro_batch_size,)
        self.asked: list[float] = []

    def __call__(self, position: Position, progress: float) -> StepBatch:
        self.asked.append(progress)
        generator = torch.Generator().manual_seed(position.offset)
        ids = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
        parts = [
            {"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(self.micro_batch_size)
        ]
        return StepBatch(parts, Position(offset=position.offset + 1), lambda: [f"document {position.offset}"])

    def largest(self) -> list[Batch]:
        self.before_largest()
        return [self.sample(self.micro_batch_size)]

    @property
    def shapes(self) -> "list[ToySource]":
        return [self]

    def sample(self, rows: int) -> Batch:
        ids = torch.zeros(rows, LENGTH, dtype=torch.int64)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def toy_trainer(
    folder: Path,
    max_steps: int | None = 10,
    source: ToySource | None = None,
    *,
    every: int = 5,
    log_every: int = 1,
    budget_seconds: float | None = None,
    max_tokens: int | None = None,
    warmup: float = 0.2,
    arithmetic: Arithmetic = Arithmetic(),  # noqa: B008 - frozen
    measure: Callable[[int], dict[str, Any]] | None = None,
    model: ToyModel | None = None,
    optimizer: str = "adamw",
    **others: Any,  # noqa: ANN401
) -> Trainer:
    """A trainer whose checkpoints and `metrics.jsonl` are in `folder`."""
    folder.mkdir(exist_ok=True)
    model = model or ToyModel()
    return Trainer(
        accelerator=Accelerator(cpu=True),
        model=model,
        optimizers=build_optimizers(model, optimizer, 1e-2, 0.01),
        source=source or ToySource(),
        objective=ToyObjective(),
        duration=Duration(max_steps, budget_seconds, max_tokens),
        lr_at=partial(lr_at, schedule="linear", warmup=warmup),
        log=StepLog(MetricsLog(folder / "metrics.jsonl", "toy", True), log_every),
        arithmetic=arithmetic,
        evaluation=Evaluation(measure, every) if measure else None,
        checkpoints=Checkpoints(folder / "checkpoints", every),
        **others,
    )
