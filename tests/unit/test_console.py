"""What is printed while a command works: a live line on a terminal, only lines elsewhere; numbers that people read."""

import fcntl
import logging
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bertpre
from bertpre import console as module
from bertpre.console import (
    Console,
    command_line,
    console,
    is_first_process,
    is_one_of_several,
    program,
    scientific,
    time_text,
)
from bertpre.errors import UserError
from bertpre.guard import guarded
from bertpre.training.trackers import MetricsLog
from tests.toys import toy_trainer


class Screen:
    """What a terminal received, and what it shows."""

    received = b""

    @property
    def text(self) -> str:
        return self.received.decode()

    def lines(self) -> list[str]:
        """The lines as they look at the end: a carriage return writes over what was there."""
        shown = []
        for line in self.text.replace("\r\n", "\n").split("\n"):
            cells: dict[int, str] = {}
            for part in line.split("\r"):
                cells |= dict(enumerate(part))
            shown.append("".join(cells[place] for place in sorted(cells)).rstrip())
        return shown


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Iterator[Screen]:
    """Make stdout and stderr a terminal; what it received is known after the block."""
    screen, (master, slave) = Screen(), pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read() -> None:
        try:
            while part := os.read(master, 4096):
                screen.received += part
        except OSError:  # how Linux ends a terminal that nobody writes to any more
            pass

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(slave, "w", encoding="utf-8") as stream:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        patch.setattr(module, "REDRAW_SECONDS", 0.0)
        patch.delenv("TERM", raising=False)
        yield screen
    reader.join()
    os.close(master)


def train(folder: Path) -> None:
    trainer = toy_trainer(folder, 6, log_every=2, measure=lambda step: {"loss": 1.0})
    trainer.train()
    trainer.log.output.close()


def test_a_terminal_has_one_live_line_below_the_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as screen:
        train(tmp_path)
    assert "\rtoy  50% |█████     | step 3, loss " in screen.text
    (drawn, *_) = [line for line in screen.text.split("\r") if "step 3," in line]
    assert "tokens/s, " in drawn and drawn.rstrip().endswith(" s left")
    *lines, last = screen.lines()
    assert last == ""  # the live line is gone
    starts = [
        "validation at step 0 (0%)",
        "step 2 (33%)",
        "step 4 (67%)",
        "validation at step 5 (83%)",
        "step 6 (100%)",
    ]
    starts.append("validation at step 6 (100%)")
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == starts
    assert all(line.startswith("toy: ") and "|" not in line for line in lines)


def test_a_pipe_gets_the_log_lines_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path)
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 6
    assert "\r" not in printed.out and "\x1b" not in printed.out
    assert printed.err == ""


def test_the_live_line_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, columns=40) as screen:
        console.draw("pretrain", "step 1,234,567, loss 1.234, 34,450 tokens/s, 2 min 5 s left", 0.5)
        console.erase()
    assert max(map(len, screen.text.split("\r"))) <= 40
    assert screen.lines() == [""]


def test_quiet_leaves_progress_out_but_not_warnings_and_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "is_quiet", True)
    with terminal(monkeypatch) as screen:
        console.draw("pretrain", "step 1", 0.5)
    assert screen.text == ""
    console.say("step 1")
    console.show("warning: the loss jumped")
    assert capsys.readouterr().out == "warning: the loss jumped\n"


@pytest.mark.parametrize("name, size", [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")])
def test_only_the_first_process_prints(
    name: str, size: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, count, expected in (("1", "2", ""), ("0", "2", "hello\n"), ("1", "1", "hello\n")):
        monkeypatch.setenv(name, rank)
        monkeypatch.setenv(size, count)
        console.show("hello")
        assert capsys.readouterr().out == expected


def test_torchruns_variables_come_before_those_of_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun --mpi=pmi2 torchrun ...` gives all processes of a task its number."""
    for name, value in (("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for rank, is_first in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        assert is_first_process() == is_first
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert is_first_process() and not is_one_of_several()


def test_warnings_and_errors_are_printed_without_the_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> None:
        console.draw("pretrain", "step 1", 0.5)
        logging.getLogger("bertpre.training.checkpoint").warning("checkpoint %s is damaged", "x")
        raise UserError("key: wrong")

    monkeypatch.setattr(sys, "argv", ["bertpre"])
    with terminal(monkeypatch) as screen, pytest.raises(SystemExit):
        guarded(fail)
    assert screen.lines() == ["warning: checkpoint x is damaged", "error: key: wrong", ""]


def test_an_early_redraw_is_skipped_but_a_new_stage_shows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as screen:
        monkeypatch.setattr(module, "REDRAW_SECONDS", 60.0)
        fresh = Console()
        for stage, text in (("prepare", "first"), ("prepare", "second"), ("pretrain", "third")):
            fresh.draw(stage, text)
        fresh.erase()
    assert "first" in screen.text and "second" not in screen.text and "third" in screen.text


def test_a_log_line_has_numbers_that_people_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = MetricsLog(
        tmp_path / "metrics.jsonl", "pretrain", True, shown={"mlm_loss": "MLM loss {:.3f} (context-free 6.1)"}
    )
    row = {
        "loss": 6.91234,
        "mlm_loss": 6.2,
        "nsp_accuracy": 0.5555,
        "learning_rate": 3e-3,
        "tokens_per_second": 34449.6,
    }
    log.write("train", 1200, row | {"seconds_left": 125.2, "cost": 1234.5}, 0.421)
    log.write("validation", 1200, row, 0.421)
    assert capsys.readouterr().out.splitlines() == [
        "pretrain: step 1,200 (42%): loss 6.912, MLM loss 6.200 (context-free 6.1), NSP accuracy 55.5%, learning rate "
        "3.0e-3, 34,450 tokens/s, 2 min 5 s left, cost 1,234.50",
        "pretrain: validation at step 1,200 (42%): loss 6.912, MLM loss 6.200 (context-free 6.1), NSP accuracy 55.5%, "
        "34,450 tokens/s",
    ]


def test_the_program_is_named_as_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bertpre"
    file.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [".venv/bin/bertpre", "run"])
    for path, expected in ((str(tmp_path), "bertpre"), (str(tmp_path / "none"), ".venv/bin/bertpre")):
        monkeypatch.setenv("PATH", path)
        assert program() == expected
    monkeypatch.setattr(sys, "argv", ["somewhere/bertpre/__main__.py"])
    assert program() == f"{shlex.quote(sys.executable)} -m bertpre"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "bertpre"


def test_a_suggested_command_runs_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a `bertpre` on the path it is the module of the Python that runs, and a path with spaces is one word."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(Path(bertpre.__file__).with_name("__main__.py"))])
    command = command_line("show", tmp_path / "my recipe.yaml")
    assert shlex.split(command) == [sys.executable, "-m", "bertpre", "show", str(tmp_path / "my recipe.yaml")]
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 2 and "my recipe.yaml" in done.stderr


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.02, "0 s"), (0.4, "0.4 s"), (0.96, "1 s"), (58.4, "58 s"), (59.6, "1 min"), (125, "2 min 5 s"),
        (3600, "1 h"), (11520, "3 h 12 min"), (86399.9, "1 d"), (190000, "2 d 4 h"),
    ],
)  # fmt: skip
def test_a_duration_in_words(seconds: float, words: str) -> None:
    assert time_text(seconds) == words


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (3e-3, "3.0e-3"), (6.536e-4, "6.5e-4"), (12.0, "1.2e1")])
def test_a_short_scientific_number(value: float, text: str) -> None:
    assert scientific(value) == text
