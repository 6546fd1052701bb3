"""Micro-batches as large as the memory of every process allows."""

from collections.abc import Callable, Sequence
from typing import Protocol

from accelerate import Accelerator, DistributedType
from torch.distributed import ProcessGroup

from bertpre.training.agreement import gathered
from bertpre.training.metrics import Batch

HEADROOM = 1 / 8  # of more examples that have to fit, so that a resumed training finds room for the same size again


class Shape(Protocol):
    """Batches of one shape; the trainer may set `micro_batch_size` to a smaller one of the `choices`."""

    micro_batch_size: int
    choices: Sequence[int]  # the largest first

    def sample(self, rows: int) -> Batch:
        """A micro-batch of so many examples, as long as any."""
        ...


def sizes_to_try(share: int, accelerator: Accelerator) -> list[int]:
    """The sizes that divide a process's share of a batch, the largest first.

    The share alone on a CPU, which has no limit to try, and under FSDP, where a process that runs out of memory would
    leave the others waiting.
    """
    if accelerator.device.type == "cpu" or accelerator.distributed_type == DistributedType.FSDP:
        return [share]
    return [size for size in range(share, 0, -1) if share % size == 0]


def largest_that_fits(shape: Shape, fits: Callable[[Batch], bool], is_resumed: bool, group: ProcessGroup | None) -> int:
    """The largest choice, up to the current size, that fits in every process's memory; the smallest where none does.

    Every process has to call this. A resumed training needs no headroom: it left some when it began.
    """
    for size in [choice for choice in shape.choices if choice <= shape.micro_batch_size]:
        rows = size if is_resumed else size + max(1, round(size * HEADROOM))
        if all(gathered(fits(shape.sample(rows)), group)):
            return size
    return shape.choices[-1]
