"""The training loop: takes objects, knows no recipe."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import nn

from bertpre.data.sampler import Position
from bertpre.training.checkpoint import load_checkpoint, save_checkpoint
from bertpre.training.guards import check_finite
from bertpre.training.metrics import Batch, Objective
from bertpre.training.optimizer import WorkingCopy, set_learning_rate
from bertpre.training.schedule import Duration
from bertpre.training.trackers import MetricsLog


@dataclass(frozen=True)
class StepBatch:
    """One optimizer step's micro-batches of this process, and the position behind the whole step."""

    micro_batches: list[Batch]
    after: Position


class Source(Protocol):
    """Gives the batch that stands at a position; `progress` (0 to 1) chooses the phase."""

    def __call__(self, position: Position, progress: float) -> StepBatch: ...


@dataclass
class Trainer:
    """Everything one training needs; `train` runs it."""

    accelerator: Accelerator
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    source: Source
    objective: Objective
    duration: Duration
    lr_at: Callable[[float], float]
    log: MetricsLog
    dtype: torch.dtype = torch.float32
    compile: bool = False
    max_grad_norm: float = 1.0
    seed: int = 0
    log_every: int = 20
    eval_every: int = 0  # 0: never
    evaluate: Callable[[int], dict[str, float]] | None = None  # takes the step
    checkpoint_dir: Path | None = None
    checkpoint_every: int = 0
    checkpoint_keep: int = 2
    flops_per_token: float | None = None
    peak_flops: float | None = None
    step: int = field(default=0, init=False)
    elapsed: float = field(default=0.0, init=False)  # seconds of training, those before a resume included
    tokens: int = field(default=0, init=False)  # real ones, padding not counted
    position: Position = field(default=Position(), init=False)
    figures: dict[str, float] = field(default_factory=dict, init=False)  # of the last evaluation
    saved_step: int | None = field(default=None, init=False)

    def train(self) -> dict[str, float]:
        """Train to the end of the duration; returns the last evaluation's figures."""
        self.resume()
        self.model.train()  # from_pretrained leaves a model in evaluation, without dropout
        self.working = WorkingCopy(self.model, self.dtype)
        if self.compile:
            self.working.model.compile(dynamic=False)
        wrapped = self.accelerator.prepare_model(self.working.model)
        before, self.started = self.elapsed, time.perf_counter()
        self.clock = lambda: before + time.perf_counter() - self.started
        self.new_interval()
        with ThreadPoolExecutor(max_workers=1) as prefetcher:
            progress = self.progress()
            coming = prefetcher.submit(self.source, self.position, progress)
            if self.step == 0:
                self.run_evaluation()
            while (progress := self.progress()) < 1:
                waited = time.perf_counter()
                batch = coming.result()
                self.interval["wait"] += time.perf_counter() - waited
                coming = prefetcher.submit(self.source, batch.after, self.progress(ahead=1))
                self.train_step(wrapped, batch, self.lr_at(progress))
                self.step, self.position = self.step + 1, batch.after
                self.once_in_a_while()
        self.finish()
        return self.figures

    def train_step(self, wrapped: nn.Module, batch: StepBatch, lr_factor: float) -> None:
        """One optimizer step: losses are means over the targets of all micro-batches of all processes."""
        # Dropout's randomness is looked up by (seed, step, process), so there is no generator to save.
        torch.manual_seed(hash((self.seed, self.step, self.accelerator.process_index)) % (1 << 63))
        counts, tokens = self.global_counts(batch.micro_batches)
        scale = self.accelerator.num_processes  # DDP takes the mean of the processes' gradients; the sum is wanted
        for number, micro_batch in enumerate(batch.micro_batches):
            is_last = number == len(batch.micro_batches) - 1
            with nullcontext() if is_last else self.accelerator.no_sync(wrapped):
                outputs = wrapped(**micro_batch, **counts)
                (outputs.loss * scale).backward()
            for name, value in self.objective.measure(outputs, micro_batch, counts).items():
                self.interval["sums"][name] = self.interval["sums"].get(name, 0) + value
        self.working.collect_gradients()
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        check_finite(grad_norm, self.step)
        self.learning_rate = set_learning_rate(self.optimizers, lr_factor)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.working.update()
        self.interval["grad_norm"] = grad_norm
        self.tokens += tokens

    def global_counts(self, micro_batches: list[Batch]) -> tuple[dict[str, torch.Tensor], int]:
        """The step's targets over all micro-batches and processes, and its real tokens."""
        counts = add_up(self.objective.counts(batch) for batch in micro_batches)
        counts["tokens"] = sum(int(batch["attention_mask"].sum()) for batch in micro_batches)
        totals = torch.tensor(list(counts.values()), dtype=torch.float64, device=self.accelerator.device)
        totals = dict(zip(counts, self.accelerator.reduce(totals), strict=True))
        return {name: value.float() for name, value in totals.items() if name != "tokens"}, int(totals["tokens"])

    def once_in_a_while(self) -> None:
        """What follows some steps: a log line, an evaluation, a checkpoint."""
        if self.step % self.log_every == 0:
            self.write_log()
        if self.checkpoint_every and self.step % self.checkpoint_every == 0:
            self.save()
        if self.eval_every and self.step % self.eval_every == 0 and self.progress() < 1:
            self.run_evaluation()

    def finish(self) -> None:
        """The last evaluation and the last checkpoint."""
        if self.figures.get("step") != self.step:
            self.run_evaluation()
        if self.checkpoint_dir:
            self.save()

    def progress(self, ahead: int = 0) -> float:
        """The share of the training behind step + `ahead`; the slowest process's clock rules.

        Of a wall-clock budget, time for the last evaluation is set aside.
        """
        self.elapsed = self.clock() if hasattr(self, "clock") else self.elapsed
        if self.duration.budget_seconds is None:
            return self.duration.progress(self.step + ahead, 0.0)
        reserve = 1.1 * self.figures.get("seconds", 0.0)
        elapsed = torch.tensor(self.elapsed + reserve, device=self.accelerator.device, dtype=torch.float64)
        slowest = elapsed if self.accelerator.num_processes == 1 else self.accelerator.gather(elapsed.reshape(1)).max()
        return self.duration.progress(self.step + ahead, float(slowest))

    def new_interval(self) -> None:
        """Begin a new stretch of steps between two log lines."""
        self.interval: dict[str, Any] = {
            "start": self.clock(),
            "step": self.step,
            "tokens": self.tokens,
            "wait": 0.0,
            "sums": {},
        }

    def write_log(self) -> None:
        """Log the means since the last line; the one place where the loop waits for the device."""
        interval, steps = self.interval, self.step - self.interval["step"]
        names = list(interval["sums"])
        sums = self.accelerator.reduce(torch.stack([interval["sums"][name].float() for name in names]))
        seconds = self.clock() - interval["start"]
        rate = (self.tokens - interval["tokens"]) / seconds
        figures = {name: value / steps for name, value in zip(names, sums.tolist(), strict=True)}
        figures |= {
            "tokens": self.tokens,
            "learning_rate": self.learning_rate,
            "grad_norm": float(interval["grad_norm"]),
        }
        figures |= {"tokens_per_second": rate, "data_wait_fraction": interval["wait"] / seconds}
        if self.peak_flops and self.flops_per_token:
            figures["flops_utilization"] = (
                rate * self.flops_per_token / (self.peak_flops * self.accelerator.num_processes)
            )
        self.log.write("train", self.step, figures | {"elapsed_seconds": self.clock()}, self.progress())
        self.new_interval()

    def run_evaluation(self) -> None:
        """Measure on the validation part; the time it takes is not counted in the throughput."""
        if self.evaluate is None:
            return
        start = self.clock()
        self.model.eval()
        figures = self.evaluate(self.step)
        self.model.train()
        self.interval["start"] += self.clock() - start
        row = {"tokens": self.tokens, "elapsed_seconds": self.clock()} | figures
        self.figures = figures | {"step": self.step, "seconds": self.clock() - start}
        self.log.write("validation", self.step, row, self.progress())

    def save(self) -> None:
        """Write a checkpoint; one process writes, the others wait."""
        if self.saved_step == self.step:
            return
        self.saved_step = self.step
        if self.checkpoint_dir and self.accelerator.is_main_process:
            state = {
                "position": asdict(self.position),
                "elapsed": self.clock(),
                "tokens": self.tokens,
                "figures": self.figures,
            }
            save_checkpoint(self.checkpoint_dir, self.step, self.model, self.optimizers, state, self.checkpoint_keep)
        self.accelerator.wait_for_everyone()

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        state = load_checkpoint(self.checkpoint_dir, self.model, self.optimizers) if self.checkpoint_dir else None
        if state is None:
            self.log.forget_after(-1)
            return
        self.saved_step = state["step"]
        self.step, self.elapsed, self.tokens = state["step"], state["elapsed"], state["tokens"]
        self.position, self.figures = Position(**state["position"]), state["figures"]
        self.log.forget_after(self.step)
        if self.accelerator.is_main_process:
            print(f"{self.log.stage}: going on from step {self.step}", flush=True)


