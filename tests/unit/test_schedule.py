"""The learning rate and the progress of a training are pure functions."""

import time

import pytest

from bertpre.training.clock import Clock
from bertpre.training.schedule import Duration, lr_at, whole_warmup


@pytest.mark.parametrize(
    ("schedule", "progress", "factor"),
    [
        ("linear", 0.0, 0.0),
        ("linear", 0.05, 0.5),
        ("linear", 0.1, 1.0),
        ("linear", 0.55, 0.5),
        ("linear", 1.0, 0.0),
        ("linear", 1.2, 0.0),
        ("cosine", 0.05, 0.5),
        ("cosine", 0.1, 1.0),
        ("cosine", 0.325, 0.5 + 0.5**1.5),
        ("cosine", 0.55, 0.5),
        ("cosine", 1.0, 0.0),
        ("trapezoid", 0.05, 0.5),
        ("trapezoid", 0.1, 1.0),
        ("trapezoid", 0.6, 1.0),
        ("trapezoid", 0.8, 0.5),
        ("trapezoid", 1.0, 0.0),
        ("trapezoid", 1.2, 0.0),
    ],
)
def test_rate_rises_stays_and_falls_as_the_schedule_says(schedule: str, progress: float, factor: float) -> None:
    assert lr_at(progress, schedule, warmup=0.1, decay=0.4) == pytest.approx(factor)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "trapezoid"])
def test_rate_without_warmup_starts_at_its_peak(schedule: str) -> None:
    assert lr_at(0.0, schedule, warmup=0.0, decay=0.5) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine", "trapezoid"])
def test_a_training_may_be_all_warmup(schedule: str) -> None:
    assert [lr_at(progress, schedule, warmup=1.0) for progress in (0.0, 0.5, 1.0)] == [0.0, 0.5, 0.0]


def test_a_decay_longer_than_what_follows_the_warmup_begins_right_behind_it() -> None:
    assert lr_at(0.6, "trapezoid", warmup=0.2, decay=1.0) == pytest.approx(lr_at(0.6, "linear", warmup=0.2))


def test_progress_follows_whichever_ends_first() -> None:
    assert Duration(max_steps=100).progress(25, elapsed_seconds=1e9) == 0.25
    assert Duration(budget_seconds=60).progress(10**9, elapsed_seconds=15) == 0.25
    assert Duration(max_tokens=200).progress(10**9, elapsed_seconds=1e9, tokens=50) == 0.25
    assert Duration(100, 60, 1000).progress(25, elapsed_seconds=30, tokens=700) == 0.7
    assert Duration(100, 60).progress(25, elapsed_seconds=30) == 0.5
    assert Duration(100, 60).progress(75, elapsed_seconds=30) == 0.75
    assert Duration(100, 60).progress(10, elapsed_seconds=90) > 1
    assert Duration(budget_seconds=60).progress(1, elapsed_seconds=30, startup_seconds=20) == 0.25
    assert Duration(budget_seconds=60).progress(1, elapsed_seconds=70, startup_seconds=65) == 1


def test_the_clock_leaves_out_each_start_up() -> None:
    clock = Clock(Duration(budget_seconds=10))
    assert clock.progress(step=3, tokens=0) == 0  # before the first step
    clock.update(elapsed=1.0, reserve_seconds=3.0)
    assert clock.progress(step=0, tokens=0) == 0  # so that the warm-up begins at its beginning
    clock.update(elapsed=4.0, reserve_seconds=0.0)
    assert clock.startup_seconds == 1.0
    assert clock.progress(step=3, tokens=0) == pytest.approx((4 - 1) / (10 - 1))
    clock.update(elapsed=4.0, reserve_seconds=3.0)  # for the last evaluation
    assert clock.progress(step=3, tokens=0) == pytest.approx((4 - 1) / (10 - 1 - 3))
    resumed = Clock(Duration(budget_seconds=10))
    resumed.start()
    resumed.resume(elapsed=4.0, startup_seconds=1.0)
    assert resumed.now() >= 4.0
    assert resumed.progress(step=3, tokens=0) == pytest.approx((4 - 1) / (10 - 1))
    resumed.update(elapsed=6.0, reserve_seconds=0.0)  # after two seconds of starting again
    assert resumed.progress(step=3, tokens=0) == pytest.approx((6 - 1 - 2) / (10 - 1 - 2))
    resumed.update(elapsed=7.0, reserve_seconds=0.0)
    assert resumed.progress(step=4, tokens=0) == pytest.approx((7 - 1 - 2) / (10 - 1 - 2))


def test_a_pause_is_not_part_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, wall, thread = Clock(Duration(budget_seconds=100)), 0.0, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: wall)
    monkeypatch.setattr(time, "thread_time", lambda: thread)
    clock.start()
    wall = thread = 10.0
    clock.leave_out_pause()  # while it starts
    clock.update(clock.now(), reserve_seconds=0.0)
    assert clock.elapsed == 10.0
    wall, thread = 62.0, 14.0  # four seconds of work, and stopped for 48
    clock.leave_out_pause()
    clock.leave_out_pause()  # at another SIGCONT
    clock.update(clock.now(), reserve_seconds=0.0)
    assert clock.elapsed == pytest.approx(14.0)
    wall, thread = 64.0, 17.0  # two threads' worth of time is no pause
    clock.leave_out_pause()
    assert clock.now() == pytest.approx(16.0)


def test_what_is_kept_for_the_end_does_not_shorten_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Duration(max_steps=1000, budget_seconds=3600))
    clock.update(elapsed=60.0, reserve_seconds=0.0)
    clock.update(elapsed=80.0, reserve_seconds=10.0)
    monkeypatch.setattr(clock, "now", lambda: 80.0)
    assert clock.seconds_left(step=1, tokens=0) == pytest.approx(3600 - 80)
    assert clock.seconds_left(step=500, tokens=0) == pytest.approx(20)  # at 25 steps a second


@pytest.mark.parametrize(("steps", "expected"), [(1, 0.0), (99, 0.0), (100, 0.01), (None, 0.01)])
def test_a_warm_up_of_less_than_a_step_is_left_out(steps: int | None, expected: float) -> None:
    assert whole_warmup(0.01, steps) == expected
