"""One fine-tuning: a model, labelled texts and a seed -> a classifier."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from torch import Tensor, nn

from bertpre.compiler import choose_compile, is_worth_compiling
from bertpre.console import console, time_text
from bertpre.finetuning.batches import TrainingBatches
from bertpre.finetuning.encoding import EncodedExamples, cut_text, encode_examples
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.inference import Classifier
from bertpre.finetuning.loading import load_start
from bertpre.finetuning.pseudo_labels import encode_with_pseudo_labels
from bertpre.finetuning.task import TaskModel, TaskObjective, build_task, last_layer
from bertpre.model.modeling_bertpre import BertPrePreTrainedModel
from bertpre.recipe import Finetune, Recipe
from bertpre.runtime import SHARED_GRADIENTS, SHARED_OR_UNUSED, choose_deterministic, choose_dtype
from bertpre.training.checkpoint import Checkpoints
from bertpre.training.dealing import machine_group
from bertpre.training.evaluation import Evaluation
from bertpre.training.optimizer import build_optimizers
from bertpre.training.remedies import Remedies
from bertpre.training.schedule import Duration, lr_at, whole_warmup
from bertpre.training.step import Arithmetic
from bertpre.training.step_log import Machine, StepLog
from bertpre.training.trackers import SHOWN, MetricsLog, Tracker
from bertpre.training.trainer import Trainer
from bertpre.training.unpadding import choose_unpadding
from bertpre.training.watches import SpikeWatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


REMEDIES = Remedies(
    memory="lower finetune.micro_batch_size",
    not_finite="lower finetune.learning_rate, lengthen finetune.warmup, or, in a new output_dir, try "
    "training.precision=fp32",
    compiler="set training.compile=false and run the same command again",
)
SAVE_SECONDS = 180.0  # between checkpoints; a model of base size with AdamW, 1.8 GB, takes some seconds to save


@dataclass
class FineTuning:
    """Trains classifiers from the same model on the same examples; only the seed differs between them.

    With `checkpoints`, a folder of these examples and this recipe alone, an interrupted training resumes.
    """

    recipe: Recipe
    init: str  # as finetune.init
    accelerator: Accelerator
    training: Examples
    validation: Examples | None = None
    unlabelled: Examples | None = None
    checkpoints: Path | None = None  # a folder
    after_step: Callable[[Trainer], None] | None = None  # called after each step
    encoded: EncodedExamples | None = field(default=None, init=False)  # what is trained on; made for the first seed

    def fit(self, seed: int, stage: str, trackers: list[Tracker] | None = None) -> tuple[Classifier, dict[str, Any]]:
        """Train one classifier; returns it and its metrics for `results.json`. `stage` is its name in metrics.jsonl."""
        file, is_main = Path(self.recipe.output_dir) / "metrics.jsonl", self.accelerator.is_main_process
        settings = self.recipe.required_finetune
        with MetricsLog(file, stage, is_main, trackers, shown_metrics(settings)) as log:  # loading may raise too
            return self.fit_logged(seed, log)

    def fit_logged(self, seed: int, log: MetricsLog) -> tuple[Classifier, dict[str, Any]]:
        """The same as `fit`, with an open log."""
        start, settings = time.perf_counter(), self.recipe.required_finetune
        task = build_task(settings, self.training)
        model, tokenizer = load_start(self.recipe, self.init, task, seed)
        model.to(self.accelerator.device)
        head = last_layer(model) if task.kind == "regression" else None
        classifier = Classifier.of(self.recipe, model, tokenizer, task)
        encoded = self.encode(tokenizer)
        dtype, device = choose_dtype(self.recipe.training.precision, self.accelerator.device), self.accelerator.device
        unpads = choose_unpadding(model.config, dtype, device)
        data = TrainingBatches(encoded, tokenizer.pad_token_id, settings, self.accelerator, seed, unpads)
        best = None
        if self.validation is not None:
            reader = replace(classifier, compile=False)  # nothing is compiled during an evaluation
            measure = partial(reader.measure, classifier.encode(self.validation), self.accelerator)
            best = BestEpoch(model, measure, settings)
        place = None
        if self.checkpoints is not None:
            place = Checkpoints(self.checkpoints / str(seed), every_seconds=SAVE_SECONDS, keep=1)
        trainer = build_finetuning_trainer(
            self.recipe, seed, TaskModel(model, task), data, best, log, place, self.after_step
        )
        trainer.train()
        epochs = trainer.progress.step // data.steps_per_epoch
        metrics: dict[str, Any] = {"seed": seed, "epochs": epochs, "examples": len(encoded.ids)}
        if best is not None and self.validation is not None:
            best.restore()
            metrics["best_epoch"] = best.step // data.steps_per_epoch
            metrics["validation"] = best.metrics | {"examples": len(self.validation)}
        if head is not None:
            classifier = replace(classifier, task=task.with_scale_in(head))
        model.eval()
        self.accelerator.free_memory()  # it keeps every model that it has prepared: one for each seed
        seconds = trainer.clock.before_resume + time.perf_counter() - start
        return classifier, metrics | {"seconds": seconds}

    def encode(self, tokenizer: "PreTrainedTokenizerBase") -> EncodedExamples:
        """What the network is trained on: the training examples, and the unlabelled ones with pseudo-labels."""
        settings = self.recipe.required_finetune
        if self.encoded is not None:
            return self.encoded
        if self.unlabelled is None:
            self.encoded = encode_examples(tokenizer, self.training, settings.max_length, settings.truncation)
        else:
            start, count = time.perf_counter(), len(self.unlabelled)
            file = self.checkpoints / "pseudo_labels.npy" if self.checkpoints is not None else None
            are_kept = file is not None and file.exists()
            self.encoded = encode_with_pseudo_labels(settings, tokenizer, self.training, self.unlabelled, file)
            time_taken = time_text(time.perf_counter() - start)
            how = "before" if are_kept else f"in {time_taken}"
            console.say(f"finetune: NB-SVM labelled {count:,} texts {how}")
        if count := self.encoded.num_cut:
            console.say(f"finetune: {cut_text(settings, 'labelled', count, len(self.training))}")
        return self.encoded


def shown_metrics(settings: Finetune) -> dict[str, str]:
    """How a log line writes the metric that selects the best epoch, and an accuracy that is not one of classes."""
    shown = {} if settings.best_by in SHOWN else {settings.best_by: f"{settings.best_by} {{:.4f}}"}
    return shown | ({"accuracy": "all labels right {:.1%}"} if settings.task == "multi_label" else {})


def build_finetuning_trainer(
    recipe: Recipe,
    seed: int,
    model: TaskModel,
    data: TrainingBatches,
    best: "BestEpoch | None",
    log: MetricsLog,
    checkpoints: Checkpoints | None = None,
    after_step: Callable[[Trainer], None] | None = None,
) -> Trainer:
    """Unpack the recipe into the trainer's parts."""
    settings, training, device = recipe.required_finetune, recipe.training, data.accelerator.device
    epochs = max(settings.epochs, -(-(settings.min_steps or 0) // data.steps_per_epoch))
    flops = 6 * sum(weight.numel() for weight in model.parameters()) * int(data.lengths.sum()) * epochs
    steps = epochs * data.steps_per_epoch
    if epochs > settings.epochs:
        console.say(
            f"finetune: {epochs} epochs instead of {settings.epochs}, as finetune.min_steps={settings.min_steps}"
        )
    is_short = training.compile == "auto" and not is_worth_compiling(flops, device)
    is_own = isinstance(model.model, BertPrePreTrainedModel)
    data.accelerator.ddp_handler = SHARED_GRADIENTS if is_own else SHARED_OR_UNUSED
    return Trainer(
        accelerator=data.accelerator,
        model=model,
        optimizers=build_optimizers(
            model,
            settings.optimizer,
            settings.learning_rate,
            settings.weight_decay,
            muon_learning_rate=settings.muon_learning_rate,
            adam_beta2=training.adam_beta2,
            muon_weight_decay=training.muon_weight_decay,
            layer_decay=settings.layer_decay,
            group=machine_group(),
        ),
        source=data,
        objective=TaskObjective(model.task),
        duration=Duration(max_steps=steps),
        lr_at=partial(lr_at, schedule="linear", warmup=whole_warmup(settings.warmup, steps)),
        log=StepLog(log, training.log_every, [SpikeWatch()], Machine(price_per_hour=training.price_per_hour)),
        seed=seed,
        arithmetic=Arithmetic(
            choose_dtype(training.precision, device),
            compile=not is_short and choose_compile(training.compile, device),
            dynamic_shapes=True,
            must_compile=training.compile is True,
            deterministic=choose_deterministic(training.deterministic, device),
            max_grad_norm=training.max_grad_norm,
        ),
        evaluation=Evaluation(best, data.steps_per_epoch, at_start=False, memory=best) if best else None,
        checkpoints=checkpoints,
        should_stop=best.should_stop if best else lambda: False,
        after_step=after_step,
        remedies=REMEDIES,
    )


class BestEpoch:
    """Measures after each epoch, keeps the weights of the best one, and ends the training when none is better.

    It is a `Memory`: a resumed training knows the best epoch so far.
    """

    def __init__(self, model: nn.Module, measure: Callable[[], dict[str, Any]], settings: Finetune) -> None:
        self.model, self.measure, self.settings = model, measure, settings
        self.metrics: dict[str, Any] = {}  # of the best epoch
        self.weights: dict[str, Tensor] = {}
        self.step, self.epochs_since = 0, 0

    def __call__(self, step: int) -> dict[str, float]:
        """The metrics on the validation part; keeps the weights if they are the best so far."""
        metrics = {name: value for name, value in self.measure().items() if isinstance(value, float)}
        metric = self.settings.best_by
        self.epochs_since += 1
        if not self.metrics or goodness(metrics, metric) > goodness(self.metrics, metric):
            self.metrics, self.step, self.epochs_since = metrics, step, 0
            self.weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return metrics

    def should_stop(self) -> bool:
        """Whether the last `patience` epochs were no better."""
        return self.settings.patience is not None and self.epochs_since >= self.settings.patience

    def state(self) -> dict[str, Any]:
        """The best epoch and its metrics, for a checkpoint."""
        return {"metrics": self.metrics, "step": self.step, "epochs_since": self.epochs_since}

    def tensors(self) -> dict[str, Tensor]:
        """The best epoch's weights, for a checkpoint."""
        return self.weights

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what a checkpoint says."""
        self.metrics, self.step, self.epochs_since = state["metrics"], state["step"], state["epochs_since"]
        self.weights = tensors

    def restore(self) -> None:
        """Put the best weights back."""
        self.model.load_state_dict(self.weights)


def goodness(metrics: dict[str, Any], metric: str) -> float:
    """A metric's value, negated for the loss, so that more is better."""
    return -metrics[metric] if metric == "loss" else metrics[metric]
