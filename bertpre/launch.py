"""Start the processes that `accelerate launch` was asked for but does not start on CPUs."""

import logging
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertpre.console import is_one_of_several
from bertpre.data.workers import follow
from bertpre.errors import UserError

if TYPE_CHECKING:
    import psutil

LAUNCHERS = ("launch", "accelerate-launch", "accelerate.commands.launch")


class Launch(NamedTuple):
    """What `accelerate launch` was asked for that has started one process; without a GPU it never starts more."""

    pid: int
    processes: int
    machines: int
    names_threads: bool  # otherwise it has set one itself


def start_missing_processes() -> None:
    """Start this script or module again on as many processes as `accelerate launch` was asked for, if it started one.

    Without a GPU it always starts one, on one thread (huggingface/accelerate issue 2741): a run on "two processes"
    would silently use half of the cores, and one on one process a single core. Ends this process with them, or returns
    where no process is missing; then it is told when `accelerate launch`, which passes no signal on to a single
    process, has been ended. Raises UserError for several machines, which accelerate cannot start without a GPU.
    """
    launch = find_launch()
    if launch is None:
        return
    follow(launch.pid)
    if launch.machines > 1:
        raise UserError(
            "without a GPU `accelerate launch` starts only one process per machine; start this script on each with "
            "torchrun --nnodes N --nproc_per_node P --node_rank R --master_addr HOST --master_port PORT"
        )
    if not launch.names_threads:
        use_all_cores(launch.processes)
    if launch.processes > 1:
        run_processes(launch.processes, running_module())
        sys.exit(0)


def find_launch() -> Launch | None:
    """The `accelerate launch` that has started this process alone; None where another program has."""
    import psutil

    parent, module = psutil.Process().parent(), running_module()
    try:
        command = parent.cmdline() if parent else []
    except psutil.Error:  # another user's process, or one that has ended
        command = []
    options = options_of_launch(command, module or sys.argv[0])
    if parent is None or options is None or is_one_of_several() or "TORCHELASTIC_RUN_ID" in os.environ:
        return None
    if "num_processes" not in options and "MASTER_ADDR" in os.environ:  # accelerate sets it for several processes
        processes, machines = configured_sizes(options.get("config_file"))
    else:
        processes, machines = int(options.get("num_processes", 1)), int(options.get("num_machines", 1))
    return Launch(parent.pid, processes, machines, names_threads(parent, options))


def names_threads(launcher: "psutil.Process", options: dict[str, str]) -> bool:
    """Whether the user has said how many threads a process has; what `accelerate launch` sets itself does not count."""
    import psutil

    try:
        return "num_cpu_threads_per_process" in options or "OMP_NUM_THREADS" in launcher.environ()
    except psutil.Error:
        return True


def use_all_cores(processes: int) -> None:
    """Let one process have torch's own number of threads, and divide the cores among several."""
    os.environ.pop("OMP_NUM_THREADS", None)
    if processes > 1:
        from joblib import cpu_count

        os.environ["OMP_NUM_THREADS"] = str(max(1, cpu_count(only_physical_cores=True) // processes))


def running_module() -> str | None:
    """The module that `python -m` runs; None where Python runs a script."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else None


def run_processes(count: int, module: str | None) -> None:
    """Run this script or module on `count` processes under torchrun.

    A process that fails has printed its message: then this one ends with its status, without torchrun's report of forty
    lines. A signal goes to all of them, and this one ends when they have.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)  # it repeats failures
    program = ["-m", module] if module else sys.argv[:1]
    try:
        here = ("--standalone", "--local-addr", "localhost")  # a container's own name may have no address
        torchrun([*here, "--nproc_per_node", str(count), *program, *sys.argv[1:]])
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        sys.exit(status if status > 0 else 128 - status)  # of a process that a signal has ended
    except SignalException as error:
        sys.exit(128 + error.sigval)  # a shell's status for a command that a signal has ended


def options_of_launch(command: list[str], script: str) -> dict[str, str] | None:
    """The `--name value` options before the script or module in an `accelerate launch` command; None for any other."""
    launchers = [place for place, part in enumerate(command) if Path(part).name in LAUNCHERS]
    if not launchers or script not in command or not is_accelerate(command[: launchers[0] + 1]):
        return None
    parts, options = command[launchers[0] + 1 : command.index(script)], dict[str, str]()
    for part, following in pairwise([*parts, "-"]):
        name, is_whole, value = part.partition("=")
        if name.startswith("--") and (is_whole or not following.startswith("-")):
            options[name[2:].replace("-", "_")] = value if is_whole else following
    return options


def is_accelerate(command: list[str]) -> bool:
    """Whether this is `accelerate launch`, `accelerate-launch` or `python -m accelerate.commands.launch`."""
    return any(Path(part).name.startswith("accelerate") for part in command)


def configured_sizes(file: str | None) -> tuple[int, int]:
    """The numbers of processes and machines in a file of `accelerate config`, by default the user's own."""
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        config = load_config_from_file(file)
    except FileNotFoundError:
        if file is not None:
            raise
        return 1, 1  # without a file accelerate starts one process
    return config.num_processes, config.num_machines
