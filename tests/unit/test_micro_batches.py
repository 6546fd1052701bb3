"""Micro-batches as large as memory allows, on a model that runs out of memory above a number of rows."""

import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import DistributedType
from torch import Tensor

from bertpre.commands.finetune import finetune
from bertpre.commands.pretrain import pretrain
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.finetuning.batches import TrainingBatches
from bertpre.finetuning.encoding import EncodedExamples
from bertpre.pretraining.batches import PretrainingData
from bertpre.recipe import Finetune, load_recipe
from bertpre.run_directory import drop_results
from bertpre.training.checkpoint import list_checkpoints, read_state, state_checksum
from bertpre.training.micro_batches import restore_sizes, sizes_of, sizes_to_try
from bertpre.training.step import Arithmetic, TrainingStep
from bertpre.training.trainer import Trainer
from tests.helpers import copy_run, read_metrics
from tests.toys import ROWS, ToyModel, ToyOutput, ToySource, toy_trainer

OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 bytes")
NO_HANDLE = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


class LimitedModel(ToyModel):
    """Runs out of memory above `limit` rows: after the forward pass, or in the middle of the backward pass."""

    def __init__(self, limit: int, in_backward: bool = False, error: RuntimeError = OUT_OF_MEMORY) -> None:
        super().__init__()
        self.limit, self.in_backward, self.error = limit, in_backward, error
        self.classifier.weight.register_hook(lambda gradient: self.run_out() if in_backward else None)
        self.tried: list[int] = []
        self.computed: list[weakref.ref[Tensor]] = []

    def forward(self, input_ids: Tensor, **others: Tensor) -> ToyOutput:
        self.tried.append(len(input_ids))
        output = super().forward(input_ids, **others)
        self.computed.append(weakref.ref(output.loss))
        if not self.in_backward:
            self.run_out()
        return output

    def run_out(self) -> None:
        """Raise what a full GPU raises, if this pass has too many rows."""
        if self.tried[-1] > self.limit:
            raise type(self.error)(*self.error.args)


def limited_trainer(folder: Path, limit: int, **others: Any) -> Trainer:  # noqa: ANN401
    return toy_trainer(folder, source=ToySource(choices=(4, 2, 1)), model=LimitedModel(limit), **others)


def size_of(trainer: Trainer) -> int:
    return trainer.batches.source.shapes[0].micro_batch_size


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("error", [OUT_OF_MEMORY, NO_HANDLE])
def test_a_pass_that_does_not_fit_leaves_nothing_behind(error: RuntimeError, in_backward: bool, tmp_path: Path) -> None:
    model = LimitedModel(2, in_backward, error)
    trainer = toy_trainer(tmp_path, model=model)
    assert not trainer.training_step.fits(ToySource().sample(3))
    assert [each() for each in model.computed] == [None]
    assert [weight.grad for weight in trainer.training_step.working.model.parameters()] == [None] * 3
    assert trainer.training_step.fits(ToySource().sample(2))


