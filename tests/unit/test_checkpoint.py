"""A checkpoint is whole or not there; a damaged one is passed over and nothing is deleted."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from bertpre.errors import UserError
from bertpre.training import checkpoint
from bertpre.training.checkpoint import (
    FILES,
    Checkpoints,
    discard_first,
    list_checkpoints,
    load_checkpoint,
    read_state,
    read_tensors,
    save_checkpoint,
)
from bertpre.training.optimizer import build_optimizers
from tests.helpers import tree_hash


class Tied(nn.Module):
    """A matrix inside a layer, a bias, and an embedding used twice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList([nn.Linear(4, 4)])
        self.embeddings = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6)
        self.head.weight = self.embeddings.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder.layer[0](self.embeddings(ids)))


def trained(steps: int, seed: int = 0) -> tuple[Tied, list[torch.optim.Optimizer]]:
    """A model after some steps with Muon and AdamW."""
    model = Tied(seed)
    optimizers = build_optimizers(model, "muon", 1e-2, 0.01)
    continue_training(model, optimizers, steps)
    return model, optimizers


def continue_training(model: Tied, optimizers: list[torch.optim.Optimizer], steps: int) -> None:
    for step in range(steps):
        model(torch.tensor([[step % 6, 1, 2]])).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def save(folder: Path, step: int, keep: int = 5, **more: Any) -> tuple[Tied, list[torch.optim.Optimizer]]:  # noqa: ANN401
    model, optimizers = trained(step)
    state = {"position": {"phase": 0, "epoch": 1, "offset": step}, "elapsed": 0.25} | more
    save_checkpoint(Checkpoints(folder, keep=keep), model, optimizers, {"step": step, **state})
    return model, optimizers


