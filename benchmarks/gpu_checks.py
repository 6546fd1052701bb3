"""Check that training is right on this device, before anyone measures how fast it is; one JSON line for each check.

python benchmarks/gpu_checks.py [--smoke] [CHECK ...]        (default: all; exit status 1 where one fails)

All trainings go through `pretrain` and `finetune`, on the embedded corpus, compiled. `--smoke` takes tiny models and
also works on a CPU. Needs neither a network nor the packages datasets and wandb.
"""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it before the first product of any check

import accelerate
import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from training_step import random_batch
from transformers import AutoModelForMaskedLM

from bertpre.commands.finetune import finetune
from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.errors import first_line
from bertpre.finetuning.acceptability import SentenceScorer
from bertpre.finetuning.loading import load_classifier, load_masked_lm
from bertpre.finetuning.splits import Labelled
from bertpre.hardware import measured_flops
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.export import export_model, logits, random_inputs
from bertpre.model.folders import load_model
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.pretraining import batches
from bertpre.recipe import load_recipe
from bertpre.run_directory import read_results
from bertpre.training.batches import to_device
from bertpre.training.checkpoint import (
    Checkpoints,
    list_checkpoints,
    load_checkpoint,
    optimizer_tensors,
    save_checkpoint,
)
from bertpre.training.optimizer import build_optimizers
from bertpre.training.trainer import Trainer
from bertpre.training.unpadding import choose_unpadding, unpadded

Facts = dict[str, Any]
# Dropout is 0 where a check does not ask for it: a compiled program draws other numbers, and varlen's kernel has none.
WITHOUT_DROPOUT = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
SIZES = {
    "full": [
        "model={architecture: bert, hidden_size: 256, num_hidden_layers: 4, num_attention_heads: 4}", *WITHOUT_DROPOUT,
        "model.intermediate_size=1024", "training.global_batch_size=64", "training.max_steps=200",
    ],
    "smoke": [
        "corpus.limit=120", "tokenizer.vocab_size=512", "pairs.validation_fraction=0.1",
        "model={architecture: bert, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2}", *WITHOUT_DROPOUT,
        "model.intermediate_size=64", "training.global_batch_size=8", "training.phases.0.max_length=32",
        "training.max_steps=20", "training.eval_pairs=16",
    ],
}  # fmt: skip
COMMON = [
    "finetune=null", "training.budget=null", "training.compile=true", "training.log_every=1",
    "training.eval_every=1000", "checkpoint.every=5", "prepare.workers=1",
]  # fmt: skip
DROPOUT = ["model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1"]
MODERN = ["model.architecture=modern", "training.optimizer=muon"]
BERT = ["training.optimizer=adamw", "training.learning_rate=1e-3", *DROPOUT]
AGREE = {"fp32": 1e-3, "bf16": 0.05}  # nats between losses: products and sums in another order
# Between losses, and of the gradient's length; two kernels in fp32, and what bf16 rounds on the way to all weights.
UNPADDED = {torch.float32: 1e-4, torch.bfloat16: 0.05}
UNPADDED_WIDTH = {"full": 256, "smoke": 32}
FINETUNE = "finetune={path: sample, split: train, epochs: 1, pooling: mean, optimizer: muon, learning_rate: 3.0e-3}"
FINETUNE_SIZE = {"full": [], "smoke": ["finetune.limit=80", "finetune.batch_size=8", "finetune.max_length=32"]}
LEARNED = 0.7  # test accuracy, of two classes as frequent
READ_TEXTS, READ = {"full": 500, "smoke": 20}, {"fp32": 0.01, "auto": 0.1}  # of probabilities
SENTENCE_SCORES = 1.0  # nats of a whole sentence; where two differ by less than 0.6, they are exact
EXPORT = {torch.float32: 2e-3, torch.bfloat16: 0.25}  # of logits; a GPU's kernels differ more than a CPU's


@dataclass
class Place:
    """Where the runs of all checks are, and how large."""

    folder: Path
    size: str
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def train(self, name: str, *overrides: str, after_step: Callable[[Trainer], None] | None = None) -> Path:
        """Prepare and pretrain a run; returns its directory. A finished one of this name is taken as it is.

        All runs of one kind of pairs have the same data.
        """
        if (self.folder / name / "model").is_dir():
            return self.folder / name
        kind = "none" if "model.architecture=modern" in overrides else "nsp"
        shared, own = self.folder / f"data-{kind}", self.folder / name
        settings = [*SIZES[self.size], *COMMON, f"pairs.kind={kind}"]  # without those of the run that comes first
        if not shared.exists():
            prepare(load_recipe("quickstart", [f"output_dir={shared}", *settings]))
        shutil.copytree(shared, own)
        return self.train_again(own, *overrides, after_step=after_step)

    def train_again(self, run: Path, *overrides: str, after_step: Callable[[Trainer], None] | None = None) -> Path:
        """Pretrain what a run, whose recipe says the rest, has still to do."""
        torch.compiler.reset()  # torch.compile gives up on code that it has compiled for many models
        pretrain(load_recipe(str(run), [*overrides, f"output_dir={run}"]), after_step)
        return run


