"""Where a run's metrics go: always `metrics.jsonl` and the screen, and wandb or TensorBoard where asked for."""

import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bertpre.console import console, scientific, time_text
from bertpre.errors import UserError, first_line
from bertpre.files import write_text

logger = logging.getLogger(__name__)
INIT_TIMEOUT = 30  # seconds for wandb to answer
SHOWN = {  # metrics in a log line, in words
    "loss": "loss {:.3f}",
    "mlm_loss": "MLM loss {:.3f}",
    "clm_loss": "next-token loss {:.3f}",
    "nsp_accuracy": "NSP accuracy {:.1%}",
    "accuracy": "accuracy {:.1%}",
    "learning_rate": "learning rate {}",
    "skipped_steps": "skipped steps {:.0f}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "seconds_left": "{} left",
    "cost": "cost {:,.2f}",
}
AS_TEXT: dict[str, Callable[[float], str]] = {"seconds_left": time_text, "learning_rate": scientific}


class Tracker(Protocol):
    """A service that plots metrics."""

    def forget_after(self, step: int) -> None: ...

    def log(self, split: str, step: int, metrics: dict[str, float]) -> None: ...

    def close(self, exit_code: int = 0) -> None: ...  # not 0: the training ended early


class MetricsLog:
    """Appends one JSON object per log line and prints the line in words; only the main process does.

    As a context, it is closed at the end of the training that it holds, with exit code 1 where that raises.
    """

    def __init__(
        self,
        file: Path,
        stage: str,
        active: bool,
        trackers: list[Tracker] | None = None,
        shown: dict[str, str] | None = None,  # formats in place of those in SHOWN
    ) -> None:
        self.file, self.stage, self.active, self.trackers = file, stage, active, trackers or []
        self.shown = SHOWN | (shown or {})

    def forget_after(self, step: int, evaluated: int) -> None:
        """Remove this stage's lines after `step`, and a line cut short by a kill: a resumed run writes them again.

        Those of evaluations are removed after `evaluated`, the step of the last one that the checkpoint knows.
        """
        if not self.active or not self.file.exists():
            return
        kept = []
        for line in self.file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                last = evaluated if row["split"] == "validation" else step
                is_kept = row["stage"] != self.stage or row["step"] <= last
            except (ValueError, TypeError, KeyError):
                continue
            if is_kept:
                kept.append(line)
        write_text(self.file, "".join(line + "\n" for line in kept))
        for tracker in self.trackers:
            tracker.forget_after(max(step, evaluated))

    def write(self, split: str, step: int, metrics: dict[str, Any], progress: float) -> None:
        """Log one row for `split` (`train` or `validation`); values that are not numbers go to the file only."""
        if not self.active:
            return
        short = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in metrics.items()}
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"stage": self.stage, "split": split, "step": step} | short) + "\n")
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        for tracker in self.trackers:
            tracker.log(split, step, numbers)
        hidden = {"learning_rate"} if split == "validation" else set()  # it has no part in what is measured
        text = ", ".join(self.in_words({name: value for name, value in numbers.items() if name not in hidden}))
        self.say(f"{'' if split == 'train' else f'{split} at '}step {step:,} ({min(progress, 1):.0%}): {text}")
        for filling in metrics.get("fillings", [])[:1]:
            guesses = ", ".join(filling["guesses"])
            self.say(f'guesses for [MASK] in "{filling["sentence"]}": {guesses} (original: {filling["answer"]})')

    def in_words(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """The metrics that people look at, each with its name and unit."""
        for name, form in self.shown.items():
            if name in metrics:
                yield form.format(AS_TEXT.get(name, float)(metrics[name]))

    def say(self, text: str) -> None:
        """Print a message about progress."""
        if self.active:
            console.say(f"{self.stage}: {text}")

    def show(self, text: str) -> None:
        """Print a warning or a result, with `--quiet` too."""
        if self.active:
            console.show(f"{self.stage}: {text}")

    def draw(self, step: int, metrics: Mapping[str, float], progress: float) -> None:
        """Draw the live line of a terminal."""
        if self.active:
            console.draw(self.stage, ", ".join([f"step {step:,}", *self.in_words(metrics)]), progress)

    def close(self, exit_code: int = 0) -> None:
        """Remove the live line and close the trackers."""
        console.erase()
        for tracker in self.trackers:
            tracker.close(exit_code)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(exit_code=0 if kind is None else 1)  # 1 after a signal too: the run has not reached its end


class Choice(Protocol):
    """Which trackers to start."""

    wandb_project: str | None
    tensorboard: bool


def start_trackers(folder: Path, stage: str, choice: Choice, config: dict[str, Any], *, resumes: bool) -> list[Tracker]:
    """The trackers that were asked for; call it in the main process only.

    A stage that does not resume gets curves of its own: those of an earlier training would be mixed with them.
    """
    if not resumes:
        shutil.rmtree(folder / "tensorboard" / stage, ignore_errors=True)
        (folder / f"wandb-{stage}.id").unlink(missing_ok=True)
    trackers: list[Tracker] = []
    if choice.tensorboard:
        trackers.append(TensorBoardTracker(folder / "tensorboard" / stage))
    if choice.wandb_project:
        trackers.append(WandbTracker(choice.wandb_project, folder, stage, config))
    return trackers


class WandbTracker:
    """A wandb run, offline without a key or a network; a resumed training continues the same wandb run.

    In a sweep whose run the caller has opened it is that run, which stays open: wandb refuses a second one there.
    """

    def __init__(self, project: str, folder: Path, stage: str, config: dict[str, Any]) -> None:
        if not os.environ.get("WANDB_MODE"):
            os.environ.pop("WANDB_MODE", None)  # an empty one is an error in wandb's settings
        import wandb
        from pydantic import ValidationError

        self.is_own = True
        if wandb.run is not None and wandb.run.sweep_id:
            self.run, self.is_own = wandb.run, False
            return
        settings = {
            "project": project, "name": f"{folder.name}-{stage}", "dir": str(folder), "config": config,
            "id": run_id(folder / f"wandb-{stage}.id"), "resume": "allow",
            "reinit": "create_new",  # by default a run that is open in this process, perhaps the user's, is returned
            "mode": os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline"),
            # It would send what is printed, and that quotes the held-out text.
            "settings": wandb.Settings(init_timeout=INIT_TIMEOUT, console="off"),
        }  # fmt: skip
        try:
            self.run = wandb.init(**settings)
        except ValidationError as error:  # of an environment variable
            wrong = error.errors()[0]
            name, given = f"WANDB_{wrong['loc'][-1]}".upper(), wrong["input"]
            raise UserError(f"{name}: {wrong['msg']} (given: {given!r})") from None
        except Exception as error:  # of many classes; none of them should end a training
            reason = first_line(error)
            logger.warning("wandb cannot be reached (%s): this run is logged offline in %s", reason, folder / "wandb")
            wandb.teardown()  # it still holds the run
            try:
                self.run = wandb.init(**settings | {"mode": "offline"})
            except Exception as again:
                raise UserError(
                    f"training.wandb_project: wandb cannot log offline either ({first_line(again)}); set "
                    "WANDB_MODE=disabled to train without it"
                ) from None

    def forget_after(self, step: int) -> None:
        """Nothing: wandb keeps what it has, and takes no step twice."""

    def log(self, split: str, step: int, metrics: dict[str, float]) -> None:
        """Log one row; a failure of wandb does not stop the training."""
        at = step if self.is_own else None  # in another's run steps may be taken, and wandb takes none twice
        try:
            self.run.log({f"{split}/{name}": value for name, value in metrics.items()}, step=at)
        except Exception as error:
            logger.warning("wandb: the metrics of step %d were not logged: %s", step, error)

    def close(self, exit_code: int = 0) -> None:
        """Finish the run; a failure of wandb is only logged."""
        try:
            if self.is_own:
                self.run.finish(exit_code)
        except Exception as error:
            logger.warning("wandb: the run was not finished: %s", error)


def run_id(file: Path) -> str:
    """The run's id on wandb, generated once and kept in the run directory."""
    if not file.exists() or not file.read_text(encoding="utf-8").strip():
        write_text(file, uuid.uuid4().hex[:8])
    return file.read_text(encoding="utf-8").strip()


class TensorBoardTracker:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "tensorboard is not installed: run pip install 'bertpre[tensorboard]', or turn TensorBoard off"
            ) from None
        self.open = partial(SummaryWriter, str(folder))
        self.writer = self.open()

    def forget_after(self, step: int) -> None:
        """Have TensorBoard leave out the rows after a step, which come again."""
        self.writer.close()
        self.writer = self.open(purge_step=step + 1)

    def log(self, split: str, step: int, metrics: dict[str, float]) -> None:
        """One row."""
        for name, value in metrics.items():
            self.writer.add_scalar(f"{split}/{name}", value, step)

    def close(self, exit_code: int = 0) -> None:
        """Flush and close the event file."""
        self.writer.close()
