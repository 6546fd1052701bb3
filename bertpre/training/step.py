"""One optimizer step."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bertpre.compiler import prepare_compiler
from bertpre.data.randomness import seed_from
from bertpre.runtime import set_deterministic
from bertpre.training.batches import StepBatch, to_device
from bertpre.training.gradient_guard import GradientGuard
from bertpre.training.metrics import Batch, Objective
from bertpre.training.optimizer import set_learning_rate
from bertpre.training.precision import LossScale, WorkingCopy
from bertpre.training.sharding import gather_full, is_sharded

Record = Callable[[Mapping[str, torch.Tensor]], None]


@dataclass(frozen=True)
class Arithmetic:
    """How a step is computed."""

    dtype: torch.dtype = torch.float32
    compile: bool = False
    must_compile: bool = False  # otherwise training continues uncompiled where torch.compile fails
    dynamic_shapes: bool = False  # compile one program for all lengths, not one for each
    deterministic: bool = False  # add gradients in a fixed order
    max_grad_norm: float = 1.0


class TrainingStep:
    """Computes optimizer steps of a model on this process."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        objective: Objective,
        arithmetic: Arithmetic,
        seed: int,
    ) -> None:
        set_deterministic(arithmetic.deterministic)  # before anything is compiled
        self.accelerator, self.objective, self.seed = accelerator, objective, seed
        self.model, self.optimizers = model.train(), optimizers  # from_pretrained leaves a model in evaluation mode
        self.is_sharded = is_sharded(model)  # its weights are held in fp32 and gathered in dtype
        self.working = WorkingCopy(model, torch.float32 if self.is_sharded else arithmetic.dtype)
        self.is_compiled, self.must_compile = arithmetic.compile, arithmetic.must_compile
        if self.is_compiled:
            prepare_compiler()
            for part in parts_to_compile(self.working.model, accelerator.num_processes):
                part.compile(dynamic=arithmetic.dynamic_shapes)
        self.wrapped = model if self.is_sharded else accelerator.prepare_model(self.working.model)
        loss_scale = LossScale(arithmetic.dtype == torch.float16)
        checks_each_step = accelerator.device.type == "cpu" or loss_scale.enabled
        self.guard = GradientGuard(arithmetic.max_grad_norm, loss_scale, checks_each_step)

    def run(
        self, step: int, batch: StepBatch, counts: Mapping[str, int], lr_factor: float, record: Record
    ) -> tuple[torch.Tensor, float]:
        """Do optimizer step number `step`; returns the gradient norm and the learning rate.

        `counts` are the step's targets over all micro-batches and processes, which its losses are means over; `record`
        takes what each micro-batch measured.
        """
        # Dropout's randomness is looked up by (seed, step, process), so no generator has to be saved.
        torch.manual_seed(seed_from(self.seed, step, self.accelerator.process_index))
        num_items = self.item_counts(counts)
        # DDP averages the processes' gradients; the sum is wanted.
        scale = self.accelerator.num_processes * self.guard.loss_scale.value
        for number, micro_batch in enumerate(batch.micro_batches, start=1):
            is_last = number == len(batch.micro_batches)
            if is_last and self.accelerator.num_processes > 1:
                self.working.return_gradients()
            with self.gradients_shared(is_last):
                outputs = self.wrapped(**micro_batch, **num_items, **self.objective.options)
                (outputs.loss * scale).backward()
            if not is_last:
                self.working.add_gradients()
            record(self.objective.measure(outputs, micro_batch, num_items))
            del outputs  # its scores would stay until the next pass ends, more memory than a dry run takes
        self.working.collect_gradients(self.guard.loss_scale.value)
        grad_norm = self.guard.clip(self.model, step, batch.documents)
        learning_rate = set_learning_rate(self.optimizers, lr_factor)
        self.update(grad_norm.isfinite())
        self.forget_gradients()
        return grad_norm, learning_rate

    def update(self, is_finite: torch.Tensor) -> None:
        """Update weights and optimizers; nothing changes where the gradient is not finite.

        A GPU is not waited for: it is given the whole update, and its optimizers skip it themselves.
        """
        if self.guard.checks_each_step and not is_finite:
            return
        found_inf = None if self.guard.checks_each_step else is_finite.logical_not().float()
        for optimizer in self.optimizers:
            optimizer.found_inf = found_inf  # as GradScaler gives it to fused optimizers
            optimizer.step()
        self.working.update()

    def item_counts(self, counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """The model's arguments that say how many targets there are, filled on the device: a copy would make it wait.

        Each is a tensor of its own: torch.compile would make another program for one tensor under two names.
        """
        device = self.accelerator.device
        return {name: torch.full((), float(counts[name]), device=device) for name in self.objective.count_names}

    def gradients_shared(self, is_last: bool) -> AbstractContextManager[Any]:
        """Share gradients between processes only after a step's last micro-batch."""
        if self.is_sharded:
            self.wrapped.set_requires_gradient_sync(is_last)
            return nullcontext()
        return nullcontext() if is_last else self.accelerator.no_sync(self.wrapped)

    def has_finite_weights(self) -> bool:
        """Whether all weights are finite; where they are sharded, every process has to call this."""
        norm = nn.utils.get_total_norm([weight.detach() for weight in self.model.parameters()])
        return bool(gather_full(norm).isfinite())

    def forget_gradients(self) -> None:
        """Free the gradients of all weights."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def dry_run(self, batch: Batch) -> None:
        """One forward and backward pass without an update, so that it is compiled, and memory is known to suffice."""
        if self.is_compiled and self.accelerator.num_processes > 1:
            # Where compiling the backward pass fails, DDP would wait for the rest of it.
            self.pass_once(self.working.model, batch)
        self.pass_once(self.wrapped, batch)

    def fits(self, batch: Batch) -> bool:
        """Whether memory suffices for such a pass of this process alone, uncompiled.

        That takes more memory than compiled, and a few milliseconds instead of a minute. Nothing stays allocated.
        """
        is_enough = True
        try:
            with torch.compiler.set_stance("force_eager"):
                self.pass_once(self.working.model, batch)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            is_enough = False  # until this block ends, the error holds what was computed
        self.working.model.zero_grad()
        if self.accelerator.device.type == "cuda":
            torch.cuda.empty_cache()
        return is_enough

    def pass_once(self, model: nn.Module, batch: Batch) -> None:
        """Forward and backward, with the memory taken that the rest of a step will need."""
        room = self.room_for_the_rest()
        ones = self.item_counts(dict.fromkeys(self.objective.count_names, 1))
        model(**to_device(batch, self.accelerator.device), **ones, **self.objective.options).loss.backward()
        del room
        self.working.model.zero_grad()

    def room_for_the_rest(self) -> torch.Tensor:
        """On a GPU, as much memory as a step holds beside a pass.

        That is two numbers for each weight in the optimizers, which the first step makes, and the sum of a working
        copy's gradients.
        """
        device, has_state = self.accelerator.device, any(each.state for each in self.optimizers)
        weights = 0 if device.type == "cpu" else sum(map(torch.numel, self.model.parameters()))
        numbers = 2 * (not has_state) + (not self.working.is_master)
        return torch.empty(
            numbers * weights // (self.accelerator.num_processes if self.is_sharded else 1), device=device
        )


def lacks_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory does not suffice: torch's own, the driver's, or that of a library's start."""
    signs = ("out of memory", "allocate memory", "ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")
    return any(sign in str(error) for sign in signs)


def parts_to_compile(model: nn.Module, processes: int = 1) -> list[nn.Module]:
    """The modules that are compiled, each on its own: the layers, or the whole model.

    The layers share their programs. A CPU compiles these in 0.62 of the time; a step takes 0.87 to 1.03 of the time
    (benchmarks/startup.py), with lengths that change 0.54 to 0.92 (benchmarks/finetune_step.py). What lies around them
    stays uncompiled. On GPUs this has not been measured. Sharded weights are gathered before each layer, so no program
    could span two of them. Several processes exchange a layer's gradients during the backward pass of the layers before
    it; of one program they would get all gradients at its end. (DDP splits a program, but not one that was compiled
    without it, as in `dry_run`.)
    """
    layers, on_cpu = layers_of(model), next(model.parameters()).device.type == "cpu"
    return layers if layers and (on_cpu or is_sharded(model) or processes > 1) else [model]


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers, which stand in a `ModuleList`."""
    return [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
