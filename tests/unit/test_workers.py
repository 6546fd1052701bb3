"""Worker processes: they end with the process that started them, however it ends."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from bertpre.data.workers import map_calls
from tests.helpers import has_ended, wait_until


def test_one_core_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # joblib's variable, which counts like a container's limit
    assert list(map_calls(os.getpid, iter([()] * 3))) == [os.getpid()] * 3


STARTS_TWO = """
import time
from bertpre.data.workers import map_calls

if __name__ == "__main__":
    print("started", flush=True)
    list(map_calls(time.sleep, iter([(600,)] * 2), workers=2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_workers_end_with_a_parent_that_is_killed(tmp_path) -> None:  # noqa: ANN001
    (tmp_path / "main.py").write_text(STARTS_TWO)
    with subprocess.Popen([sys.executable, tmp_path / "main.py"], stdout=subprocess.PIPE) as parent:
        process, workers = psutil.Process(parent.pid), []
        while len(workers) < 2:
            assert parent.poll() is None
            workers = [child for child in process.children() if "spawn_main" in " ".join(child.cmdline())]
            time.sleep(0.1)
        time.sleep(2)  # for both to have begun their calls
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: all(map(has_ended, workers)))
    assert len(workers) == 2
