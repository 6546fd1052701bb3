"""Every parameter belongs to one optimizer, one group and one rate; short types do not lose small steps."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    DebertaV2Config,
    FunnelConfig,
    FunnelForSequenceClassification,
    MPNetConfig,
    PreTrainedConfig,
)

from bertpre.errors import UserError
from bertpre.model import BertPreConfig, BertPreForPreTraining, BertPreForSequenceClassification
from bertpre.training.optimizer import Lamb, Muon, build_optimizers, set_learning_rate
from bertpre.training.precision import LossScale, WorkingCopy


def tiny_config(architecture: str = "bert") -> BertPreConfig:
    return BertPreConfig(
        architecture=architecture,
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
    )


def tiny_model(architecture: str = "bert") -> BertPreForPreTraining:
    return BertPreForPreTraining(tiny_config(architecture))


def parameters_in(optimizers: list[torch.optim.Optimizer]) -> list[int]:
    return [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("architecture", ["bert", "modern"])
@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_groups_partition_the_parameters(architecture: str, name: str) -> None:
    model = tiny_model(architecture)
    held = parameters_in(build_optimizers(model, name, 1e-3, 0.01))
    assert len(held) == len(set(held))
    assert set(held) == {id(parameter) for parameter in model.parameters()}


def test_biases_and_normalisations_are_not_decayed() -> None:
    model = tiny_model()
    decay = {
        id(parameter): group["weight_decay"]
        for optimizer in build_optimizers(model, "adamw", 1e-3, 0.01)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        is_exempt = name.endswith("bias") or "norm" in name.lower()
        assert decay[id(parameter)] == (0.0 if is_exempt else 0.01), name


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_muon_takes_the_matrices_inside_the_layers_and_no_embedding_or_head(architecture: str) -> None:
    model = tiny_model(architecture)
    _, muon = build_optimizers(model, "muon", 1e-3, 0.01)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    taken = {names[identity] for identity in parameters_in([muon])}
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim == 2}
    outer = ("embeddings", "decoder", "seq_relationship")
    assert taken <= matrices
    assert {name for name in matrices if "encoder.layer." in name} <= taken
    assert not [name for name in taken if any(part in name for part in outer)]


@pytest.mark.parametrize("config_class", [DebertaV2Config, MPNetConfig])
def test_tables_of_relative_positions_are_embeddings(config_class: type[PreTrainedConfig]) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    deberta = {"relative_attention": True, "position_buckets": 4} if config_class is DebertaV2Config else {}
    config = config_class(**sizes, **deberta, intermediate_size=24, max_position_embeddings=16)
    model = AutoModelForSequenceClassification.from_config(config)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    adamw, muon = build_optimizers(model, "muon", 1.0, 0.01, layer_decay=0.5)
    assert len(tables) > 2 and not tables & set(parameters_in([muon]))
    rates = {id(value): group["lr"] for group in adamw.param_groups for value in group["params"]}
    assert {rates[table] for table in tables} == {0.25}


def test_muon_has_its_own_weight_decay() -> None:
    adamw, muon = build_optimizers(tiny_model(), "muon", 1e-3, 0.01, muon_weight_decay=0.3)
    assert [group["weight_decay"] for group in (*adamw.param_groups, *muon.param_groups)] == [0.01, 0.0, 0.3]


def after_muon(build: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Wide, tall and square matrices, two of each shape, after five steps on fixed gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((8, 24), (24, 8), (16, 16)) * 2
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer = build(weights)
    for _ in range(5):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
    return [weight.data for weight in weights]


def test_muon_in_bf16_is_torchs_bit_for_bit() -> None:
    ours = after_muon(lambda weights: Muon(weights, lr=0.02, weight_decay=0.1, dtype=torch.bfloat16))
    theirs = after_muon(lambda weights: torch.optim.Muon(weights, lr=0.02, weight_decay=0.1, momentum=0.95))
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_muon_in_fp32_differs_from_bf16_by_rounding() -> None:
    exact = after_muon(lambda weights: Muon(weights, lr=0.02, weight_decay=0.1, dtype=torch.float32))
    short = after_muon(lambda weights: Muon(weights, lr=0.02, weight_decay=0.1, dtype=torch.bfloat16))
    for one, other in zip(exact, short, strict=True):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=0, atol=2e-3)  # five steps of about 0.02 each


def test_muon_treats_query_key_and_value_in_one_as_three_matrices() -> None:
    model = tiny_model("modern")
    muon = build_optimizers(model, "muon", 1e-3, 0.01)[1]
    parts_of = {id(value): group["parts"] for group in muon.param_groups for value in group["params"]}
    parts = {key: parts_of[id(value)] for key, value in model.named_parameters() if id(value) in parts_of}
    assert {key for key, count in parts.items() if count == 3} == {key for key in parts if ".Wqkv." in key} != set()
    assert set(parts.values()) == {1, 3}
    generator = torch.Generator().manual_seed(0)
    whole = nn.Parameter(torch.randn(24, 8, generator=generator))
    three = [nn.Parameter(part.clone()) for part in whole.data.split(8)]
    together = Muon([{"params": [whole], "parts": 3}], lr=0.02, weight_decay=0.1, dtype=torch.float32)
    apart = Muon(three, lr=0.02, weight_decay=0.1, dtype=torch.float32)
    for _ in range(3):
        whole.grad = (
            torch.randn(24, 8, generator=generator) * torch.tensor([1.0, 9.0, 0.1]).repeat_interleave(8)[:, None]
        )
        for part, gradient in zip(three, whole.grad.split(8), strict=True):
            part.grad = gradient.clone()
        together.step()
        apart.step()
    torch.testing.assert_close(whole.data, torch.cat([part.data for part in three]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("is_native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_muon_computes_in_bf16_only_where_that_is_native(
    is_native: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertpre.training.optimizer.has_native_bf16", lambda device: is_native)
    assert build_optimizers(tiny_model(), "muon", 1e-3, 0.01)[1].dtype == dtype


def test_frozen_parameters_are_left_out() -> None:
    model = tiny_model()
    embedding = model.get_input_embeddings().weight
    embedding.requires_grad_(False)
    assert id(embedding) not in parameters_in(build_optimizers(model, "adamw", 1e-3, 0.01))


def test_one_factor_scales_each_groups_peak_rate() -> None:
    optimizers = build_optimizers(tiny_model(), "muon", 1e-3, 0.01, muon_learning_rate=0.02)
    assert set_learning_rate(optimizers, 0.5) == pytest.approx(5e-4)
    assert set_learning_rate(optimizers, 0.25) == pytest.approx(2.5e-4)  # of the peak, not of the last rate
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    assert rates == pytest.approx([2.5e-4, 2.5e-4, 5e-3])


def test_the_working_copy_of_fp32_is_the_master_itself() -> None:
    model = tiny_model()
    assert WorkingCopy(model, torch.float32).model is model


def test_masters_keep_steps_that_bf16_would_round_away() -> None:
    master = nn.Linear(1, 1, bias=False)
    nn.init.ones_(master.weight)
    working = WorkingCopy(master, torch.bfloat16)
    optimizer = torch.optim.SGD(master.parameters(), lr=1.0)
    for _ in range(100):
        working.model(torch.ones(1, 1, dtype=torch.bfloat16)).backward()
        working.collect_gradients()
        assert master.weight.grad.dtype == torch.float32
        master.weight.grad.mul_(1e-3)  # 1 - 0.001 is 1 in bf16
        optimizer.step()
        working.update()
    assert master.weight.item() == pytest.approx(0.9, abs=1e-3)
    assert working.model.weight.item() == pytest.approx(0.9, abs=4e-3)
    assert working.model.weight.grad is None


@pytest.mark.parametrize("weight_decay", [0.1, 0.0])
def test_lamb_follows_the_papers_algorithm(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start, bias = torch.randn(4, 3, generator=generator), torch.randn(3, generator=generator)
    gradients = [(torch.randn(4, 3, generator=generator), torch.randn(3, generator=generator)) for _ in range(3)]
    weight, offset = nn.Parameter(start.clone()), nn.Parameter(bias.clone())
    groups = [{"params": [weight], "weight_decay": weight_decay}, {"params": [offset], "weight_decay": 0.0}]
    lamb = Lamb(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-6)
    for weight.grad, offset.grad in gradients:
        lamb.step()
    expected = {"weight": start.double(), "offset": bias.double()}
    for place, (name, decay) in enumerate((("weight", weight_decay), ("offset", 0.0))):
        value, mean, square = expected[name], 0.0, 0.0
        for count, pair in enumerate(gradients, start=1):
            gradient = pair[place].double()
            mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
            ratio = (mean / (1 - 0.9**count)) / ((square / (1 - 0.99**count)).sqrt() + 1e-6)
            update = ratio + decay * value
            trust = value.norm() / update.norm() if name == "weight" else 1.0
            value = value - 0.01 * trust * update
        expected[name] = value
    torch.testing.assert_close(weight.data.double(), expected["weight"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(offset.data.double(), expected["offset"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_weights_of_one_shape_do_not_affect_each_other(name: str) -> None:
    """Updated together or alone they are the same, also where one gets its first gradient later."""

    def build(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        if name == "muon":
            return Muon(weights, lr=0.02, weight_decay=0.1, dtype=torch.float32)
        return Lamb([{"params": weights, "weight_decay": 0.1}], lr=0.01)

    together, alone = ([nn.Parameter(torch.eye(3) * scale) for scale in (1.0, 2.0, 3.0)] for _ in range(2))
    optimizers = [build(together), *(build([weight]) for weight in alone)]
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        for number, pair in enumerate(zip(together, alone, strict=True)):
            gradient = torch.randn(3, 3, generator=generator) * 10**number
            for weight in pair:
                weight.grad = gradient.clone() if step or number != 1 else None
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.data, other.data, rtol=0, atol=1e-6)


def test_lamb_moves_a_weight_of_zeros() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.ones(2, 2)
    Lamb([{"params": [weight], "weight_decay": 0.1}], lr=0.01).step()
    torch.testing.assert_close(weight.data, torch.full((2, 2), -0.01), rtol=1e-3, atol=0)


def test_the_loss_scale_halves_at_an_overflow_and_doubles_after_a_while() -> None:
    scale = LossScale(enabled=True)
    assert scale.value == 2**16
    scale.update(False)
    assert scale.value == 2**15
    for _ in range(LossScale.PATIENCE):
        scale.update(True)
    assert (scale.value, scale.good_steps) == (2**16, 0)
    assert LossScale(enabled=False).value == 1.0


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_gradients_of_many_micro_batches_add_up_in_fp32(is_shared: bool) -> None:
    master = nn.Linear(1, 2, bias=False)
    working = WorkingCopy(master, torch.bfloat16)
    for number in range(1000):
        if is_shared and number == 999:
            working.return_gradients()  # to DDP, which shares the copy's
            assert master.weight.grad is None
        working.model(torch.ones(1, 1, dtype=torch.bfloat16))[0, 0].backward()  # in bf16, 1 added to 256 is 256
        if number < 999:
            working.add_gradients()
    working.collect_gradients()
    assert master.weight.grad.squeeze(1).tolist() == pytest.approx([1000, 0], rel=4e-3 if is_shared else 0)
    assert working.model.weight.grad is None


def test_a_copy_in_fp16_gives_the_unscaled_gradient() -> None:
    torch.manual_seed(0)
    master = nn.Linear(8, 4)
    working, inputs = WorkingCopy(master, torch.float16), torch.randn(5, 8)
    (working.model(inputs.half()).float().square().mean() * 1024).backward()
    working.collect_gradients(1024)
    reference = nn.Linear(8, 4)
    reference.load_state_dict(master.state_dict())
    reference(inputs).square().mean().backward()
    torch.testing.assert_close(master.weight.grad, reference.weight.grad, rtol=1e-2, atol=1e-3)
    assert master.weight.grad.dtype == torch.float32


def test_layer_decay_lowers_the_rate_from_the_head_down_to_the_embeddings() -> None:
    model = BertPreForSequenceClassification(tiny_config())
    (optimizer,) = build_optimizers(model, "adamw", 1.0, 0.01, layer_decay=0.5)
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    of = {name: rates[id(weight)] for name, weight in model.named_parameters()}
    assert {rate for name, rate in of.items() if "classifier" in name or "pooler" in name} == {1.0}
    assert {rate for name, rate in of.items() if ".layer.1." in name} == {0.5}
    assert {rate for name, rate in of.items() if ".layer.0." in name} == {0.25}
    assert {rate for name, rate in of.items() if ".embeddings." in name} == {0.125}


def test_layer_decay_is_refused_for_layers_without_numbers() -> None:
    config = FunnelConfig(vocab_size=99, block_sizes=[1, 1], d_model=16, n_head=2, d_head=8, d_inner=32)
    model = FunnelForSequenceClassification(config)
    assert build_optimizers(model, "adamw", 1.0, 0.01)
    with pytest.raises(UserError, match=r"finetune.layer_decay: .* set it to 1"):
        build_optimizers(model, "adamw", 1.0, 0.01, layer_decay=0.9)
