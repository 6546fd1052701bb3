"""The run directory: claimed before anything is written; another recipe's run is left unchanged."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from bertpre.errors import UserError
from bertpre.files import FolderInUse, locked, new_folder, replaced_folder, write_text
from bertpre.recipe import Recipe, load_recipe
from bertpre.run_directory import (
    ARTEFACTS,
    claim,
    drop_results,
    is_finished,
    load_run,
    model_of,
    one_at_a_time,
    read_manifest,
    read_results,
    refuse_unfinished_classifier,
    undone_after_mistake,
    write_manifest,
    write_results,
)
from tests.helpers import tree_hash


def load(tiny_recipe: Path, *overrides: str) -> Recipe:
    return load_recipe(str(tiny_recipe), list(overrides))


def refused(recipe: Recipe) -> str:
    with pytest.raises(UserError) as caught:
        claim(recipe)
    return str(caught.value)


def test_claiming_leaves_a_recipe_that_loads_again_unchanged(tiny_recipe: Path) -> None:
    recipe = load(tiny_recipe)
    folder = claim(recipe)
    assert load_run(folder) == (folder, recipe)
    assert claim(recipe) == folder
    assert [path.name for path in folder.iterdir()] == ["recipe.yaml"]


def test_parent_folders_are_created(tiny_recipe: Path, tmp_path: Path) -> None:
    assert claim(load(tiny_recipe, f"output_dir={tmp_path}/a/b/c")).is_dir()


def test_a_folder_below_a_file_cannot_be_written(tiny_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    for place in ("file", "file/run"):
        message = refused(load(tiny_recipe, f"output_dir={tmp_path / place}"))
        assert "cannot be written" in message
        assert "output_dir=FOLDER" in message
    assert (tmp_path / "file").read_text() == "content"


def test_a_folder_with_other_files_is_left_unchanged(tiny_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    before = tree_hash(tmp_path)
    assert "is neither empty nor a run directory" in refused(load(tiny_recipe))
    assert tree_hash(tmp_path) == before


def test_several_jobs_may_begin_at_once(tiny_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml.0a1b2c3d.partial").write_text("output_dir:")  # another one is writing it
    assert claim(load(tiny_recipe)) == tmp_path / "run"


@pytest.mark.parametrize(
    ("override", "key", "stage"),
    [
        ("seed=5", "seed", "prepare"),
        ("corpus.limit=7", "corpus.limit", "prepare"),
        ("tokenizer.vocab_size=256", "tokenizer.vocab_size", "prepare"),
        ("pairs.short_seq_prob=0.5", "pairs.short_seq_prob", "prepare"),
        ("model.hidden_size=64", "model.hidden_size", "pretrain"),
        ("training.phases=[{max_length: 16}]", "training.phases", "pretrain"),
        ("finetune.epochs=9", "finetune.epochs", "finetune"),
        ("evaluate.limit=9", "evaluate.limit", "evaluate"),
    ],
)
def test_a_key_is_frozen_by_the_first_stage_that_reads_it(
    override: str, key: str, stage: str, tiny_recipe: Path
) -> None:
    folder = claim(load(tiny_recipe))
    stages = list(ARTEFACTS)
    for earlier in stages[: stages.index(stage)]:
        (folder / ARTEFACTS[earlier]).mkdir()
    claim(load(tiny_recipe, override))  # nothing has read it yet
    claim(load(tiny_recipe))
    (folder / ARTEFACTS[stage]).mkdir()
    before = tree_hash(folder)
    message = refused(load(tiny_recipe, override))
    assert f"differs in {key};" in message
    assert "nothing was changed" in message
    assert tree_hash(folder) == before
    claim(load(tiny_recipe))


@pytest.mark.parametrize("override", ["seed=5", "training.learning_rate=1e-5"])
def test_a_later_stage_freezes_what_earlier_ones_would_read(override: str, tiny_recipe: Path) -> None:
    folder = claim(load(tiny_recipe))
    (folder / ARTEFACTS["finetune"]).mkdir()  # of a model from elsewhere: nothing was prepared or pretrained
    assert f"differs in {override.partition('=')[0]};" in refused(load(tiny_recipe, override))
    claim(load(tiny_recipe, "evaluate.limit=9"))


@pytest.mark.parametrize(
    "override", ["training.log_every=7", "training.eval_every=7", "checkpoint.every=7", "training.wandb_project=films"]
)
def test_keys_that_do_not_affect_the_weights_may_always_change(override: str, tiny_recipe: Path) -> None:
    folder = claim(load(tiny_recipe))
    for artefact in ARTEFACTS.values():
        (folder / artefact).mkdir()
    claim(load(tiny_recipe, override))
    assert override.partition(".")[2].replace("=", ": ") in (folder / "recipe.yaml").read_text()


def test_a_finished_run_may_be_moved(tiny_recipe: Path, tmp_path: Path) -> None:
    folder = claim(load(tiny_recipe))
    (folder / "data").mkdir()
    folder.rename(tmp_path / "moved")
    recipe = load(tiny_recipe, f"output_dir={tmp_path}/moved")
    claim(recipe)
    assert load_run(tmp_path / "moved")[1] == recipe


def test_a_folder_without_a_recipe_is_not_a_run_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        load_run(tmp_path)


def test_results_and_manifest_gather_the_stages(tmp_path: Path) -> None:
    assert read_results(tmp_path) == {}
    write_results(tmp_path, "prepare", {"documents": 3})
    write_results(tmp_path, "pretrain", {"steps": 1})
    write_results(tmp_path, "pretrain", {"steps": 2})
    assert read_results(tmp_path) == {"prepare": {"documents": 3}, "pretrain": {"steps": 2}}
    assert is_finished(tmp_path, "pretrain")
    assert not is_finished(tmp_path, "finetune")
    write_manifest(tmp_path, "pretrain", {"commit": "abc"})
    write_manifest(tmp_path, "finetune", {"commit": "def"})
    assert read_manifest(tmp_path) == {"pretrain": {"commit": "abc"}, "finetune": {"commit": "def"}}


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_only_one_process_works_in_a_run_directory(tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(tiny_recipe)
    claim(recipe)

    @one_at_a_time
    def work(recipe: Recipe, then: Callable[[], str] = lambda: "done") -> str:
        return then()

    def work_again() -> str:
        return work(recipe)

    with pytest.raises(UserError, match="output_dir: another process works in .*; wait for it"):
        work(recipe, work_again)
    assert work(recipe, then=lambda: "done") == "done"  # the lock ended with the refused one
    assert [path.name for path in Path(recipe.output_dir).iterdir()] == ["recipe.yaml"]

    def work_as_second_process() -> str:
        monkeypatch.setenv("WORLD_SIZE", "2")
        return work_again()

    monkeypatch.setenv("RANK", "1")  # left over from elsewhere
    with pytest.raises(UserError, match="another process works in"):
        work(recipe, work_again)
    assert work(recipe, work_as_second_process) == "done"  # a process of the same group needs no lock


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_a_new_folder_is_locked_too(tiny_recipe: Path) -> None:
    recipe = load(tiny_recipe)

    @one_at_a_time
    def work(recipe: Recipe, then: Callable[[], object] = lambda: None) -> None:
        then()

    with pytest.raises(UserError, match="another process works in"):
        work(recipe, lambda: work(recipe))


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
@pytest.mark.parametrize("change", [(), ("training.learning_rate=0.5",)])
def test_a_refused_process_changes_nothing_where_another_works(tiny_recipe: Path, change: tuple[str, ...]) -> None:
    recipe = load(tiny_recipe)
    folder = Path(recipe.output_dir)
    with ExitStack() as first:
        with pytest.raises(FolderInUse), undone_after_mistake(folder):  # the second begins before there is a folder
            first.enter_context(locked(claim(recipe)))
            written = (folder / "recipe.yaml").read_bytes()
            first.enter_context(locked(claim(load(tiny_recipe, *change))))
        assert (folder / "recipe.yaml").read_bytes() == written


def test_a_refused_recipe_names_only_what_the_run_has(tiny_recipe: Path) -> None:
    recipe = load(tiny_recipe)
    run = claim(recipe)
    for folder in ("data", "checkpoints"):
        (run / folder).mkdir()
    with pytest.raises(UserError, match=rf"add data.path={run} \(pretrain on its prepared data\)$"):
        claim(load(tiny_recipe, "training.learning_rate=0.5"))
    (run / "model").mkdir()
    with pytest.raises(UserError, match=rf"training.init={run} data.path={run}, on other text tokenizer.path={run} "):
        claim(load(tiny_recipe, "training.learning_rate=0.5"))


def test_the_model_of_a_run_directory_is_its_folder(tiny_recipe: Path) -> None:
    folder = claim(load(tiny_recipe))
    assert model_of(str(folder)) == str(folder / "model")
    assert model_of(str(folder), "tokenizer") == str(folder / "tokenizer")
    assert model_of("google-bert/bert-base-uncased") == "google-bert/bert-base-uncased"
    (folder / "config.json").write_text("{}")  # as in a copy of a repository that `bertpre push` made
    assert model_of(str(folder)) == str(folder)


def test_results_that_are_no_longer_true_are_dropped(tmp_path: Path) -> None:
    drop_results(tmp_path, "evaluate")
    for stage in ("pretrain", "finetune", "evaluate"):
        write_results(tmp_path, stage, {"seconds": 1.0})
    drop_results(tmp_path, "evaluate", "suite")
    assert list(read_results(tmp_path)) == ["pretrain", "finetune"]


def test_a_classifier_whose_fine_tuning_began_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / "finetuned").mkdir()
    refuse_unfinished_classifier(tmp_path)  # nothing says that bertpre made it
    write_manifest(tmp_path, "finetune", {"commit": "abc"})
    with pytest.raises(UserError, match="finetuned is of an earlier fine-tuning, and the last one has not ended"):
        refuse_unfinished_classifier(tmp_path)
    write_results(tmp_path, "finetune", {"seconds": 1.0})
    refuse_unfinished_classifier(tmp_path)


def test_a_write_replaces_the_file_at_once(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    write_text(file, "old")
    with file.open() as reader:
        write_text(file, "new")
        assert reader.read() == "old"  # never part of both
    assert file.read_text() == "new"


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    folder, partial = tmp_path / "model", tmp_path / "model.partial"
    for content in ("old", "new"):
        partial.mkdir()  # a killed process has left it
        (partial / "stray").touch()
        with replaced_folder(folder) as written:
            written.mkdir()
            (written / content).touch()
        assert [file.name for file in folder.iterdir()] == [content] and not partial.exists()
    (tmp_path / "link").symlink_to(folder)
    (folder / "config.json").touch()
    with replaced_folder(tmp_path / "link") as written:  # on another disk
        written.mkdir()
        (written / "new").touch()
    assert (tmp_path / "link").is_symlink() and (folder / "new").exists()
    with pytest.raises(ZeroDivisionError), replaced_folder(folder) as written:
        written.mkdir()
        1 / 0  # noqa: B018
    assert [file.name for file in folder.iterdir()] == ["new"] and not partial.exists()


def test_a_link_to_other_files_is_not_replaced(tmp_path: Path) -> None:
    """A run from somewhere else may hold one to any folder of the user."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "thesis.txt").touch()
    (tmp_path / "model").symlink_to(tmp_path / "documents")
    wrong = pytest.raises(UserError, match="model is a link to .*documents, whose files are not of a model")
    with wrong, replaced_folder(tmp_path / "model"):
        pass
    assert (tmp_path / "documents" / "thesis.txt").exists()


