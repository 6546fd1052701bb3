"""Profile a training step of bertpre; prints one JSON line.

python benchmarks/step_profile.py [SHAPE]        (default: base, on a GPU base_128; or another of against_stock.py)
python benchmarks/step_profile.py finetune_LENGTH        (a step of recipe imdb-mini-cpu's fine-tuning, 32 random rows)

The rows of base and mini are random pairs; those of base_128, base_512 and tiny are full, without pairs and mask.
Fractions of the time of three steps, by torch's profiler: on a CPU with a mark for each loop that torch.compile wrote,
on a GPU of its kernels. A loop belongs to the first group below that its name contains; loops that fuse two groups
count for the first. On a GPU `busy` is the fraction of the steps during which a kernel ran, and `longest` names the
kernels that take the most time.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
from against_stock import MASKED_SHARE, SHAPES, bertpre_config, prepare
from finetune_step import ROWS, classifier, random_rows
from torch.profiler import ProfilerActivity, profile, schedule
from training_step import OwnStep, hardware, random_batch
from turns import WARM_UP_STEPS, seconds_of

from bertpre.data.sampler import Position
from bertpre.finetuning.task import Task, TaskModel, TaskObjective
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.recipe import load_recipe
from bertpre.runtime import choose_dtype, start_accelerator
from bertpre.training.batches import StepBatch, to_device
from bertpre.training.optimizer import build_optimizers
from bertpre.training.step import Arithmetic, TrainingStep

GROUPS = {  # what the profiler's names contain
    "attention kernels": ("flash", "fmha", "efficient_attention", "mha_"),  # their names may contain cutlass
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "gemm", "nvjet", "cutlass", "xmma"),
    "loss over the vocabulary": ("log_softmax", "nll_loss"),
    "attention's softmax, with its dropout": ("softmax",),
    "layer norms, with residuals and dropout": ("layer_norm",),
    "GELU": ("gelu",),
    "embeddings": ("embedding",),
    "other compiled loops": ("cpp_fused", "CompiledFxGraph", "triton_"),
    "optimizer": ("adam", "Adam"),
    "clipping": ("linalg_vector_norm", "aten::mul_", "_foreach", "multi_tensor_apply"),
    "copies, among them between fp32 and bf16": ("aten::copy_", "aten::fill_", "Memcpy", "Memset"),
}
STEPS, MOST = 3, 12


def group_of(name: str) -> str:
    """The group that an event of the profiler belongs to."""
    return next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), "everything else")


def seconds_of_event(event: Any, device: str) -> float:
    """An event's own seconds: of the CPU, or of a GPU's kernel."""
    if device == "cpu":
        return event.self_cpu_time_total / 1e6
    # Annotations span the kernels within them, whose time would count twice.
    is_kernel = event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    return event.self_device_time_total / 1e6 if is_kernel else 0.0


def finetuning_step(length: int) -> Callable[[], object]:
    """A step of imdb-mini-cpu's fine-tuning on rows of one length, as its trainer computes it."""
    recipe, task, accelerator = load_recipe("imdb-mini-cpu"), Task("classification", ("0", "1")), start_accelerator()
    settings, device = recipe.required_finetune, accelerator.device
    model = TaskModel(classifier(recipe).to(device), task)
    optimizers = build_optimizers(model, settings.optimizer, settings.learning_rate, settings.weight_decay)
    arithmetic = Arithmetic(choose_dtype("auto", device), compile=True, dynamic_shapes=True, deterministic=True)
    step = TrainingStep(accelerator, model, optimizers, TaskObjective(task), arithmetic, seed=0)
    batch = StepBatch([to_device(random_rows(length, recipe.tokenizer.vocab_size), device)], Position())
    return lambda: step.run(0, batch, {"num_items_in_batch": ROWS}, 1.0, lambda measured: None)


def pretraining_step(shape: str) -> Callable[[], object]:
    """A step of pretraining on rows of one shape."""
    kind, size, length, sizes = SHAPES[shape]
    if kind == "cpu":
        return prepare("bertpre", shape)
    batch = random_batch(size, length, sizes["vocab_size"], MASKED_SHARE)
    packed = {name: value for name, value in batch.items() if name not in ("attention_mask", "next_sentence_label")}
    return OwnStep(BertPreForPreTraining(bertpre_config("bertpre", sizes)), packed)


def main(shape: str) -> None:
    """Measure and print."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch._inductor.config.cpp.enable_kernel_profile = True
    torch._inductor.config.cpp.descriptive_names = "original_aten"
    kind, _, length = shape.partition("_")
    step = finetuning_step(int(length)) if kind == "finetune" else pretraining_step(shape)
    for _ in range(WARM_UP_STEPS):
        step()
    unprofiled = seconds_of(step, STEPS, device)
    activities = [ProfilerActivity.CPU] if device == "cpu" else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    # The first steps under the profiler take memory that the heap has not had yet, and wait until it is cleared.
    with profile(activities=activities, schedule=schedule(wait=0, warmup=STEPS, active=STEPS, repeat=1)) as profiler:
        for _ in range(2 * STEPS):
            seconds_of(step, 1, device)
            profiler.step()
    events: dict[str, float] = {}
    for event in profiler.key_averages():  # a kernel and what launches it may have one name
        events[event.key] = events.get(event.key, 0.0) + seconds_of_event(event, device)
    seconds = dict.fromkeys([*GROUPS, "everything else"], 0.0)
    for name, value in events.items():
        seconds[group_of(name)] += value
    total = sum(seconds.values())
    line: dict[str, object] = {"benchmark": "step_profile", "shape": shape, "seconds_a_step": round(total / STEPS, 4)}
    line["shares"] = {group: round(value / total, 3) for group, value in seconds.items()}
    if device == "cuda":
        longest = sorted(events, key=events.__getitem__, reverse=True)[:MOST]
        line["busy"] = round(total / STEPS / unprofiled, 3)
        line["longest"] = {name[:100]: round(events[name] / total, 3) for name in longest}
    print(json.dumps(line | {"hardware": hardware(device)}))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "base_128" if torch.cuda.is_available() else "base")
