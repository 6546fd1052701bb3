"""The training loop: takes objects, knows no recipe."""

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bertpre.data.sampler import Position
from bertpre.errors import UserError, first_line
from bertpre.training.agreement import from_first, gathered, refuse_different_weights, together
from bertpre.training.background import BackgroundWriter
from bertpre.training.batches import BatchSource, Prefetcher, StepBatch
from bertpre.training.checkpoint import Checkpoints, load_checkpoint, read_skipped, save_checkpoint, write_skipped
from bertpre.training.clock import Clock
from bertpre.training.evaluation import Evaluation
from bertpre.training.gradient_guard import NonFiniteGradient, not_finite
from bertpre.training.metrics import Objective
from bertpre.training.micro_batches import largest_that_fits
from bertpre.training.optimizer import set_learning_rate
from bertpre.training.schedule import Duration
from bertpre.training.signals import StopRequest, signal_name
from bertpre.training.step import Arithmetic, TrainingStep
from bertpre.training.step_log import StepLog

logger = logging.getLogger(__name__)
STEPS_AHEAD = 3  # whose batches are prepared or waiting


@dataclass(frozen=True)
class Remedies:
    """What errors advise, in the words of whoever builds the trainer, such as a recipe's keys."""

    memory: str = "use a smaller micro-batch"
    not_finite: str = "lower the learning rate, lengthen the warm-up or compute in fp32"
    budget: str = "the time budget"  # the name of what is too short
    compiler: str = "turn it off"


@dataclass
class Progress:
    """Where a training is; a checkpoint holds all of it."""

    step: int = 0
    tokens: int = 0  # padding not counted
    position: Position = field(default_factory=Position)
    metrics: dict[str, Any] = field(default_factory=dict)  # of the last evaluation


@dataclass(frozen=True)
class Rehearsal:
    """What a few steps say about a training."""

    startup_seconds: float  # of compiling, and of a pass over each shape
    step_seconds: float  # median
    step_tokens: float  # mean
    overfit: list[dict[str, float]]  # metrics of repeated steps on one micro-batch


