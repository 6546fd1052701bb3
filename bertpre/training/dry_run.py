"""A pass over each shape of batch before the first step."""

import logging

from bertpre.compiler import give_up_compiling, is_compiler_fault
from bertpre.errors import UserError, first_line
from bertpre.training.batches import BatchSource
from bertpre.training.metrics import Batch
from bertpre.training.remedies import Remedies
from bertpre.training.step import TrainingStep, lacks_memory

logger = logging.getLogger(__name__)


def dry_run(step: TrainingStep, source: BatchSource, remedies: Remedies) -> None:
    """Forward and backward over a batch of each shape: what does not fit or compile shows before the first step.

    Where torch.compile fails, training continues without it, unless it has to compile. Raises UserError.
    """
    for batch in source.largest():
        try:
            pass_over(step, batch, remedies)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            rows, length = batch["input_ids"].shape
            remedy = remedies.memory if rows > 1 else "train a smaller model, or on shorter rows"
            raise UserError(
                f"not enough memory for {rows} rows of {length} tokens in a forward and backward pass: {remedy}; "
                f"{first_line(error)}"
            ) from None


def pass_over(step: TrainingStep, batch: Batch, remedies: Remedies) -> None:
    """One pass over a batch, uncompiled where torch.compile fails."""
    try:
        step.dry_run(batch)
    except RuntimeError as error:
        if not is_compiler_fault(error):
            raise
        continue_uncompiled(step, error, remedies)
        step.dry_run(batch)


def continue_uncompiled(step: TrainingStep, error: RuntimeError, remedies: Remedies) -> None:
    """Compute without torch.compile from now on, with a warning; raises UserError where it was asked for."""
    fault = f"torch.compile fails ({first_line(error)})"
    if step.must_compile:
        raise UserError(f"{fault}: {remedies.compiler}") from None
    give_up_compiling()
    if step.accelerator.is_main_process:
        logger.warning("%s: training continues without it, more slowly", fault)
