"""A few steps of a training, and what they say about all of it."""

import statistics
import time
from dataclasses import dataclass

from bertpre.training.batches import StepBatch
from bertpre.training.trainer import Trainer


@dataclass(frozen=True)
class Rehearsal:
    """What a few steps say about a training."""

    startup_seconds: float  # of compiling, and of a pass over each shape
    step_seconds: float  # median
    step_tokens: float  # mean
    overfit: list[dict[str, float]]  # metrics of repeated steps on one micro-batch


def rehearse(trainer: Trainer, steps: int, overfit_steps: int) -> Rehearsal:
    """Try what `trainer.train` would do, with `steps` steps and then one micro-batch over and over at the full rate.

    Leaves the weights changed. Raises UserError where memory does not suffice, NonFiniteGradient where a gradient is
    not finite.
    """
    trainer.training_step.guard.max_in_a_row = 1
    trainer.clock.start()
    trainer.dry_run()
    startup_seconds, each = trainer.clock.now(), []
    with trainer.batches:
        trainer.prefetch()
        for _ in range(steps):
            start = time.perf_counter()
            if trainer.take_step():  # the whole training is shorter
                trainer.prefetch()
                break
            trainer.check_gradients()  # waits for a GPU
            each.append(time.perf_counter() - start)
        batch, _ = trainer.batches.next_batch()
    step_tokens = trainer.progress.tokens / trainer.progress.step
    overfit = [overfit_step(trainer, batch) for _ in range(overfit_steps)]
    return Rehearsal(startup_seconds, statistics.median(each), step_tokens, overfit)


def overfit_step(trainer: Trainer, batch: StepBatch) -> dict[str, float]:
    """One step at the full rate on the first micro-batch of a batch; returns its metrics."""
    once = StepBatch(batch.micro_batches[:1], batch.after)
    counts = trainer.training_step.objective.counts(once.micro_batches[0])
    trainer.log.start_interval(trainer.clock.now(), trainer.progress.tokens)
    trainer.optimize(once, counts, 1.0)
    trainer.progress.step += 1
    return trainer.log.sums(trainer.accelerator)