def flip_byte(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_states_of_weights_in_another_order_are_refused(tmp_path: Path) -> None:
    model, optimizers = save(tmp_path, 3)
    adam = optimizers[0].param_groups
    assert adam[0]["params"][0].shape != adam[1]["params"][0].shape
    adam[0]["params"], adam[1]["params"] = adam[1]["params"], adam[0]["params"]
    with pytest.raises(UserError, match="written by another version of bertpre, which ordered the weights otherwise"):
        load_checkpoint(tmp_path, model, optimizers)


def test_training_goes_on_to_the_same_bits_after_a_round_trip(tmp_path: Path) -> None:
    model, optimizers = save(tmp_path, 3)
    other, other_optimizers = trained(1, seed=9)
    state = load_checkpoint(tmp_path, other, other_optimizers)
    assert state == {"step": 3, "position": {"phase": 0, "epoch": 1, "offset": 3}, "elapsed": 0.25}
    for either in ((model, optimizers), (other, other_optimizers)):
        continue_training(*either, steps=4)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_loading_leaves_learning_rates_alone(tmp_path: Path) -> None:
    save(tmp_path, 2)
    model, optimizers = trained(0)
    optimizers[0].param_groups[0]["lr"] = 0.123
    load_checkpoint(tmp_path, model, optimizers)
    assert optimizers[0].param_groups[0]["lr"] == 0.123


def test_where_there_is_no_checkpoint_nothing_is_loaded(tmp_path: Path) -> None:
    model, optimizers = trained(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert load_checkpoint(tmp_path / "none", model, optimizers) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize("name", [*FILES, "state.json"])
@pytest.mark.parametrize("place", [0, 100, -3])
def test_a_flipped_byte_sends_loading_back_to_the_one_before(
    name: str, place: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, _ = save(tmp_path, 1)
    save(tmp_path, 2)
    flip_byte(tmp_path / "step-00000002" / name, place)
    before = tree_hash(tmp_path)
    model, optimizers = trained(0, seed=9)
    state = load_checkpoint(tmp_path, model, optimizers)
    assert state is not None
    assert state["step"] == 1
    assert torch.equal(model.embeddings.weight, older.embeddings.weight)
    assert "step-00000002 is damaged" in caplog.text
    assert tree_hash(tmp_path) == before


def test_every_digit_of_the_state_is_guarded(tmp_path: Path) -> None:
    save(tmp_path, 1)
    file = tmp_path / "step-00000001" / "state.json"
    text = file.read_text()
    for place, character in enumerate(text):
        if character.isdigit():
            file.write_text(text[:place] + str((int(character) + 1) % 10) + text[place + 1 :])
            assert load_checkpoint(tmp_path, *trained(0)) is None, text[max(0, place - 30) : place + 1]
    file.write_text(text)
    assert load_checkpoint(tmp_path, *trained(0)) is not None


def test_processes_read_the_same_checkpoint_with_a_metric_that_is_not_a_number(tmp_path: Path) -> None:
    save(tmp_path, 1, metrics={"mlm_loss": math.nan})
    path = tmp_path / "step-00000001"
    first = pickle.loads(pickle.dumps(read_state(path)))  # as the first process's comes to the others
    assert first != read_state(path)  # since NaN is not equal to itself
    assert read_tensors(path, first, is_checked=False)
    with pytest.raises(UserError, match="is missing, damaged or another one here"):
        read_tensors(path, first | {"step": 2}, is_checked=False)


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"sha256": 1}', '{"sha256": {}}', "\x00\xff"])
def test_a_state_that_is_no_state_counts_as_damage(content: str, tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000001" / "state.json").write_text(content)
    assert load_checkpoint(tmp_path, *trained(0)) is None


def test_a_missing_file_counts_as_damage(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "step-00000002" / "optimizer.safetensors").unlink()
    assert load_checkpoint(tmp_path, *trained(0))["step"] == 1


class Best:
    """Remembers a score and weights."""

    def __init__(self, score: float, weights: torch.Tensor) -> None:
        self.score, self.weights = score, weights

    def state(self) -> dict[str, float]:
        return {"score": self.score}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"weights": self.weights}

    def load(self, state: dict[str, float], tensors: dict[str, torch.Tensor]) -> None:
        self.score, self.weights = state["score"], tensors["weights"]


def test_what_evaluations_remember_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2):
        best = Best(step / 3, torch.arange(4.0).reshape(2, 2).T * step)
        save_checkpoint(Checkpoints(tmp_path, keep=5), *trained(step), {"step": step, "elapsed": 0.0}, best)
    found = Best(0, torch.zeros(0))
    load_checkpoint(tmp_path, *trained(0), found)
    assert found.score == 2 / 3
    assert torch.equal(found.weights, torch.tensor([[0.0, 4.0], [2.0, 6.0]]))
    flip_byte(tmp_path / "step-00000002" / "memory.safetensors", -1)
    assert load_checkpoint(tmp_path, *trained(0), found)["step"] == 1
    assert found.score == 1 / 3


def test_a_damaged_checkpoint_ahead_does_not_push_the_new_one_out(tmp_path: Path) -> None:
    save(tmp_path, 4, keep=1)
    flip_byte(tmp_path / "step-00000004" / "model.safetensors", -1)
    save(tmp_path, 2, keep=1)  # trained again from the start
    assert load_checkpoint(tmp_path, *trained(0))["step"] == 2
    save(tmp_path, 4, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000004"]
    assert load_checkpoint(tmp_path, *trained(0))["step"] == 4


def test_a_damaged_checkpoint_that_is_written_again_is_kept_aside(tmp_path: Path) -> None:
    for number in range(2):
        save(tmp_path, 4)
        flip_byte(tmp_path / "step-00000004" / "model.safetensors", -1 - number)
    save(tmp_path, 4)
    damaged = ["step-00000004.damaged", "step-00000004.damaged-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", *damaged]
    assert load_checkpoint(tmp_path, *trained(0))["step"] == 4


def test_what_cannot_be_read_is_never_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    flip_byte(tmp_path / "step-00000001" / "optimizer.safetensors", -1)
    for step in (2, 3, 4):
        save(tmp_path, step, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001", "step-00000004"]


def test_the_first_of_each_stretch_of_time_is_kept(tmp_path: Path) -> None:
    model, optimizers = trained(1)
    for step in range(12):  # ten seconds apart
        save_checkpoint(Checkpoints(tmp_path, keep_every=40), model, optimizers, {"step": step, "elapsed": 10.0 * step})
    assert [int(path.name.removeprefix("step-")) for path in list_checkpoints(tmp_path)] == [0, 4, 8, 10, 11]


def test_folders_that_are_not_checkpoints_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-00000001-copy").mkdir()
    for step in (1, 2, 3):
        save(tmp_path, step, keep=1)
    assert (tmp_path / "step-00000001-copy").is_dir()
    assert load_checkpoint(tmp_path, *trained(0))["step"] == 3


def test_a_save_that_fails_half_way_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, keep=1)

    def no_space(tensors: dict[str, torch.Tensor], file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", no_space)
        with pytest.raises(UserError, match="step 2 cannot be written: no space left. Earlier checkpoints are intact"):
            save(tmp_path, 2, keep=1)
    assert load_checkpoint(tmp_path, *trained(0))["step"] == 1
    save(tmp_path, 2, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_a_place_that_is_no_folder_is_not_called_full_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="step 1 cannot be written") as raised:
        save(tmp_path / "checkpoints", 1)
    assert "intact" not in str(raised.value)
    assert "mend that and run the same command" in str(raised.value)


def test_beginning_anew_removes_the_first_step_and_no_later_one(tmp_path: Path) -> None:
    save(tmp_path / "run", 0)
    discard_first(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for step in (0, 7):
        save(tmp_path / "run", step)
    (tmp_path / "run" / "step-00000007" / FILES[0]).write_bytes(b"damaged")
    discard_first(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000007"]


def test_weights_are_saved_in_fp32_and_the_tied_one_once(tmp_path: Path) -> None:
    save(tmp_path, 1)
    weights = load_file(tmp_path / "step-00000001" / "model.safetensors")
    assert set(weights) == {"encoder.layer.0.weight", "encoder.layer.0.bias", "embeddings.weight", "head.bias"}
    assert {value.dtype for value in weights.values()} == {torch.float32}
    state = json.loads((tmp_path / "step-00000001" / "state.json").read_text())
    assert set(state["sha256"]) == {*FILES, "state"}


def test_what_a_kill_has_left_is_removed_by_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step-00000004.partial").mkdir(parents=True)
    save(tmp_path, 5, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]

    def cannot(path: Path, *_: object, **__: object) -> None:
        """As on a network's file system where another process has a file open."""

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", cannot)
        save(tmp_path, 6, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000006"]
    save(tmp_path, 7, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000007"]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 3)
    other, optimizers = trained(1)
    other.head.bias = nn.Parameter(torch.zeros(7))
    with pytest.raises(UserError, match=r"step-00000003: this checkpoint is of a model of another size"):
        load_checkpoint(tmp_path, other, optimizers)
