"""Workers: maps a function over many calls, in local processes or on a Ray cluster."""

import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any, TypeVar

from bertpre.errors import UserError, first_line

Result = TypeVar("Result")


def map_calls(
    function: Callable[..., Result], calls: Iterator[tuple[Any, ...]], workers: int | None = None, engine: str = "local"
) -> Iterator[Result]:
    """Results of `function(*call)` in the order of the calls; few calls are in flight at a time.

    `engine` is `local`, with `workers` processes (None: as many as cores may be used, of which a container may allow
    fewer than the machine has), or `ray`, on all of a cluster. Raises BrokenProcessPool where a worker is killed, which
    the system does when memory runs out.
    """
    if engine == "ray":
        return map_on_ray(function, calls)
    if workers is None:
        from joblib import cpu_count  # a quarter of a second

        workers = cpu_count()
    return map_locally(function, calls, workers)


def map_locally(function: Callable[..., Result], calls: Iterator[tuple[Any, ...]], workers: int) -> Iterator[Result]:
    """`map_calls` on this machine. A single call or a single worker needs no other process."""
    first = list(islice(calls, 2))
    calls = chain(first, calls)
    if workers == 1 or len(first) < 2:
        yield from (function(*call) for call in calls)
        return
    # Not forked: the copy of a process that has threads may hang.
    spawn, parent = get_context("spawn"), (os.getpid(),)
    if sys.platform == "win32":
        workers = min(workers, 61)  # Python's limit there
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=start_worker, initargs=parent) as pool:
        in_flight = deque(pool.submit(function, *call) for call in islice(calls, 2 * workers))
        while in_flight:
            yield in_flight.popleft().result()
            in_flight.extend(pool.submit(function, *call) for call in islice(calls, 1))


def map_on_ray(function: Callable[..., Result], calls: Iterator[tuple[Any, ...]]) -> Iterator[Result]:
    """`map_calls` on the Ray cluster of RAY_ADDRESS, or the one this machine belongs to, otherwise on a new local one.

    When a node dies, Ray repeats its calls elsewhere. All nodes must see the same files under the same paths.
    """
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="ERROR")
    remote = ray.remote(num_cpus=1, max_retries=10)(call_on_node)
    most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    folder, calls = os.getcwd(), iter(calls)
    try:
        in_flight = deque(remote.remote(folder, function, *call) for call in islice(calls, most))
        while in_flight:
            yield ray.get(in_flight.popleft())
            in_flight.extend(remote.remote(folder, function, *call) for call in islice(calls, 1))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise UserError(
            f"the Ray cluster failed: {first_line(error)}; run the same command again (finished parts are kept)"
        ) from None


def call_on_node(folder: str, function: Callable[..., Result], *call: Any) -> Result:
    """`function(*call)` on a node of a cluster, in the folder that relative paths start from."""
    os.chdir(folder)
    use_one_thread()
    return function(*call)


def release_memory() -> None:
    """Return freed memory to the system: after reading a corpus, glibc and pyarrow each keep about 100 MB of it."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # another system, another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def use_one_thread() -> None:
    """Keep this worker on one core: there is a worker for each."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


def start_worker(parent: int) -> None:
    """What a worker process does first; without its parent, which may be killed, it ends."""
    follow(parent)
    use_one_thread()


def follow(parent: int) -> None:
    """Have SIGTERM sent to this process when its parent ends, so that it ends too; only Linux can do this."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1  # sys/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGTERM))
    if os.getppid() != parent:  # it has ended already
        signal.raise_signal(signal.SIGTERM)
