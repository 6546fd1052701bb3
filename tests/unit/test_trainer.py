"""The training loop: learning rates, micro-batches, dropout, gradients that are not finite, resuming, rehearsing."""

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.data.randomness import seed_from
from bertpre.data.sampler import Position
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.pretraining.batches import PretrainingData
from bertpre.pretraining.model import initial_model
from bertpre.pretraining.objective import PretrainingObjective, evaluate_batches
from bertpre.recipe import Recipe, load_recipe
from bertpre.run_directory import read_results
from bertpre.training import background, clock, saving
from bertpre.training import trainer as trainer_module
from bertpre.training.batches import StepBatch
from bertpre.training.checkpoint import Checkpoints, list_checkpoints, read_skipped, write_skipped
from bertpre.training.micro_batches import micro_batch_size
from bertpre.training.rehearsal import rehearse
from bertpre.training.remedies import Remedies
from bertpre.training.schedule import lr_at
from bertpre.training.step import Arithmetic, parts_to_compile
from bertpre.training.trainer import Trainer
from tests.helpers import copy_run, read_metrics, tree_hash
from tests.toys import LENGTH, ROWS, WIDTH, ToyModel, ToyOutput, ToySource, toy_trainer


def recipe_of(run: Path, output_dir: Path, *overrides: str) -> Recipe:
    return load_recipe(str(run / "recipe.yaml"), [f"output_dir={output_dir}", *overrides])


@pytest.mark.parametrize("fixture", ["tiny_run", "tiny_modern_run"])
def test_the_logged_learning_rate_follows_the_schedule_at_every_step(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(fixture)
    recipe = load_recipe(str(run / "recipe.yaml"))
    training, tuning = recipe.training, recipe.finetune
    for row in (rows := read_metrics(run, "pretrain", "train")):
        factor = lr_at((row["step"] - 1) / training.max_steps, training.schedule, training.warmup, training.decay)
        assert row["learning_rate"] == pytest.approx(factor * training.learning_rate, rel=1e-5), row["step"]
    assert [row["step"] for row in rows] == list(range(1, training.max_steps + 1))
    rows = read_metrics(run, "finetune", "train")
    for row in rows:
        factor = lr_at((row["step"] - 1) / len(rows), "linear", tuning.warmup if tuning.warmup * len(rows) >= 1 else 0)
        assert row["learning_rate"] == pytest.approx(factor * tuning.learning_rate, rel=1e-5), row["step"]
    assert len(rows) == tuning.epochs * 4  # 64 texts in batches of 16


def test_loss_and_gradient_do_not_depend_on_the_micro_batch(tiny_modern_run: Path, tmp_path: Path) -> None:
    logged = []
    for size in (8, 4, 2):
        target = copy_run(tiny_modern_run, tmp_path / str(size), "prepare")
        overrides = [f"training.phases.{phase}.micro_batch_size={size}" for phase in (0, 1)]
        # Muon's Newton-Schulz steps are in bf16: there a last digit becomes a third one.
        pretrain(recipe_of(tiny_modern_run, target, "training.optimizer=adamw", *overrides))
        logged.append(read_metrics(target, "pretrain", "train"))
    for rows in logged[1:]:
        for row, expected in zip(rows, logged[0], strict=True):
            for name in ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "tokens"):
                assert row[name] == pytest.approx(expected[name], abs=2e-5), (row["step"], name)
            assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4), row["step"]


