"""Matrices dealt over processes: each process works on its share, then all have the results.

Shapes: N matrices of (R, C); a process takes K of them; where matrices are sharded it holds P of their rows.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from bertpre.training.agreement import gathered, ranks_by_value


def deal(counts: Sequence[int], costs: Sequence[float], num_processes: int) -> list[list[int]]:
    """How many items of each kind every process takes: the costliest first, each where there is the least work yet."""
    taken, loads = [[0] * num_processes for _ in counts], [0.0] * num_processes
    for kind in sorted(range(len(counts)), key=lambda kind: -costs[kind]):
        for _ in range(counts[kind]):
            least = loads.index(min(loads))
            taken[kind][least] += 1
            loads[least] += costs[kind]
    return taken


def machine_group() -> ProcessGroup | None:
    """The processes of this machine, or None where this one is alone on it; every process has to call this.

    Each machine does all of the work: between machines, results would take longer than the work (docs/muon.md).
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    world, machine = torch.distributed.group.WORLD, os.environ.get("GROUP_RANK")  # torchrun's number of the machine
    machines = ranks_by_value(gathered(machine, world))
    groups = {name: world if len(machines) == 1 else torch.distributed.new_group(it) for name, it in machines.items()}
    return groups[machine] if len(machines[machine]) > 1 else None


@dataclass(frozen=True)
class WholeMatrices:
    """Matrices of one shape that every process of a group holds; process 0 takes the first `counts[0]`, and so on."""

    group: ProcessGroup
    counts: list[int]

    def share_of(self, matrices: Tensor) -> Tensor:
        """This process's share (K, R, C) of all matrices (N, R, C)."""
        return matrices.split(self.counts)[self.group.rank()]

    def gather(self, share: Tensor) -> Callable[[], Tensor]:
        """Start to send this process's share of the results; what it returns waits for all of them, (N, R, C)."""
        padded = share.new_zeros(max(self.counts), *share.shape[1:])
        padded[: len(share)] = share
        received = [torch.empty_like(padded) for _ in self.counts]
        work = torch.distributed.all_gather(received, padded, self.group, async_op=True)

        def wait() -> Tensor:
            work.wait()
            return torch.cat([part[:count] for part, count in zip(received, self.counts, strict=True)])

        return wait


@dataclass(frozen=True)
class ShardedMatrices:
    """Matrices of one shape whose rows are sharded over a group; process 0 takes the first `counts[0]`, and so on."""

    group: ProcessGroup
    counts: list[int]
    rows: list[int]  # of each matrix, on each process

    def share_of(self, matrices: Tensor) -> Tensor:
        """This process's share, all rows (K, R, C), of matrices of which it holds some rows (N, P, C)."""
        rank, columns = self.group.rank(), matrices.size(2)
        received = matrices.new_empty(self.counts[rank] * sum(self.rows) * columns)
        work = self.exchange(received, matrices.flatten(), self.by_rows(rank, columns), self.by_count(rank, columns))
        work.wait()
        parts = zip(received.split(self.by_rows(rank, columns)), self.rows, strict=True)
        return torch.cat([part.view(self.counts[rank], rows, columns) for part, rows in parts], dim=1)

    def gather(self, share: Tensor) -> Callable[[], Tensor]:
        """Start to send the results' rows to their processes; what it returns waits for this process's, (N, P, C)."""
        rank, columns = self.group.rank(), share.size(2)
        received = share.new_empty(sum(self.counts), self.rows[rank], columns)
        sent = torch.cat([part.flatten() for part in share.split(self.rows, dim=1)])
        work = self.exchange(received.view(-1), sent, self.by_count(rank, columns), self.by_rows(rank, columns))

        def wait() -> Tensor:
            work.wait()
            return received

        return wait

    def by_rows(self, rank: int, columns: int) -> list[int]:
        """How many values of a process's share every process holds the rows of."""
        return [self.counts[rank] * rows * columns for rows in self.rows]

    def by_count(self, rank: int, columns: int) -> list[int]:
        """How many values of a process's rows belong to every process's share."""
        return [count * self.rows[rank] * columns for count in self.counts]

    def exchange(
        self, received: Tensor, sent: Tensor, received_sizes: list[int], sent_sizes: list[int]
    ) -> torch.distributed.Work:
        """Send each process its part and receive one from each."""
        return torch.distributed.all_to_all_single(
            received, sent, received_sizes, sent_sizes, group=self.group, async_op=True
        )


def dealt(weight: Tensor, counts: list[int], group: ProcessGroup) -> WholeMatrices | ShardedMatrices:
    """How matrices like this one are dealt over a group, which is the mesh's where they are sharded."""
    if not isinstance(weight, DTensor):
        return WholeMatrices(group, counts)
    assert all(placement.is_shard(0) for placement in weight.placements), "fully_shard shards rows"
    size = -(-weight.size(0) // len(counts))
    rows = [min(size, max(0, weight.size(0) - rank * size)) for rank in range(len(counts))]
    return ShardedMatrices(group, counts, rows)
