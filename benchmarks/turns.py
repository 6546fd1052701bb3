"""Variants of a training step that take turns, each in a process of its own. Other benchmarks import this.

On a CPU a turn is one step after half a second, in which the process before becomes idle. On a GPU it is 20 steps
between two synchronisations, after a few more: single steps would begin on an idle GPU, whose clock is low.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

WARM_UP_STEPS = 3
STEPS_OF_A_TURN = {"cpu": 1, "cuda": 20}


def take_turns(commands: dict[str, list[str]], rounds: int) -> dict[str, dict[str, float]]:
    """Each command's median seconds of a step and peak memory in MB; one that fails has no entry.

    A command runs `do_turns`. All begin to compile at once.
    """
    workers = {
        name: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name, command in commands.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name, worker in workers.items() if answer(worker) == "ready"}
    for _ in range(rounds):
        for name in seconds:
            if not torch.cuda.is_available():
                time.sleep(0.5)
            seconds[name].append(float(ask(workers[name]) or "nan"))
    peaks = {name: worker.communicate()[0].strip() for name, worker in workers.items()}
    return {
        name: {"seconds": statistics.median(values), "peak_memory_mb": int(peaks[name])}
        for name, values in seconds.items()
        if workers[name].returncode == 0
    }


def ask(worker: subprocess.Popen) -> str:
    """Let a worker have a turn; returns its answer, which is empty where it has failed."""
    assert worker.stdin is not None
    try:
        print(file=worker.stdin, flush=True)
    except BrokenPipeError:
        return ""
    return answer(worker)


def answer(worker: subprocess.Popen) -> str:
    """The next line that a worker prints; empty where it has failed."""
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def do_turns(step: Callable[[], object]) -> None:
    """The other side of `take_turns`: for each line read, print the seconds of a step; finally the peak memory."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for _ in range(WARM_UP_STEPS):  # compiles, then fills the optimizer's state
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        if device == "cuda":
            seconds_of(step, WARM_UP_STEPS, device)
        print(seconds_of(step, STEPS_OF_A_TURN[device], device), flush=True)
    on_gpu = device == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(peak // 2**20)


def seconds_of(step: Callable[[], object], steps: int, device: str) -> float:
    """The mean seconds of some steps, between two synchronisations."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return (time.perf_counter() - start) / steps


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