class Trainer:
    """One training; `train` runs it.

    `lr_at` maps progress (0 to 1) to a factor on the learning rates. `should_stop` is asked before each step.
    `after_step` is called after each step with the trainer. Without `checkpoints` nothing is saved, without
    `evaluation` nothing is evaluated.
    """

    def __init__(
        self,
        *,
        accelerator: Accelerator,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        source: BatchSource,
        objective: Objective,
        duration: Duration,
        lr_at: Callable[[float], float],
        log: StepLog,
        seed: int = 0,
        arithmetic: Arithmetic = Arithmetic(),  # noqa: B008 - frozen
        evaluation: Evaluation | None = None,
        checkpoints: Checkpoints | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        after_step: Callable[["Trainer"], None] | None = None,
        remedies: Remedies = Remedies(),  # noqa: B008 - frozen
    ) -> None:
        self.accelerator, self.lr_at, self.log, self.remedies = accelerator, lr_at, log, remedies
        self.evaluation, self.checkpoints = evaluation, checkpoints
        self.should_stop, self.after_step = should_stop, after_step
        self.training_step = TrainingStep(accelerator, model, optimizers, objective, arithmetic, seed)
        self.batches, self.writer = Prefetcher(source, objective, accelerator.device), BackgroundWriter()
        # How many tokens a step has is known when its batch is there, and progress by tokens chooses the next one's.
        self.steps_ahead = 1 if duration.max_tokens else STEPS_AHEAD
        self.clock, self.progress = Clock(duration), Progress()
        self.memory = evaluation.memory if evaluation is not None else None
        self.saved_step: int | None = None
        self.saved_seconds = 0.0  # on the clock that the processes share
        # What processes share at every step goes from CPU to CPU, so no GPU is waited for.
        is_alone = accelerator.num_processes == 1
        self.cpu_group = None if is_alone else torch.distributed.new_group(backend="gloo")

    def train(self) -> dict[str, Any]:
        """Train until the duration ends; returns the last evaluation's metrics.

        Raises SystemExit(0) after saving where SIGTERM or SIGINT arrives. Raises UserError where gradients stay
        non-finite or memory does not suffice.
        """
        self.clock.start()
        self.resume()
        with StopRequest(self.checkpoints is not None) as request, self.batches, self.writer:
            self.dry_run()
            self.log.interval.start = self.clock.now()
            if self.progress.step == 0:
                is_measured = self.progress.metrics.get("step") == 0  # by a run that was killed before its next save
                if self.evaluation is not None and self.evaluation.at_start and not is_measured:
                    self.evaluate()
                self.save()
            self.prefetch()
            is_over = False
            while not is_over:
                try:
                    is_over = self.take_step(request.received)
                except NonFiniteGradient as error:
                    self.roll_back(error)
                except torch.OutOfMemoryError as error:
                    raise UserError(
                        f"not enough memory at step {self.progress.step}: {self.remedies.memory}; {first_line(error)}"
                    ) from None
            self.finish()
            if received := max(gathered(request.received, self.cpu_group)):  # while the last evaluation ran
                self.stop(received)
        return self.progress.metrics

    def take_step(self, received_signal: int = 0) -> bool:
        """One turn of the loop; True where the training is over."""
        progress = self.progress
        batch, counts, received_signal = self.next_batch(received_signal)
        if received_signal:
            self.stop(received_signal)
        share = self.share_done()
        if share >= 1 and progress.step == 0:
            raise UserError(
                f"{self.remedies.budget} is too short: start-up took {self.clock.elapsed:.0f} s and the final "
                f"evaluation and checkpoint need {self.clock.reserve_seconds:.0f} s"
            )
        if share >= 1 or self.should_stop():
            self.check_gradients()
            return True
        is_left_out = progress.step in self.training_step.guard.left_out
        tokens = 0 if is_left_out else counts["tokens"]
        self.batches.prefetch(self.share_done(self.steps_ahead, tokens))
        if not is_left_out:
            self.optimize(batch, counts, self.lr_at(share))
        progress.step, progress.tokens = progress.step + 1, progress.tokens + tokens
        progress.position = batch.after
        self.between_steps()
        return False

    def optimize(self, batch: StepBatch, counts: dict[str, int], lr_factor: float) -> None:
        """Do an optimizer step and count it; its gradient is checked at once where that makes nobody wait."""
        step = self.training_step
        self.log.end_step(*step.run(self.progress.step, batch, counts, lr_factor, self.log.record))
        if step.guard.checks_each_step:
            self.check_gradients()

    def check_gradients(self) -> None:
        """Count the steps that were skipped since the last check, and say which; waits for a GPU.

        Raises NonFiniteGradient where too many in a row were skipped, or a weight is not finite, so that all others
        would be.
        """
        guard = self.training_step.guard
        skipped = guard.check()
        if not skipped:
            return
        self.log.interval.skipped += len(skipped)
        if not self.training_step.has_finite_weights():
            first = min(skipped)
            raise NonFiniteGradient({first: skipped[first]})
        if guard.is_row_too_long:
            raise NonFiniteGradient(guard.row)
        if not guard.is_overflow:
            self.log.output.show(f"{not_finite(skipped)}: skipped")

    def rehearse(self, steps: int, overfit_steps: int) -> Rehearsal:
        """Try what `train` would do, with `steps` steps and then one micro-batch over and over at the full rate.

        Leaves the weights changed. Raises UserError where memory does not suffice, NonFiniteGradient where a gradient
        is not finite.
        """
        self.training_step.guard.max_in_a_row = 1
        self.clock.start()
        self.dry_run()
        startup_seconds, each = self.clock.now(), []
        with self.batches:
            self.prefetch()
            for _ in range(steps):
                start = time.perf_counter()
                self.take_step()
                self.check_gradients()  # waits for a GPU
                each.append(time.perf_counter() - start)
            batch, _ = self.batches.next_batch()
        step_tokens = self.progress.tokens / self.progress.step
        overfit = [self.overfit_step(batch) for _ in range(overfit_steps)]
        return Rehearsal(startup_seconds, statistics.median(each), step_tokens, overfit)

    def overfit_step(self, batch: StepBatch) -> dict[str, float]:
        """One step at the full rate on the first micro-batch of a batch; returns its metrics."""
        once = StepBatch(batch.micro_batches[:1], batch.after)
        counts = self.training_step.objective.counts(once.micro_batches[0])
        self.log.start_interval(self.clock.now(), self.progress.tokens)
        self.optimize(once, counts, 1.0)
        self.progress.step += 1
        return self.log.sums(self.accelerator)

    # ---- before the first step ---------------------------------------------------------------------------------------

    def dry_run(self) -> None:
        """Forward and backward over a batch of each shape: what does not fit or compile shows before the first step."""
        self.choose_micro_batches()
        if self.training_step.is_compiled:
            self.log.output.say("compiling the model, which may take a minute or two")
        for batch in self.batches.source.largest():
            try:
                self.training_step.dry_run(batch)
            except RuntimeError as error:  # what torch.compile and a full memory raise
                if is_compiler_fault(error):
                    self.give_up_compiling(error)
                    self.training_step.dry_run(batch)
                    continue
                if "memory" not in str(error):
                    raise
                rows, length = batch["input_ids"].shape
                remedy = self.remedies.memory if rows > 1 else "train a smaller model, or on shorter rows"
                raise UserError(
                    f"not enough memory for {rows} rows of {length} tokens in a forward and backward pass: {remedy}; "
                    f"{first_line(error)}"
                ) from None

    def choose_micro_batches(self) -> None:
        """Take the largest micro-batches that fit, where their sizes are open; a resumed training keeps its own."""
        is_resumed = self.saved_step is not None
        for shape in self.batches.source.shapes:
            if len(shape.choices) < 2:
                continue
            before, length = shape.micro_batch_size, shape.sample(1)["input_ids"].shape[1]
            size = largest_that_fits(shape, self.training_step.fits, is_resumed, self.cpu_group)
            shape.micro_batch_size = size
            if is_resumed and size < before:
                self.log.output.show(
                    f"warning: only {size} of {before} rows of {length} tokens fit in this GPU's memory; the resumed "
                    "training is not bit-identical"
                )
            else:
                self.log.output.say(f"micro-batches of {size} rows of {length} tokens")

    def give_up_compiling(self, error: RuntimeError) -> None:
        """Compute without torch.compile from now on, with a warning; raises UserError where it was asked for."""
        fault = f"torch.compile fails ({first_line(error)})"
        if self.training_step.must_compile:
            raise UserError(f"{fault}: {self.remedies.compiler}") from None
        torch.compiler.set_stance("force_eager")
        if self.accelerator.is_main_process:
            logger.warning("%s: training continues without it, more slowly", fault)

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        if self.checkpoints is not None:
            folder = self.checkpoints.folder
            self.training_step.guard.left_out = from_first(lambda: read_skipped(folder), self.cpu_group)
        state = self.restore()
        if state is None:
            self.log.output.forget_after(-1)
            return
        for shape, (share, size) in zip(self.batches.source.shapes, state.get("micro_batches", ()), strict=False):
            if shape.choices[0] == share:  # otherwise the number of processes is another one
                shape.micro_batch_size = size
        if self.progress.step:  # before the first step nothing was trained: a budget that start-up used up begins anew
            self.clock.resume(state["elapsed"], state["startup_seconds"])
        self.log.output.say(f"resuming from step {self.progress.step}")

    def restore(self) -> dict[str, Any] | None:
        """Take over the newest whole checkpoint, except for its clock; returns its state, or None without one."""
        step, state = self.training_step, None
        self.finish_writing()
        if self.checkpoints is not None:
            folder = self.checkpoints.folder
            state = load_checkpoint(folder, step.model, step.optimizers, self.memory, self.cpu_group)
        if state is None:
            return None
        refuse_different_weights(step.model, state["step"], step.is_sharded, self.cpu_group)
        step.working.update()
        self.saved_step, self.saved_seconds = state["step"], state["elapsed"]
        position = Position(**state["position"])
        self.progress = Progress(state["step"], state["tokens"], position, state["metrics"])
        step.guard.loss_scale.value, step.guard.loss_scale.good_steps = state["loss_scale"]
        row = {int(number): documents for number, documents in state.get("skipped_in_a_row", {}).items()}
        step.guard.row = {number: row[number] for number in row if number not in step.guard.left_out}
        self.log.restore(state["log"], self.clock.now(), state["tokens"], self.accelerator)
        self.log.output.forget_after(state["step"])
        return state

    # ---- batches -----------------------------------------------------------------------------------------------------

    def prefetch(self) -> None:
        """Start to prepare the batches from the current position on; `take_step` asks for one more each time."""
        self.batches.begin(self.progress.position, self.share_done())
        for ahead in range(1, self.steps_ahead):
            self.batches.prefetch(self.share_done(ahead))

    def next_batch(self, received_signal: int) -> tuple[StepBatch, dict[str, int], int]:
        """The next batch, its counts over all processes, and the signal that any process has received."""
        waited = time.perf_counter()
        batch, mine = self.batches.next_batch()
        self.log.interval.wait_seconds += time.perf_counter() - waited
        reserve = 1.1 * (self.progress.metrics.get("seconds", 0.0) + self.clock.save_seconds)
        clock = [self.clock.now(), reserve] if self.accelerator.process_index == 0 else [0.0, 0.0]
        shared = torch.tensor([*mine.values(), received_signal, *clock], dtype=torch.float64)
        if self.cpu_group is not None:
            torch.distributed.all_reduce(shared, group=self.cpu_group)
        *totals, signals, elapsed, reserve = shared.tolist()
        self.clock.update(elapsed, reserve)
        return batch, dict(zip(mine, map(int, totals), strict=True)), int(signals)

    def share_done(self, ahead: int = 0, tokens: int = 0) -> float:
        """The share of the training that is done after `ahead` more steps and `tokens` more tokens."""
        return self.clock.progress(self.progress.step + ahead, self.progress.tokens + tokens)

    # ---- between steps -----------------------------------------------------------------------------------------------

    def between_steps(self) -> None:
        """Write a log line, evaluate and save where it is due; a checkpoint holds its step's evaluation."""
        step = self.progress.step
        if step % self.log.every == 0:
            self.write_log()
        self.log.draw(*self.state_of_time(), self.accelerator)
        due = self.evaluation is not None and self.evaluation.every and step % self.evaluation.every == 0
        if due and self.share_done() < 1:
            self.evaluate()
        if self.is_save_due():
            self.save(in_background=True)
        if self.after_step is not None:
            self.after_step(self)

    def write_log(self) -> None:
        """Write the means since the last log line."""
        self.check_gradients()
        self.log.write(*self.state_of_time(), self.accelerator)

    def state_of_time(self) -> tuple[int, int, float, float, float]:
        """Steps, tokens and seconds so far, the share that is done, and the seconds that the rest takes."""
        share, now = self.share_done(), self.clock.now()
        return self.progress.step, self.progress.tokens, now, share, self.clock.seconds_left(share)

    def evaluate(self) -> None:
        """Measure on the validation part; the time it takes does not count in the throughput."""
        if self.evaluation is None:
            return
        self.check_gradients()  # where training goes back, the weights are not measured
        progress, model, start = self.progress, self.training_step.model, self.clock.now()
        model.eval()
        with torch.compiler.set_stance("force_eager"):  # the layers have no program for evaluation
            metrics = self.evaluation.measure(progress.step)
        model.train()
        if self.training_step.is_sharded:
            model.reshard()  # a forward pass alone leaves the outermost weights gathered, and rounded
        now = self.clock.now()
        self.log.exclude(now - start)
        row = {"tokens": progress.tokens, "elapsed_seconds": now, "learning_rate": self.log.learning_rate} | metrics
        progress.metrics = metrics | {"step": progress.step, "seconds": now - start}
        self.log.output.write("validation", progress.step, row, self.share_done())

    def is_save_due(self) -> bool:
        """Whether the steps or the seconds between two checkpoints have passed; the same on every process."""
        place = self.checkpoints
        if place is None:
            return False
        is_late = place.every_seconds and self.clock.elapsed - self.saved_seconds >= place.every_seconds
        return bool(is_late or (place.every and self.progress.step % place.every == 0))

    def save(self, in_background: bool = False) -> None:
        """Write a checkpoint, once the one before is complete; one process writes, the others wait.

        With `in_background` training may continue as soon as what belongs to the checkpoint is copied.
        Raises UserError where the one before could not be written, and where a weight is not finite: fp16's overflows
        are normal, so gradients alone do not show whether a weight is the cause.
        """
        if self.checkpoints is None:
            return
        called = self.clock.now()
        self.finish_writing()
        if self.saved_step == self.progress.step:
            return
        step = self.training_step
        self.check_gradients()  # where training goes back, the weights are not saved
        refuse_different_weights(step.model, self.progress.step, step.is_sharded, self.cpu_group)
        if not step.has_finite_weights():
            raise UserError(
                f"the weights are not finite after step {self.progress.step}; {self.remedies.not_finite}; earlier "
                "checkpoints are intact"
            )
        start = self.clock.now()
        state = asdict(self.progress) | {
            "elapsed": start,
            "startup_seconds": self.clock.startup_seconds,
            "loss_scale": [step.guard.loss_scale.value, step.guard.loss_scale.good_steps],
            "skipped_in_a_row": {str(number): documents for number, documents in step.guard.row.items()},
            "micro_batches": [(shape.choices[0], shape.micro_batch_size) for shape in self.batches.source.shapes],
            "log": self.log.state(self.accelerator),
        }
        together(lambda: self.write_checkpoint(state, self.writer if in_background else None), self.cpu_group)
        self.saved_step, self.saved_seconds = self.progress.step, self.clock.elapsed
        if self.writer.pending is None:
            self.clock.save_seconds = self.clock.now() - start
        self.log.exclude(self.clock.now() - called)

    def write_checkpoint(self, state: dict[str, Any], background: BackgroundWriter | None) -> None:
        """Write a checkpoint, where this process has a part in it."""
        place, step, is_main = self.checkpoints, self.training_step, self.accelerator.is_main_process
        if place is not None and (is_main or step.is_sharded):
            number, memory = self.progress.step, self.memory
            save_checkpoint(place, number, step.model, step.optimizers, state, memory, is_main, background)

    def finish_writing(self) -> None:
        """Wait until the checkpoint that is being written, if any, is complete.

        Raises UserError, on every process, where it cannot be written.
        """
        seconds = together(self.writer.wait, self.cpu_group)
        if seconds is not None:
            self.clock.save_seconds = seconds

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The last evaluation and the last checkpoint; the learning rate has reached its end."""
        self.log.learning_rate = set_learning_rate(self.training_step.optimizers, self.lr_at(1.0))
        if self.progress.metrics.get("step") != self.progress.step:
            self.evaluate()
        self.save()
        self.clock.elapsed = self.clock.now()

    def stop(self, received_signal: int) -> None:
        """Save, say how to resume, and end the process without an error."""
        self.save()
        name = signal_name(received_signal)
        self.log.output.show(
            f"stopped by {name} after step {self.progress.step} (saved). Run the same command to resume."
        )
        self.log.output.close()
        raise SystemExit(0)

    def roll_back(self, error: NonFiniteGradient) -> None:
        """After gradients that stay non-finite: return to the last good checkpoint and leave their steps out.

        Raises UserError where there is no checkpoint, or this has happened too often.
        """
        guard, remedy = self.training_step.guard, f"{self.remedies.not_finite}; the last checkpoint is intact"
        if self.checkpoints is None or not guard.leave_out(error.documents):
            raise UserError(f"{error}; {remedy}")
        if self.accelerator.is_main_process:
            write_skipped(self.checkpoints.folder, guard.left_out)
        self.accelerator.wait_for_everyone()
        self.training_step.forget_gradients()
        if self.restore() is None:
            raise UserError(f"{error}, and no checkpoint is whole; {remedy}")
        left_out = "this step" if len(error.documents) == 1 else "these steps"
        self.log.output.show(f"{error}: back to step {self.progress.step}; {left_out} will be left out")
        self.prefetch()


def is_compiler_fault(error: RuntimeError) -> bool:
    """Whether torch.compile has failed, rather than what it compiles."""
    from torch._dynamo.exc import TorchDynamoException  # slow to import, and imported already where it was raised

    return isinstance(error, TorchDynamoException)
