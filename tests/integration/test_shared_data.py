"""Several runs on the data of one, which is only read."""

import json
from pathlib import Path

import pytest

from bertpre.commands.doctor import doctor
from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.commands.probe import probe
from bertpre.errors import UserError
from bertpre.recipe import Recipe, load_recipe
from tests.helpers import copy_run, tree_hash


def recipe_on(other: Path, output_dir: Path, *overrides: str) -> Recipe:
    paths = [f"output_dir={output_dir}", f"data.path={other}"]
    return load_recipe(str(other / "recipe.yaml"), [*paths, *overrides])


def test_a_run_pretrains_on_the_data_of_another(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, target = tree_hash(tiny_run), tmp_path / "run"
    recipe = recipe_on(tiny_run, target)
    with pytest.raises(UserError, match="run: no tokenizer; run `bertpre prepare` with this recipe first"):
        pretrain(recipe)
    metrics = prepare(recipe)
    expected = json.loads((tiny_run / "results.json").read_text())["prepare"]
    assert {**metrics, "seconds": 0} == {**expected, "seconds": 0}
    pretrain(recipe)
    assert not (target / "data").exists()
    assert tree_hash(target / "tokenizer") == tree_hash(tiny_run / "tokenizer")
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")
    capsys.readouterr()
    doctor(recipe)
    assert "files match their checksums, and the tokenizer matches the data" in capsys.readouterr().out
    assert probe(str(target), limit=2, max_length=32) == probe(str(tiny_run), limit=2, max_length=32)
    assert tree_hash(tiny_run) == before


def test_a_third_run_may_name_the_second(tiny_run: Path, tmp_path: Path) -> None:
    prepare(recipe_on(tiny_run, tmp_path / "second"))
    metrics = prepare(recipe_on(tmp_path / "second", tmp_path / "third", "seed=5"))
    assert metrics["data_sha256"] == json.loads((tiny_run / "results.json").read_text())["prepare"]["data_sha256"]


def test_data_prepared_with_other_keys_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    others = ("corpus.limit=60", "tokenizer.vocab_size=600", "pairs.validation_fraction=0.2", "pairs.kind=sop")
    wrong = "another corpus.limit, pairs.validation_fraction, tokenizer.vocab_size; give the same values"
    with pytest.raises(UserError, match=rf"^data.path: {tiny_run} was prepared with {wrong}"):
        prepare(recipe_on(tiny_run, tmp_path / "run", *others))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["nowhere", "unprepared"])
def test_a_place_without_data_is_refused(place: str, tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "unprepared").mkdir()
    (tmp_path / "unprepared" / "recipe.yaml").write_text((tiny_run / "recipe.yaml").read_text())
    expected = {"nowhere": "is not a run directory", "unprepared": "has no prepared data; run `bertpre prepare"}
    with pytest.raises(UserError, match=rf"^data.path: .*{place}:? {expected[place]}"):
        prepare(recipe_on(tiny_run, tmp_path / "run", f"data.path={tmp_path / place}"))


def test_shared_data_may_move_and_must_not_change(tiny_run: Path, tmp_path: Path) -> None:
    shared, target = copy_run(tiny_run, tmp_path / "shared", "prepare"), tmp_path / "run"
    prepare(recipe_on(shared, target))
    moved = shared.rename(tmp_path / "moved")
    pretrain(recipe_on(moved, target, "training.max_steps=1"))
    with (moved / "data" / "manifest.json").open("a") as stream:
        stream.write("\n")
    with pytest.raises(UserError, match="data.path: .* is not the data that this run began with; its checksum differs"):
        pretrain(recipe_on(moved, target, "training.max_steps=1"))
    tokens = next((moved / "data").glob("*.tokens.npy"))
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match="damaged"):
        prepare(recipe_on(moved, tmp_path / "another"))