def test_another_error_is_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    model = LimitedModel(2, error=RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        toy_trainer(tmp_path, model=model).training_step.fits(ToySource().sample(3))


@pytest.mark.parametrize(("limit", "tried", "size"), [(5, [5], 4), (4, [5, 3], 2), (2, [5, 3, 2], 1)])
def test_the_largest_size_with_headroom_is_taken(limit: int, tried: list[int], size: int, tmp_path: Path) -> None:
    trainer = limited_trainer(tmp_path, limit, max_steps=2)
    trainer.train()
    assert trainer.training_step.working.model.tried == [*tried, size, *[size] * (2 * ROWS // size)]
    assert read_state(list_checkpoints(tmp_path / "checkpoints")[-1])["micro_batches"] == [[4, size]]


def test_a_resumed_training_takes_the_same_size_and_is_bit_identical(tmp_path: Path) -> None:
    limited_trainer(tmp_path / "whole", 4).train()
    with pytest.raises(KeyboardInterrupt):
        limited_trainer(tmp_path / "cut", 4, after_step=interrupt_at(7)).train()
    resumed = limited_trainer(tmp_path / "cut", 4)  # with its headroom gone: here four rows at once would fit as well
    resumed.train()
    assert size_of(resumed) == 2
    weights = Path("checkpoints", "step-00000010", "model.safetensors")
    assert (tmp_path / "cut" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    assert read_state(tmp_path / "cut" / weights.parent)["micro_batches"] == [[4, 2]]


def test_a_training_resumes_on_a_gpu_with_less_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        limited_trainer(tmp_path, 5, after_step=interrupt_at(7)).train()
    resumed = limited_trainer(tmp_path, 3)
    resumed.train()
    assert (size_of(resumed), resumed.progress.step) == (2, 10)
    assert "warning: only 2 of 4 rows of 16 tokens fit in this GPU's memory" in capsys.readouterr().out


def interrupt_at(step: int) -> Callable[[Trainer], None]:
    def after_step(trainer: Trainer) -> None:
        if trainer.progress.step == step:
            raise KeyboardInterrupt

    return after_step


def test_sizes_are_those_of_the_same_share_of_a_batch() -> None:
    same, other = ToySource(choices=(4, 2, 1)), ToySource(choices=(4, 2, 1))
    same.micro_batch_size = 2
    assert sizes_of([same]) == [(4, 2)]
    assert restore_sizes([other], [(8, 1)]) == []  # of half as many processes
    assert other.micro_batch_size == ROWS
    assert restore_sizes([other], sizes_of([same])) == [other]
    assert other.micro_batch_size == 2
    named = ToySource(choices=(4,))  # by the recipe, since the checkpoint
    assert restore_sizes([named], sizes_of([same])) == []
    assert named.micro_batch_size == 4


def test_a_resumed_training_with_another_share_chooses_with_headroom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        limited_trainer(tmp_path, 4, after_step=interrupt_at(7)).train()
    state = list_checkpoints(tmp_path / "checkpoints")[-1] / "state.json"
    values = json.loads(state.read_text()) | {"micro_batches": [[8, 8]]}  # of half as many processes
    checksums = values.pop("sha256") | {"state": state_checksum(values)}
    state.write_text(json.dumps(values | {"sha256": checksums}))
    resumed = limited_trainer(tmp_path, 4)
    resumed.train()
    assert (size_of(resumed), resumed.first_step) == (2, values["step"])
    assert "warning" not in capsys.readouterr().out


def test_a_single_row_that_does_not_fit_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not enough memory for 1 rows of 16 tokens.*: train a smaller model, or on"):
        limited_trainer(tmp_path, 0).train()


def test_nothing_is_compiled_to_find_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    original = torch.nn.Module.compile

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        rows.extend({len(value) for value in inputs if value.dtype == torch.int64})
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, dynamic: original(self, backend=backend))
    source = ToySource(choices=(4, 2, 1))
    trainer = toy_trainer(tmp_path, source=source, arithmetic=Arithmetic(compile=True))
    fits = trainer.training_step.fits
    monkeypatch.setattr(trainer.training_step, "fits", lambda batch: fits(batch) and len(batch["input_ids"]) < 5)
    trainer.train()
    assert set(rows) == {2}


def machine(device: str, kind: DistributedType = DistributedType.NO, processes: int = 1) -> SimpleNamespace:
    """What the batches ask of the processes."""
    return SimpleNamespace(device=torch.device(device), distributed_type=kind, num_processes=processes, process_index=0)


def test_a_gpu_tries_the_divisors_of_its_share() -> None:
    assert sizes_to_try(8, machine("cuda")) == [8, 4, 2, 1]
    assert sizes_to_try(12, machine("cuda", DistributedType.MULTI_GPU)) == [12, 6, 4, 3, 2, 1]


def test_a_cpu_and_fsdp_take_the_whole_share() -> None:
    assert sizes_to_try(8, machine("cpu")) == sizes_to_try(8, machine("cuda", DistributedType.FSDP)) == [8]


@pytest.mark.parametrize(
    ("device", "override", "choices"),
    [("cuda", "auto", [4, 2, 1]), ("cuda", "null", [4, 2, 1]), ("cuda", "2", [2]), ("cpu", "auto", [4])],
)
def test_each_phase_has_its_own_choices(
    device: str, override: str, choices: list[int], tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))  # no GPU has to be there
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), [f"training.phases.1.micro_batch_size={override}"])
    two = machine(device, processes=2)
    data = PretrainingData(recipe, load_tokenizer(tiny_run / "tokenizer"), tiny_run / "data", two)
    first, second = data.shapes
    assert (second.choices, second.micro_batch_size) == (choices, choices[0])
    assert first.choices[0] == 4
    assert second.sample(5)["input_ids"].shape == (5, 48)
    first.micro_batch_size = 1
    if device == "cpu":
        assert {len(batch["input_ids"]) for batch in data.validation_batches()} == {1}


@pytest.mark.parametrize(
    ("device", "wanted", "choices"), [("cuda", "auto", [8, 4, 2, 1]), ("cuda", 2, [2]), ("cpu", "auto", [8])]
)
def test_fine_tuning_tries_its_longest_texts(device: str, wanted: int | str, choices: list[int]) -> None:
    encoded = EncodedExamples([[2, *[9] * n, 3] for n in (1, 30, 2)], None, torch.zeros(3).numpy())
    settings = Finetune(path="sample", batch_size=8, micro_batch_size=wanted, max_length=64)
    data = TrainingBatches(encoded, 0, settings, machine(device), seed=0)
    assert data.shapes[0].choices == choices
    assert data.sample(5)["input_ids"].shape == (5, 32)  # more than there are texts


def test_pretraining_and_fine_tuning_with_sizes_that_were_tried_give_the_same_losses(
    tiny_modern_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[list[int]] = []

    def after_step(trainer: Trainer) -> None:
        sizes.append([shape.micro_batch_size for shape in trainer.batches.source.shapes])

    for place in ("pretraining", "finetuning"):
        monkeypatch.setattr(f"bertpre.{place}.batches.sizes_to_try", lambda share, _: [share, share // 2, share // 4])
    monkeypatch.setattr(TrainingStep, "fits", lambda _, batch: len(batch["input_ids"]) <= 6)
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    recipe = load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={target}"])
    finetune(recipe, after_step)
    assert sizes == [[4]] * 8  # a quarter of 16: nine rows have no room
    sizes.clear()
    shutil.rmtree(target / "checkpoints")
    drop_results(target, "pretrain")
    pretrain(recipe, after_step)
    assert sizes == [[4, 4]] * 10
    for stage in ("pretrain", "finetune"):
        rows, expected = read_metrics(target, stage, "train"), read_metrics(tiny_modern_run, stage, "train")
        assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], rel=2e-3)
