"""What the processes of a training agree on: recipe, data, the first one's choice, an error of any, the same weights.

A group is the trainer's own, which works on CPUs (gloo), or that of all processes; None where one trains alone. Every
process has to make each call.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed import ProcessGroup

from bertpre.errors import UserError, first_line
from bertpre.manifest import version

T = TypeVar("T")


def on_every_process(act: Callable[[], T], group: ProcessGroup | None) -> T:
    """Each process's own result of `act`; where one fails, all do: it with its error, the others with UserError.

    So no process waits for one that has ended, and the first process, which speaks to the user, knows the reason.
    """
    failure: Exception | None = None
    try:
        value = act()
    except Exception as error:
        failure = error
    said = gathered(None if failure is None else in_words(failure), group)
    if failure is not None:
        raise failure
    if failed := [rank for rank, text in enumerate(said) if text is not None]:
        raise UserError(f"{processes(failed)}: {said[failed[0]]}")
    return value


def broadcast_from_first(make: Callable[[], T], group: ProcessGroup | None) -> T:
    """What `make` returns on the first process, on every process; an error there is one everywhere."""
    if group is None:
        return make()
    is_first = torch.distributed.get_rank(group) == 0
    shared: list[Any] = [on_every_process(lambda: make() if is_first else None, group)]
    torch.distributed.broadcast_object_list(shared, src=0, group=group)
    return shared[0]


def every_process() -> ProcessGroup | None:
    """The group of all processes; None where one trains alone."""
    return torch.distributed.group.WORLD if torch.distributed.is_initialized() else None


def refuse_different_starts(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a training starts from, by name, as `read` returns it.

    Raises UserError, on every process, where it differs: where machines were given different commands, recipes or data,
    or have different versions installed; and where one process cannot read it.
    """
    group = every_process()
    own = on_every_process(read, group)
    each = gathered(own | {name: version(name) for name in ("bertpre", "torch")}, group)
    differing = []
    for name in dict.fromkeys(chain.from_iterable(each)):
        ranks = ranks_by_value([repr(values.get(name)) for values in each])
        if len(ranks) > 1:
            differing.append(f"{name} ({', '.join(f'{value} on {processes(own)}' for value, own in ranks.items())})")
    if differing:
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise UserError(
            f"the processes were started with different values of {', '.join(differing[:5])}{more}; start all of them "
            "with the same command, data and versions, on processors of one kind"
        )
    return own


def refuse_different_weights(model: nn.Module, step: int, is_sharded: bool, group: ProcessGroup | None) -> None:
    """Raise UserError, on every process, where processes are at different steps or hold different weights.

    Sharded weights are not compared: each process holds its own part.
    """
    if group is None:
        return
    steps = ranks_by_value(gathered(step, group))
    if len(steps) > 1:
        where = "; ".join(f"step {each} on {processes(ranks)}" for each, ranks in steps.items())
        raise UserError(f"the processes are at different steps: {where}; end them all and run the same command again")
    weights = ranks_by_value(gathered(() if is_sharded else bit_sums(model), group))
    if len(weights) > 1:
        sides = " against ".join(processes(ranks) for ranks in weights.values())
        raise UserError(
            f"the weights of step {step} differ between processes: {sides}. Nothing was saved, and the "
            "checkpoints are intact: run the same command to resume. If it happens again, these processes compute on "
            "processors of different kinds, or one is faulty: train without it"
        )


def bit_sums(model: nn.Module) -> tuple[int, ...]:
    """For each fp32 weight the sum of its bits, read as integers: exact in any order of addition, and cheap."""
    sums = [weight.detach().view(torch.int32).sum(dtype=torch.int64) for weight in model.parameters()]
    return tuple(torch.stack(sums).tolist())


def gathered(value: T, group: ProcessGroup | None) -> list[T]:
    """The values of all processes, by rank."""
    if group is None:
        return [value]
    values = [value] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(values, value, group=group)
    return values


def ranks_by_value(values: list[T]) -> dict[T, list[int]]:
    """The ranks that have each value."""
    ranks: dict[T, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks


def processes(ranks: list[int]) -> str:
    """Ranks in words; of many, the first."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"process {shown}" if len(ranks) == 1 else f"processes {shown}"


def in_words(error: Exception) -> str:
    """An error's message; of one that is not a user's mistake, with the name of its class."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"