def test_many_micro_batches_have_the_gradient_of_one_in_bf16(tmp_path: Path) -> None:
    class Repeated(ToySource):
        def __init__(self, times: int) -> None:
            super().__init__()
            self.times = times

        def __call__(self, position: Position, progress: float) -> StepBatch:
            batch = super().__call__(position, progress)
            return replace(batch, micro_batches=batch.micro_batches * self.times)

    norms = []
    for times in (1, 600):
        folder, bf16 = tmp_path / str(times), Arithmetic(torch.bfloat16)
        toy_trainer(folder, 1, Repeated(times), model=ToyModel(dropout=0.0), arithmetic=bf16).train()
        norms.append(read_metrics(folder)[0]["grad_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=0.01)  # in bf16 the sum of 600 would be half of it


@pytest.mark.parametrize("is_evaluated", [False, True])
def test_dropout_is_on_in_training_and_off_in_evaluations(is_evaluated: bool, tmp_path: Path) -> None:
    model, seen = ToyModel(), []
    trainer = toy_trainer(
        tmp_path,
        model=model.eval(),  # as from_pretrained leaves it
        measure=(lambda step: {"dropout": float(model.training)}) if is_evaluated else None,
        after_step=lambda trainer: seen.append(trainer.training_step.wrapped.training),
    )
    trainer.train()
    assert seen == [True] * 10
    assert {row["dropout"] for row in read_metrics(tmp_path, split="validation")} == ({0.0} if is_evaluated else set())


def poison(bad_steps: Iterable[int], in_weights: bool = False) -> tuple[Callable[[Trainer], None], list[int]]:
    """A hook that makes the gradient of some steps NaN, in the backward pass or by a NaN in the weights.

    Returns the hook and the list of steps whose gradient was computed since the hook was called first.
    """
    bad, tried = set(bad_steps), []

    def hook(trainer: Trainer) -> None:
        progress, weight = trainer.progress, trainer.training_step.model.get_input_embeddings().weight

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            tried.append(progress_of(trainer))
            return gradient * float("nan") if tried[-1] in bad and not in_weights else gradient

        if progress.step == 1:
            weight.register_hook(spoil)
        if in_weights and progress.step in bad and progress.step not in trainer.training_step.guard.left_out:
            weight.data[3, 3] = float("nan")

    return hook, tried


def test_the_first_step_of_a_short_training_has_a_rate(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    recipe = recipe_of(tiny_run, target, "training.max_steps=2", "training.warmup=0.01")  # less than a step
    pretrain(recipe)
    assert read_metrics(target, "pretrain", "train")[0]["learning_rate"] == recipe.training.learning_rate


def progress_of(trainer: Trainer) -> int:
    return trainer.progress.step


def test_a_gradient_that_is_not_finite_skips_its_step(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    hook, tried = poison([7])
    pretrain(recipe_of(tiny_run, target), hook)
    assert tried == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    said = capsys.readouterr().out
    assert re.search(r"step 7 is not finite \(its text: part-00000.train document .*\): skipped", said)
    assert read_skipped(target / "checkpoints") == {}
    rows, expected = (read_metrics(run, "pretrain", "train") for run in (target, tiny_run))
    assert [(row["step"], row.get("skipped_steps", 0)) for row in rows] == [
        *((step, 0) for step in range(1, 8)), (9, 1), (10, 0)
    ]  # fmt: skip
    assert_finite(target)
    # Up to the bad step nothing is different.
    assert [row["mlm_loss"] for row in rows[:7]] == [row["mlm_loss"] for row in expected[:7]]
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in expected if row["step"] != 8]


def assert_finite(run: Path) -> None:
    assert all(value.isfinite().all() for value in load_file(run / "model" / "model.safetensors").values())


def test_a_weight_that_is_not_finite_rolls_the_run_back_and_leaves_the_step_out(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    hook, tried = poison([7], in_weights=True)
    pretrain(recipe_of(tiny_run, target), hook)
    assert tried == [1, 2, 3, 4, 5, 6, 7, 5, 6, 8, 9]  # step 5 is the last checkpoint's
    said = capsys.readouterr().out
    assert "step 7 is not finite (its text: part-00000.train document" in said
    assert "back to step 5; this step will be left out" in said
    left_out = read_skipped(target / "checkpoints")
    assert list(left_out) == [7]
    assert left_out[7] and all("document" in name for name in left_out[7])
    assert [row["step"] for row in read_metrics(target, "pretrain", "train")] == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert_finite(target)
    rows, expected = (read_metrics(run, "pretrain", "train") for run in (target, tiny_run))
    assert [row["mlm_loss"] for row in rows[:7]] == [row["mlm_loss"] for row in expected[:7]]
    # The tokens of a step that is left out do not count.
    assert rows[-1]["tokens"] == expected[-1]["tokens"] - (expected[7]["tokens"] - expected[6]["tokens"])


def test_a_run_killed_after_it_rolled_back_still_leaves_the_step_out(tiny_run: Path, tmp_path: Path) -> None:
    one, two = (copy_run(tiny_run, tmp_path / name, "prepare") for name in ("one", "two"))
    pretrain(recipe_of(tiny_run, one), poison([7], in_weights=True)[0])
    (two / "checkpoints").mkdir()
    write_skipped(two / "checkpoints", read_skipped(one / "checkpoints"))
    pretrain(recipe_of(tiny_run, two))
    assert tree_hash(two / "model") == tree_hash(one / "model")


def test_too_many_bad_steps_end_the_run_with_one_message(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    with pytest.raises(UserError, match=r"steps 6, 7, 8, 9, 10 are not finite.*training.learning_rate"):
        pretrain(recipe_of(tiny_run, target, "training.max_steps=12"), poison(range(1, 12))[0])
    assert [path.name for path in list_checkpoints(target / "checkpoints")] == ["step-00000005", "step-00000010"]
    assert set(read_results(target)) == {"prepare"}


@pytest.mark.parametrize("in_weights", [False, True])
def test_checking_gradients_only_with_log_lines_gives_the_same_weights(
    in_weights: bool, tiny_run: Path, tmp_path: Path
) -> None:
    one, two = (copy_run(tiny_run, tmp_path / name, "prepare") for name in ("one", "two"))
    hook, _ = poison([7], in_weights)

    def as_on_a_gpu(trainer: Trainer) -> None:
        trainer.training_step.guard.checks_each_step = False
        other(trainer)

    pretrain(recipe_of(tiny_run, one, "training.log_every=4"), hook)
    other, _ = poison([7], in_weights)
    pretrain(recipe_of(tiny_run, two, "training.log_every=4"), as_on_a_gpu)
    assert tree_hash(two / "model") == tree_hash(one / "model")
    assert list(read_skipped(two / "checkpoints")) == ([7] if in_weights else [])


class TwoProcesses:
    """An accelerator whose other process measured 1 to 5 on 3 masked tokens and 2 pairs."""

    device = torch.device("cpu")

    def reduce(self, mine: torch.Tensor) -> torch.Tensor:
        return mine + torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0, 3.0, 2.0])


def test_a_process_without_a_validation_batch_takes_part_in_the_sums() -> None:
    figures = evaluate_batches(TwoProcesses(), torch.nn.Identity(), PretrainingObjective(), [], torch.float32)
    assert figures["mlm_loss"] == pytest.approx(2 / 3)
    assert figures["mlm_accuracy"] == pytest.approx(3 / 3)
    assert figures["nsp_loss"] == pytest.approx(4 / 2)
    assert figures["nsp_accuracy"] == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "size"), [(8, "auto", 1, 8), (8, "auto", 2, 4), (8, 2, 2, 2), (8, 8, 1, 8)]
)
def test_the_micro_batch_is_as_given_or_as_large_as_the_global_batch_allows(
    batch: int, micro: int | str, processes: int, size: int
) -> None:
    assert micro_batch_size(batch, micro, processes, "training.global_batch_size") == size


@pytest.mark.parametrize(("batch", "micro", "processes"), [(8, 3, 1), (8, "auto", 3), (2, "auto", 4), (8, 8, 2)])
def test_a_batch_that_cannot_be_cut_evenly_is_refused(batch: int, micro: int | str, processes: int) -> None:
    with pytest.raises(UserError, match="global_batch_size is .* must be a multiple of (micro|the number)"):
        micro_batch_size(batch, micro, processes, "training.global_batch_size")


def test_fp16_skips_steps_that_overflow_and_learns_from_the_others(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, 80, arithmetic=Arithmetic(torch.float16), every=40, model=ToyModel(dropout=0.0))
    scale = trainer.training_step.guard.loss_scale
    scale.value = 2.0**40  # overflows until it has halved often enough
    trainer.train()
    assert 1 < scale.value < 2.0**36
    state = json.loads((tmp_path / "checkpoints" / "step-00000080" / "state.json").read_text())
    assert state["loss_scale"] == [scale.value, scale.good_steps]
    assert not (tmp_path / "checkpoints" / "skipped.json").exists()
    rows = read_metrics(tmp_path, split="train")
    assert all(row["grad_norm"] < 100 for row in rows[-10:])  # without the scale
    losses = [row["loss"] for row in rows]
    assert sum(losses[-10:]) / 10 < sum(losses[:10]) / 10 - 0.1


def test_an_overflow_in_fp16_changes_no_weight(tmp_path: Path) -> None:
    def overflow_in_step_4(trainer: Trainer) -> None:
        if trainer.progress.step == 1:
            weight = trainer.training_step.working.model.classifier.weight
            weight.register_hook(lambda gradient: gradient * (float("inf") if trainer.progress.step == 3 else 1.0))

    trainer = toy_trainer(tmp_path, 6, arithmetic=Arithmetic(torch.float16), after_step=overflow_in_step_4)
    trainer.saver.place = Checkpoints(tmp_path / "checkpoints", every=1, keep=9)
    trainer.train()
    saved = [load_file(folder / "model.safetensors") for folder in list_checkpoints(tmp_path / "checkpoints")]
    assert all(value.isfinite().all() for weights in saved for value in weights.values())
    is_same = [
        all(torch.equal(one[name], other[name]) for name in one) for one, other in zip(saved, saved[1:], strict=False)
    ]
    assert is_same == [True, False, False, True, False, False]  # the learning rate of the first step is 0
    assert trainer.training_step.guard.loss_scale.value == 2.0**15


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_that_are_not_finite_are_never_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    def spoil(trainer: Trainer) -> None:
        if trainer.progress.step == 7:
            trainer.training_step.model.classifier.bias.data[3] = float("nan")
            trainer.training_step.working.update()
            trainer.save()

    trainer = toy_trainer(tmp_path, arithmetic=Arithmetic(dtype), after_step=spoil, remedies=Remedies(not_finite="X"))
    with pytest.raises(UserError, match="the weights are not finite after step 7; X; earlier checkpoints are intact"):
        trainer.train()
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    assert newest.name == "step-00000005"
    assert all(value.isfinite().all() for value in load_file(newest / "model.safetensors").values())


def test_tokens_can_end_a_training_and_a_phase_can_have_its_own_batch(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    pretrain(
        recipe_of(
            tiny_run, target, "training.max_steps=null", "training.max_tokens=6000",
            "training.phases.1.global_batch_size=16", "training.optimizer=lamb", "training.schedule=cosine",
        )
    )  # fmt: skip
    tokens = [row["tokens"] for row in read_metrics(target, "pretrain", "train")]
    assert tokens[-2] < 6000 <= tokens[-1]
    steps = [after - before for before, after in zip(tokens, tokens[1:], strict=False)]
    assert max(steps[: len(steps) // 2]) <= 8 * 32
    assert min(steps[-3:]) > 8 * 48
    assert read_metrics(target, "pretrain", "validation")[-1]["learning_rate"] == 0


class TooLarge(ToyModel):
    """Runs out of memory after some forward passes."""

    passes = 0

    def forward(self, **batch: torch.Tensor) -> ToyOutput:
        if self.passes == 0:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        self.passes -= 1
        return super().forward(**batch)


def test_a_step_that_does_not_fit_in_memory_is_one_message(tmp_path: Path) -> None:
    model = TooLarge()
    trainer = toy_trainer(tmp_path, model=model, remedies=Remedies(memory="lower the_key"))
    model.passes = 4
    with pytest.raises(UserError, match="^not enough memory at step [1-9].*: lower the_key; DefaultCPU"):
        trainer.train()


def test_a_batch_that_does_not_fit_in_memory_is_reported_before_the_first_step(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, model=TooLarge(), remedies=Remedies(memory="lower the_key"))
    with pytest.raises(UserError, match="not enough memory for 4 rows of 16 tokens.*: lower the_key; DefaultCPU"):
        trainer.train()
    assert trainer.progress.step == 0
    assert not (tmp_path / "checkpoints").exists()


def test_a_batch_that_does_not_fit_uncompiled_is_reported_where_the_compiler_fails(tmp_path: Path) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    class Uncompilable(TooLarge):
        has_failed = False

        def forward(self, **batch: torch.Tensor) -> ToyOutput:
            if not self.has_failed:
                self.has_failed = True
                raise BackendCompilerFailed("inductor", OSError("no compiler"), None)
            return super().forward(**batch)

    try:
        with pytest.raises(UserError, match="not enough memory for 4 rows of 16 tokens"):
            toy_trainer(tmp_path, model=Uncompilable()).train()
    finally:
        torch.compiler.set_stance("default")


def test_the_dry_run_covers_every_phase(tiny_run: Path) -> None:
    recipe = load_recipe(str(tiny_run / "recipe.yaml"))
    data = PretrainingData(recipe, load_tokenizer(tiny_run / "tokenizer"), tiny_run / "data", Accelerator(cpu=True))
    assert [tuple(batch["input_ids"].shape) for batch in data.largest()] == [(8, 32), (8, 48)]


@pytest.mark.parametrize("limit", ["steps", "tokens"])
def test_each_batch_is_asked_for_with_the_progress_of_its_step(limit: str, tmp_path: Path) -> None:
    """Also those that are prepared before the first step, after a resume, and steps ahead."""
    duration = {"max_steps": 8} if limit == "steps" else {"max_steps": None, "max_tokens": 8 * ROWS * LENGTH}
    for stop, (first, last) in {3: (0, 3), 10**9: (3, 8)}.items():
        source = ToySource()
        trainer = toy_trainer(tmp_path, source=source, every=1, **duration)
        trainer.should_stop = lambda trainer=trainer, stop=stop: trainer.progress.step == stop
        trainer.train()
        asked = source.asked[: last - first + 1]
        assert asked == [step / 8 for step in range(first, last + 1)]


def test_the_steps_use_the_programs_that_the_dry_run_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    original = torch.nn.Module.compile

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        compiled.append(len(source.asked))  # 0 during the dry run
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, dynamic: original(self, backend=backend))
    source = ToySource(micro_batches=2)
    toy_trainer(tmp_path, source=source, arithmetic=Arithmetic(compile=True)).train()
    assert compiled and set(compiled) == {0}


@pytest.mark.parametrize("kind", ["none", "nsp"])
def test_pretraining_compiles_one_program_for_each_layer_and_phase(
    kind: str, tiny_modern_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch without an attention mask among others with one, or the other way round, would need another.

    The two layers differ: the first has no norm before attention.
    """
    compiled: list[int] = []
    original = torch.nn.Module.compile

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        compiled.append(len(inputs))
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, dynamic: original(self, backend=backend))
    recipe = recipe_of(tiny_modern_run, tmp_path / "run", f"pairs.kind={kind}", "training.compile=true")
    prepare(recipe)
    pretrain(recipe)
    assert len(compiled) == 4


class ToyLayer(torch.nn.Module):
    """One of several equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states + self.dense(states).tanh()


class LayeredModel(ToyModel):
    """The toy model with three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(ToyLayer() for _ in range(3))
        self.embeddings = torch.nn.Sequential(self.embeddings, *self.layers)


def test_equal_layers_share_one_program_and_evaluation_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[int] = []
    original = torch.nn.Module.compile

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        compiled.append(len(source.asked))  # 0 during the dry run
        return graph.forward

    def measure(step: int) -> dict[str, float]:
        batch = source.largest()[0]
        with torch.no_grad():
            return {"loss": float(model.forward(**batch, num_items_in_batch=torch.ones(())).loss)}

    torch._dynamo.reset()
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, dynamic: original(self, backend=backend))
    source, model = ToySource(micro_batches=2), LayeredModel()
    toy_trainer(tmp_path, 4, source, every=2, measure=measure, model=model, arithmetic=Arithmetic(compile=True)).train()
    assert compiled == [0]


def test_a_model_without_layers_is_compiled_as_a_whole() -> None:
    model = LayeredModel()
    assert parts_to_compile(model) == list(model.layers)
    assert [type(part) for part in parts_to_compile(ToyModel())] == [ToyModel]


def test_on_several_gpus_the_layers_are_compiled_so_that_each_one_shares_its_gradients_at_once() -> None:
    model = LayeredModel().to("meta")  # as little of a CPU as a GPU is
    assert parts_to_compile(model) == [model]
    assert parts_to_compile(model, processes=8) == list(model.layers)


class FakeTime:
    """The module `time` with a clock that only `pass_by` moves, but for a microsecond at each reading."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        self.seconds += 1e-6
        return self.seconds

    def thread_time(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    for module in (clock, saving, background, trainer_module):
        monkeypatch.setattr(module, "time", fake)
    return fake


def test_start_up_is_not_part_of_the_warm_up(fake_time: FakeTime, tmp_path: Path) -> None:
    each_step = partial(toy_trainer, max_steps=None, after_step=lambda _: fake_time.pass_by(0.05))
    slow = ToySource(before_largest=lambda: fake_time.pass_by(1.0))  # as compiling is
    each_step(tmp_path / "run", source=slow, budget_seconds=2.5, warmup=0.5, every=0).train()
    rows = read_metrics(tmp_path / "run", split="train")
    rates = [row["learning_rate"] for row in rows]
    assert rows[0]["elapsed_seconds"] == pytest.approx(1.0, rel=1e-3)
    assert rates[0] < 0.5 * 1e-2  # with start-up it would be 0.8
    assert max(rates) > 0.6 * 1e-2

    slow = ToySource(before_largest=lambda: fake_time.pass_by(0.6))
    trainer = each_step(tmp_path / "none", source=slow, budget_seconds=0.5, remedies=Remedies(budget="the_key"))
    with pytest.raises(UserError, match="the_key is too short: start-up took 1 s and the final evaluation"):
        trainer.train()
    assert not list(tmp_path.glob("none/**/step-*"))  # another budget is another recipe, and needs a new beginning
    again = each_step(tmp_path / "none", budget_seconds=0.5, every=0)  # now, e.g., the compiled code is cached
    again.train()
    assert again.progress.step == 10


def test_a_finished_training_that_is_called_again_keeps_its_seconds(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run")
    trainer.train()
    again = toy_trainer(tmp_path / "run", source=ToySource(before_largest=lambda: time.sleep(1.0)))
    again.train()
    assert again.progress.step == trainer.progress.step
    assert again.clock.elapsed <= trainer.clock.elapsed


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    names = ("split", "step", "loss", "grad_norm", "learning_rate", "tokens")
    return [{name: row.get(name) for name in names} for row in read_metrics(folder)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ten_steps_are_five_and_a_resume_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    toy_trainer(tmp_path / "whole", log_every=3, arithmetic=Arithmetic(dtype)).train()

    class Killed(Exception):
        pass

    def kill(trainer: Trainer) -> None:
        if trainer.progress.step == 7:  # two steps after the checkpoint, one after a log line
            raise Killed

    with pytest.raises(Killed):
        toy_trainer(tmp_path / "cut", log_every=3, arithmetic=Arithmetic(dtype), after_step=kill).train()
    toy_trainer(tmp_path / "cut", log_every=3, arithmetic=Arithmetic(dtype)).train()
    last = Path("checkpoints") / "step-00000010"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "cut" / last / name).read_bytes() == (tmp_path / "whole" / last / name).read_bytes()
    # The line of step 6 holds steps 4 to 6, and 4 and 5 were before the checkpoint.
    assert rows_without_times(tmp_path / "cut") == rows_without_times(tmp_path / "whole")


def test_a_checkpoint_holds_the_evaluation_of_its_step(tmp_path: Path) -> None:
    toy_trainer(tmp_path, measure=lambda step: {"loss": float(step)}).train()
    state = json.loads((tmp_path / "checkpoints" / "step-00000005" / "state.json").read_text())
    assert (state["metrics"]["step"], state["metrics"]["loss"]) == (5, 5.0)


@pytest.mark.parametrize(("seconds", "steps"), [(1e-9, [0, 1, 2, 3]), (1e9, [0, 3])])
def test_checkpoints_by_time(seconds: float, steps: list[int], tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, max_steps=3)
    trainer.saver.place = Checkpoints(tmp_path / "checkpoints", keep=9, every_seconds=seconds)
    trainer.train()
    assert [int(path.name.removeprefix("step-")) for path in list_checkpoints(tmp_path / "checkpoints")] == steps


def test_checkpoints_by_time_are_counted_from_the_last_one(fake_time: FakeTime, tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, after_step=lambda _: fake_time.pass_by(10))
    trainer.saver.place = Checkpoints(tmp_path / "checkpoints", keep=9, every_seconds=25)
    trainer.train()
    assert [int(path.name.removeprefix("step-")) for path in list_checkpoints(tmp_path / "checkpoints")] == [
        0,
        4,
        7,
        10,
    ]


def test_dropout_depends_on_seed_step_and_process_and_not_on_python() -> None:
    assert seed_from(1, 2, 3) == 3851293329796251419
    seeds = {seed_from(seed, step, rank) for seed in range(3) for step in range(50) for rank in range(4)}
    assert len(seeds) == 600
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_every_step_has_its_own_dropout(tmp_path: Path) -> None:
    seeds: list[int] = []
    toy_trainer(tmp_path, 3, seed=7, after_step=lambda trainer: seeds.append(torch.initial_seed())).train()
    assert seeds == [seed_from(7, step, 0) for step in range(3)]
    assert len(set(seeds)) == 3


def test_a_rehearsal_times_steps_overfits_a_batch_and_saves_nothing(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, max_steps=2, model=ToyModel(dropout=0.0), warmup=0.0)
    trainer.saver.place = None
    rehearsal = rehearse(trainer, steps=2, overfit_steps=60)
    assert len(rehearsal.overfit) == 60
    assert rehearsal.overfit[-1]["loss"] < 0.5 * rehearsal.overfit[0]["loss"]
    assert rehearsal.step_seconds > 0
    assert rehearsal.step_tokens == ROWS * LENGTH
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("max_steps", [1, 3])
def test_a_rehearsal_is_no_longer_than_the_training(max_steps: int, tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, max_steps=max_steps)
    trainer.saver.place = None
    rehearsal = rehearse(trainer, steps=5, overfit_steps=2)
    assert len(rehearsal.overfit) == 2
    assert rehearsal.step_tokens == ROWS * LENGTH
    assert trainer.progress.step == max_steps + 2


def test_a_finished_training_that_resumes_has_one_last_evaluation(tmp_path: Path) -> None:
    for _ in range(3):
        toy_trainer(tmp_path, max_steps=10, every=5, measure=lambda step: {"loss": 1.0}).train()
    steps = [row["step"] for row in read_metrics(tmp_path, split="validation")]
    assert steps == sorted(set(steps)) and steps[-1] == 10


def test_should_stop_ends_the_training_early(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, should_stop=lambda: trainer.progress.step == 4)
    trainer.train()
    assert trainer.progress.step == 4
    assert (tmp_path / "checkpoints" / "step-00000004").exists()


def test_a_compiler_that_fails_is_one_warning_or_one_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from torch._inductor import config

    alone = toy_trainer(tmp_path / "eager", 3)
    alone.train()
    torch.compiler.reset()
    try:
        with config.patch({"cpp.cxx": (None, "/bin/false"), "force_disable_caches": True}):
            required = Arithmetic(compile=True, must_compile=True)
            with pytest.raises(UserError, match=r"^torch.compile fails \(.*\): turn it off$"):
                toy_trainer(tmp_path / "required", 3, arithmetic=required).train()
            trainer = toy_trainer(tmp_path / "auto", 3, arithmetic=Arithmetic(compile=True))
            trainer.train()
    finally:
        torch.compiler.set_stance("default")
        torch.compiler.reset()
    own = [record.message for record in caplog.records if record.name.startswith("bertpre")]
    assert [message.partition(" (")[0] for message in own] == ["torch.compile fails"]
    for weight, expected in zip(
        trainer.training_step.model.parameters(), alone.training_step.model.parameters(), strict=True
    ):
        assert torch.equal(weight, expected)


def test_one_slow_validation_does_not_keep_its_time_for_the_last(tmp_path: Path) -> None:
    def measure(step: int) -> dict[str, float]:
        time.sleep(0.3 if step == 5 else 0.01)
        return {}

    kept: list[float] = []
    note = lambda trainer: kept.append(trainer.clock.reserve_seconds - 1.1 * trainer.saver.save_seconds)  # noqa: E731
    toy_trainer(tmp_path, 10, measure=measure, after_step=note, budget_seconds=600.0).train()
    assert 0.01 < kept[-1] < 0.2


def test_the_last_checkpoint_holds_the_last_evaluation(tmp_path: Path) -> None:
    toy_trainer(tmp_path, 10, measure=lambda step: {"score": float(step)}).train()
    last = list_checkpoints(tmp_path / "checkpoints")[-1]
    metrics = json.loads((last / "state.json").read_text())["metrics"]
    assert (last.name, metrics["step"], metrics["score"]) == ("step-00000010", 10, 10.0)


def test_the_clock_starts_with_the_stage(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(*arguments: Any) -> Any:  # noqa: ANN401
        time.sleep(1.5)
        return initial_model(*arguments)

    monkeypatch.setattr("bertpre.commands.pretrain.initial_model", slowly)
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    results = pretrain(recipe_of(tiny_run, target, "training.max_steps=2"))
    assert results["seconds"] > 1.5


@pytest.mark.parametrize("slow_step", [3, None])
def test_a_budget_that_one_step_uses_up_is_explained(
    slow_step: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def after_step(trainer: Trainer) -> None:
        trainer.clock.started -= 2.0 if trainer.progress.step != slow_step else 60.0  # as if the step had taken longer

    toy_trainer(tmp_path, None, after_step=after_step, budget_seconds=60.0).train()
    said = "% of the schedule: one step or validation took the rest of it" in capsys.readouterr().out
    assert said == (slow_step is not None)
