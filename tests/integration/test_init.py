"""Pretraining that starts from another model: bertpre's own, a stock BERT, a stock ModernBERT."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForPreTraining, ModernBertConfig, ModernBertForMaskedLM, PreTrainedModel

from bertpre.commands.prepare import prepare, refuse_impossible
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.pretraining.model import initial_model
from bertpre.recipe import Recipe, load_recipe
from bertpre.run_directory import write_results
from tests.helpers import run_here

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
LONGEST = {"max_position_embeddings": 128}


def stock_model(architecture: str, vocab_size: int, **options: int) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = SIZES | LONGEST | {"vocab_size": vocab_size} | options
    if architecture == "bert":
        return BertForPreTraining(BertConfig(**sizes, hidden_act="relu", layer_norm_eps=1e-3)).eval()
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = ModernBertConfig(**sizes, **ids, global_attn_every_n_layers=1)
    return ModernBertForMaskedLM(config).eval()


def recipe_of(run: Path, init: Path, architecture: str, **model: int) -> Recipe:
    sizes = [f"model.{key}={value}" for key, value in (SIZES | LONGEST | model).items()]
    choices = [f"model.architecture={architecture}", f"training.init={init}", "finetune.max_length=64"]
    return load_recipe(str(run / "recipe.yaml"), [*sizes, *choices, "training.phases=[{max_length: 64}]"])


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_the_first_step_starts_from_the_stock_weights(architecture: str, tiny_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    stock = stock_model(architecture, len(tokenizer))
    stock.save_pretrained(tmp_path)
    recipe = recipe_of(tiny_run, tmp_path, architecture)
    ours = initial_model(recipe, tokenizer)
    assert ours.config.hidden_dropout_prob == recipe.model.hidden_dropout_prob
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(ids).prediction_logits, stock(ids)[0], rtol=0, atol=1e-5)


def test_pretraining_may_start_from_a_runs_own_model(tiny_run: Path, tmp_path: Path) -> None:
    overrides = [f"training.init={tiny_run / 'model'}", f"tokenizer.path={tiny_run / 'model'}", "training.max_steps=1"]
    overrides += ["training.learning_rate=1e-12", f"output_dir={tmp_path / 'run'}"]
    for verb in ("prepare", "pretrain"):
        assert run_here(verb, tiny_run / "recipe.yaml", *overrides) == 0
    before, after = (
        initial_model(load_recipe(str(tiny_run / "recipe.yaml"), [f"training.init={folder / 'model'}"]),
                      load_tokenizer(tiny_run / "tokenizer"))
        for folder in (tiny_run, tmp_path / "run")
    )  # fmt: skip
    for name, weight in before.state_dict().items():
        torch.testing.assert_close(weight, after.state_dict()[name], rtol=0, atol=1e-6)


def test_a_run_directory_may_replace_its_model_and_its_recipe(tiny_run: Path, tmp_path: Path) -> None:
    again = [f"output_dir={tmp_path / 'again'}", f"training.init={tiny_run}", f"tokenizer.path={tiny_run}"]
    recipe = load_recipe(str(tiny_run), again)
    assert recipe.model == load_recipe(str(tiny_run / "recipe.yaml")).model
    prepare(recipe)
    model = initial_model(recipe, load_tokenizer(tmp_path / "again" / "tokenizer"))
    before = load_file(tiny_run / "model" / "model.safetensors")
    assert all(before[name].equal(value) for name, value in model.state_dict().items() if name in before)


def test_a_model_of_another_size_is_refused_before_anything_is_prepared(tiny_run: Path, tmp_path: Path) -> None:
    keys = [f"output_dir={tmp_path / 'run'}", f"training.init={tiny_run}", f"tokenizer.path={tiny_run}"]
    with pytest.raises(UserError, match="has other sizes: set model.num_hidden_layers=2"):
        prepare(load_recipe(str(tiny_run), [*keys, "model.num_hidden_layers=3"]))
    assert not list(tmp_path.rglob("data*"))


def test_a_finished_run_needs_the_model_that_it_started_from_no_more(tiny_run: Path, tmp_path: Path) -> None:
    keys = [f"output_dir={tmp_path}", f"training.init={tmp_path / 'removed'}", f"tokenizer.path={tiny_run}"]
    recipe = load_recipe(str(tiny_run), keys)
    with pytest.raises(UserError, match=r"training\.init: there is no folder '.*removed'"):
        refuse_impossible(recipe)
    write_results(tmp_path, "pretrain", {})
    refuse_impossible(recipe)


def test_a_model_of_another_size_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    stock_model("bert", len(tokenizer)).save_pretrained(tmp_path / "stock")
    stock_model("bert", len(tokenizer) + 64).save_pretrained(tmp_path / "larger")
    stock_model("bert", len(tokenizer), type_vocab_size=1).save_pretrained(tmp_path / "single")
    stock_model("bert", len(tokenizer), tie_word_embeddings=False).save_pretrained(tmp_path / "untied")
    mistakes = [
        (tmp_path / "missing", {}, "training.init: there is no folder '.*missing'"),
        (tmp_path / "larger", {}, "this run another one of .*: prepare with tokenizer.path="),
        (tmp_path / "untied", {}, "cannot be loaded: .*: its decoder has weights of its own"),
        (tmp_path / "stock", {"num_hidden_layers": 3}, "has other sizes: set model.num_hidden_layers=2"),
        (tmp_path / "single", {}, "single knows one segment, and a pair has two: set pairs.kind=none"),
    ]
    for source, sizes, message in mistakes:
        with pytest.raises(UserError, match=message):
            initial_model(recipe_of(tiny_run, source, "bert", **sizes), tokenizer)


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_only_positions_without_weights_may_become_more(architecture: str, tiny_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    stock_model(architecture, len(tokenizer)).save_pretrained(tmp_path)
    recipe = recipe_of(tiny_run, tmp_path, architecture, max_position_embeddings=256)
    if architecture == "bert":
        with pytest.raises(UserError, match="has other sizes: set model.max_position_embeddings="):
            initial_model(recipe, tokenizer)
    else:
        assert initial_model(recipe, tokenizer).config.max_position_embeddings == 256


def test_another_vocabulary_of_the_same_size_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    stock_model("bert", len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    initial_model(recipe_of(tiny_run, tmp_path, "bert"), tokenizer)
    file = tmp_path / "tokenizer.json"
    backend = json.loads(file.read_text())
    vocabulary = backend["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary |= dict(zip(words, [vocabulary[word] for word in reversed(words)], strict=True))
    file.write_text(json.dumps(backend))
    with pytest.raises(UserError, match="this run another one of .*: prepare with tokenizer.path="):
        initial_model(recipe_of(tiny_run, tmp_path, "bert"), tokenizer)
    with pytest.raises(UserError, match="this run would learn a vocabulary of its own; set tokenizer.path="):
        prepare(load_recipe(str(tiny_run), [f"output_dir={tmp_path / 'run'}", f"training.init={tiny_run}"]))


def test_a_vocabulary_that_was_rounded_up_keeps_its_size(tiny_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    stock = stock_model("bert", len(tokenizer) + 24)
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ours = initial_model(recipe_of(tiny_run, tmp_path, "bert"), tokenizer)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(ids).prediction_logits, stock(ids)[0], rtol=0, atol=1e-5)
