"""The training loop: takes objects, knows no recipe."""

import logging
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import nn

from bertpre.data.sampler import Position
from bertpre.errors import UserError, first_line
from bertpre.runtime import set_deterministic
from bertpre.training.checkpoint import load_checkpoint, read_skipped, save_checkpoint, write_skipped
from bertpre.training.metrics import Batch, Objective, PretrainingObjective, peak_memory_mb
from bertpre.training.optimizer import set_learning_rate
from bertpre.training.precision import LossScale, WorkingCopy
from bertpre.training.schedule import Duration
from bertpre.training.sharding import is_sharded, whole
from bertpre.training.trackers import MetricsLog
from bertpre.training.watches import MAX_SKIPPED, NotFinite, StopRequest, warnings_for

logger = logging.getLogger(__name__)
SMALLER = "lower training.phases.N.micro_batch_size (phases count from 0), in fine-tuning finetune.micro_batch_size"


@dataclass(frozen=True)
class StepBatch:
    """One optimizer step's micro-batches of this process, and the position behind the whole step."""

    micro_batches: list[Batch]
    after: Position
    documents: Callable[[], list[str]] = list  # names what the examples of the whole step were cut from


class BatchSource(Protocol):
    """Gives the batch that stands at a position; `progress` (0 to 1) chooses the phase."""

    def __call__(self, position: Position, progress: float) -> StepBatch: ...

    def largest(self) -> list[Batch]:
        """A micro-batch of each shape that is to come, for a dry run."""
        ...


