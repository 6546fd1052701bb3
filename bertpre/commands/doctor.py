"""`bertpre doctor`: what can be known before a training: machine, data, arithmetic, time, memory, a rehearsal."""

import math
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import torch
from joblib import cpu_count

from bertpre.compiler import NO_COMPILER, can_compile
from bertpre.console import time_text
from bertpre.data.audit import audit_frequencies, audit_lines, audit_store
from bertpre.data.pairs import IGNORE_INDEX
from bertpre.data.store import PARTS, SPLITS, count_tokens, open_shards
from bertpre.data.tokenizer import load_tokenizer, tokenizer_fingerprint
from bertpre.errors import first_line
from bertpre.finetuning.label_advice import balance, lone_labels
from bertpre.finetuning.splits import Labelled
from bertpre.hardware import cpu_name, measured_flops
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.flops import flops_per_token
from bertpre.pretraining.batches import PretrainingData
from bertpre.pretraining.build import build_pretraining_trainer
from bertpre.pretraining.model import initial_model, phase_warnings
from bertpre.recipe import Recipe, Training, seconds
from bertpre.run_directory import data_folder, refuse_unknown_starts
from bertpre.runtime import choose_dtype, start_accelerator
from bertpre.training.batches import tokens_in
from bertpre.training.gradient_guard import NonFiniteGradient
from bertpre.training.metrics import peak_memory_mb
from bertpre.training.optimizer import Muon
from bertpre.training.rehearsal import rehearse
from bertpre.training.trainer import Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

USUAL_RATES = {"adamw": (2e-5, 1e-3), "lamb": (5e-4, 1e-2), "muon": (1e-4, 1e-2)}  # muon: of AdamW's part
REMEMBERED = 0.02  # of the training: the shipped recipes' weights keep a step for 0.026 of it or longer
REHEARSED_STEPS, OVERFIT_STEPS = 5, 40


def doctor(recipe: Recipe) -> None:
    """Print what was checked, one line each; `!` marks a finding, with its remedy. Changes nothing.

    Raises UserError where the prepared data is damaged or was made with another tokenizer, or memory does not suffice.
    """
    accelerator = start_accelerator(may_shard=True)
    folder = Path(recipe.output_dir)
    print_section("machine", machine_lines(recipe, accelerator.device, folder))
    fault = compiler_fault(accelerator.device)
    print(f"  {fault or 'torch.compile: works'}", flush=True)
    if fault:  # it is reported once: the rehearsal does not try again
        without = recipe.training.model_copy(update={"compile": False})
        recipe = recipe.model_copy(update={"training": without})
    refuse_unknown_starts(recipe)
    if recipe.finetune is not None:
        print_section("labels", label_lines(recipe))
    if recipe.corpus is None:
        return
    store = data_folder(recipe)
    if not (store.exists() and (folder / "tokenizer").exists()):
        print(f"data: none yet in {folder}; run `bertpre prepare` to make it")
        return
    tokenizer = load_tokenizer(folder / "tokenizer")
    print_section("data", data_lines(recipe, tokenizer, store))
    data = PretrainingData(recipe, tokenizer, store, accelerator)
    print_section("masks", mask_lines(data))
    left_out = [f"! {warning}" for warning in phase_warnings(recipe)]
    rates = rate_lines(recipe.training, recipe.model.architecture)
    print_section("recipe", chain(rates, batch_lines(recipe, data), left_out))
    torch.manual_seed(recipe.seed)
    model = initial_model(recipe, tokenizer)
    dtype = choose_dtype(recipe.training.precision, accelerator.device)
    trainer = build_pretraining_trainer(recipe, accelerator, model, data, dtype, folder, is_rehearsal=True)
    print_section("memory and disk", size_lines(recipe, trainer, dtype, folder))
    try:
        print_section("rehearsal", rehearsal_lines(recipe, trainer, data))
    except NonFiniteGradient as error:
        print(f"  ! {error}: lower training.learning_rate (muon: training.muon_learning_rate too) or use fp32")


def print_section(title: str, lines: Iterable[str]) -> None:
    """Print a title and its lines as they come."""
    print(title, flush=True)
    for line in lines:
        print(f"  {line}", flush=True)


def machine_lines(recipe: Recipe, device: torch.device, folder: Path) -> Iterator[str]:
    """Processor, memory, disk and precision."""
    is_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_gpu else f"{cpu_name()}, {cpu_count()} cores, no GPU"
    dtype = choose_dtype(recipe.training.precision, device)
    rate = measured_flops(device, dtype)
    yield f"{name}: {rate / 1e9:,.0f} GFLOP/s in {str(dtype).removeprefix('torch.')}, which training would use"
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    yield f"free: {psutil.virtual_memory().available / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB of disk"


def label_lines(recipe: Recipe) -> Iterator[str]:
    """The number of examples for training, validation and test, and of the classes of the training examples."""
    labelled = Labelled(recipe)
    training, validation, test = labelled.parts.training, labelled.parts.validation, labelled.test
    held_out = f"{len(validation):,}" if validation else "no"
    yield f"{len(training):,} training, {held_out} validation and {len(test):,} test examples"
    yield f"training: {balance(recipe.required_finetune.task, training)}"
    if warning := lone_labels(recipe.required_finetune.task, training):
        yield f"! {warning}"


