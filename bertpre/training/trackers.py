"""Where a run's figures go: `metrics.jsonl` always, wandb by choice, a line or a bar on the screen."""

import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm


class MetricsLog:
    """Appends one JSON object a log step; only the main process writes."""

    def __init__(
        self,
        file: Path,
        stage: str,
        active: bool,
        wandb_project: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.file, self.stage, self.active = file, stage, active
        self.bar = tqdm(total=100, desc=stage, unit="%", disable=not active or not sys.stderr.isatty(), leave=False,
                        bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed} {postfix}")  # fmt: skip
        self.wandb = start_wandb(wandb_project, stage, file.parent, config) if active and wandb_project else None

    def forget_after(self, step: int) -> None:
        """Remove this stage's lines behind `step`: a resumed run writes them again, with the same figures."""
        if not self.active or not self.file.exists():
            return
        lines = self.file.read_text().splitlines()
        kept = [line for line in lines if (row := json.loads(line))["stage"] != self.stage or row["step"] <= step]
        self.file.write_text("".join(line + "\n" for line in kept))

    def write(self, split: str, step: int, figures: dict[str, float], progress: float) -> None:
        """Log one row for `split` (`train` or `validation`)."""
        if not self.active:
            return
        row = {"stage": self.stage, "split": split, "step": step} | {
            name: value if isinstance(value, int) else float(f"{value:.6g}") for name, value in figures.items()
        }
        with self.file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        if self.wandb:
            self.wandb.log({f"{split}/{name}": value for name, value in figures.items()}, step=step)
        self.show(split, step, figures, progress)

    def show(self, split: str, step: int, figures: dict[str, float], progress: float) -> None:
        """A bar in a terminal; a plain line in a log file."""
        names = ("loss", "mlm_loss", "nsp_accuracy", "accuracy", "learning_rate", "tokens_per_second")
        text = " ".join(f"{name} {figures[name]:.4g}" for name in names if name in figures)
        if self.bar.disable:
            print(f"{self.stage} {split} step {step} ({min(progress, 1):.0%}): {text}", flush=True)
        else:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(100 * min(progress, 1) - self.bar.n)

    def close(self) -> None:
        """End the bar and the wandb run."""
        self.bar.close()
        if self.wandb:
            self.wandb.finish()


def start_wandb(project: str, stage: str, folder: Path, config: dict[str, Any] | None) -> Any:
    """A wandb run; offline where no key is configured."""
    import os

    import wandb

    mode = os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
    return wandb.init(project=project, name=f"{folder.name}-{stage}", dir=str(folder), config=config, mode=mode)
