"""Which errors end a command with one message, and which with a traceback."""

import errno
import io
import signal
import sys
import time

import pytest
from safetensors import SafetensorError

from bertpre import guard
from bertpre.errors import UserError
from bertpre.guard import guarded


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError("100000 requested and 8176 written"), True),  # numpy's
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (SafetensorError("Error while deserializing header"), False),
        (OSError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_a_full_disk_is_one_message(error: Exception, is_full: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: list[str]) -> None:
        raise error

    with pytest.raises(SystemExit if is_full else type(error)):
        guarded(fail)
    assert ("error: the disk is full; make room" in capsys.readouterr().err) == is_full


def test_only_mistakes_and_a_full_disk_become_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bertpre"])

    def fail(error: Exception) -> None:
        raise error

    private = PermissionError(13, "Permission denied", "/home/other/run")
    errors = [(UserError("key: wrong"), "key: wrong"), (OSError(28, "No space left"), "the disk is full")]
    for error, message in [*errors, (private, "/home/other/run: permission denied")]:
        with pytest.raises(SystemExit) as end:
            guarded(lambda _, error=error: fail(error))
        assert end.value.code == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
    for error in (OSError(5, "Input/output error"), PermissionError(13, "without a path"), ValueError("a bug")):
        with pytest.raises(type(error)):
            guarded(lambda _, error=error: fail(error))
    for encoding in ("ascii", "cp1252", "cp932"):  # Python calls cp1252 charmap in its error
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        with pytest.raises(SystemExit):
            guarded(lambda _: print("\u0105"))
        shown = f"error: the output cannot show '\\u0105' in {encoding}: set PYTHONIOENCODING=utf-8\n"
        assert capsys.readouterr().err == shown


def test_the_main_process_reports_a_mistake_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bertpre"])
    waited: list[float] = []
    monkeypatch.setattr(guard.time, "sleep", waited.append)

    def mistake(arguments: list[str]) -> None:
        raise UserError("wrong")

    for rank, size, expected in (("0", "2", []), ("1", "1", []), ("1", "2", [guard.SECONDS_FOR_MAIN_PROCESS])):
        monkeypatch.setenv("RANK", rank), monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(SystemExit):
            guarded(mistake)
        assert waited == expected


def test_a_process_that_has_ended_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: list[str]) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")

    with pytest.raises(RuntimeError):
        guarded(fail)  # there is no other process
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as end:
        guarded(fail)
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("error: another process of this training has ended")


def test_an_interrupt_that_arrives_in_a_finalizer_still_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    class Faulty:
        def __del__(self) -> None:
            raise ValueError("a library's mistake")

    heard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: heard.append(ignored.exc_type))

    def call(_: list[str]) -> None:
        Faulty()
        Interrupted()
        time.sleep(30)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            guarded(call)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 25
    Faulty()  # the hook of before is back
    assert heard == [ValueError, ValueError]
