"""Pushing while a model trains: a process of its own uploads, and the training never waits for it or fails with it.

`python -m bertpre.hub.background MODEL RUN_DIR STEP PARENT` uploads the encoder in the folder MODEL as the recipe's
`hub` section says. It ends with the process PARENT.
"""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bertpre.console import SET_BY_TORCHRUN, console
from bertpre.data.raw_text import for_raw_texts
from bertpre.data.workers import follow
from bertpre.errors import UserError, first_line
from bertpre.model.folders import save_model
from bertpre.training.sharding import gather_each

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertpre.training.trainer import Trainer

NICENESS = 10  # the training comes first


@dataclass
class BackgroundPush:
    """Pushes the encoder every `every` steps; called after each step with the trainer.

    While a push is running, the next is left out. A push that fails is reported and forgotten: `FOLDER/push.log` says
    more, and the next one uploads the newer weights.
    """

    run: Path
    tokenizer: "PreTrainedTokenizerBase"
    every: int
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def __call__(self, trainer: "Trainer") -> None:
        step, is_main = trainer.progress.step, trainer.accelerator.is_main_process
        if self.process is not None and self.process.poll() is not None:
            self.end()
        if step % self.every:
            return
        trainer.check_gradients()  # waits for a GPU's queued steps, so that their time does not count as pushing
        start = time.monotonic()
        model = trainer.training_step.model
        weights = gather_each(model.state_dict().items(), is_main)  # by all processes
        if is_main and self.process is not None:
            console.show(f"push: an earlier push is still running; the model of step {step} is not pushed")
        elif is_main:
            shutil.rmtree(self.model, ignore_errors=True)  # of a process that was killed
            try:
                save_model(
                    model, for_raw_texts(self.tokenizer), self.model, model.config.max_position_embeddings, weights
                )
                self.start(step)
            except Exception as error:  # whatever it is, the training continues
                shutil.rmtree(self.model, ignore_errors=True)
                console.show(f"push: step {step} is not pushed: {first_line(error)}")
        trainer.log.exclude(time.monotonic() - start)

    @property
    def model(self) -> Path:
        """The folder that is being pushed."""
        return self.run / "pushing"

    @property
    def log(self) -> Path:
        """What the pushing process prints."""
        return self.run / "push.log"

    def start(self, step: int) -> None:
        """Start the process that uploads; it must not take part in the training's group of processes."""
        command = [sys.executable, "-m", "bertpre.hub.background", str(self.model), str(self.run), str(step)]
        command.append(str(os.getpid()))
        environment = {key: value for key, value in os.environ.items() if key not in SET_BY_TORCHRUN}
        environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def stop(self) -> None:
        """Stop the running push, if any: the training ends early, and one that resumes it pushes newer weights."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            shutil.rmtree(self.model, ignore_errors=True)

    def end(self, seconds: float | None = None) -> None:
        """Wait for the running push, if any, for at most `seconds`, and report a failure."""
        if self.process is None:
            return
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.process = None
        shutil.rmtree(self.model, ignore_errors=True)
        lines = []
        with suppress(OSError):  # somebody may have deleted it
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last_line = lines[-1] if lines else "it was stopped"
        if status:
            console.show(f"push: failed; the training is not affected: {last_line} (more in {self.log})")
        else:
            console.say(last_line)


def main(model: str, run_dir: str, step: str, parent: str) -> None:
    """Upload the encoder; exits with status 1 and one line where that fails."""
    follow(int(parent))
    if hasattr(os, "nice"):  # not on Windows
        os.nice(NICENESS)
    from bertpre.hub.folder import write_encoder
    from bertpre.hub.upload import Target, upload
    from bertpre.run_directory import load_run
    from bertpre.runtime import quiet_transformers

    quiet_transformers()
    run, recipe = load_run(run_dir)
    settings = recipe.hub
    assert settings.repo_id is not None  # checked by the recipe
    try:
        with TemporaryDirectory() as place:
            folder = Path(place) / "encoder"
            write_encoder(Path(model), run, recipe, folder, step=int(step), repo_id=settings.repo_id)
            message = f"Push a bertpre run, step {step} of its pretraining"
            pushed = upload(folder, Target(settings.repo_id, private=settings.private, commit_message=message))
    except UserError as error:
        raise SystemExit(str(error)) from None
    print(f"push: step {step}, {pushed.url}")


if __name__ == "__main__":
    main(*sys.argv[1:])