def test_a_replaced_file_is_still_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    write_text(file, "old")
    file.chmod(0o600)
    write_text(file, "new")
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_text() == "new"


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").touch()
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:  # as Windows does where a file in it is open
        if path.name == "model.partial":
            raise PermissionError
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(PermissionError):
        patched.setattr(Path, "rename", fail)
        with replaced_folder(folder) as written:
            written.mkdir()
    assert [file.name for file in folder.iterdir()] == ["old"] and list(tmp_path.iterdir()) == [folder]
    folder.rename(tmp_path / ".model.replaced")  # the process was killed between the two
    with pytest.raises(ZeroDivisionError), replaced_folder(folder):
        1 / 0  # noqa: B018
    assert [file.name for file in folder.iterdir()] == ["old"] and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_folder_appears_as_a_whole_and_nothing_else_is_touched(exists: bool, tmp_path: Path) -> None:
    folder, own = tmp_path / "thesis", tmp_path / "thesis.partial"
    own.mkdir()
    if exists:
        folder.mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ZeroDivisionError), new_folder(folder):
        1 / 0  # noqa: B018
    assert sorted(tmp_path.rglob("*")) == before
    with new_folder(folder) as first:
        (first / "a").touch()
        with pytest.raises(UserError, match="another process has written it"), new_folder(folder) as second:
            (second / "b").touch()
            if exists:
                (folder / "c").touch()
            else:
                folder.mkdir()
        (folder / "c").unlink() if exists else folder.rmdir()
    assert [file.name for file in folder.iterdir()] == ["a"] and own.is_dir()
    assert sorted(tmp_path.iterdir()) == [folder, own]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    write_text(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "new \ud800")
    assert file.read_text() == "old"
    write_text(file, "日本語")
    assert file.read_text(encoding="utf-8") == "日本語"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
