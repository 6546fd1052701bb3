"""Where a run's figures go: `metrics.jsonl` always, wandb and TensorBoard by choice, a line or a bar on the screen."""

import json
import logging
import os
import sys
import uuid
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from bertpre.errors import UserError, first_line
from bertpre.files import write_text

logger = logging.getLogger(__name__)
INIT_TIMEOUT = 30  # seconds for wandb to answer
SHOWN = ("loss", "mlm_loss", "nsp_accuracy", "accuracy", "learning_rate", "tokens_per_second")


class Tracker(Protocol):
    """Something that draws curves."""

    def log(self, split: str, step: int, figures: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """Appends one JSON object a log step; only the main process writes."""

    def __init__(self, file: Path, stage: str, active: bool, trackers: list[Tracker] | None = None) -> None:
        self.file, self.stage, self.active, self.trackers = file, stage, active, trackers or []
        self.bar = tqdm(total=100, desc=stage, unit="%", disable=not active or not sys.stderr.isatty(), leave=False,
                        bar_format="{desc} {percentage:3.0f}% |{bar}| {postfix}")  # fmt: skip

    def forget_after(self, step: int) -> None:
        """Remove this stage's lines behind `step`, and one that a kill cut short: a resumed run writes them again."""
        if not self.active or not self.file.exists():
            return
        kept = []
        for line in self.file.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row["stage"] != self.stage or row["step"] <= step:
                kept.append(line)
        write_text(self.file, "".join(line + "\n" for line in kept))

    def write(self, split: str, step: int, figures: dict[str, Any], progress: float) -> None:
        """Log one row for `split` (`train` or `validation`); what is no number goes to the file alone."""
        if not self.active:
            return
        short = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in figures.items()}
        with self.file.open("a") as stream:
            stream.write(json.dumps({"stage": self.stage, "split": split, "step": step} | short) + "\n")
        numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
        for tracker in self.trackers:
            tracker.log(split, step, numbers)
        self.show(split, step, numbers, progress)
        for filling in figures.get("fillings", [])[:1]:
            guesses = ", ".join(filling["guesses"])
            self.say(f"  {filling['sentence']!r}: {guesses} (it was {filling['answer']})")

    def show(self, split: str, step: int, figures: dict[str, float], progress: float) -> None:
        """A bar in a terminal; a plain line in a log file."""
        parts = [f"{name} {figures[name]:.4g}" for name in SHOWN if name in figures]
        if "seconds_left" in figures:
            parts.append(f"{clock_time(figures['seconds_left'])} left")
        if "cost" in figures:
            parts.append(f"cost {figures['cost']:.2f}")
        text = " ".join(parts)
        if self.bar.disable:
            print(f"{self.stage} {split} step {step} ({min(progress, 1):.0%}): {text}", flush=True)
        else:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(100 * min(progress, 1) - self.bar.n)

    def say(self, text: str) -> None:
        """Print a message of the training, above the bar where there is one."""
        if self.active:
            tqdm.write(f"{self.stage}: {text}")
            sys.stdout.flush()

    def close(self) -> None:
        """End the bar and the trackers' runs."""
        self.bar.close()
        for tracker in self.trackers:
            tracker.close()


def clock_time(seconds: float) -> str:
    """Seconds as 2:05:09 or 5:09."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Choice(Protocol):
    """Which trackers are wanted."""

    wandb_project: str | None
    tensorboard: bool


def start_trackers(folder: Path, stage: str, choice: Choice, config: dict[str, Any]) -> list[Tracker]:
    """The trackers that were asked for; call it in the main process alone."""
    trackers: list[Tracker] = []
    if choice.tensorboard:
        trackers.append(TensorBoardTracker(folder / "tensorboard" / stage))
    if choice.wandb_project:
        trackers.append(WandbTracker(choice.wandb_project, folder, stage, config))
    return trackers


class WandbTracker:
    """A wandb run: offline where there is no key or no network; a resumed training goes on in the same run."""

    def __init__(self, project: str, folder: Path, stage: str, config: dict[str, Any]) -> None:
        import wandb

        self.wandb, mode = wandb, os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
        settings = {
            "project": project, "name": f"{folder.name}-{stage}", "dir": str(folder), "config": config,
            "id": run_id(folder / f"wandb-{stage}.id"), "resume": "allow",
            "settings": wandb.Settings(init_timeout=INIT_TIMEOUT),
        }  # fmt: skip
        try:
            self.run = wandb.init(**settings, mode=mode)
        except Exception as error:  # of many families; none of them is worth a training
            reason = first_line(error)
            logger.warning("wandb cannot be reached (%s): this run is kept offline in %s", reason, folder / "wandb")
            wandb.teardown()  # it would still hold the run
            self.run = wandb.init(**settings, mode="offline")

    def log(self, split: str, step: int, figures: dict[str, float]) -> None:
        """One row; the training goes on where wandb has a fault."""
        try:
            self.run.log({f"{split}/{name}": value for name, value in figures.items()}, step=step)
        except Exception as error:
            logger.warning("wandb did not take the figures of step %d: %s", step, error)

    def close(self) -> None:
        """End the run."""
        self.run.finish()


def run_id(file: Path) -> str:
    """The run's name on wandb, made up once and kept in the run directory."""
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:8])
    return file.read_text().strip()


class TensorBoardTracker:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "training.tensorboard: the package is not installed; pip install tensorboard, or leave the key false"
            ) from None
        self.writer = SummaryWriter(str(folder))

    def log(self, split: str, step: int, figures: dict[str, float]) -> None:
        """One row."""
        for name, value in figures.items():
            self.writer.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()
