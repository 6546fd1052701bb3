"""How this process computes: device, threads, precision, determinism, and the settings of other libraries."""

import ctypes
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType

from bertpre.compiler import GIVEN_UP
from bertpre.console import SET_BY_TORCHRUN, SIZES
from bertpre.errors import UserError, first_line
from bertpre.hardware import has_native_bf16

logger = logging.getLogger(__name__)
# Gradients are views of what processes exchange: no copy of all of them in each step, and none in memory.
SHARED_GRADIENTS = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
# Of other libraries' models some have weights that take no part in the loss, which DDP would wait for.
SHARED_OR_UNUSED = DistributedDataParallelKwargs(gradient_as_bucket_view=True, find_unused_parameters=True)
USE_FSDP = "ACCELERATE_USE_FSDP"  # how `accelerate launch` passes FSDP on


def quiet_transformers() -> None:
    """Keep transformers' warnings and progress bars off the screen."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def callers_settings_kept() -> Iterator[None]:
    """Put back at the end what bertpre sets for the whole process, which may be a notebook or another training.

    These are the state of the caller's Accelerator, torch's random numbers, deterministic algorithms, compiler and
    number of threads, cuDNN's attention, and how much transformers says. What `keep_freed_memory`, `prepare_compiler`
    and the readers of the Hub set stays; `datasets_settings_kept` is for those of data sets.
    """
    from transformers.utils import logging

    states = [
        (kind._shared_state, dict(kind._shared_state)) for kind in (PartialState, AcceleratorState, GradientState)
    ]
    is_strict = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills, uses_cudnn = torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cuda.cudnn_sdp_enabled()
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(random_state)
        torch.set_num_threads(threads)  # also that of new Python threads, which `compute_alone` changes
        torch.cuda.set_rng_state_all(of_gpus)
        while GIVEN_UP:
            GIVEN_UP.pop().__exit__(None, None, None)
        for state, kept in states:
            state.clear()
            state.update(kept)
        torch.use_deterministic_algorithms(is_strict, warn_only=only_warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills
        torch.backends.cuda.enable_cudnn_sdp(uses_cudnn)
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def start_accelerator(may_shard: bool = False) -> Accelerator:
    """Join the other processes, if any, and keep transformers' warnings and progress bars off the screen.

    A precision or a compiler in the user's accelerate configuration does not count: the recipe names them. FSDP counts
    only with `may_shard` and on GPUs; otherwise each process holds the whole model, and a warning says so.
    Raises UserError for DeepSpeed and Megatron-LM, and where the processes do not find each other.
    """
    quiet_transformers()
    limit_threads()
    has_gpu = torch.cuda.is_available()  # Apple's GPUs have no fp64, which the sums need: there the CPU is used
    if has_gpu:  # cuDNN attention: NaN gradients (pytorch issue 196678), a new plan per length (FunASR issue 3704)
        torch.backends.cuda.enable_cudnn_sdp(False)
        # For `set_deterministic`: cuBLAS reads it before its first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    else:
        keep_freed_memory()
    # The settings of another Accelerator in this process, such as a Trainer's, and its device where that is not used.
    AcceleratorState._reset_state(reset_partial_state=PartialState._shared_state.get("device") == torch.device("mps"))
    if USE_FSDP in os.environ:  # otherwise transformers loads weights on each machine's first process alone
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    refuse_other_trainers()
    asked = os.environ.get(USE_FSDP) == "true"
    fsdp = None if may_shard else os.environ.pop(USE_FSDP, None)
    given = dict(os.environ)  # accelerate sets more
    try:  # without cpu=True, processes without a GPU do not find each other
        accelerator = Accelerator(
            cpu=not has_gpu, mixed_precision="no", dynamo_backend="no", kwargs_handlers=[SHARED_GRADIENTS]
        )
    except ValueError as error:  # WORLD_SIZE without MASTER_ADDR, for instance
        if not re.search("MASTER|RANK|WORLD_SIZE|rendezvous|node", str(error)):
            raise UserError(f"accelerate: {first_line(error)}") from None
        names = dict.fromkeys((*SET_BY_TORCHRUN, *SIZES, *SIZES.values()))
        left = " ".join(f"{name}={given[name]}" for name in names if name in given)
        raise UserError(
            f"the processes do not find each other: {first_line(error)}; the environment has {left or 'no RANK'}: "
            "start with `accelerate launch` or torchrun, or unset these variables"
        ) from None
    finally:
        if fsdp is not None:
            os.environ[USE_FSDP] = fsdp
    if asked and accelerator.distributed_type != DistributedType.FSDP and accelerator.is_main_process:
        use = "needs GPUs" if may_shard else "is for pretraining"
        logger.warning(f"FSDP {use}: here each process holds the whole model")
    return accelerator


def limit_threads() -> None:
    """Let torch compute with no more threads than a container lets run at once; a user's OMP_NUM_THREADS counts.

    A limit such as `docker run --cpus 2` is one of processor time: torch sees all cores of the machine, and the threads
    that have used up the time keep the others waiting.
    """
    from joblib import cpu_count  # a quarter of a second

    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cpu_count():
        torch.set_num_threads(cpu_count())


def own_device() -> torch.device:
    """Where this process computes by itself: its own GPU of several, or the CPU."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    return torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