def compiler_fault(device: torch.device) -> str | None:
    """Why torch.compile does not work, tried on a small function; None where it does."""
    if not can_compile(device):
        return NO_COMPILER
    try:
        torch.compile(lambda values: values.exp() + 1)(torch.ones(64, device=device))
    except Exception as error:  # whatever is wrong with the compiler: this is the place to say it
        return f"torch.compile: fails ({first_line(error)}); turn it off with training.compile=false"
    return None


def data_lines(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", store: Path) -> Iterator[str]:
    """The audit of `prepare`, repeated on what is on the disk now."""
    shards = {split: open_shards(store, split, tokenizer_fingerprint(tokenizer)) for split in SPLITS}
    files = {getattr(shard, part).filename for split in shards.values() for shard in split for part in PARTS}
    yield f"{len(files)} files match their checksums, and the tokenizer matches the data"
    pair_options = recipe.pairs.model_dump(exclude={"validation_fraction"})
    audit = audit_store(store, recipe.training.phases[0].max_length, recipe.seed, **pair_options)
    audit |= audit_frequencies(count_tokens(shards["train"], len(tokenizer)), tokenizer, recipe.training.mask_split)
    yield from audit_lines(audit)


def mask_lines(data: PretrainingData) -> Iterator[str]:
    """What the collator does to the validation examples."""
    mask_id, sums = data.phases[0].collator.special_ids["[MASK]"], torch.zeros(4)
    for batch in data.validation_batches():
        labels, shown = batch["labels"], batch["input_ids"].gather(1, batch["masked_positions"])
        kinds = (labels != IGNORE_INDEX, shown == mask_id, shown == labels)
        sums += torch.tensor([tokens_in(batch), *(int(kind.sum()) for kind in kinds)])
    tokens, targets, masked, kept = sums.tolist()
    yield (
        f"{targets / tokens:.1%} of the tokens are targets: {masked / targets:.1%} of them show [MASK], "
        f"{(targets - masked - kept) / targets:.1%} another token, {kept / targets:.1%} themselves"
    )


def rate_lines(training: Training, architecture: str) -> Iterator[str]:
    """Learning rates, warm-ups and mask rates that rarely work."""
    lowest, highest = USUAL_RATES[training.optimizer]
    rate = training.learning_rate
    yield f"{training.optimizer}, learning rate {rate:g}, {training.schedule}, warm-up over {training.warmup:.1%}"
    if not lowest <= rate <= highest:
        yield f"! training.learning_rate is {rate:g}; with {training.optimizer} {lowest:g} to {highest:g} is usual"
    if training.optimizer == "muon" and not 0.002 <= training.muon_learning_rate <= 0.1:
        yield f"! training.muon_learning_rate is {training.muon_learning_rate:g}; 0.002 to 0.1 is usual"
    if architecture == "bert" and training.warmup == 0:
        yield "! post-LN without warm-up tends to diverge: set training.warmup=0.01, or model.architecture=modern"
    if architecture == "bert" and training.optimizer == "adamw" and rate > 5e-4:
        yield f"! {rate:g} is high for post-LN with AdamW: Devlin et al. used 1e-4 with batches of 256"
    if not 0.1 <= training.masked_lm_prob <= 0.4:
        yield f"! training.masked_lm_prob is {training.masked_lm_prob}; 0.15 to 0.4 is usual"


def batch_lines(recipe: Recipe, data: PretrainingData) -> Iterator[str]:
    """How a step is made up in each phase, and whether the corpus fills it."""
    processes, unit = data.accelerator.num_processes, "rows" if recipe.pairs.kind == "none" else "pairs"
    for number, phase in enumerate(data.phases):
        size, micro = phase.global_batch_size, phase.micro_batch_size
        passes = math.ceil(size / processes / micro)
        rows = f"{micro}" if size == micro * passes * processes else f"at most {micro}"
        made = f"{rows} in a pass x {passes} passes" if len(phase.choices) == 1 else f"{micro} in passes that fit"
        step = f"{size} {unit} of {phase.max_length} tokens a step"
        yield f"training.phases[{number}]: {step} = {made} x {processes} processes"
        count, groups = 0, iter(range(phase.dataset.groups))
        while count < size and (group := next(groups, None)) is not None:
            count += len(phase.dataset.plan(0, group)[0])
        if count < size:
            yield f"! a step takes more {unit} than the corpus has ({count:,}): lower training.global_batch_size"


def size_lines(recipe: Recipe, trainer: Trainer, dtype: torch.dtype, folder: Path) -> Iterator[str]:
    """Memory for weights, gradients and optimizer states; disk for the checkpoints."""
    step = trainer.training_step
    parameters = sum(parameter.numel() for parameter in step.model.parameters())
    states = 0  # bytes: Muon has one number for each weight, the others have two
    for optimizer in step.optimizers:
        trained = sum(weight.numel() for group in optimizer.param_groups for weight in group["params"])
        states += (4 if isinstance(optimizer, Muon) else 8) * trained
    copy = 0 if dtype == torch.float32 else 4  # bytes: weights and gradients of the working copy
    held = (parameters * (4 + 4 + copy) + states) / 2**20
    on_disk = (parameters * 4 + states) / 2**20
    yield f"{parameters:,} parameters; {held:,.0f} MB for weights, gradients and optimizer states, plus activations"
    needed = on_disk * (recipe.checkpoint.keep + 1)
    more = ", and those of checkpoint.keep_every" if recipe.checkpoint.keep_every else ""
    yield f"checkpoints of {on_disk:,.0f} MB, at most {needed:,.0f} MB with the one being written{more}"
    free = shutil.disk_usage(folder).free / 2**20
    if needed > free:
        yield f"! only {free:,.0f} MB of disk are free: lower checkpoint.keep or set another output_dir"


def rehearsal_lines(recipe: Recipe, trainer: Trainer, data: PretrainingData) -> Iterator[str]:
    """A dry run of the largest batches, a few steps, what they say about the whole, and one batch overfit."""
    rehearsal = rehearse(trainer, REHEARSED_STEPS, OVERFIT_STEPS)
    for number, phase in enumerate(data.phases):
        if len(phase.choices) > 1:
            yield f"training.phases[{number}]: {phase.micro_batch_size} examples in a pass fit"
    work = "compiling and running" if trainer.training_step.is_compiled else "running"
    yield f"the largest batches fit; {work} them took {time_text(rehearsal.startup_seconds)}"
    costs = phase_costs(recipe.training, trainer.training_step.model.config)
    in_text = data.tokens_per_epoch
    yield from time_lines(recipe.training, rehearsal.step_seconds, rehearsal.step_tokens, in_text, costs)
    yield f"peak memory {peak_memory_mb(trainer.accelerator.device):,} MB"
    is_causal = "clm_loss" in rehearsal.overfit[0]  # steps of one phase, or of two short ones, may differ
    name, words = ("clm_loss", "next-token loss") if is_causal else ("mlm_loss", "MLM loss")
    first, last = (rehearsal.overfit[place][name] for place in (0, -1))
    yield f"overfit one batch: {words} {first:.2f}, after {OVERFIT_STEPS} steps {last:.2f}"
    if not last < 0.9 * first:
        yield "! the model cannot overfit one batch: check the learning rates first, then the masks"


def phase_costs(training: Training, config: BertPreConfig) -> np.ndarray:
    """Share, tokens a step and FLOPs a step of each phase, (phases, 3), the last two as multiples of the first's."""
    rows = []
    for phase in training.phases:
        tokens = training.batch_size(phase) * phase.max_length
        flops = flops_per_token(config, phase.max_length, training.predicted_share(phase))
        rows.append((phase.share, tokens, tokens * flops))
    return np.array(rows) / [1, *rows[0][1:]]


def time_lines(
    training: Training, step_seconds: float, step_tokens: float, tokens_per_epoch: int, costs: np.ndarray
) -> Iterator[str]:
    """Speed in the first phase, and when the training ends at that speed; `costs` are those of `phase_costs`."""
    yield f"{step_seconds:.2f} s a step, {step_tokens / step_seconds:,.0f} tokens/s"
    shares, tokens, lasting = (costs * [1, step_tokens, step_seconds]).T
    limits = {  # and what a step of each phase takes of it
        "training.max_steps": (training.max_steps, np.ones_like(shares)),
        "training.max_tokens": (training.max_tokens, tokens),
        "training.max_epochs": (training.max_epochs and training.max_epochs * tokens_per_epoch, tokens),
        "training.budget": (training.budget and seconds(training.budget), lasting),
    }
    steps = {name: shares * limit / each for name, (limit, each) in limits.items() if limit}
    name = min(steps, key=lambda name: steps[name] @ lasting)
    total, count = steps[name] @ lasting, steps[name].sum()
    price = training.price_per_hour
    cost = f", cost {total / 3600 * price:,.2f}" if price else ""
    read = f"{steps[name] @ tokens:,.0f} tokens"
    yield f"{name} ends training after about {count:,.0f} steps, {read}, {time_text(total)}{cost}"
    if warning := forgetting(training, count):
        yield warning
    if count < 100:
        yield "! fewer than 100 steps: the model will learn little; allow more time, or use a smaller model or batch"


def forgetting(training: Training, steps: float) -> str | None:
    """A warning where weight decay undoes what a step of Muon did long before the training, of `steps`, ends."""
    kept = 1 / max(training.muon_learning_rate * training.muon_weight_decay, 1e-12)  # steps, at the peak rate
    if training.optimizer != "muon" or kept >= REMEMBERED * steps:
        return None
    return (
        f"! training.muon_learning_rate x muon_weight_decay: the weights forget a step after {kept:,.0f} others, "
        f"{kept / steps:.1%} of the training; for so long a training lower training.muon_learning_rate"
    )
