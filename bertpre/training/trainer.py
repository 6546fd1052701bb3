"""The training loop: takes objects, knows no recipe."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from torch import nn

from bertpre.compiler import is_compiler_fault
from bertpre.data.sampler import Position
from bertpre.errors import UserError, first_line
from bertpre.training.agreement import gathered, on_every_process
from bertpre.training.batches import BatchSource, Prefetcher, StepBatch
from bertpre.training.checkpoint import Checkpoints
from bertpre.training.clock import Clock, expected_seconds
from bertpre.training.dry_run import dry_run
from bertpre.training.evaluation import Evaluation
from bertpre.training.gradient_guard import NonFiniteGradient, not_finite
from bertpre.training.metrics import Objective
from bertpre.training.micro_batches import Shape, choose_sizes, restore_sizes, sizes_of
from bertpre.training.optimizer import set_learning_rate
from bertpre.training.remedies import Remedies
from bertpre.training.saving import Saver
from bertpre.training.schedule import Duration
from bertpre.training.signals import StopRequest, exit_status, signal_name
from bertpre.training.step import Arithmetic, TrainingStep, lacks_memory
from bertpre.training.step_log import StepLog

STEPS_AHEAD = 3
LEAST_SHARE = 0.8  # of the schedule before the last step of a budget, or a line says so


@dataclass
class Progress:
    """Where a training is; a checkpoint holds all of it."""

    step: int = 0
    tokens: int = 0  # padding not counted
    position: Position = field(default_factory=Position)
    metrics: dict[str, Any] = field(default_factory=dict)  # of the last evaluation


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
        self.evaluation, self.should_stop, self.after_step = evaluation, should_stop, after_step
        # What processes share at every step goes from CPU to CPU, so no GPU is waited for.
        is_alone = accelerator.num_processes == 1
        self.cpu_group = None if is_alone else torch.distributed.new_group(backend="gloo")
        self.training_step = TrainingStep(accelerator, model, optimizers, objective, arithmetic, seed)
        self.batches = Prefetcher(source, objective, accelerator.device)
        memory = evaluation.memory if evaluation is not None else None
        self.saver = Saver(checkpoints, self.training_step, memory, self.cpu_group)
        self.clock, self.progress = Clock(duration), Progress()
        self.first_step = 0  # of this process; above 0 where it resumed
        self.last_share = 0.0  # of the training, at the last step
        self.left_out_before = 0  # steps that an earlier process left out
        self.restored: list[Shape] = []  # whose micro-batches are those of a checkpoint

    def train(self, started: float | None = None) -> dict[str, Any]:
        """Train until the duration ends; returns the last evaluation's metrics.

        `started`, on time.perf_counter, is when the clock starts, if that was before this call.
        Raises SystemExit after saving where SIGTERM or SIGINT arrives. Raises UserError where gradients stay
        non-finite or memory does not suffice.
        """
        self.clock.start(started)
        self.resume()
        signals = StopRequest(self.saver.place is not None, self.clock.leave_out_pause)
        with signals as request, self.batches, self.saver.writer:
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
                except RuntimeError as error:
                    if is_compiler_fault(error):  # of a length that occurs for the first time
                        raise UserError(
                            f"torch.compile fails at step {self.progress.step} ({first_line(error)}): "
                            f"{self.remedies.compiler}"
                        ) from None
                    if not lacks_memory(error):
                        raise
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
            self.refuse_to_end_untrained()
        if share >= 1 or self.should_stop():
            self.check_gradients()
            self.mention_jump(share)
            return True
        if batch.after.phase != progress.position.phase:
            self.write_log()  # a line says nothing of two phases: rows and objective may differ
        is_left_out = progress.step in self.training_step.guard.left_out
        tokens = 0 if is_left_out else counts["tokens"]
        self.batches.prefetch(self.share_done(self.steps_ahead, tokens))
        self.last_share = share
        if not is_left_out:
            self.optimize(batch, counts, self.lr_at(share))
        progress.step, progress.tokens = progress.step + 1, progress.tokens + tokens
        progress.position = batch.after
        self.between_steps()
        return False

    def refuse_to_end_untrained(self) -> NoReturn:
        """Raise UserError: the time is over, and no step was taken, or training went back to the beginning."""
        self.saver.finish_writing()
        if len(self.training_step.guard.left_out) > self.left_out_before:
            raise UserError(
                "gradients were not finite, and no time is left to train again: run the same command, which leaves "
                f"these steps out, or {self.remedies.not_finite}"
            )
        self.saver.discard()
        raise UserError(
            f"{self.remedies.budget} is too short: start-up took {self.clock.elapsed:.0f} s and the final "
            f"evaluation and checkpoint need {self.clock.reserve_seconds:.0f} s; give a longer one"
        )

    def mention_jump(self, share: float) -> None:
        """Say where a budget ended long before its schedule, of which the last phase may be a part."""
        if share >= 1 and self.clock.duration.budget_seconds and 0 < self.last_share < LEAST_SHARE:
            self.log.output.show(
                f"the time was over after step {self.progress.step}, at {self.last_share:.0%} of the schedule: one "
                "step or validation took the rest of it. The learning rate did not reach its end"
            )

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

    # ---- before the first step ---------------------------------------------------------------------------------------

    def dry_run(self) -> None:
        """Choose the micro-batches, then compile and run one of each shape: what does not fit shows at once."""
        step, source, output = self.training_step, self.batches.source, self.log.output
        choose_sizes(source.shapes, step.fits, self.restored, self.cpu_group, output)
        if step.is_compiled:
            output.say("compiling the model, which may take a minute or two")
        dry_run(step, source, self.remedies)
        if self.accelerator.device.type == "cuda":  # the dry run keeps room for the optimizer, which may need less
            torch.cuda.reset_peak_memory_stats()

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        self.training_step.guard.left_out = self.saver.left_out()
        self.left_out_before = len(self.training_step.guard.left_out)
        state = self.restore()
        if state is None:
            self.log.output.forget_after(-1, -1)
            return
        self.first_step = self.progress.step
        self.restored = restore_sizes(self.batches.source.shapes, state.get("micro_batches", ()))
        if self.progress.step:  # before the first step nothing was trained: a budget that start-up used up begins anew
            self.clock.resume(state["elapsed"], state["startup_seconds"])
        self.log.output.say(f"resuming from step {self.progress.step}")

    def restore(self) -> dict[str, Any] | None:
        """Take over the newest whole checkpoint, except for its clock; returns its state, or None without one."""
        state = self.saver.restore()
        if state is None:
            return None
        position = Position(**state["position"])
        self.progress = Progress(state["step"], state["tokens"], position, state["metrics"])
        self.training_step.guard.restore(state)
        self.log.restore(state["log"], self.clock.now(), state["tokens"], self.accelerator)
        has_open_line = bool(state["log"]["steps"])  # a line of this step, where a phase ends, is newer
        self.log.output.forget_after(state["step"] - has_open_line, state["metrics"].get("step", -1))
        return state

    # ---- batches -----------------------------------------------------------------------------------------------------

    def prefetch(self) -> None:
        """Start to prepare the batches from the current position on; `take_step` asks for one more each time."""
        self.batches.begin(self.progress.position, self.share_done())
        for ahead in range(1, self.steps_ahead):
            self.batches.prefetch(self.share_done(ahead))

    @property
    def steps_ahead(self) -> int:
        """Of how many steps the batches are prepared or waiting.

        How many tokens a step has is known when its batch is there, and progress by tokens chooses the next one's.
        """
        return 1 if self.clock.duration.max_tokens else STEPS_AHEAD

    def next_batch(self, received_signal: int) -> tuple[StepBatch, dict[str, int], int]:
        """The next batch, its counts over all processes, and the signal that any process has received."""
        waited = time.perf_counter()
        batch, mine = self.batches.next_batch()
        self.log.interval.wait_seconds += time.perf_counter() - waited
        reserve = 1.1 * (self.progress.metrics.get("seconds", 0.0) + self.saver.save_seconds)
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
        if self.share_done() < 1 and self.saver.is_due(step, self.clock.elapsed):  # the end saves by itself
            self.save(in_background=True)
        if self.after_step is not None:
            self.after_step(self)

    def write_log(self) -> None:
        """Write the means since the last log line."""
        self.check_gradients()
        phase = self.progress.position.phase
        on_every_process(lambda: self.log.write(*self.state_of_time(), self.accelerator, phase), self.cpu_group)

    def state_of_time(self) -> tuple[int, int, float, float, float]:
        """Steps, tokens and seconds so far, the share that is done, and the seconds that the rest takes."""
        step, tokens = self.progress.step, self.progress.tokens
        return step, tokens, self.clock.now(), self.share_done(), self.clock.seconds_left(step, tokens)

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
        seconds = expected_seconds(now - start, progress.metrics.get("seconds", 0.0))
        progress.metrics = metrics | {"step": progress.step, "seconds": seconds}
        write, share = self.log.output.write, self.share_done()
        on_every_process(lambda: write("validation", progress.step, row, share), self.cpu_group)

    def save(self, in_background: bool = False) -> None:
        """Write a checkpoint, once the one before is complete; one process writes, the others wait.

        With `in_background` training may continue as soon as what belongs to the checkpoint is copied.
        Raises UserError where the one before could not be written, and where a weight is not finite.
        """
        saver, step = self.saver, self.progress.step
        if saver.place is None:
            return
        self.check_gradients()  # raises where training goes back, so that such weights are not saved; waits for a GPU
        called = self.clock.now()
        saver.finish_writing()
        if saver.saved_step == step:
            return
        saver.check_weights(step, self.remedies.not_finite)
        saver.save(self.state(), self.clock.elapsed, in_background)
        self.log.exclude(self.clock.now() - called)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside tensors: `resume` continues from there."""
        return {
            **asdict(self.progress),
            "elapsed": self.clock.now(),
            "save_seconds": self.saver.save_seconds,
            "startup_seconds": self.clock.startup_seconds,
            **self.training_step.guard.state(),
            "micro_batches": sizes_of(self.batches.source.shapes),
            "log": self.log.state(self.accelerator),
        }

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The last log line, evaluation and checkpoint; the learning rate has reached its end."""
        self.write_log()
        self.log.learning_rate = set_learning_rate(self.training_step.optimizers, self.lr_at(1.0))
        if self.progress.metrics.get("step") != self.progress.step:
            self.evaluate()
        self.save()
        has_trained = self.progress.step > self.first_step
        self.clock.elapsed = self.clock.now() if has_trained else self.clock.before_resume

    def stop(self, received_signal: int) -> None:
        """Save, say how to resume, and end the process."""
        self.save()
        name = signal_name(received_signal)
        self.log.output.show(
            f"stopped by {name} after step {self.progress.step} (saved). Run the same command to resume."
        )
        raise SystemExit(exit_status(received_signal))

    def roll_back(self, error: NonFiniteGradient) -> None:
        """After gradients that stay non-finite: return to the last good checkpoint and leave their steps out.

        Raises UserError where there is no checkpoint, or this has happened too often.
        """
        guard, remedy = self.training_step.guard, f"{self.remedies.not_finite}; the last checkpoint is intact"
        if self.saver.place is None or not guard.leave_out(error.documents):
            raise UserError(f"{error}; {remedy}")
        self.saver.leave_out(guard.left_out)
        self.training_step.forget_gradients()
        if self.restore() is None:
            raise UserError(f"{error}, and no checkpoint is whole; {remedy}")
        left_out = "this step" if len(error.documents) == 1 else "these steps"
        self.log.output.show(f"{error}: back to step {self.progress.step}; {left_out} will be left out")
        self.prefetch()
