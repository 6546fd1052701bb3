"""A run started with relative paths, then moved, is used from a third directory; nothing is written elsewhere."""

import json
from pathlib import Path

import pytest
import yaml

from bertpre.data.sample import CLASSES, generate
from tests.helpers import copy_run, run_here, tiny_values, tree_hash


@pytest.fixture
def moved(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run fine-tuned on `labels.csv`, moved to another folder; the current directory is a third, empty one."""
    (tmp_path / "project").mkdir()
    (tmp_path / "third").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    rows = [f'"{document.text}",{CLASSES[document.label]}\n' for document in generate("train", 80)]
    Path("labels.csv").write_text("text,label\n" + "".join(row for row in rows if row.count('"') == 2))
    values = tiny_values(Path("run"))
    values["finetune"] |= {"path": "labels.csv", "test_fraction": 0.3, "seeds": 2, "epochs": 1}
    Path("mine.yaml").write_text(yaml.safe_dump(values))
    copy_run(tiny_run, Path("run"), "prepare", "pretrain")
    Path("run/recipe.yaml").write_text(yaml.safe_dump(values))
    assert run_here("finetune", "mine.yaml") == 0
    (tmp_path / "elsewhere").mkdir()
    moved = Path("run").rename(tmp_path / "elsewhere" / "renamed")
    monkeypatch.chdir(tmp_path / "third")
    return moved


def files_outside(moved: Path, tmp_path: Path) -> dict[str, str]:
    """Every file but those of the run, with its digest."""
    start = str(moved.relative_to(tmp_path))
    return {name: digest for name, digest in tree_hash(tmp_path).items() if not name.startswith(start)}


def test_a_moved_run_is_used_where_it_is(moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside, before = files_outside(moved, tmp_path), tree_hash(moved)
    for command in (("show",), ("predict", "A fine film."), ("probe", "--limit", 2, "--max-length", 32)):
        assert run_here(command[0], moved, *command[1:]) == 0
    assert tree_hash(moved) == before
    assert f"output_dir: {moved}" in capsys.readouterr().out
    run = "../elsewhere/renamed"  # relative to the third directory
    assert run_here("run", run) == 0  # what is missing: the evaluation
    assert "evaluate" in json.loads((moved / "results.json").read_text())
    assert run_here("finetune", run) == 0
    assert "seed 1 is finished" in capsys.readouterr().out
    assert files_outside(moved, tmp_path) == outside
    assert {path.name for path in moved.parent.iterdir()} == {"renamed"}


def test_a_new_run_from_a_moved_one(moved: Path, tmp_path: Path) -> None:
    outside, before = files_outside(moved, tmp_path), tree_hash(moved)
    run = "../elsewhere/renamed"
    assert run_here("finetune", run, "output_dir=new", f"finetune.init={run}", "finetune.seeds=1") == 0
    assert tree_hash(moved) == before
    new = {name for name, _ in files_outside(moved, tmp_path).items() ^ outside.items()}
    assert all(name.startswith("third/new/") for name in new)
    stored = yaml.safe_load(Path("new/recipe.yaml").read_text())
    assert stored["finetune"]["init"] == str(moved)
    assert stored["finetune"]["path"] == f"{tmp_path}/project/labels.csv"


@pytest.mark.slow
def test_the_slower_commands_work_on_a_moved_run(moved: Path, tmp_path: Path) -> None:
    outside = files_outside(moved, tmp_path)
    for command in (("doctor",), ("baseline",), ("curve", "--fractions", "1.0"), ("export", "--to", "bert")):
        assert run_here(command[0], moved, *command[1:]) == 0
    assert files_outside(moved, tmp_path) == outside


def test_a_moved_run_is_pretrained_further(moved: Path, tmp_path: Path) -> None:
    for name in ("checkpoints/step-00000010/state.json", "results.json"):
        (moved / name).unlink()
    assert run_here("pretrain", moved) == 0  # resumes from the checkpoint of step 5
    rows = [json.loads(line) for line in (moved / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["stage"] == "pretrain" and row["split"] == "train"] == list(range(1, 11))
    assert not list((tmp_path / "third").iterdir())
