"""Where a training's batches come from, and how they reach the device in time."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from bertpre.data.pairs import IGNORE_INDEX
from bertpre.data.sampler import Position
from bertpre.runtime import compute_alone
from bertpre.training.metrics import Batch, Objective
from bertpre.training.micro_batches import Shape


@dataclass(frozen=True)
class StepBatch:
    """One optimizer step's micro-batches of this process, and the position after the whole step."""

    micro_batches: list[Batch]
    after: Position
    documents: Callable[[], list[str]] = list  # names the documents that the step's examples came from


class BatchSource(Protocol):
    """Gives the batch at a position; `progress` (0 to 1) chooses the phase."""

    def __call__(self, position: Position, progress: float) -> StepBatch: ...

    def largest(self) -> list[Batch]:
        """One micro-batch of each shape that the training will use, for a dry run."""
        ...

    @property
    def shapes(self) -> Sequence[Shape]:
        """The shapes that the training will use."""
        ...


FetchedBatch = tuple[StepBatch, dict[str, int]]  # on the device; this process's numbers of targets and of tokens


class Prefetcher:
    """Prepares the next steps' batches in a thread while the current one trains. Use it in a `with` statement."""

    def __init__(self, source: BatchSource, objective: Objective, device: torch.device) -> None:
        self.source, self.objective, self.device = source, objective, device
        self.thread = ThreadPoolExecutor(1, initializer=partial(begin_thread, device))
        self.pending: deque[Future[FetchedBatch]] = deque()
        self.last: Future[FetchedBatch] | None = None  # that was asked for

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.shutdown(cancel_futures=True)

    def begin(self, position: Position, progress: float) -> None:
        """Start to prepare the batch at a position; batches that nobody has asked for yet are dropped."""
        for batch in self.pending:
            batch.cancel()
        self.last = self.thread.submit(self.fetch, position, progress)
        self.pending = deque([self.last])

    def prefetch(self, progress: float) -> None:
        """Start to prepare one more batch, after the last one. Call `begin` first."""
        assert self.last is not None, "call begin first"
        self.last = self.thread.submit(self.fetch_after, self.last, progress)
        self.pending.append(self.last)

    def next_batch(self) -> FetchedBatch:
        """The oldest batch that was asked for. Raises RuntimeError where none was."""
        if not self.pending:
            raise RuntimeError("no batch was asked for: call begin first")
        return self.pending.popleft().result()

    def fetch_after(self, before: "Future[FetchedBatch]", progress: float) -> FetchedBatch:
        """Prepare the batch after another one, which the same thread has prepared; raises the error of that one."""
        return self.fetch(before.result()[0].after, progress)

    def fetch(self, position: Position, progress: float) -> FetchedBatch:
        """Prepare a batch and copy it to the device."""
        batch = self.source(position, progress)
        counts = add_counts(self.objective.counts(micro_batch) for micro_batch in batch.micro_batches)
        counts["tokens"] = sum(map(tokens_in, batch.micro_batches))
        on_device = [to_device(micro_batch, self.device) for micro_batch in batch.micro_batches]
        return StepBatch(on_device, batch.after, batch.documents), counts


def tokens_in(batch: Batch) -> int:
    """The tokens of a batch, padding not counted; without an attention mask nothing is padding."""
    if "attention_mask" not in batch:
        return batch["input_ids"].numel()
    if batch["attention_mask"].ndim == 4:  # causal: every token of a row but the first is a target
        return int((batch["labels"] != IGNORE_INDEX).sum()) + len(batch["labels"])
    return int(batch["attention_mask"].sum())


def begin_thread(device: torch.device) -> None:
    """Compute alone, beside the training, and make a GPU this thread's own.

    Otherwise every process pins memory through the first GPU, and takes room there.
    """
    compute_alone()
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """A batch on the device."""
    if device.type == "cuda":  # a copy from pinned memory, into which no expanded tensor goes, makes no CPU wait
        return {name: value.contiguous().pin_memory().to(device, non_blocking=True) for name, value in batch.items()}
    return {name: value.to(device) for name, value in batch.items()}


def add_counts(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sum mappings key by key."""
    total: dict[str, int] = {}
    for row in rows:
        for name, value in row.items():
            total[name] = total.get(name, 0) + value
    return total
