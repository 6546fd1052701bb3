"""The Python interface to whole runs: start one, or open one that exists."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpre.errors import UserError, refuse_table
from bertpre.recipe import Overrides, Recipe, load_recipe
from bertpre.run_directory import load_run, read_results

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from bertpre.finetuning.inference import Classifier
    from bertpre.training.trainer import Trainer


def run(
    recipe: str | os.PathLike[str] | Recipe,
    overrides: Overrides | None = None,
    /,
    *,
    after_step: "Callable[[Trainer], None] | None" = None,
    **keys: Any,
) -> "Run":
    """Run every unfinished stage of a recipe, as `bertpre run` does, and open the run.

    Arguments as of `load_recipe`: `run("quickstart", output_dir="runs/first", training={"max_steps": 100})`.
    `after_step` is called with the trainer after each step of pretraining.
    Raises UserError for a mistake in the recipe or its data, and KeyboardInterrupt after an interrupted training, which
    is saved: the same call resumes it.
    """
    checked = load_recipe(recipe, overrides, **keys)  # before torch is imported: a mistake shows at once
    from bertpre.commands.run import run as run_stages
    from bertpre.data.corpus import datasets_settings_kept
    from bertpre.runtime import callers_settings_kept

    with callers_settings_kept(), datasets_settings_kept(), raising_keyboard_interrupt():
        return Run(run_stages(checked, after_step))


@contextmanager
def raising_keyboard_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt in place of the SystemExit with which an interrupted training ends a command."""
    try:
        yield
    except SystemExit as end:
        if end.code == 128 + signal.SIGINT:
            raise KeyboardInterrupt from None
        raise


def open_run(folder: str | os.PathLike[str]) -> "Run":
    """Open a run directory, wherever it is; raises UserError where the folder is not one."""
    return Run(folder)


def load_classifier(place: str | os.PathLike[str]) -> "TextClassifier":
    """Load the classifier of a run directory, of a folder, or of a Hub id, as `bertpre predict` does.

    Raises UserError where there is none.
    """
    from bertpre.finetuning.loading import load_any_classifier

    with transformers_quiet():
        return TextClassifier(*load_any_classifier(os.path.expanduser(place)))


@contextmanager
def transformers_quiet() -> Iterator[None]:
    """Keep transformers' warnings and progress bars off the screen."""
    from bertpre.runtime import callers_settings_kept, quiet_transformers

    with callers_settings_kept():
        quiet_transformers()
        yield


class Run:
    """A run directory; its parts are read when they are first asked for.

    Each part raises UserError as long as the stage that makes it has not finished.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder, self.recipe = load_run(os.path.abspath(os.path.expanduser(folder)))

    @property
    def results(self) -> dict[str, Any]:
        """The results of the finished stages, by stage: `results["evaluate"]["accuracy"]`."""
        return read_results(self.folder)

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer of the run, or of the model that it was fine-tuned from."""
        from bertpre.finetuning.loading import load_own_tokenizer

        own = self.folder / "tokenizer"
        return load_own_tokenizer(str(own if own.is_dir() else self.part("finetuned")))

    @cached_property
    def model(self) -> "PreTrainedModel":
        """The pretrained model with its heads, in evaluation mode: a `BertPreForPreTraining`.

        A `modern` model that learned no pairs is a `BertPreForMaskedLM`.
        """
        from bertpre.model.conversion import load_for_pretraining

        with transformers_quiet():
            return load_for_pretraining(str(self.part("model"))).eval()

    @cached_property
    def classifier(self) -> "TextClassifier":
        """The fine-tuned model: `run.classifier(["A wonderful film."])`."""
        self.part("finetuned")
        return load_classifier(self.folder)

    def part(self, name: str) -> Path:
        """A folder in the run; raises UserError where it is not there yet, or never will be."""
        if not (self.folder / name).is_dir():
            stage, section = ("pretrain", "corpus") if name == "model" else ("finetune", "finetune")
            if getattr(self.recipe, section) is None:
                raise UserError(f"{self.folder}: has no {name}/, since its recipe has no section {section}")
            raise UserError(f"{self.folder}: has no {name}/ yet; run `bertpre {stage} {self.folder}`, or bertpre.run")
        return self.folder / name

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}), finished: {', '.join(self.results) or 'nothing'}"


class TextClassifier:
    """A fine-tuned model that is called with texts; `model` and `tokenizer` are those of transformers.

    It is put on this process's GPU, if there is one, and then reads wherever the caller moves it.
    """

    def __init__(self, classifier: "Classifier", settings: Any) -> None:
        from bertpre.runtime import own_device

        classifier.model.to(own_device())
        self.classifier, self.reads_pairs = classifier, settings.text_pair_column is not None
        self.model, self.tokenizer = classifier.model, classifier.tokenizer

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the model's logits."""
        return self.classifier.task.classes

    def __call__(self, texts: str | Iterable[str | tuple[str, str] | list[str]]) -> list[dict[str, Any]]:
        """Predict for each text what `bertpre predict --json` prints, without row and text.

        For classification `label`, `probability` and `probabilities` by class; for several labels `labels` and
        `probabilities`; for a regression `value`; for words `words`, `tags` and `probabilities`. A pair of texts is a
        tuple, a text for the task `tokens` a string or a list of words; a single one stands in a list, too, unless it
        is a string. Raises UserError for anything that is not text or is empty, for single texts where pairs are read,
        and for the reverse; a model from elsewhere reads pairs if the first text is one.
        """
        from bertpre.finetuning.prediction import as_examples, content_of, is_pair, named_prediction
        from bertpre.runtime import callers_settings_kept

        given = texts_in(texts)
        if not given:
            return []
        task = self.classifier.task
        if empty := [number for number, text in enumerate(given) if not content_of(task)(text)]:
            raise UserError(f"texts: {len(empty)} have no text in them, the first is item {empty[0]}; leave them out")
        reads_pairs = self.reads_pairs or (not self.classifier.knows_pairs and is_pair(given[0]))
        with callers_settings_kept():
            outputs = self.classifier.predict(as_examples(given, task, reads_pairs))
        return [named_prediction(task, text, output) for text, output in zip(given, outputs, strict=True)]


def texts_in(given: str | Iterable[Any]) -> list[str | tuple[str, ...] | list[str]]:
    """The texts, pairs or lists of words; raises UserError for a table, and for anything else."""
    refuse_table("texts", given)
    if not isinstance(given, Iterable):
        raise UserError(f"texts: is {given!r:.60}, not texts; of a file, give open(path).read().splitlines()")
    texts = [given] if isinstance(given, str) else list(given)
    texts = [text.tolist() if hasattr(text, "tolist") else text for text in texts]  # an array of numpy
    for number, text in enumerate(texts):
        parts = [text] if isinstance(text, str) else text
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise UserError(f"texts: item {number} is {text!r:.60}, not a text, a pair of texts or a list of words")
    return texts
