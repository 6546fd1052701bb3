"""Preparation, pretraining and report with every kind of example and mask."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.data.sampler import PairDataset
from bertpre.data.store import open_shards
from bertpre.data.tokenizer import load_tokenizer
from bertpre.pretraining.model import initial_model
from bertpre.recipe import load_recipe
from bertpre.reporting.report import write_report
from bertpre.run_directory import read_results
from tests.helpers import read_metrics


@pytest.mark.parametrize(
    ("kind", "masking", "more"),
    [
        ("sop", "words", ()),
        ("none", "spans", ("training.masked_lm_prob=0.3", "training.masked_lm_prob_end=0.1")),
        ("nsp", "tokens", ("training.mask_split=[1.0, 0.0, 0.0]",)),
    ],
)
def test_a_run_of_every_kind(kind: str, masking: str, more: tuple[str, ...], tiny_recipe: Path, tmp_path: Path) -> None:
    overrides = [f"output_dir={tmp_path / 'run'}", f"pairs.kind={kind}", f"training.masking={masking}", *more]
    overrides.append("training.eval_pairs=1000")  # all that there are
    recipe = load_recipe(str(tiny_recipe), overrides)
    prepare(recipe)
    pretrain(recipe)
    write_report(tmp_path / "run", recipe)
    results = read_results(tmp_path / "run")
    validation = results["pretrain"]["validation"]
    assert validation["mlm_loss"] < 7
    assert ("nsp_accuracy" in validation) == (kind != "none")
    assert ("pair_lengths_auc" in results["prepare"]) == (kind != "none")
    report = (tmp_path / "run" / "report.html").read_text()
    assert "MLM loss" in report
    assert [name in report for name in ("NSP accuracy", "SOP accuracy")] == [kind == "nsp", kind == "sop"]
    if kind != "none":  # the references of an accuracy are those of the pairs it was measured on
        low, high = validation["nsp_interval"]
        assert low < validation["nsp_accuracy"] < high and high - low > 1 / validation["nsp_pairs"]
        shard = open_shards(tmp_path / "run" / "data", "validation")
        length = recipe.training.phases[0].max_length
        labels = PairDataset(shard, length, recipe.seed, kind=kind).plan(0)[0][:, -1]
        labels = labels[labels >= 0]
        assert validation["nsp_pairs"] == len(labels) < recipe.training.eval_pairs
        assert validation["nsp_majority_share"] == pytest.approx(max(labels.mean(), 1 - labels.mean()))
    losses = [row["loss"] for row in read_metrics(tmp_path / "run") if row["split"] == "train"]
    assert all(0 < loss < 20 for loss in losses)


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_without_pairs_the_weights_without_a_loss_stay_as_they_were(
    architecture: str, tiny_recipe: Path, tmp_path: Path
) -> None:
    """Muon's decay of the pooler took its norm from 0.65 to 0.13 in 1,000 steps; a classifier then learned nothing."""
    settings = ["pairs.kind=none", "training.optimizer=muon", "training.muon_weight_decay=1.0"]
    recipe = load_recipe(
        str(tiny_recipe), [f"output_dir={tmp_path / 'run'}", f"model.architecture={architecture}", *settings]
    )
    prepare(recipe)
    pretrain(recipe)
    torch.manual_seed(recipe.seed)
    before = initial_model(recipe, load_tokenizer(tmp_path / "run" / "tokenizer")).named_parameters()
    after = load_file(tmp_path / "run" / "checkpoints" / "step-00000010" / "model.safetensors")
    equal = {name for name, weight in before if torch.equal(weight, after[name])}
    heads = {name for name in after if name.startswith(("bert.pooler.", "cls.seq_relationship."))}
    assert len(heads) == 4
    assert equal - {"bert.embeddings.second_segment"} == heads  # that vector has no loss either, and no decay


def test_heads_that_begin_with_neighbours_keep_the_positions_and_train_the_rest(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = ["model.architecture=bert", f"output_dir={tmp_path / 'run'}", "training.initial_attention=neighbours"]
    recipe = load_recipe(str(tiny_recipe), settings)
    prepare(recipe)
    pretrain(recipe)
    tokenizer = load_tokenizer(tmp_path / "run" / "tokenizer")
    first = []
    for known in (recipe, load_recipe(str(tiny_recipe), settings[:-1])):
        torch.manual_seed(recipe.seed)
        first.append(initial_model(known, tokenizer).state_dict())
    neighbours, random = first
    positions = "bert.embeddings.position_embeddings.weight"
    assert not torch.equal(neighbours[positions], random[positions])
    after = load_file(tmp_path / "run" / "checkpoints" / "step-00000010" / "model.safetensors")
    assert {name for name, weight in after.items() if torch.equal(weight, neighbours[name])} == {positions}
