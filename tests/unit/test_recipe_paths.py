"""Paths in recipes and run directories: found from any directory, and followed when a run or its project moves."""

import shutil
from pathlib import Path

import pytest
import yaml

from bertpre.errors import UserError
from bertpre.recipe import Recipe, differences, load_recipe, to_yaml
from bertpre.run_directory import claim, load_run
from tests.helpers import tree_hash

RECIPE = {
    "output_dir": "runs/x",
    "corpus": {
        "path": "texts/*.txt",
        "validation": "./valid.csv",
        "held_out": "test",
        "more": [{"path": "more.csv"}, {"path": "you/corpus"}],
    },
    "tokenizer": {"path": "google-bert/bert-base-uncased"},
    "training": {"max_steps": 10},
    "finetune": {"path": "labels.csv", "unlabelled": {"path": "sample", "held_out": "./labels.csv"}},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe, its data and a run that has begun, which is the current directory."""
    folder = tmp_path / "project"
    (folder / "texts").mkdir(parents=True)
    (folder / "test").mkdir()  # of the same name as a split
    for name in ("texts/a.txt", "more.csv", "labels.csv", "valid.csv"):
        (folder / name).write_text("text,label\n")
    (folder / "mine.yaml").write_text(yaml.safe_dump(RECIPE))
    monkeypatch.chdir(folder)
    run = claim(load_recipe("mine.yaml"))
    for artefact in ("data", "finetuned"):
        (run / artefact).mkdir()
    (run / "results.json").write_text("{}")
    return folder


def paths(recipe: Recipe) -> list[str | None]:
    corpus, tuned = recipe.corpus, recipe.finetune
    assert corpus is not None and tuned is not None and tuned.unlabelled is not None
    more = [*(source.path for source in corpus.more), corpus.validation]
    further = [corpus.held_out, recipe.tokenizer.path, tuned.init, tuned.unlabelled.path, tuned.unlabelled.held_out]
    return [corpus.path, *more, tuned.path, *further]


def expected(folder: Path) -> list[str]:
    names = ("test", "google-bert/bert-base-uncased", "pretrained", "sample")
    local = [f"{folder}/texts/*.txt", f"{folder}/more.csv", "you/corpus", f"{folder}/valid.csv", f"{folder}/labels.csv"]
    return [*local, *names, f"{folder}/labels.csv"]


def test_a_tilde_is_the_home_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    recipe = load_recipe("mine.yaml", ["output_dir=~/other", "finetune.path=~/labels.csv", "training.init=~/nothing"])
    assert recipe.finetune is not None
    assert (recipe.output_dir, recipe.finetune.path) == (f"{project}/other", f"{project}/labels.csv")
    assert recipe.training.init == f"{project}/nothing"
    assert claim(recipe) == project / "other"


def test_local_paths_become_absolute_and_other_names_stay(project: Path) -> None:
    recipe = load_recipe("mine.yaml")
    assert paths(recipe) == expected(project)
    assert recipe.output_dir == "runs/x"
    stored = yaml.safe_load((project / "runs/x/recipe.yaml").read_text())
    assert stored["output_dir"] == f"{project}/runs/x"
    assert stored["finetune"]["path"] == f"{project}/labels.csv"


@pytest.mark.parametrize("name", ["runs/x", "runs/x/recipe.yaml"])
def test_a_run_works_from_any_directory(
    name: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = load_recipe(name)
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(f"project/{name}")
    assert recipe == here
    assert recipe.output_dir == f"{project}/runs/x"
    assert paths(recipe) == expected(project)
    before = tree_hash(tmp_path)
    assert claim(recipe) == project / "runs/x"
    assert tree_hash(tmp_path) == before


def test_a_moved_run_is_where_it_is_now(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive").mkdir()
    moved = (project / "runs/x").rename(tmp_path / "archive/y")
    monkeypatch.chdir("/")
    folder, recipe = load_run(moved)
    assert (folder, recipe.output_dir) == (moved, str(moved))
    assert paths(recipe) == expected(project)
    claim(recipe)
    assert [path.name for path in (project / "runs").iterdir()] == []
    assert load_run(moved)[1] == recipe


def test_the_recipe_of_a_pushed_repository_is_not_that_of_a_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = project / "causal"
    clone.mkdir()
    for name, content in (("config.json", "{}"), ("results.json", "{}"), ("recipe.yaml", yaml.safe_dump(RECIPE))):
        (clone / name).write_text(content)
    monkeypatch.chdir(clone)
    assert load_recipe("recipe.yaml").output_dir == "runs/x"
    monkeypatch.setenv("HOME", str(clone))
    assert load_recipe("~/recipe.yaml").output_dir == "runs/x"


def test_another_output_dir_is_a_new_run(project: Path) -> None:
    new = claim(load_recipe("runs/x", ["output_dir=runs/new"]))
    assert new == Path("runs/new")
    assert paths(load_recipe("runs/new")) == expected(project)


def test_paths_into_a_run_follow_it(project: Path, tmp_path: Path) -> None:
    (project / "runs/x/tokenizer").mkdir()
    (project / "runs/x/test.csv").write_text("text,label\n")
    claim(
        load_recipe("runs/x", ["tokenizer.path=runs/x/tokenizer", "evaluate.path=runs/x/test.csv", "output_dir=runs/z"])
    )
    shutil.copytree("runs/z", "runs/x", dirs_exist_ok=True)
    (project / "runs/x/recipe.yaml").write_text(
        (project / "runs/x/recipe.yaml").read_text().replace("runs/z", "runs/x")
    )
    moved = shutil.copytree(project / "runs/x", tmp_path / "y")  # the original is still there
    recipe = load_recipe(str(moved))
    assert (recipe.tokenizer.path, recipe.evaluate.path) == (f"{moved}/tokenizer", f"{moved}/test.csv")


def test_a_project_may_be_renamed_with_its_run(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = project.rename(tmp_path / "renamed")
    monkeypatch.chdir(tmp_path)
    assert paths(load_recipe("renamed/runs/x")) == expected(renamed)
    monkeypatch.chdir(renamed)
    claim(load_recipe("mine.yaml"))  # it is the same recipe
    assert paths(load_recipe("runs/x")) == expected(renamed)


def test_a_copied_project_may_continue_its_run(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(project, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    assert paths(load_recipe("runs/x")) == expected(project)  # what it was made from is still there
    claim(load_recipe("mine.yaml"))
    assert paths(load_recipe("runs/x")) == expected(tmp_path / "copy")


def test_the_same_command_from_another_directory_is_the_same_recipe(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("project/mine.yaml", [f"output_dir={project}/runs/x"])
    assert paths(recipe) == expected(project)
    claim(recipe)
    (tmp_path / "labels.csv").write_text("text,label\n")  # another file of that name
    with pytest.raises(UserError, match=r"differs in finetune.path, finetune.unlabelled.held_out;"):
        claim(load_recipe("project/mine.yaml", [f"output_dir={project}/runs/x"]))


def test_data_that_are_gone_do_not_change_the_recipe(project: Path) -> None:
    shutil.rmtree("texts")
    recipe = load_recipe("mine.yaml")
    assert paths(recipe) == expected(project)
    claim(recipe)


def test_runs_of_before_relative_paths_became_absolute_still_work(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = load_recipe("mine.yaml").model_dump() | RECIPE
    (project / "runs/x/recipe.yaml").write_text(yaml.safe_dump(old))
    claim(load_recipe("mine.yaml"))
    (project / "runs/x/recipe.yaml").write_text(yaml.safe_dump(old))
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("project/runs/x")
    assert recipe.output_dir == f"{project}/runs/x"
    assert paths(recipe) == expected(project)
    claim(recipe)


def test_a_recipe_that_somebody_wrote_beside_data_is_not_a_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "mine.yaml").rename(project / "recipe.yaml")
    (project / "data").mkdir()
    assert load_recipe("recipe.yaml").output_dir == "runs/x"
    assert load_recipe(".").output_dir == "runs/x"


def test_a_directory_whose_name_has_brackets(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = project.rename(tmp_path / "films [old]")
    monkeypatch.chdir(odd)
    corpus = load_recipe("mine.yaml", ["output_dir=runs/new"]).corpus
    assert corpus is not None
    assert corpus.path == f"{tmp_path}/films [[]old]/texts/*.txt"


def test_the_stored_recipe_loads_again_unchanged(project: Path) -> None:
    text = (project / "runs/x/recipe.yaml").read_text()
    assert to_yaml(load_recipe("runs/x")) == text
    assert differences(load_recipe("runs/x"), load_recipe("mine.yaml")) == ["output_dir"]
