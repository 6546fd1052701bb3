"""What `accelerate launch` leaves to the script it starts: the processes it was asked for on CPUs."""

import os
import re
import sys
from pathlib import Path

from bertpre.errors import UserError

SET_BY_LAUNCHERS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # torchrun, then MPI's


def start_missing_processes() -> None:
    """Start this script again on as many processes as `accelerate launch` was asked for, where it started only one.

    Without a GPU it always does (huggingface/accelerate issue 2741), and on one thread at that: a run on "two
    processes" would use half of the cores and say nothing. Replaces this process, or returns where nothing is missing.
    Raises UserError for several machines, which accelerate cannot start without a GPU.
    """
    import psutil

    parent = psutil.Process().parent()
    asked = options_of_launch(parent.cmdline() if parent else [], sys.argv[0])
    if asked is None or any(name in os.environ for name in SET_BY_LAUNCHERS):
        return
    if "num_processes" not in asked and "MASTER_ADDR" in os.environ:  # accelerate sets it where several are wanted
        asked = configuration(asked.get("config_file"))
    processes, machines = int(asked.get("num_processes", 1)), int(asked.get("num_machines", 1))
    if machines > 1:
        raise UserError(
            "without a GPU `accelerate launch` starts one process on each machine; start this script on each with "
            "torchrun --nnodes N --nproc_per_node P --node_rank R --master_addr HOST --master_port PORT"
        )
    if processes > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        os.execv(sys.executable, [*torchrun, *sys.argv])


def options_of_launch(command: list[str], script: str) -> dict[str, str] | None:
    """The `--name value` options before the script in an `accelerate launch` command line; None for any other."""
    launchers = [place for place, part in enumerate(command) if part in ("launch", "accelerate.commands.launch")]
    if not launchers or script not in command or not is_accelerate(command[: launchers[0] + 1]):
        return None
    options = " ".join(command[launchers[0] + 1 : command.index(script)])
    return {name.replace("-", "_"): value for name, value in re.findall(r"--([\w-]+)[ =]([^\s-]\S*)", options)}


def is_accelerate(command: list[str]) -> bool:
    """Whether this is `[python] .../accelerate launch` or `python -m accelerate.commands.launch`."""
    return any(Path(part).name.startswith("accelerate") for part in command)


def configuration(file: str | None) -> dict[str, int]:
    """The numbers of processes and machines in a file of `accelerate config`, by default the user's own."""
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(file)
    return {"num_processes": config.num_processes, "num_machines": config.num_machines}
