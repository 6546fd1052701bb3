"""Every shipped recipe loads, survives its round trip, can be shown, and keeps the test text out of pretraining."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.commands.show import meaning, show, vocabulary_of
from bertpre.model import BertPreConfig
from bertpre.recipe import Recipe, fields, json_schema, load_recipe, shipped_recipes, to_yaml
from bertpre.run_directory import read_results
from tests.helpers import ROOT, run_cli

NAMES = sorted(shipped_recipes())
shipped = pytest.mark.parametrize("name", NAMES)


def test_the_published_schema_is_current() -> None:
    published = (ROOT / "recipes" / "schema.json").read_text(encoding="utf-8")
    # Compared as values: pydantic's versions write 0.0 or 0.
    assert json.loads(published) == json.loads(json_schema()), "run `make schema`"


def test_every_key_has_a_description() -> None:
    assert [key for key, field in fields(Recipe) if not meaning(field)] == []


@shipped
def test_it_names_the_schema_and_is_valid_under_it(name: str) -> None:
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    assert text.splitlines()[0] == "# yaml-language-server: $schema=./schema.json"
    schema = json.loads(json_schema())
    for values in (yaml.safe_load(text), load_recipe(name).model_dump(mode="json")):
        jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError, match="sead"):
        jsonschema.validate(yaml.safe_load(text) | {"sead": 1}, schema)


def test_the_shipped_recipes_are_those_of_the_folder() -> None:
    assert sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml")) == NAMES
    assert {"quickstart", "imdb-mini-cpu", "imdb-base", "wikipedia-base"} <= set(NAMES)


@shipped
def test_it_loads_and_its_resolved_copy_loads_again_unchanged(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    (tmp_path / "resolved.yaml").write_text(to_yaml(recipe))
    assert load_recipe(str(tmp_path / "resolved.yaml")) == recipe


@shipped
def test_it_can_be_shown(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe(name, [f"output_dir={tmp_path}/none"])
    show(recipe)
    out = capsys.readouterr().out
    assert yaml.safe_load(out.split("\n# ")[0]) == recipe.model_dump(mode="json")
    assert re.search(r"  optimizer: \w+ +# .* One of: adamw, lamb, muon\.\n", out)
    assert "# The encoder's architecture and size." in out
    pretrains = recipe.corpus is not None
    assert ("# parameters: " in out) == pretrains
    assert out.count("# at length ") == len(recipe.training.phases) * pretrains
    assert not (tmp_path / "none").exists()


@shipped
def test_its_model_can_be_built(name: str) -> None:
    recipe = load_recipe(name)
    BertPreConfig(**recipe.model.model_dump(), vocab_size=recipe.tokenizer.vocab_size)
    assert recipe.tokenizer.vocab_size % 64 == 0


@shipped
def test_no_test_text_enters_pretraining(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.corpus is None or "test" not in recipe.corpus.split.split("+")
    if recipe.finetune:
        assert recipe.finetune.split != recipe.evaluate.split


@shipped
def test_its_output_directory_has_its_name(name: str) -> None:
    assert load_recipe(name).output_dir == f"runs/{name}"


def test_the_size_is_that_of_the_given_tokenizers_vocabulary(tmp_path: Path) -> None:
    added = [{"content": "[MASK]"}, {"content": "a"}]
    for number, vocabulary in enumerate(({"a": 0, "b": 1}, [["a", -1.0], ["b", -2.0]])):  # WordPiece's, Unigram's
        folder = tmp_path / str(number) / "tokenizer"
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))
        for path in (folder, folder.parent):
            assert vocabulary_of(load_recipe("quickstart", [f"tokenizer.path={path}"])) == 3
    assert vocabulary_of(load_recipe("quickstart", ["tokenizer.path=owner/elsewhere"])) is None
    assert vocabulary_of(load_recipe("quickstart")) == 4096


def test_show_estimates_the_cost_of_a_number_of_steps_or_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    show(load_recipe("wikipedia-base"))  # 1,000,000 x 256 x (0.9 x 128 x 545.4 + 0.1 x 512 x 587.9) MFLOPs
    cost = "at most 2.4e+19 FLOPs; estimated: 1 d 1 h on one H100 or H200 (40% of 660 TFLOP/s)"
    assert f"# training.max_steps: {cost}" in capsys.readouterr().out
    show(load_recipe("wikipedia-base", ["training.max_tokens=1000000"]))  # 0.9 x 545.4 + 0.1 x 587.9 TFLOPs
    assert "# training.max_tokens: at most 5.5e+14 FLOPs; estimated: 2 s on one" in capsys.readouterr().out
    show(load_recipe("quickstart"))
    assert "FLOPs; estimated" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["wikipedia-base", "wikipedia-modern", "own-text-gpu"])
def test_a_tiny_version_of_it_trains_on_a_cpu(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    overrides = {
        "output_dir": str(tmp_path / "run"), "corpus": {"path": "sample", "limit": 60}, "tokenizer.vocab_size": 512,
        "pairs.validation_fraction": 0.1,
        "training.max_steps": 4, "training.budget": None, "training.global_batch_size": 4,
        "training.phases.1.global_batch_size": 2, "training.compile": False, "training.eval_pairs": 4, "finetune": None,
        **{f"model.{key}": value for key, value in sizes.items()},
    }  # fmt: skip
    recipe = load_recipe(name, overrides)
    prepare(recipe)
    pretrain(recipe)
    assert read_results(tmp_path / "run")["pretrain"]["steps"] == 4


def test_quickstart_needs_no_network() -> None:
    recipe = load_recipe("quickstart")
    assert recipe.corpus.path == recipe.finetune.path == "sample"
    assert recipe.tokenizer.path is None


def test_show_works_on_the_command_line(tmp_path: Path) -> None:
    done = run_cli("show", "imdb-mini-cpu", "training.max_steps=77", f"output_dir={tmp_path}/none")
    assert done.returncode == 0, done.stderr
    assert "max_steps: 77" in done.stdout
    assert done.stderr == ""
