"""Every shipped recipe loads, survives its round trip, can be shown, and keeps the test text out of pretraining."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from bertpre.commands.show import meaning, show
from bertpre.model import BertPreConfig
from bertpre.recipe import Recipe, fields, json_schema, load_recipe, shipped_recipes, to_yaml
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


def test_quickstart_needs_no_network() -> None:
    recipe = load_recipe("quickstart")
    assert recipe.corpus.path == recipe.finetune.path == "sample"
    assert recipe.tokenizer.path is None


def test_show_works_on_the_command_line(tmp_path: Path) -> None:
    done = run_cli("show", "imdb-mini-cpu", "training.max_steps=77", f"output_dir={tmp_path}/none")
    assert done.returncode == 0, done.stderr
    assert "max_steps: 77" in done.stdout
    assert done.stderr == ""
