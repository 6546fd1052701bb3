"""Programs in processes of their own that find torch and transformers already imported.

Importing these takes up to seven seconds, and the tests start a hundred such processes. So each pytest process has a
server that imports them once, writes the embedded reviews once, and forks. What depends on the order of imports, on
variables that an import reads or on a launcher needs a process from the start: `run_process`.
"""

import atexit
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

from tests.helpers import LIMIT, ROOT, free_port

forks = get_context("forkserver")
forks.set_forkserver_preload(
    ["torch", "accelerate", "transformers.modeling_utils", "transformers.pipelines", "tests.written_sample"]
)
COMMAND = "from bertpre.cli import main\nmain()"  # the program that `bertpre ARGUMENTS` is


def run_forked(
    program: str,
    *arguments: object,
    ranks: int | None = None,
    ends_others: bool = True,
    timeout: float = LIMIT,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program's text as `python -c` does, from the repository's root.

    With `ranks`, it runs in as many processes at once, in the environment that torchrun gives them; where one fails,
    the others are ended as torchrun does, or with `ends_others=False` have to end by themselves.
    """
    environment = {**os.environ, **environment}
    command = ["-c", *map(str, arguments)]
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = [{}] if ranks is None else [master | place_of(rank, ranks) for rank in range(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "stdout"), Path(folder, "stderr")
        output.touch()
        errors.touch()
        processes = [
            forks.Process(target=become, args=(program, command, environment | place, output, errors))
            for place in places
        ]
        for process in processes:
            process.start()
        try:
            status = wait_for_all(processes, ends_others, time.monotonic() + timeout)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(command, timeout, output.read_bytes(), errors.read_bytes()) from error
        return subprocess.CompletedProcess(command, status, output.read_text(), errors.read_text())


def place_of(rank: int, ranks: int) -> dict[str, str]:
    """The variables that tell a process which of all it is."""
    count = str(ranks)
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}


def wait_for_all(processes: list, ends_others: bool, deadline: float) -> int:
    """The first exit status that is not zero; with `ends_others` as soon as there is one: those left are ended then."""
    try:
        while any(process.is_alive() for process in processes):
            failed = [process.exitcode for process in processes if process.exitcode]
            if failed and ends_others:
                return failed[0]
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.02)
    finally:
        for stop in ("terminate", "kill"):
            for process in processes:
                getattr(process, stop)()
            for process in processes:
                process.join(timeout=30)
    return next((process.exitcode for process in processes if process.exitcode), 0)


def become(program: str, command: list[str], environment: dict[str, str], output: Path, errors: Path) -> None:
    """In the fork: run the program with its arguments, environment and output."""
    for file, descriptor in ((output, 1), (errors, 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv, sys.modules["__main__"] = command, ModuleType("__main__")
    try:
        exec(compile(program, "<program>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102 - the tests' own
    finally:
        atexit._run_exitfuncs()  # which a fork of multiprocessing leaves out