@dataclass
class Trainer:
    """Everything one training needs; `train` runs it."""

    accelerator: Accelerator
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    source: BatchSource
    objective: Objective
    duration: Duration
    lr_at: Callable[[float], float]
    log: MetricsLog
    dtype: torch.dtype = torch.float32
    compile: bool = False
    any_length: bool = False  # compile one program for every length, not one for each
    deterministic: bool = False  # add gradients in a fixed order
    max_grad_norm: float = 1.0
    seed: int = 0
    log_every: int = 20
    eval_every: int = 0  # 0: never
    evaluate: Callable[[int], dict[str, Any]] | None = None  # takes the step
    evaluate_first: bool = True  # before the first step too
    is_enough: Callable[[], bool] = bool  # asked before each step; True ends the training
    checkpoint_dir: Path | None = None
    checkpoint_every: int = 0
    checkpoint_keep: int = 2
    checkpoint_keep_every: float | None = None  # seconds of training
    watches: list[Callable[[int, dict[str, float]], str | None]] = field(default_factory=list)
    flops_per_token: float | None = None
    peak_flops: float | None = None
    price_per_hour: float | None = None
    step: int = field(default=0, init=False)
    elapsed: float = field(default=0.0, init=False)  # seconds of training, those before a resume included
    lead: float | None = field(default=None, init=False)  # of these, before the first step
    reserve: float = field(default=0.0, init=False)  # seconds set aside for the last evaluation and checkpoint
    tokens: int = field(default=0, init=False)  # real ones, padding not counted
    position: Position = field(default=Position(), init=False)
    figures: dict[str, Any] = field(default_factory=dict, init=False)  # of the last evaluation
    saved_step: int | None = field(default=None, init=False)

    def train(self) -> dict[str, Any]:
        """Train to the end of the duration; returns the last evaluation's figures.

        Raises SystemExit(0) behind a checkpoint where SIGTERM or SIGINT arrives, UserError where the numbers are beyond
        repair or memory does not suffice.
        """
        self.started = time.perf_counter()
        self.resume()
        wrapped = self.make_ready()
        with StopRequest(self.checkpoint_dir is not None) as request, ThreadPoolExecutor(1) as self.prefetcher:
            self.dry_run(wrapped)
            self.new_interval()
            if self.step == 0:
                if self.evaluate_first:
                    self.run_evaluation()
                self.save()
            self.prefetch()
            is_over = False
            while not is_over:
                try:
                    is_over = self.take_step(wrapped, request.received)
                except NotFinite as error:
                    self.go_back(error)
                except torch.OutOfMemoryError as error:
                    raise UserError(f"not enough memory at step {self.step}: {SMALLER}; {first_line(error)}") from None
        self.finish()
        return self.figures

    def take_step(self, wrapped: nn.Module, signal_number: int) -> bool:
        """One turn of the loop; True where the training is over."""
        batch, counts, signal_number = self.next_batch(signal_number)
        if signal_number:
            self.stop(signal_number)
        if (progress := self.progress()) >= 1 and self.step == 0:
            raise UserError(
                f"training.budget: {self.elapsed:.0f} s went by before the first step, in starting and compiling, and "
                f"{self.reserve:.0f} s are needed at the end: nothing is left to train in; give more"
            )
        if progress >= 1 or self.is_enough():
            self.gradient_is_sound()
            return True
        self.prefetch(batch.after, ahead=1, tokens=0 if self.step in self.skipped else counts["tokens"])
        self.train_step(wrapped, batch, counts, self.lr_at(progress))
        self.step, self.position = self.step + 1, batch.after
        self.once_in_a_while()
        return False

    def make_ready(self) -> nn.Module:
        """The model that is called in training: the working copy, compiled and wrapped for several processes."""
        set_deterministic(self.deterministic)  # before anything is compiled
        self.model.train()  # from_pretrained leaves a model in evaluation, without dropout
        self.is_sharded = is_sharded(self.model)  # its weights are held in fp32 and gathered in dtype
        self.working = WorkingCopy(self.model, torch.float32 if self.is_sharded else self.dtype)
        if self.compile:
            self.working.model.compile(dynamic=self.any_length)
        is_alone = self.accelerator.num_processes == 1
        # What the processes tell each other at every step goes from CPU to CPU: no GPU is waited for.
        self.talk = None if is_alone else torch.distributed.new_group(backend="gloo")
        # On a GPU each look at a gradient makes the CPU wait, so there it is only taken with a log line.
        self.look_every = 1 if self.accelerator.device.type == "cpu" or self.loss_scale.enabled else self.log_every
        self.grad_norm, self.learning_rate = 0.0, 0.0
        self.grad_norms: list[tuple[int, Callable[[], list[str]], torch.Tensor]] = []
        return self.model if self.is_sharded else self.accelerator.prepare_model(self.working.model)

    def dry_run(self, wrapped: nn.Module) -> None:
        """Forward and backward over a batch of each shape: what does not fit or compile shows before the first step."""
        # A tensor for each, as in a step: torch.compile would make another program for one tensor under two names.
        ones = {name: torch.ones((), device=self.accelerator.device) for name in self.objective.items}
        for batch in self.source.largest():
            batch = self.to_device(batch)
            try:
                room = self.room_for_optimizers()
                wrapped(**batch, **ones).loss.backward()
            except RuntimeError as error:  # OutOfMemoryError among them
                if "memory" not in str(error):
                    raise
                pairs, length = batch["input_ids"].shape
                raise UserError(
                    f"not enough memory for {pairs} rows of {length} tokens in a forward and backward pass: {SMALLER}; "
                    f"{first_line(error)}"
                ) from None
            del room
        self.working.model.zero_grad()

    def room_for_optimizers(self) -> torch.Tensor:
        """On a GPU, memory as large as what the optimizers take with the first step: two numbers for each weight."""
        device, has_state = self.accelerator.device, any(each.state for each in self.optimizers)
        weights = 0 if device.type == "cpu" or has_state else sum(map(torch.numel, self.model.parameters()))
        return torch.empty(2 * weights // (self.accelerator.num_processes if self.is_sharded else 1), device=device)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def prefetch(self, position: Position | None = None, ahead: int = 0, tokens: int = 0) -> None:
        """Begin to prepare the batch at a position, by default this one, in another thread."""
        progress = self.progress(ahead, tokens)
        self.coming: Future = self.prefetcher.submit(self.fetch, position or self.position, progress)

    def fetch(self, position: Position, progress: float) -> tuple[StepBatch, dict[str, int]]:
        """A step's batch, on the device, with this process's targets and real tokens in it."""
        batch = self.source(position, progress)
        counts = add_up(self.objective.counts(micro_batch) for micro_batch in batch.micro_batches)
        counts["tokens"] = sum(int(micro_batch["attention_mask"].sum()) for micro_batch in batch.micro_batches)
        on_device = [self.to_device(micro_batch) for micro_batch in batch.micro_batches]
        return StepBatch(on_device, batch.after, batch.documents), counts

    def to_device(self, batch: Batch) -> Batch:
        """A batch on the device."""
        device = self.accelerator.device
        if device.type == "cuda":  # from pinned memory a copy does not stop the CPU
            return {name: value.pin_memory().to(device, non_blocking=True) for name, value in batch.items()}
        return {name: value.to(device) for name, value in batch.items()}

    def next_batch(self, signal_number: int) -> tuple[StepBatch, dict[str, int], int]:
        """The prefetched batch, what is in it over all processes, and the signal that any of them has received."""
        waited = time.perf_counter()
        batch, counts = self.coming.result()
        self.interval["wait"] += time.perf_counter() - waited
        is_first = self.accelerator.process_index == 0  # its clock rules
        reserve = 1.1 * (self.figures.get("seconds", 0.0) + self.save_seconds)
        clock = [self.clock(), reserve] if is_first else [0.0, 0.0]
        told = torch.tensor([*counts.values(), signal_number, *clock], dtype=torch.float64)
        if self.talk is not None:
            torch.distributed.all_reduce(told, group=self.talk)
        *totals, signals, self.elapsed, self.reserve = told.tolist()
        if self.lead is None:
            self.lead = self.elapsed
        return batch, dict(zip(counts, map(int, totals), strict=True)), int(signals)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def train_step(self, wrapped: nn.Module, batch: StepBatch, counts: dict[str, int], lr_factor: float) -> None:
        """One optimizer step: losses are means over the targets of all micro-batches of all processes."""
        if self.step in self.skipped:
            return
        # Dropout's randomness is looked up by (seed, step, process), so there is no generator to save.
        torch.manual_seed(hash((self.seed, self.step, self.accelerator.process_index)) % (1 << 63))
        device = self.accelerator.device  # filled there: a copy to it would stop the CPU
        items = {name: torch.full((), float(counts[name]), device=device) for name in self.objective.items}
        # DDP takes the mean of the processes' gradients; the sum is wanted.
        scale = self.accelerator.num_processes * self.loss_scale.value
        for number, micro_batch in enumerate(batch.micro_batches):
            is_last = number == len(batch.micro_batches) - 1
            if self.is_sharded:
                wrapped.set_requires_gradient_sync(is_last)
            with nullcontext() if is_last or self.is_sharded else self.accelerator.no_sync(wrapped):
                outputs = wrapped(**micro_batch, **items)
                (outputs.loss * scale).backward()
            for name, value in self.objective.measure(outputs, micro_batch, items).items():
                self.interval["sums"][name] = self.interval["sums"].get(name, 0) + value
        self.working.collect_gradients(self.loss_scale.value)
        grad_norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm))
        self.learning_rate = set_learning_rate(self.optimizers, lr_factor)
        self.grad_norms.append((self.step, batch.documents, grad_norm))
        if self.look_every > 1 or self.gradient_is_sound():
            for optimizer in self.optimizers:
                optimizer.step()
            self.working.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.grad_norm = grad_norm
        self.interval["steps"] += 1
        self.tokens += counts["tokens"]

    def gradient_is_sound(self) -> bool:
        """Whether the gradients since the last look are finite; False only where fp16 overflowed, which is no fault.

        Raises NotFinite otherwise.
        """
        looked_at, self.grad_norms = self.grad_norms, []
        for (step, documents, _), norm in zip(looked_at, read_all(norm for *_, norm in looked_at), strict=True):
            is_finite = norm - norm == 0
            if self.loss_scale.enabled:
                self.loss_scale.note(is_finite)
                if not is_finite and self.loss_scale.value >= LossScale.LEAST:
                    return False
            if not is_finite:
                raise NotFinite(step, documents)
        return True

    def go_back(self, error: NotFinite) -> None:
        """After a step that was not finite: back to the last good checkpoint, from where that step will be left out.

        Raises UserError where there is no checkpoint, or this has happened too often.
        """
        documents = error.documents()
        shown = ", ".join(documents[:5]) + (f" and {len(documents) - 5} more" if len(documents) > 5 else "")
        what = f"the gradient of step {error.step} is not finite" + (f" (its text: {shown})" if shown else "")
        remedy = (
            "lower training.learning_rate, lengthen training.warmup, or try training.precision=fp32; "
            "the last checkpoint is intact"
        )
        if self.checkpoint_dir is None or len(self.skipped) >= MAX_SKIPPED:
            raise UserError(f"{what}; {remedy}")
        self.skipped[error.step] = documents
        if self.accelerator.is_main_process:
            write_skipped(self.checkpoint_dir, self.skipped)
        self.accelerator.wait_for_everyone()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.coming.cancel()
        if not self.restore():
            raise UserError(f"{what}, and no checkpoint is whole; {remedy}")
        self.working.update()
        self.new_interval()
        self.log.say(f"{what}: back to step {self.step}, and step {error.step} will be left out")
        self.prefetch()

    # ---- between steps -----------------------------------------------------------------------------------------------

    def once_in_a_while(self) -> None:
        """What follows some steps: a log line, an evaluation, a checkpoint."""
        if self.step % self.log_every == 0:
            self.write_log()
        if self.checkpoint_every and self.step % self.checkpoint_every == 0:
            self.save()
        if self.eval_every and self.step % self.eval_every == 0 and self.progress() < 1:
            self.run_evaluation()

    def finish(self) -> None:
        """The last evaluation and the last checkpoint; the rate has come to its end."""
        self.learning_rate = set_learning_rate(self.optimizers, self.lr_at(1.0))
        if self.figures.get("step") != self.step:
            self.run_evaluation()
        self.save()
        self.elapsed = self.clock()

    def stop(self, signal_number: int) -> None:
        """Save, say how to go on, and end the process without an error."""
        self.save()
        names = [each.name for each in (signal.SIGTERM, signal.SIGINT) if each == signal_number] or ["a signal"]
        self.log.say(f"stopped by {names[0]} at step {self.step}, which is saved; the same command goes on from there")
        self.log.close()
        raise SystemExit(0)

    def clock(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self.elapsed_before + time.perf_counter() - self.started

    def progress(self, ahead: int = 0, tokens: int = 0) -> float:
        """The share of the training behind step + `ahead` and so many more tokens.

        Of a wall-clock budget, what went by before the first step does not count, and time for the last evaluation and
        the last checkpoint is set aside. All by the first process's clock: the others must come to the same.
        """
        if self.lead is None:
            return 0.0
        return self.duration.progress(self.step + ahead, self.elapsed + self.reserve, self.tokens + tokens, self.lead)

    def new_interval(self) -> None:
        """Begin a new stretch of steps between two log lines, or go on with the one that a checkpoint cut."""
        self.interval: dict[str, Any] = {"start": self.clock(), "tokens": self.tokens, "wait": 0.0, "sums": {}}
        self.interval["steps"] = self.since_log.pop("steps", 0)
        for name, value in self.since_log.items():
            mine = value if self.accelerator.is_main_process else 0.0  # the others' part is in these sums
            self.interval["sums"][name] = torch.tensor(mine, device=self.accelerator.device)
        self.since_log = {}

    def sums_since_log(self) -> dict[str, float]:
        """What was measured since the last log line, over all processes."""
        sums = self.interval["sums"]
        if not sums:
            return {}
        total = self.accelerator.reduce(torch.stack([sums[name].float() for name in sums]))
        return dict(zip(sums, total.tolist(), strict=True))

    def write_log(self) -> None:
        """Log the means since the last line; the one place where the loop waits for the device."""
        self.gradient_is_sound()
        interval, steps = self.interval, self.interval["steps"]
        if not steps:  # all of them were left out
            return
        sums = self.sums_since_log()
        seconds, progress = self.clock() - interval["start"], self.progress()
        rate = (self.tokens - interval["tokens"]) / seconds
        figures = {name: value / steps for name, value in sums.items()}
        figures |= {"tokens": self.tokens, "learning_rate": self.learning_rate}
        figures |= {"grad_norm": float(self.grad_norm), "tokens_per_second": rate}
        figures |= {"data_wait_fraction": interval["wait"] / seconds}
        if self.peak_flops and self.flops_per_token:
            peak = self.peak_flops * self.accelerator.num_processes
            figures["flops_utilization"] = rate * self.flops_per_token / peak
        figures |= {"peak_memory_mb": peak_memory_mb(self.accelerator.device), "elapsed_seconds": self.clock()}
        so_far = self.clock() - (self.lead or 0.0)
        figures["seconds_left"] = max(0.0, so_far / progress - so_far) if progress else 0.0
        if self.price_per_hour:
            figures["cost"] = self.price_per_hour * self.clock() / 3600
        self.log.write("train", self.step, figures, progress)
        for warning in warnings_for(self.watches, self.step, figures):
            self.log.say(warning)
        self.new_interval()

    def run_evaluation(self) -> None:
        """Measure on the validation part; the time it takes is not counted in the throughput."""
        if self.evaluate is None:
            return
        self.gradient_is_sound()  # what a bad step has left is not measured
        start = self.clock()
        self.model.eval()
        figures = self.evaluate(self.step)
        self.model.train()
        if self.is_sharded:
            self.model.reshard()  # a forward pass alone leaves the outermost weights gathered, and rounded
        self.interval["start"] += self.clock() - start
        row = {"tokens": self.tokens, "elapsed_seconds": self.clock(), "learning_rate": self.learning_rate} | figures
        self.figures = figures | {"step": self.step, "seconds": self.clock() - start}
        self.log.write("validation", self.step, row, self.progress())

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; one process writes, the others wait."""
        if self.checkpoint_dir is None or self.saved_step == self.step:
            return
        self.gradient_is_sound()  # what a bad step has left is not saved
        start = self.clock()
        state = {"position": asdict(self.position), "elapsed": start, "tokens": self.tokens, "figures": self.figures}
        state["lead"] = self.lead
        state["loss_scale"] = [self.loss_scale.value, self.loss_scale.good_steps]
        state["since_log"] = self.sums_since_log() | {"steps": self.interval["steps"]}
        keep, is_main = (self.checkpoint_keep, self.checkpoint_keep_every), self.accelerator.is_main_process
        if is_main or self.is_sharded:
            save_checkpoint(self.checkpoint_dir, self.step, self.model, self.optimizers, state, *keep, writes=is_main)
        self.saved_step = self.step
        self.accelerator.wait_for_everyone()
        self.save_seconds = self.clock() - start
        self.interval["start"] += self.save_seconds

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        self.elapsed_before, self.save_seconds, self.since_log = 0.0, 0.0, {}
        self.loss_scale = LossScale(self.dtype == torch.float16)
        self.skipped = read_skipped(self.checkpoint_dir) if self.checkpoint_dir else {}
        state = self.restore()
        if state is None:
            self.log.forget_after(-1)
            return
        self.elapsed_before = self.elapsed = state["elapsed"]
        self.lead = state["lead"]
        self.log.say(f"going on from step {self.step}")

    def restore(self) -> dict[str, Any] | None:
        """Take the newest whole checkpoint's state, all but the clock; returns it, None where there is none."""
        state = load_checkpoint(self.checkpoint_dir, self.model, self.optimizers) if self.checkpoint_dir else None
        if state is None:
            return None
        self.saved_step = self.step = state["step"]
        self.position, self.figures = Position(**state["position"]), state["figures"]
        self.tokens = state["tokens"]
        self.loss_scale.value, self.loss_scale.good_steps = state["loss_scale"]
        self.since_log = state["since_log"]
        self.log.forget_after(self.step)
        return state


def read_all(values: Iterable[torch.Tensor]) -> list[float]:
    """Numbers on a device, fetched at once."""
    values = list(values)
    return torch.stack(values).tolist() if values else []


def add_up(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sum mappings key by key."""
    total: dict[str, int] = {}
    for row in rows:
        for name, value in row.items():
            total[name] = total.get(name, 0) + value
    return total


def evaluate_batches(
    accelerator: Accelerator,
    model: nn.Module,
    objective: PretrainingObjective,
    batches: Iterable[Batch],
    dtype: torch.dtype,
) -> dict[str, float]:
    """The objective's figures over all batches of all processes.

    Runs uncompiled (`forward` is called directly): a second graph would cost more than it saves. A model whose weights
    are spread has to be called itself, and is never compiled.
    """
    forward = model if is_sharded(model) else model.forward
    ones = torch.ones((), device=accelerator.device)
    sums = {name: torch.zeros((), dtype=torch.float64, device=accelerator.device) for name in objective.figures}
    counts = dict.fromkeys(objective.items, 0)
    with torch.no_grad(), torch.autocast(accelerator.device.type, dtype, enabled=dtype != torch.float32):
        for batch in batches:
            here = objective.counts(batch)
            outputs = forward(**batch, **dict.fromkeys(here, ones))
            measured = objective.measure(outputs, batch, dict.fromkeys(here, 1.0))
            sums = {name: value + measured[name].double() for name, value in sums.items()}
            counts = add_up([counts, here])
    # A process without a batch takes part with zeros.
    everything = torch.tensor(
        [*map(float, sums.values()), *counts.values()], dtype=torch.float64, device=accelerator.device
    )
    total = accelerator.reduce(everything).tolist()
    return objective.whole(dict(zip(sums, total, strict=False)), dict(zip(counts, total[len(sums) :], strict=True)))
