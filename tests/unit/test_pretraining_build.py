"""When pretraining leaves the layers uncompiled, and how often it is saved."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from bertpre.pretraining.build import checkpoints, is_short, training_duration
from bertpre.pretraining.model import phase_warnings, untrained_positions
from bertpre.recipe import load_recipe


def model_of(parameters: int, device: str = "cpu") -> Any:  # noqa: ANN401
    """What is asked of a model of so many parameters, without their memory."""
    weight = cast(nn.Parameter, SimpleNamespace(numel=lambda: parameters, device=torch.device(device)))
    return SimpleNamespace(parameters=lambda: iter([weight]))


def is_uncompiled(recipe: str, *overrides: str, dtype: torch.dtype = torch.float32, **model: Any) -> bool:  # noqa: ANN401
    training = load_recipe(recipe, list(overrides)).training
    return is_short(
        training, training_duration(training, tokens_per_epoch=500_000), model_of(1_155_586, **model), dtype
    )


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        ("quickstart", (), True),  # 95 seconds
        ("quickstart", ("training.budget=8m",), True),
        ("quickstart", ("training.budget=9m",), False),
        ("quickstart", ("training.budget=1h", "training.max_steps=300"), True),  # 8.5e12 FLOPs
        ("quickstart", ("training.budget=null", "training.max_steps=600"), False),  # 1.7e13
        ("quickstart", ("training.budget=1h", "training.max_tokens=2000000"), True),  # 1.4e13
        ("quickstart", ("training.budget=null", "training.max_tokens=2500000"), False),  # 1.7e13
        ("quickstart", ("training.budget=null", "training.max_epochs=4"), True),  # 2 million tokens
        ("quickstart", ("training.budget=null", "training.max_epochs=5"), False),
        ("imdb-mini-cpu", (), False),
    ],
)
def test_a_short_training_in_fp32_on_a_cpu_is_not_compiled(
    recipe: str, overrides: tuple[str, ...], expected: bool
) -> None:
    assert is_uncompiled(recipe, *overrides) == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (("max_epochs=2.5",), 1250),
        (("max_epochs=0.0001",), 1),
        (("max_epochs=2.5", "max_tokens=1000"), 1000),
        (("max_epochs=2.5", "max_tokens=2000"), 1250),
        (("max_tokens=2000",), 2000),
        ((), None),
    ],
)
def test_epochs_are_a_limit_in_tokens(limits: tuple[str, ...], expected: int | None) -> None:
    training = load_recipe("quickstart", [f"training.{limit}" for limit in limits]).training
    assert training_duration(training, tokens_per_epoch=500).max_tokens == expected


def test_the_rows_of_the_largest_phase_count() -> None:
    phases = "training.phases=[{share: 0.9, max_length: 128}, {share: 0.1, max_length: 256, global_batch_size: 64}]"
    steps = ("training.budget=null", "training.max_steps=300")
    assert is_uncompiled("quickstart", *steps) and not is_uncompiled("quickstart", *steps, phases)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), True),  # an empty compiler cache took 75 of the 95 seconds on a slow machine with AVX512-BF16
        (("training.budget=9m",), False),
        (("training.budget=null", "training.max_steps=2000"), True),  # 5.7e13 FLOPs
        (("training.budget=null", "training.max_steps=2200"), False),  # 6.2e13
    ],
)
def test_in_bf16_the_same_time_counts_and_more_steps_fit_in_it(overrides: tuple[str, ...], expected: bool) -> None:
    assert is_uncompiled("quickstart", *overrides, dtype=torch.bfloat16) == expected


def test_what_is_asked_for_and_other_machines_are_compiled_as_before() -> None:
    assert not is_uncompiled("quickstart", device="cuda")
    assert not is_uncompiled("quickstart", "training.compile=true")
    assert not is_uncompiled("quickstart", "training.compile=false")  # which `choose_compile` says


def test_checkpoints_are_at_most_half_an_hour_apart(tmp_path: Path) -> None:
    assert checkpoints(load_recipe("wikipedia-base"), tmp_path).every_seconds == 1800


def test_positions_that_no_phase_trains_are_a_warning_where_they_are_read() -> None:
    short = "training.phases=[{share: 1.0, max_length: 128}]"
    warning = untrained_positions(load_recipe("imdb-base", [short]))
    assert warning is not None and warning.startswith("finetune.max_length=512: no phase of pretraining trains the")
    for overrides in ([], [short, "finetune.max_length=128"], [short, "finetune=null"]):
        assert untrained_positions(load_recipe("imdb-base", overrides)) is None
    assert untrained_positions(load_recipe("own-text")) is None  # rotary positions have no weights
    continued = load_recipe("imdb-base", [short, "training.init=google-bert/bert-base-uncased"])
    assert continued.untrained_from is None and load_recipe("glue").untrained_from == 128
    phases = "training.phases=[{share: 0.5, max_length: 64}, {share: 0.5, max_length: 256}]"
    assert load_recipe("imdb-base", [phases]).untrained_from == 256
    few = [
        "training.budget=null",
        "training.max_steps=9",
        "training.phases=[{share: 0.9}, {share: 0.1, max_length: 512}]",
    ]
    recipe = load_recipe("imdb-base", few)
    assert recipe.untrained_from == 128
    assert any(
        "training.phases.1: none of the 9 steps falls into it; give it a larger" in each
        for each in phase_warnings(recipe)
    )
