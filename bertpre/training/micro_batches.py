"""The size of micro-batches: as large as memory allows, or, of rows that differ in length, as suits a CPU."""

from collections.abc import Callable, Sequence
from typing import Protocol

from accelerate import Accelerator, DistributedType
from torch.distributed import ProcessGroup

from bertpre.errors import UserError
from bertpre.training.agreement import gathered
from bertpre.training.metrics import Batch
from bertpre.training.trackers import MetricsLog

LENGTH_MULTIPLE = 8  # bf16 matrix products are fastest at such lengths
CPU_SLOTS = 2048  # of rows of similar length: smaller ones repeat more work, larger ones hold more padding
HEADROOM = 1 / 8  # of more examples that have to fit, so that a resumed training finds room for the same size again


class Shape(Protocol):
    """Batches of one shape; the trainer may set `micro_batch_size` to a smaller one of the `choices`."""

    micro_batch_size: int
    choices: Sequence[int]  # the largest first

    def sample(self, rows: int) -> Batch:
        """A micro-batch of `rows` examples, as long as the longest."""
        ...


def micro_batch_size(batch_size: int, wanted: int | str, num_processes: int, key: str) -> int:
    """Examples in one forward pass as wanted, or (`auto`) all of a process's.

    Raises UserError, which names `key`, where the batch does not divide evenly.
    """
    size = wanted if isinstance(wanted, int) else batch_size // num_processes
    if wanted == "auto" and batch_size % num_processes:
        raise UserError(f"{key} is {batch_size}: it must be a multiple of the number of processes ({num_processes})")
    if batch_size % (size * num_processes):
        raise UserError(
            f"{key} is {batch_size}: it must be a multiple of micro_batch_size ({size}) times the number of processes "
            f"({num_processes})"
        )
    return size


def sizes_to_try(share: int, accelerator: Accelerator) -> list[int]:
    """The sizes that divide a process's share of a batch, the largest first.

    The share alone on a CPU, which has no limit to try, and under FSDP, where a process that runs out of memory would
    leave the others waiting.
    """
    if accelerator.device.type == "cpu" or accelerator.distributed_type == DistributedType.FSDP:
        return [share]
    return [size for size in range(share, 0, -1) if share % size == 0]


def rows_of_similar_length(share: int, max_length: int) -> int:
    """How many of a process's rows a CPU takes at a time where they are sorted by length (benchmarks/short_rows.py)."""
    return min(share, max(1, CPU_SLOTS // max_length))


def choose_sizes(
    shapes: Sequence[Shape],
    fits: Callable[[Batch], bool],
    restored: Sequence[Shape],
    group: ProcessGroup | None,
    output: MetricsLog,
) -> None:
    """Take the largest micro-batches that fit, where their sizes are open; those of a checkpoint are kept."""
    for shape in shapes:
        is_restored = any(shape is each for each in restored)
        if len(shape.choices) < 2:
            continue
        before, length = shape.micro_batch_size, shape.sample(1)["input_ids"].shape[1]
        size = largest_that_fits(shape, fits, is_restored, group)
        shape.micro_batch_size = size
        if is_restored and size < before:
            output.show(
                f"warning: only {size} of {before} rows of {length} tokens fit in this GPU's memory; the resumed "
                "training is not bit-identical"
            )
        else:
            output.say(f"micro-batches of {size} rows of {length} tokens")


def sizes_of(shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """A checkpoint's part: of each shape its largest choice, and the size of its micro-batches."""
    return [(shape.choices[0], shape.micro_batch_size) for shape in shapes]


def restore_sizes(shapes: Sequence[Shape], sizes: Sequence[tuple[int, int]]) -> list[Shape]:
    """The inverse of `sizes_of`; returns the shapes that have their sizes from the checkpoint.

    Another number of processes has other shares, for which sizes are chosen anew. A size that the recipe names counts
    more than that of the checkpoint.
    """
    restored = []
    for shape, (share, size) in zip(shapes, sizes, strict=False):
        if shape.choices[0] == share and size in shape.choices:
            shape.micro_batch_size = size
            restored.append(shape)
    return restored


def largest_that_fits(
    shape: Shape, fits: Callable[[Batch], bool], is_restored: bool, group: ProcessGroup | None
) -> int:
    """The largest choice, up to the current size, that fits in every process's memory; the smallest where none does.

    Every process has to call this. A size from a checkpoint needs no headroom: it left some when it was chosen.
    """
    for size in [choice for choice in shape.choices if choice <= shape.micro_batch_size]:
        rows = size if is_restored else size + max(1, round(size * HEADROOM))
        if all(gathered(fits(shape.sample(rows)), group)):
            return size
    return shape.choices[-1]
