"""Watches of the loss, and signals."""

import os
import signal

import pytest

from bertpre.pretraining.plateau import PlateauWatch
from bertpre.training.signals import StopRequest, exit_status
from bertpre.training.watches import CausalWatch, SpikeWatch

LEVEL = 6.128  # of IMDB


def lines(losses: list[float], watch: PlateauWatch, every: int = 50) -> list[str]:
    said = [watch(every * number, {"mlm_loss": loss}) for number, loss in enumerate(losses, start=1)]
    return [text for text in said if text]


def test_a_loss_that_stays_at_the_plateau_is_explained_once() -> None:
    said = lines([9.7, 7.5] + [6.25, 6.22, 6.21] * 10, PlateauWatch(LEVEL, "bert"))
    assert len(said) == 1
    assert "predicts from word frequency alone" in said[0]
    for cause in ("it is early", "model.architecture=modern", "training.learning_rate", "global_batch_size", "doctor"):
        assert cause in said[0]
    assert "architecture=modern" not in lines([6.2] * 20, PlateauWatch(LEVEL, "modern"))[0]


def test_leaving_the_plateau_is_reported_once_without_causes() -> None:
    said = lines([9.7, 7.5, 6.4, 6.2, 6.1, 5.8, 5.5] + [5.4] * 20, PlateauWatch(LEVEL, "bert"))
    assert said == ["MLM loss fell below 6.13, the best possible without context, at step 300"]


@pytest.mark.parametrize("losses", [[9.7, 8.9, 8.0, 7.4, 7.0, 6.8], [9.5] * 30, [3.6] * 30])
def test_a_loss_that_falls_or_stays_elsewhere_is_not_a_plateau(losses: list[float]) -> None:
    assert lines(losses, PlateauWatch(LEVEL, "bert")) == []


def test_a_spike_is_reported_and_noise_is_not() -> None:
    watch = SpikeWatch()
    calm = [4.0 + 0.1 * (number % 3) for number in range(30)]
    assert [watch(number, {"loss": loss}) for number, loss in enumerate(calm)] == [None] * 30
    assert "jumped from 4.100 to 5.200 at step 30" in watch(30, {"loss": 5.2})
    assert watch(31, {"loss": 4.3}) is None


def test_noise_of_a_calm_loss_is_not_a_spike_and_a_line_is_not_compared_with_itself() -> None:
    watch = SpikeWatch()
    assert [watch(number, {"loss": 4.0}) for number in range(10)] == [None] * 10
    assert watch(10, {"loss": 4.4}) is None
    assert "jumped from 4.000 to 4.600" in (watch(11, {"loss": 4.6}) or "")
    new = SpikeWatch(lines=2)
    assert [new(number, {"loss": loss}) for number, loss in enumerate((4.0, 9.0))] == [None, None]


def test_another_objective_is_not_a_spike() -> None:
    watch = SpikeWatch()
    causal = [{"loss": 4.0, "clm_loss": 4.0}] * 12
    assert [watch(number, line) for number, line in enumerate(causal)] == [None] * 12
    masked = [{"loss": loss, "mlm_loss": loss} for loss in [6.0] * 12 + [7.0]]
    assert [watch(number, line) is None for number, line in enumerate(masked)] == [True] * 12 + [False]
    assert PlateauWatch(LEVEL, "bert")(50, causal[0]) is None


def test_a_causal_phase_is_explained_once_and_masked_or_mixed_steps_are_not() -> None:
    watch = CausalWatch()
    assert watch(50, {"loss": 6.0, "mlm_loss": 6.0}) is None
    assert watch(100, {"loss": 6.0, "mlm_loss": 6.1, "clm_loss": 5.9}) is None
    assert "predicts the next token" in (watch(150, {"loss": 5.9, "clm_loss": 5.9}) or "")
    assert watch(200, {"loss": 5.8, "clm_loss": 5.8}) is None


def test_a_loss_that_falls_fast_at_the_start_is_not_a_spike() -> None:
    watch = SpikeWatch()
    assert not [text for step in range(40) if (text := watch(step, {"loss": 4 + 6 * 0.8**step}))]


def test_signals_are_noted_and_handlers_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    pauses: list[int] = []
    with StopRequest(active=True, after_pause=lambda: pauses.append(1)) as request:
        os.kill(os.getpid(), signal.SIGCONT)
        assert (request.received, pauses) == (0, [1])
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.received == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    with StopRequest(active=False, after_pause=lambda: None):
        assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("ACCELERATE_MIXED_PRECISION", "no", 0), ("TORCHELASTIC_RUN_ID", "none", 0), ("WORLD_SIZE", "2", 0),
        ("OMPI_COMM_WORLD_SIZE", "2", 0), ("WORLD_SIZE", "1", 130), ("PMI_SIZE", "1", 130),  # srun leaves these
    ],
)  # fmt: skip
def test_a_stop_ends_with_the_status_of_the_signal_except_under_a_launcher(
    name: str, value: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    assert exit_status(signal.SIGINT) == 130
    monkeypatch.setenv(name, value)
    assert exit_status(signal.SIGINT) == status
