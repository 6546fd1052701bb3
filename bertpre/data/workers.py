"""Workers, here or on a Ray cluster: a function mapped over many calls, results in order, few calls in flight."""

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any, TypeVar

from bertpre.errors import UserError, first_line

Result = TypeVar("Result")


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_calls(
    function: Callable[..., Result], calls: Iterator[tuple[Any, ...]], workers: int | None = None, engine: str = "local"
) -> Iterator[Result]:
    """Results of `function(*call)` in the order of the calls, of which few wait.

    `engine` is `local`, with so many worker processes (None: one a core), or `ray`, on all of a cluster. Raises
    UserError where a worker is killed, which the system does when memory runs out.
    """
    return map_on_ray(function, calls) if engine == "ray" else map_here(function, calls, workers or available_cores())


def map_here(function: Callable[..., Result], calls: Iterator[tuple[Any, ...]], workers: int) -> Iterator[Result]:
    """`map_calls` on this machine. A single call, and a single worker, need no other process."""
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


def map_on_ray(function: Callable[..., Result], calls: Iterator[tuple[Any, ...]]) -> Iterator[Result]:
    """`map_calls` on the Ray cluster that RAY_ADDRESS names, or this machine is a node of, else on a new local one.

    Ray runs a call again elsewhere when its node dies. Nodes see the same files under the same paths.
    """
    if find_spec("ray") is None:
        raise UserError("prepare.engine is ray, which needs the package: pip install 'bertpre[ray]'")
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="ERROR")
    remote = ray.remote(num_cpus=1, max_retries=10)(call_on_node)
    in_flight = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    folder, calls = os.getcwd(), iter(calls)
    try:
        waiting = deque(remote.remote(folder, function, *call) for call in islice(calls, in_flight))
        while waiting:
            yield ray.get(waiting.popleft())
            waiting.extend(remote.remote(folder, function, *call) for call in islice(calls, 1))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = first_line(error)
        raise UserError(
            f"the Ray cluster gave up: {reason}; run the same command again: finished parts are kept"
        ) from None


def call_on_node(folder: str, function: Callable[..., Result], *call: Any) -> Result:
    """`function(*call)` on a node of a cluster, in the folder that relative paths begin at."""
    os.chdir(folder)
    one_thread()
    return function(*call)


def give_memory_back() -> None:
    """Return freed memory to the system, which the C library (glibc) and pyarrow keep: behind a corpus, 100 MB each."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # another system, another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def one_thread() -> None:
    """Workers are as many as cores, so each stays on one."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