def refuse_other_trainers() -> None:
    """Raise UserError where the user's accelerate configuration asks for what bertpre does not train with."""
    for name, key in (("DeepSpeed", "ACCELERATE_USE_DEEPSPEED"), ("Megatron-LM", "ACCELERATE_USE_MEGATRON_LM")):
        if os.environ.get(key) == "true":
            raise UserError(
                f"{key}=true: bertpre trains with DDP or FSDP, not with {name}; name another configuration with "
                "`accelerate launch --config_file`, such as recipes/accelerate/fsdp.yaml"
            )


def leave_processes() -> None:
    """Destroy the process group, if there is one, at the end of a command; NCCL warns otherwise."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def compute_alone() -> None:
    """Let torch compute with one thread in this Python thread, which works beside a training.

    Otherwise its first operation may start a second pool of OpenMP threads. With more of them than cores, GNU's library
    lets threads without work sleep at once, those of the training too, and each of its operations wakes them up again
    (docs/experiments.md, 2026-11-30).
    """
    torch.set_num_threads(1)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next training step.

    By default it returns large blocks, such as the vocabulary logits, to the kernel, which clears every page again:
    46,000 pages per step for a vocabulary of 30,522 (docs/results.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The arithmetic type; `auto` is bf16 where the device multiplies it natively, else fp16 (GPU) or fp32 (CPU)."""
    if precision == "auto":
        without_bf16 = "fp16" if device.type == "cuda" else "fp32"
        precision = "bf16" if has_native_bf16(device) else without_bf16
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]


def arithmetic_here(precision: str, optimizer: str, device: torch.device) -> dict[str, Any]:
    """What this machine computes with, by name, where a recipe leaves that to it; all processes have to agree."""
    types = {"the arithmetic type": str(choose_dtype(precision, device))}
    return types | ({"bf16 in the processor, for muon": has_native_bf16(device)} if optimizer == "muon" else {})


def choose_deterministic(setting: str | bool, device: torch.device) -> bool:
    """Whether to add gradients in a fixed order; `auto` does so on a CPU, where no cost was measurable.

    The cost of a GPU's deterministic kernels has not been measured yet.
    """
    return device.type == "cpu" if setting == "auto" else bool(setting)


def set_deterministic(enabled: bool) -> None:
    """Let torch add gradients in a fixed order, or (False) in whatever order the threads arrive.

    Compiled for a CPU, several threads add the gradients of embeddings with atomic operations: without a fixed order,
    the losses of two runs of one recipe differ in the sixth digit after fifty steps.
    """
    torch.use_deterministic_algorithms(enabled)
    torch.utils.deterministic.fill_uninitialized_memory = False  # only a debugging aid, and slow
