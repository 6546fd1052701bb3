"""Worker processes: a function mapped over many calls, results in order, few calls in flight."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any, TypeVar

from bertpre.errors import UserError

Result = TypeVar("Result")


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_calls(function: Callable[..., Result], calls: Iterator[tuple[Any, ...]], workers: int) -> Iterator[Result]:
    """Results of `function(*call)` in the order of the calls; at most one call a worker waits.

    A single call, and a single worker, need no other process. Raises UserError where a worker is killed, which the
    system does when memory runs out.
    """
    first = list(islice(calls, 2))
    calls = chain(first, calls)
    try:
        if workers == 1 or len(first) < 2:
            yield from (function(*call) for call in calls)
            return
        # Not forked: a copy of a process that has threads may hang.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=one_thread) as pool:
            waiting = deque(pool.submit(function, *call) for call in islice(calls, 2 * workers))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(function, *call) for call in islice(calls, 1))
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, most likely for want of memory; run the same command again with fewer "
            "(prepare.workers=1): finished parts are kept"
        ) from None


def one_thread() -> None:
    """Workers are as many as cores, so each stays on one."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
