"""Plans of the next groups of shards, made in another process: planning in this one would hold up its Python."""

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.data.sampler import PairDataset, Plan, Position
from bertpre.data.store import Shard, load_shard

logger = logging.getLogger(__name__)
GROUPS_AHEAD = 2  # an epoch's last group may be small, and used up before a large one is planned
# Not multiprocessing, which imports the user's script again where it lacks `if __name__ == "__main__":`.
COMMAND = (sys.executable, "-c", "from bertpre.data.ahead import serve; serve()")
TAIL = ".tokens.npy"


class ShardFiles(Sequence[Shard]):
    """Shards in files, each memory-mapped when it is first read."""

    def __init__(self, files: list[Path], copies: list[Sequence[tuple[int, int]]]) -> None:
        self.files, self.copies = files, copies

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        file = self.files[index]
        return replace(load_shard(file.parent, file.name.removesuffix(TAIL)), copies=self.copies[index])


class AheadPlanner:
    """Plans a dataset's groups in a process of its own, so that the next ones are ready when they are asked for.

    Where that process fails, the groups are planned in this one, with a warning: what is wrong is then raised here.
    """

    def __init__(self, dataset: PairDataset, files: list[Path]) -> None:
        self.dataset = dataset
        self.process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
        )
        self.thread = ThreadPoolExecutor(1)  # talks to the process
        copies = [shard.copies for shard in dataset.shards]
        self.thread.submit(self.send, (files, copies, dataset.settings()))
        self.plans: dict[tuple[int, int], Future[Plan]] = {}

    def plan(self, epoch: int, group: int) -> Plan:
        """As `PairDataset.plan_group`; the groups after this one are planned from now on."""
        wanted, position = [(epoch, group)], Position(epoch=epoch, group=group)
        for _ in range(GROUPS_AHEAD):
            position = self.dataset.group_after(position)
            wanted.append((position.epoch, position.group))
        for key in self.plans.keys() - set(wanted):
            self.plans.pop(key).cancel()
        for key in wanted:
            if key not in self.plans:
                self.plans[key] = self.thread.submit(self.ask, key)
        try:
            return self.plans.pop(wanted[0]).result()
        except (OSError, EOFError, pickle.UnpicklingError):
            plan = self.dataset.plan_group(epoch, group)
            self.dataset.make_plan = self.dataset.plan_group
            logger.warning("the process that plans the examples has ended: they are planned in this one, more slowly")
            return plan

    def ask(self, key: tuple[int, int]) -> Plan:
        """A plan from the process; raises OSError, EOFError or UnpicklingError where that has ended."""
        self.send(key)
        assert self.process.stdout is not None  # a pipe
        return pickle.load(self.process.stdout)

    def send(self, message: object) -> None:
        """Send the process a message."""
        assert self.process.stdin is not None  # a pipe
        pickle.dump(message, self.process.stdin)
        self.process.stdin.flush()

    def close(self) -> None:
        """End the process and the thread."""
        self.process.kill()
        self.thread.shutdown(cancel_futures=True)
        with suppress(OSError):  # what the process did not read any more
            self.process.__exit__(None, None, None)


@contextmanager
def planned_ahead(dataset: PairDataset) -> Iterator[None]:
    """Let another process plan the groups of a dataset ahead, to the end of the block; its shards must be in files."""
    planner = AheadPlanner(dataset, [token_file(shard) for shard in dataset.shards])
    dataset.make_plan = planner.plan
    try:
        yield
    finally:
        dataset.make_plan = dataset.plan_group
        planner.close()


def token_file(shard: Shard) -> Path:
    """The file that a shard's tokens are in."""
    assert isinstance(shard.tokens, np.memmap) and shard.tokens.filename is not None, "the shard is not in files"
    return Path(shard.tokens.filename)


def environment() -> dict[str, str]:
    """The variables of the process: it imports from where this one does, and its numpy keeps to one thread."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def serve() -> None:
    """What the process does: read a dataset, then plan each group that is asked for, until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # may go to all processes; the training then saves and ends this one
        signal.signal(number, signal.SIG_IGN)
    files, copies, settings = pickle.load(sys.stdin.buffer)
    dataset = PairDataset(ShardFiles(files, copies), **settings)
    with suppress(EOFError):
        while True:
            pickle.dump(dataset.plan_group(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
            sys.stdout.buffer.flush()