def add_up(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sum mappings key by key."""
    total: dict[str, int] = {}
    for row in rows:
        for name, value in row.items():
            total[name] = total.get(name, 0) + value
    return total


def evaluate_batches(
    accelerator: Accelerator, model: nn.Module, objective: Objective, batches: Iterable[Batch], dtype: torch.dtype
) -> dict[str, float]:
    """The objective's figures over all batches of all processes.

    Runs uncompiled (`forward` is called directly): a second graph would cost more than it saves.
    """
    ones = torch.ones((), device=accelerator.device)
    sums = {name: torch.zeros((), dtype=torch.float64, device=accelerator.device) for name in objective.figures}
    counts = dict.fromkeys(objective.items, 0)
    with torch.no_grad(), torch.autocast(accelerator.device.type, dtype, enabled=dtype != torch.float32):
        for batch in batches:
            here = objective.counts(batch)
            outputs = model.forward(**batch, **dict.fromkeys(here, ones))
            measured = objective.measure(outputs, batch, dict.fromkeys(here, 1.0))
            sums = {name: value + measured[name].double() for name, value in sums.items()}
            counts = add_up([counts, here])
    # A process without a batch takes part with zeros.
    everything = torch.tensor(
        [*map(float, sums.values()), *counts.values()], dtype=torch.float64, device=accelerator.device
    )
    total = accelerator.reduce(everything).tolist()
    return objective.whole(dict(zip(sums, total, strict=False)), dict(zip(counts, total[len(sums) :], strict=True)))
