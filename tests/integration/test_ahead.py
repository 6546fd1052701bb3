"""Groups of shards planned ahead in another process: the same plans, the same errors, nothing left running."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from bertpre.data.ahead import planned_ahead
from bertpre.data.sampler import Example, PairDataset, Position
from bertpre.data.store import load_shard, write_shard
from tests.helpers import has_ended, wait_until


def dataset(folder: Path, kind: str = "nsp", shards: int = 5, documents: int = 20, repeats: int = 1) -> PairDataset:
    """Shards in files, two to a group: the last group of an epoch is smaller. `repeats`: of each document, as known."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(shards):
        document_lengths = generator.integers(1, 12, documents)
        sentence_lengths = generator.integers(1, 30, document_lengths.sum())
        tokens = generator.integers(5, 300, sentence_lengths.sum()).astype(np.uint16)
        write_shard(folder, f"train-{number}", "train", tokens, sentence_lengths, document_lengths)
    copies = [(documents // repeats, repeats)] if repeats > 1 else []
    loaded = [replace(load_shard(folder, f"train-{number}"), copies=copies) for number in range(shards)]
    return PairDataset(loaded, 64, 7, 0.2, 0.4, kind, sep_token_id=3, shards_per_group=2)


@pytest.mark.parametrize("kind", ["none", "nsp", "sop"])
def test_examples_resume_within_a_group_and_at_its_border(kind: str, tmp_path: Path) -> None:
    here = dataset(tmp_path / "a", kind)
    rows = [len(here.plan(0, group)[1]) for group in range(3)]
    for position in (Position(offset=5), Position(group=1), Position(group=2, offset=rows[2] - 3), Position(epoch=1)):
        resumed = dataset(tmp_path / "a", kind)
        with planned_ahead(resumed):
            at = position
            for count in (4, sum(rows), 7):
                expected, end = here.take(at, count)
                examples, at = resumed.take(at, count)
                assert at == end
                assert list(map(content, examples)) == list(map(content, expected))


def content(example: Example) -> tuple[list[int], list[int], int, tuple[int, int]]:
    return example.a.tolist(), example.b.tolist(), example.is_random_next, example.key


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if "bertpre.data.ahead" in " ".join(child.cmdline())]


def only_child() -> int:
    wait_until(children)  # a process that begins has no command line for a moment
    (child,) = children()
    return child


@pytest.mark.parametrize(("kind", "repeats"), [("none", 1), ("nsp", 1), ("nsp", 10), ("sop", 1)])
def test_plans_made_ahead_are_the_same(kind: str, repeats: int, tmp_path: Path) -> None:
    here, ahead = (dataset(tmp_path / "a", kind, repeats=repeats) for _ in range(2))
    groups = [(epoch, group) for epoch in range(2) for group in range(3)]
    groups += [(1, 0), (7, 2), (0, 1)]  # as after a rollback, or in a phase that begins
    with planned_ahead(ahead):
        child = only_child()
        for key in groups:
            for mine, other in zip(ahead.plan(*key), here.plan(*key), strict=True):
                np.testing.assert_array_equal(mine, other)
        assert psutil.Process(child).is_running()  # it has done the work
        assert ahead.make_plan != ahead.plan_group
    assert ahead.make_plan == ahead.plan_group


@pytest.mark.parametrize("in_between", [lambda: None, lambda: time.sleep(0.5)])
def test_nothing_runs_after_the_block(in_between: object, tmp_path: Path) -> None:
    threads = set(threading.enumerate())  # of other tests in this process, which may end meanwhile
    for ask in (lambda _: None, lambda data: data.plan(0)):
        data = dataset(tmp_path / "a")
        with planned_ahead(data):
            child = only_child()
            ask(data)
            in_between()
        assert set(threading.enumerate()) <= threads
        assert not psutil.pid_exists(child)


def test_a_process_that_is_killed_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here, ahead = dataset(tmp_path / "a"), dataset(tmp_path / "a")
    with planned_ahead(ahead), caplog.at_level(logging.WARNING):
        ahead.plan(0)
        os.kill(only_child(), signal.SIGKILL)
        for group in (1, 2, 0):
            np.testing.assert_array_equal(ahead.plan(1, group)[0], here.plan(1, group)[0])
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the process that plans the examples has ended"
    ]


def test_a_signal_to_all_processes_does_not_end_it(tmp_path: Path) -> None:
    data = dataset(tmp_path / "a")
    with planned_ahead(data):
        data.plan(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(only_child(), number)
        data.plan(5)
        assert data.make_plan != data.plan_group


def test_an_error_in_planning_is_raised_here(tmp_path: Path) -> None:
    data = dataset(tmp_path / "a", documents=1)
    with planned_ahead(data), pytest.raises(ValueError, match="need at least two documents"):
        data.take(Position(), 4)


ORPHAN = """
import sys, time
from pathlib import Path
from bertpre.data.ahead import AheadPlanner
from bertpre.data.sampler import PairDataset
from bertpre.data.store import load_shard
data = PairDataset([load_shard(Path(sys.argv[1]), "train-0")], 64, 7)
planner = AheadPlanner(data, [Path(shard.tokens.filename) for shard in data.shards])
planner.plan(0, 0)
print(planner.process.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_a_training_that_is_killed(tmp_path: Path) -> None:
    dataset(tmp_path / "a")
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until(lambda: has_ended(child))
