"""torch.compile: whether it works here, when it pays, and how it is set up."""

import logging
import os
import platform
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import torch

logger = logging.getLogger(__name__)
GIVEN_UP: list[torch.compiler.set_stance] = []  # each knows what was set before it
NO_COMPILER = (
    "torch.compile is off because a compiler (g++; on a GPU gcc and Triton) or Python's headers (python3-dev) are "
    "missing; training will be slower"
)
# From how many FLOPs on compiling pays: on 2 cores that multiply bf16 (measured, benchmarks/finetune_step.py), on one
# large GPU (a guess).
WORTH_COMPILING = {"cpu": 1.5e13, "cuda": 3e16}


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile finds Python's headers and a compiler: C++ for a CPU, C and Triton for a GPU."""
    if sys.platform == "linux" and not Path(sysconfig.get_path("include"), "Python.h").exists():
        return False
    if device.type == "cuda":
        has_c = any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "clang", "cc"))
        return has_c and find_spec("triton") is not None  # its distribution has other names in some builds
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


def choose_compile(setting: str | bool, device: torch.device) -> bool:
    """Whether to compile; `auto` compiles where there is a compiler and logs a warning where there is none."""
    if setting == "auto" and not can_compile(device):
        logger.warning(NO_COMPILER)
    return can_compile(device) if setting == "auto" else bool(setting)


def prepare_compiler() -> None:
    """Set up torch.compile for several trainings in one process, and spare it its trials of AVX2 and AVX512.

    By default it stops compiling after eight programs of one function: pretraining's layers, then fine-tuning's and
    those that read, are more, and the rest would run uncompiled, after a long warning.

    The trials build one program after the other: 7 of 30 seconds of processor time that the quickstart's layers take
    with an empty cache. They look for a compiler older than AVX512, for which torch's C++20 is too new anyway: so the
    processor's own list is taken as it is. The additions of AVX512 and AMX are still tried. A user's
    TORCHINDUCTOR_VEC_ISA_OK counts.

    By default sizes that are equal in the first batch are taken to be equal always: where the longest texts have as
    many tokens as the model's width, all layers would be compiled once more for shorter ones.

    It compiles in as many processes as the machine has cores, up to 32, with hundreds of MB each: in a container that
    is too many. A user's TORCHINDUCTOR_COMPILE_THREADS counts.
    """
    from joblib import cpu_count
    from torch._dynamo import config as dynamo  # slow to import, and not needed where nothing is compiled
    from torch._inductor import config as inductor
    from torch.fx.experimental import _config as shapes

    dynamo.recompile_limit = max(dynamo.recompile_limit, 64)
    shapes.use_duck_shape = False
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        inductor.compile_threads = min(inductor.compile_threads, cpu_count())
    if sys.platform == "linux" and platform.machine() == "x86_64" and inductor.cpp.vec_isa_ok is None:
        inductor.cpp.vec_isa_ok = True


def is_compiler_fault(error: RuntimeError) -> bool:
    """Whether torch.compile has failed, rather than what it compiles."""
    from torch._dynamo.exc import TorchDynamoException  # slow to import, and imported already where it was raised

    return isinstance(error, TorchDynamoException)


def give_up_compiling() -> None:
    """Compute without torch.compile from now on, in this whole process or until `callers_settings_kept` ends."""
    GIVEN_UP.append(torch.compiler.set_stance("force_eager"))


def is_worth_compiling(flops: float, device: torch.device) -> bool:
    """Whether a model computes so much that compiling its layers saves more time than it takes.

    On a CPU a pass takes 0.4 of the time then with dropout in the layers, 0.8 without. `flops` is of the whole work,
    2 (reading) or 6 (training) for each weight and token. The limit is fixed per kind of device, so every process and
    every run agree.
    """
    return flops > WORTH_COMPILING.get(device.type, 0.0)
