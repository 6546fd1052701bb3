"""A user's mistake is one message that names the key and the remedy, exit status 2, and nothing lost."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers import run_cli, run_here, tiny_values, tree_hash, write_recipe

Here = Callable[..., subprocess.CompletedProcess[str]]


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    """The command line in this process, for commands that would have to import torch."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        status = run_here(*arguments)
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return call


def files(folder: Path) -> None:
    """What the cases below refer to as `{folder}/...`."""
    texts = [f"A film. It was film number {number}." for number in range(60)]
    good = pd.DataFrame({"text": texts, "label": [0, 1] * 30})
    (folder / "reviews").mkdir()
    good.to_parquet(folder / "reviews" / "train.parquet")
    (folder / "other").mkdir()
    good.rename(columns={"text": "body", "label": "stars"}).to_parquet(folder / "other" / "train.parquet")
    (folder / "other.csv").write_text("body,stars\nx,1\n")
    (folder / "empty").mkdir()
    (folder / "zero.jsonl").write_bytes(b"")
    (folder / "blank.jsonl").write_text('{"text": " "}\n{"text": "<br />"}\n')
    (folder / "one.txt").write_text("The only document there is. It has two sentences.\n")
    (folder / "used").mkdir()
    (folder / "used" / "thesis.tex").write_text("years of work")
    (folder / "file").write_text("a regular file")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sead=1"], ["unknown key 'sead'", "did you mean 'seed'?"]),
        (["training.max_step=1"], ["unknown key 'training.max_step'", "did you mean 'training.max_steps'?"]),
        (["training.phases.0.max_lenght=8"], ["'training.phases.0.max_lenght'", "'training.phases.max_length'"]),
        (["training.budget=soon"], ["training.budget", "write 90s, 45m, 1.5h or 2d", "'soon'"]),
        (["training"], ["override 'training': write key=value"]),
        (["corpus.path={folder}/none"], ["corpus.path", "is neither a file or folder nor a Hub id", "{folder}/none"]),
        (["corpus.path={folder}/empty"], ["corpus.path", "contains no data file", "known endings: .parquet"]),
        (["corpus.path={folder}/other"], ["corpus.text_column", "no column 'text'", "its columns are body, stars"]),
        (["corpus.path={folder}/other.csv", "corpus.split=train"], ["corpus.text_column", "columns are body, stars"]),
        (["corpus.path={folder}/reviews", "corpus.split=test"], ["corpus", "test", "Available splits: ['train']"]),
        (["corpus.split=train+dev"], ["corpus.split", "no split 'dev'", "train, test, unsupervised, articles"]),
        (["corpus.path={folder}/zero.jsonl", "corpus.split=train"], ["corpus", "zero.jsonl", "it is empty"]),
        (["corpus.path={folder}/blank.jsonl", "corpus.split=train"], ["corpus", "blank.jsonl", "contains no text"]),
        (["corpus.path={folder}/one.txt", "corpus.split=train"], ["corpus", "fewer than two documents"]),
        (["tokenizer.path={folder}/none"], ["no tokenizer in '{folder}/none'"]),
        (["output_dir={folder}/file/run"], ["output_dir", "cannot be written", "output_dir=FOLDER"]),
        (["output_dir={folder}/used"], ["output_dir", "is neither empty nor a run directory", "output_dir=FOLDER"]),
    ],
)
def test_a_mistake_is_one_message_and_nothing_is_lost(
    overrides: list[str], words: list[str], tiny_recipe: Path
) -> None:
    folder = tiny_recipe.parent
    files(folder)
    before = tree_hash(folder)
    done = run_cli("prepare", tiny_recipe, *(override.format(folder=folder) for override in overrides))
    assert_refused(done, *(word.format(folder=folder) for word in words))
    after = tree_hash(folder)
    assert {name: after.get(name) for name in before} == before
    new = {name for name in after if name not in before}  # the run that was begun, without data
    kept = ("run/tokenizer/", "run/data.partial/")  # finished parts wait for a second attempt
    assert all(name == "run/recipe.yaml" or name.startswith(kept) for name in new), new


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{recipe}seed: 3\n", ["key 'seed' is given twice"]),
        ("{recipe}speed: 3\n", ["unknown key 'speed'", "did you mean 'seed'?"]),
        ("output_dir: [", ["cannot be read as YAML"]),
        ("", ["a recipe must be a mapping"]),
    ],
)
def test_a_broken_recipe_is_one_message(text: str, words: list[str], tiny_recipe: Path) -> None:
    tiny_recipe.write_text(text.format(recipe=tiny_recipe.read_text()))
    done = run_cli("pretrain", tiny_recipe)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_missing_recipe_lists_the_shipped_ones(tmp_path: Path) -> None:
    assert_refused(
        run_cli("run", tmp_path / "none.yaml"),
        "there is no such recipe; give a file, a run directory or a shipped recipe",
        "quickstart",
    )


@pytest.mark.parametrize("command", ["prepare", "pretrain", "finetune", "evaluate", "run"])
def test_another_recipes_run_is_left_unchanged(command: str, tiny_run: Path, tmp_path: Path, here: Here) -> None:
    values = tiny_values(tiny_run)
    values["seed"], values["model"]["hidden_size"] = 2, 64
    recipe = write_recipe(tmp_path / "other.yaml", values)
    before = tree_hash(tiny_run)
    done = run_cli(command, recipe) if command == "prepare" else here(command, recipe)
    assert_refused(done, "output_dir", str(tiny_run), "differs in model.hidden_size, seed", "nothing was changed")
    assert tree_hash(tiny_run) == before


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("pretrain", "run `bertpre prepare`"),
        ("finetune", "run `bertpre pretrain` first"),
        ("evaluate", "run `bertpre finetune` first"),
    ],
)
def test_a_stage_names_the_missing_stage_before_it(command: str, remedy: str, tiny_recipe: Path, here: Here) -> None:
    assert_refused(here(command, tiny_recipe), remedy)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("finetune.label_column=stars", ["finetune.label_column"]),
        ("finetune.class_weights=[1,2,3]", ["finetune.class_weights", "3 weights for 2 classes"]),
        ("evaluate.split=dev", ["no split 'dev'"]),
    ],
)
def test_labels_are_checked_before_pretraining(override: str, words: list[str], tiny_recipe: Path, here: Here) -> None:
    assert_refused(here("run", tiny_recipe, override), *words)
    assert [path.name for path in (tiny_recipe.parent / "run").iterdir()] == ["recipe.yaml"]


def test_preparing_twice_is_refused_and_changes_nothing(tiny_run: Path) -> None:
    before = tree_hash(tiny_run)
    assert_refused(run_cli("prepare", tiny_run / "recipe.yaml"), "this run is prepared", "continue with `bertpre run`")
    assert tree_hash(tiny_run) == before


def test_a_corrected_recipe_continues_in_the_same_folder(tiny_recipe: Path) -> None:
    assert_refused(run_cli("prepare", tiny_recipe, "corpus.split=dev"), "no split 'dev'")
    done = run_cli("prepare", tiny_recipe)
    assert done.returncode == 0, done.stderr
    assert (tiny_recipe.parent / "run" / "data" / "manifest.json").is_file()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run_cli("run", tmp_path / "none.yaml", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "UserError" in done.stderr