def machine(place: Place) -> Facts:
    """What this is, and the rate of a bf16 matrix product."""
    on_gpu = place.device.type == "cuda"
    facts = {
        "torch": torch.__version__, "cuda": torch.version.cuda, "transformers": transformers.__version__,
        "accelerate": accelerate.__version__, "python": sys.version.split()[0],
        "bf16_gflops": round(measured_flops(place.device, torch.bfloat16) / 1e9),
    }  # fmt: skip
    if on_gpu:
        command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        facts["gpu"] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        facts["capability"] = torch.cuda.get_device_capability()
    return facts | {"ok": facts["bf16_gflops"] > 0}


def loss_falls(place: Place) -> Facts:
    """The loss of both architectures falls, and memory is reported."""
    facts: Facts = {"ok": True}
    for name, choices in (("bert", BERT), ("modern", MODERN)):
        rows = train_rows(place.train(f"falls-{name}", *choices))
        tenth = max(1, len(rows) // 10)
        first, last = (sum(row["loss"] for row in part) / tenth for part in (rows[:tenth], rows[-tenth:]))
        facts[name] = {"first_loss": round(first, 3), "last_loss": round(last, 3)}
        facts[name] |= {key: rows[-1][key] for key in ("tokens_per_second", "peak_memory_mb")}
        facts["ok"] &= last < first and rows[-1]["peak_memory_mb"] > 0
    return facts


def compiled_and_uncompiled_agree(place: Place) -> Facts:
    """Ten steps with torch.compile, masked and causal by turns, have the losses of ten steps without it."""
    facts: Facts = {"ok": True}
    for precision, tolerance in AGREE.items():
        losses = []
        for compiled in ("true", "false"):
            settings = ["training.optimizer=adamw", "training.max_steps=10", f"training.precision={precision}"]
            settings.append("training.phases.0.objective=mixed")
            run = place.train(f"{precision}-{compiled}", *MODERN, *settings, f"training.compile={compiled}")
            losses.append([row["loss"] for row in train_rows(run)])
        largest = max(abs(one - other) for one, other in zip(*losses, strict=True))
        facts[f"largest_difference_{precision}"] = largest
        facts["ok"] &= largest <= tolerance
    return facts


def resume_is_bit_identical(place: Place) -> Facts:
    """With deterministic algorithms, ten steps end with the weights of five steps, a stop, and five more."""
    facts: Facts = {"ok": True}
    for name, choices in (("bert", BERT), ("modern", MODERN)):
        settings = [*choices, "training.max_steps=10", "training.deterministic=true"]
        whole, resumed = place.train(f"whole-{name}", *settings), place.folder / f"resumed-{name}"
        shutil.copytree(whole, resumed)
        kept, last = list_checkpoints(resumed / "checkpoints")
        for later in (last, resumed / "model"):  # as if it had been stopped before them
            shutil.rmtree(later)
        place.train_again(resumed)
        one, other = (load_file(run / "model" / "model.safetensors") for run in (whole, resumed))
        differing = [key for key in one if not torch.equal(one[key], other[key])]
        facts[name] = {"resumed_from": kept.name, "tensors": len(one), "differing": len(differing)}
        facts["ok"] &= not differing and kept.name == "step-00000005"
    return facts


def nan_is_survived(place: Place) -> Facts:
    """After one step with a NaN gradient the training goes to its end, and all weights are finite."""
    poisoned: list[int] = []

    def poison(trainer: Trainer) -> None:
        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            if trainer.progress.step != 7 or poisoned:
                return gradient
            poisoned.append(7)
            return gradient * float("nan")

        if trainer.progress.step == 1:
            trainer.training_step.working.model.get_input_embeddings().weight.register_hook(spoil)

    run = place.train("nan", *BERT, "training.max_steps=12", after_step=poison)
    weights = load_file(run / "model" / "model.safetensors")
    is_finite = all(bool(value.isfinite().all()) for value in weights.values())
    steps = [row["step"] for row in train_rows(run)]
    is_ok = is_finite and poisoned == [7] and read_results(run)["pretrain"]["steps"] == 12
    return {"ok": is_ok, "poisoned_step": poisoned, "weights_finite": is_finite, "logged_steps": steps}


def checkpoint_is_restored(place: Place) -> Facts:
    """A checkpoint of BERT-base with Muon's and AdamW's states is read back equal; with its size and seconds."""
    sizes = {} if place.size == "full" else {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config, checkpoints = BertPreConfig(vocab_size=30528, **sizes), Checkpoints(place.folder / "checkpoints")
    models = [BertPreForPreTraining(config).to(place.device) for _ in range(2)]
    optimizers = [build_optimizers(model, "muon", 1e-3, 0.01) for model in models]
    for weight in models[0].parameters():
        weight.grad = torch.randn_like(weight)
    for optimizer in optimizers[0]:
        optimizer.step()
    start = time.perf_counter()
    save_checkpoint(checkpoints, models[0], optimizers[0], {"step": 1})
    saved = time.perf_counter()
    load_checkpoint(checkpoints.folder, models[1], optimizers[1])
    loaded = time.perf_counter()
    pairs = list(zip(models[0].parameters(), models[1].parameters(), strict=True))
    states = [dict(optimizer_tensors(each)) for each in optimizers]
    is_equal = all(torch.equal(*pair) for pair in pairs) and states[0].keys() == states[1].keys()
    is_equal &= all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    megabytes = sum(file.stat().st_size for file in checkpoints.folder.rglob("*") if file.is_file()) / 1e6
    facts = {"megabytes": megabytes, "save_seconds": saved - start, "load_seconds": loaded - saved}
    return {"ok": is_equal} | {name: round(value, 2) for name, value in facts.items()}


def export_equals_stock(place: Place) -> Facts:
    """On this device, transformers' own classes give the logits of the models that they were exported from."""
    facts: Facts = {"ok": True}
    for name, choices in (("bert", BERT), ("modern", MODERN)):
        run = place.train(f"falls-{name}", *choices)
        target = place.folder / f"exported-{name}"
        export_model(run / "model", None, target)
        ours = load_model(str(run / "model"), "AutoModelForMaskedLM").to(place.device)
        stock = AutoModelForMaskedLM.from_pretrained(target).to(place.device)
        inputs = {key: value.to(place.device) for key, value in random_inputs(ours.config, 32).items()}
        if stock.config.model_type == "modernbert":
            del inputs["token_type_ids"]
        facts[name] = {"stock": type(stock).__name__}
        for dtype, tolerance in EXPORT.items():
            one, other = (logits(model.to(dtype), inputs)[0].float() for model in (ours, stock))
            difference = (one - other)[inputs["attention_mask"].bool()].abs().max().item()
            facts[name][f"largest_difference_{str(dtype).removeprefix('torch.')}"] = difference
            facts["ok"] &= difference <= tolerance
    return facts


def unpadded_agrees_with_padded(place: Place) -> Facts:
    """Without their padding, rows have the loss and the gradients of padded ones, and so have ten steps of training."""
    on_gpu, facts = place.device.type == "cuda", {"ok": True}
    for architecture in ("bert", "modern"):
        for dtype, tolerance in UNPADDED.items():
            config = without_dropout(architecture, UNPADDED_WIDTH[place.size])
            is_kernel = choose_unpadding(config, dtype, place.device)
            if dtype == torch.bfloat16 and on_gpu and not is_kernel:
                continue  # an old GPU, which trains padded
            torch.manual_seed(0)
            model = BertPreForPreTraining(config).to(place.device, dtype).train()
            batch = rows_of_all_lengths(config)
            one, other = (loss_and_gradient(model, to_device(each, place.device)) for each in (batch, unpadded(batch)))
            differences = ((one[0] - other[0]).abs().item(), ((one[1] - other[1]).norm() / one[1].norm()).item())
            name = f"{architecture}_{str(dtype).removeprefix('torch.')}"
            facts[name] = {"kernel": is_kernel, "loss": differences[0], "gradient_share": differences[1]}
            facts["ok"] &= max(differences) <= tolerance
    facts["losses_of_training"], facts["training_is_unpadded"] = training_difference(place)
    facts["ok"] &= facts["losses_of_training"] <= AGREE["bf16"]
    can_unpad = choose_unpadding(without_dropout("bert", UNPADDED_WIDTH[place.size]), torch.bfloat16, place.device)
    facts["ok"] &= facts["training_is_unpadded"] or not can_unpad
    return facts


def classifiers_and_sentence_scores_are_those_of_the_cpu(place: Place) -> Facts:
    """A classifier learns, and reads texts as it does on a CPU; sentences of pairs get the scores that a CPU gives."""
    run = place.train("falls-modern", *MODERN)
    recipe = load_recipe(str(run), [f"output_dir={run}", FINETUNE, *FINETUNE_SIZE[place.size]])
    torch.compiler.reset()
    facts: Facts = {"validation": finetune(recipe)["validation"], "ok": True}
    test = Labelled(recipe).test.subset(range(READ_TEXTS[place.size]))
    classifier = load_classifier(recipe, run / "finetuned", test.classes)
    expected = replace(classifier, precision="fp32").predict(test)
    facts["test_accuracy"] = float((expected.argmax(-1) == test.labels).mean())
    for precision, tolerance in READ.items():
        here = replace(classifier, model=copy.deepcopy(classifier.model).to(place.device), precision=precision)
        facts[f"largest_difference_{precision}"] = float(np.abs(here.predict(test) - expected).max())
        facts["ok"] &= facts[f"largest_difference_{precision}"] <= tolerance
    network, tokenizer = load_masked_lm(str(run))
    pairs = [(text, " ".join(reversed(text.split()))) for text in test.texts[:20]]
    scores = []
    for device in (torch.device("cpu"), place.device):
        scorer = SentenceScorer.for_texts(network.to(device), tokenizer, [side for pair in pairs for side in pair])
        scores.append(scorer.pair_scores(pairs))
    facts["largest_difference_of_scores"] = float(np.abs(scores[0] - scores[1]).max())
    facts["ok"] &= facts["largest_difference_of_scores"] <= SENTENCE_SCORES
    facts["ok"] &= place.size == "smoke" or facts["test_accuracy"] > LEARNED
    return facts


def without_dropout(architecture: str, width: int) -> BertPreConfig:
    """A small model for rows of half its width."""
    return BertPreConfig(
        architecture=architecture, vocab_size=512, hidden_size=width, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=2 * width, max_position_embeddings=width // 2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def rows_of_all_lengths(config: BertPreConfig) -> dict[str, torch.Tensor]:
    """Pairs of random ids, masked within their tokens: full rows, and others down to two tokens."""
    longest = config.max_position_embeddings
    batch = random_batch(8, longest, config.vocab_size, 0.15)
    lengths = (torch.tensor([1.0, 0.0, 0.8, 0.2, 1.0, 0.1, 0.5, 0.6]) * longest).long().clamp(min=2)[:, None]
    batch["attention_mask"] = (torch.arange(longest) < lengths).long()
    batch["masked_positions"] %= lengths
    return batch


def loss_and_gradient(model: BertPreForPreTraining, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The loss of a batch, and the gradient of all weights in one vector; both in fp32."""
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    gradients = [weight.grad.flatten().float() for weight in model.parameters() if weight.grad is not None]
    return loss.detach().float(), torch.cat(gradients)


def training_difference(place: Place) -> tuple[float, bool]:
    """The largest difference between the losses of ten steps on pairs in bf16, padded and not, compiled.

    And whether the latter were without padding.
    """
    settings = ["training.optimizer=adamw", "training.max_steps=10", "training.precision=bf16"]
    on_gpu, chosen, losses = place.device.type == "cuda", [], []

    def as_bertpre_does(*given: Any) -> bool:  # noqa: ANN401
        chosen.append(choose_unpadding(*given) if on_gpu else True)  # forced on a CPU
        return chosen[-1]

    for name, choose in (("padded", lambda *_: False), ("unpadded", as_bertpre_does)):
        with mock.patch.object(batches, "choose_unpadding", choose):
            losses.append([row["loss"] for row in train_rows(place.train(f"rows-{name}", *settings))])
    return max(abs(one - other) for one, other in zip(*losses, strict=True)), bool(chosen) and all(chosen)


def train_rows(run: Path) -> list[Facts]:
    """The log lines of training."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["split"] == "train"]


CHECKS = (
    machine, loss_falls, compiled_and_uncompiled_agree, resume_is_bit_identical, nan_is_survived,
    checkpoint_is_restored, export_equals_stock, unpadded_agrees_with_padded,
    classifiers_and_sentence_scores_are_those_of_the_cpu,
)  # fmt: skip


def run_check(check: Callable[[Place], Facts], place: Place) -> bool:
    """Run a check and print its line; an error is a line too."""
    start = time.perf_counter()
    try:
        with redirect_stdout(sys.stderr):
            facts = check(place)
    except Exception as error:  # the other checks continue
        traceback.print_exc()
        facts = {"ok": False, "error": f"{type(error).__name__}: {first_line(error)}"}
    line = {"benchmark": "gpu_checks", "check": check.__name__, "ok": bool(facts.pop("ok"))}
    print(json.dumps(line | {"seconds": round(time.perf_counter() - start, 1)} | facts), flush=True)
    return line["ok"]


def main(arguments: list[str]) -> int:
    """Run the checks; returns the exit status."""
    size = "smoke" if "--smoke" in arguments else "full"
    chosen = [check for check in CHECKS if check.__name__ in arguments] or list(CHECKS)
    with tempfile.TemporaryDirectory() as folder:
        results = [run_check(check, Place(Path(folder), size)) for check in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
