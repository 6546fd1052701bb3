"""What a log line says of the time, the speed and the cost."""

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from bertpre.training.metrics import peak_memory_mb
from bertpre.training.step_log import Machine, StepLog
from bertpre.training.trackers import MetricsLog


class Lines:
    """Keeps what a log writes."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def write(self, split: str, step: int, metrics: dict[str, float], progress: float) -> None:
        self.rows.append(metrics)


def line_of(phase: int = 0, processes: int = 1, evaluation: float = 0.0, **machine: Any) -> dict[str, float]:  # noqa: ANN401
    """The line of one step that read 6,000 tokens between the seconds 1,790 and 1,800, 2.5 s of which it waited."""
    lines = Lines()
    log: Any = StepLog(output=lines, machine=Machine(**machine))  # type: ignore[arg-type]
    log.start_interval(1790.0 - evaluation, 1000)
    log.exclude(evaluation)
    log.record({"loss": torch.tensor(2.0)})
    log.end_step(torch.tensor(1.0), 1e-3)
    log.interval.wait_seconds = 2.5
    accelerator: Any = SimpleNamespace(
        device=torch.device("cpu"), num_processes=processes, is_main_process=True, reduce=lambda total: total
    )
    log.write(5, 7000, 1800.0, 0.5, 60.0, accelerator, phase)
    return lines.rows[0]


def test_a_tracker_hears_how_the_training_ended(tmp_path: Path) -> None:
    for error in (None, KeyboardInterrupt):
        tracker = MagicMock()
        with suppress(KeyboardInterrupt), MetricsLog(tmp_path / "log", "pretrain", True, [tracker]):
            if error is not None:
                raise error
        tracker.close.assert_called_once_with(int(error is not None))


def test_a_number_in_the_file_has_six_digits(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "log", "pretrain", True).write("train", 1, {"loss": 1.23456789, "steps": 12345678}, 0.5)
    assert json.loads((tmp_path / "log").read_text()).items() >= {"loss": 1.23457, "steps": 12345678}.items()


def test_the_speed_and_the_wait_are_those_of_the_steps_since_the_last_line() -> None:
    line = line_of()
    assert (line["tokens_per_second"], line["data_wait_fraction"], line["elapsed_seconds"]) == (600, 0.25, 1800)
    assert line_of(evaluation=90)["tokens_per_second"] == 600
    assert "flops_utilization" not in line and "cost" not in line


def test_the_cost_is_the_price_of_an_hour_times_the_hours() -> None:
    assert line_of(price_per_hour=3.0)["cost"] == 1.5


def test_the_utilization_is_that_of_the_phase_and_of_all_devices() -> None:
    machine = {"flops_per_token": (100.0, 200.0), "peak_flops": 1e6}
    assert line_of(**machine)["flops_utilization"] == pytest.approx(0.06)
    assert line_of(phase=1, **machine)["flops_utilization"] == pytest.approx(0.12)
    assert line_of(processes=4, **machine)["flops_utilization"] == pytest.approx(0.015)


def test_the_peak_memory_is_in_megabytes() -> None:
    assert 50 < peak_memory_mb(torch.device("cpu")) < 200_000
