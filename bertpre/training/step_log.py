"""The training's log: what steps measure, and their means in one line every so many steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator

from bertpre.console import console
from bertpre.training.metrics import STEPS_WITH_PAIRS, STEPS_WITH_TARGETS, peak_memory_mb
from bertpre.training.trackers import MetricsLog

Watch = Callable[[int, dict[str, float]], str | None]  # looks at a step's log line; returns a warning, or None


@dataclass(frozen=True)
class Machine:
    """What a log line compares the speed with."""

    flops_per_token: Sequence[float] = ()  # in each phase, as rows may get longer
    peak_flops: float | None = None  # FLOP/s of one process's device
    price_per_hour: float | None = None


@dataclass
class Interval:
    """The steps since the last log line, on this process."""

    start: float = 0.0  # seconds on the training's clock; evaluations and checkpoints move it, so they do not count
    tokens: int = 0  # of the training at the start
    wait_seconds: float = 0.0  # for batches
    steps: int = 0
    skipped: int = 0  # of these steps, as far as they were checked
    sums: dict[str, torch.Tensor] = field(default_factory=dict)  # over the steps that were not skipped, in fp64

    @property
    def updates(self) -> int:
        """The steps that were not skipped."""
        return self.steps - self.skipped


@dataclass
class StepLog:
    """Sums what steps measure and writes their means every `every` steps."""

    output: MetricsLog
    every: int = 20
    watches: list[Watch] = field(default_factory=list)
    machine: Machine = field(default_factory=Machine)
    interval: Interval = field(default_factory=Interval)
    measured: dict[str, torch.Tensor] = field(default_factory=dict)  # by the micro-batches of the current step
    learning_rate: float = 0.0
    grad_norm: torch.Tensor | float = 0.0  # of the last step that was not skipped
    logged: dict[str, float] = field(default_factory=dict)  # the last log line

    def record(self, measured: Mapping[str, torch.Tensor]) -> None:
        """Add what one micro-batch measured."""
        for name, value in measured.items():
            self.measured[name] = self.measured.get(name, 0) + value

    def end_step(self, grad_norm: torch.Tensor, learning_rate: float) -> None:
        """Count a step; what a skipped one measured does not count, and no device is asked which one that is."""
        is_finite, sums = grad_norm.isfinite(), self.interval.sums
        for name, value in self.measured.items():
            sums[name] = sums.get(name, 0) + torch.where(is_finite, value.double(), 0.0)
        self.measured = {}
        self.grad_norm = torch.where(is_finite, grad_norm, self.grad_norm)
        self.learning_rate = learning_rate
        self.interval.steps += 1

    def start_interval(self, now: float, tokens: int) -> None:
        """Begin a new interval."""
        self.interval, self.measured = Interval(start=now, tokens=tokens), {}

    def exclude(self, seconds: float) -> None:
        """Leave the time of an evaluation or a checkpoint out of the throughput."""
        self.interval.start += seconds

    def sums(self, accelerator: Accelerator) -> dict[str, float]:
        """What was measured since the last log line, over all processes."""
        sums = self.interval.sums
        if not sums:
            return {}
        total = accelerator.reduce(torch.stack(list(sums.values())))
        return dict(zip(sums, total.tolist(), strict=True))

    def state(self, accelerator: Accelerator) -> dict[str, Any]:
        """The interval's part of a checkpoint: a resumed run writes the same line."""
        interval = self.interval
        return {
            "steps": interval.steps,
            "skipped": interval.skipped,
            "sums": self.sums(accelerator),
            "grad_norm": float(self.grad_norm),
            "learning_rate": self.learning_rate,
        }

    def restore(self, state: dict[str, Any], now: float, tokens: int, accelerator: Accelerator) -> None:
        """Continue the interval that a checkpoint cut."""
        self.start_interval(now, tokens)
        self.interval.steps, self.interval.skipped = state["steps"], state["skipped"]
        self.grad_norm, self.learning_rate = state["grad_norm"], state["learning_rate"]
        for name, value in state["sums"].items():
            mine = value if accelerator.is_main_process else 0.0  # the sum over processes holds the others' part
            self.interval.sums[name] = torch.tensor(mine, dtype=torch.float64, device=accelerator.device)

    def write(
        self,
        step: int,
        tokens: int,
        now: float,
        progress: float,
        seconds_left: float,
        accelerator: Accelerator,
        phase: int = 0,
    ) -> None:
        """Log the means since the last line; waits for the device.

        Nothing is written where all steps were skipped: the next line says so.
        """
        interval = self.interval
        if not interval.updates:
            interval.sums.clear()  # zeros, perhaps of another phase's metrics
            return
        metrics = means_of_steps(self.sums(accelerator), interval.updates)
        metrics |= {"tokens": tokens, "learning_rate": self.learning_rate, "grad_norm": float(self.grad_norm)}
        if read := tokens - interval.tokens:  # none where a run resumed just before its line
            seconds = now - interval.start
            metrics["tokens_per_second"] = read / seconds
            metrics |= self.against_machine(read / seconds, phase, accelerator.num_processes)
            metrics["data_wait_fraction"] = interval.wait_seconds / seconds
        if interval.skipped:
            metrics["skipped_steps"] = interval.skipped
        if self.machine.price_per_hour:
            metrics["cost"] = self.machine.price_per_hour * now / 3600
        metrics |= {"peak_memory_mb": peak_memory_mb(accelerator.device), "elapsed_seconds": now}
        metrics["seconds_left"] = seconds_left
        self.logged = metrics
        self.output.write("train", step, metrics, progress)
        for watch in self.watches:
            if warning := watch(step, metrics):
                self.output.show(warning)
        self.start_interval(now, tokens)

    def draw(
        self, step: int, tokens: int, now: float, progress: float, seconds_left: float, accelerator: Accelerator
    ) -> None:
        """Draw the live line between two log lines; it waits for no device and no other process."""
        if not console.draws(self.output.stage):
            return
        interval = self.interval
        metrics = {name: self.logged[name] for name in ("loss", "tokens_per_second") if name in self.logged}
        if interval.steps:
            metrics["tokens_per_second"] = (tokens - interval.tokens) / (now - interval.start)
            if interval.updates and accelerator.device.type == "cpu" and accelerator.num_processes == 1:
                metrics["loss"] = float(interval.sums["loss"]) / interval.updates
        self.output.draw(step, metrics | {"seconds_left": seconds_left}, progress)

    def against_machine(self, tokens_per_second: float, phase: int, num_processes: int) -> dict[str, float]:
        """The share of the devices' peak FLOP/s that is used in this phase, where it is known."""
        machine = self.machine
        if not (machine.peak_flops and machine.flops_per_token):
            return {}
        peak = machine.peak_flops * num_processes
        return {"flops_utilization": tokens_per_second * machine.flops_per_token[phase] / peak}


def means_of_steps(sums: Mapping[str, float], steps: int) -> dict[str, float]:
    """Means over the steps; of pairs and targets over the steps that had any, and nothing where none had."""
    counted = {"nsp": STEPS_WITH_PAIRS, **STEPS_WITH_TARGETS}
    names = [name for name in sums if name not in counted.values()]
    divisors = {name: round(sums.get(counted.get(name[:3], ""), steps)) for name in names}  # sums of shares
    return {name: sums[name] / divisor for name, divisor in divisors.items() if divisor}
