"""What `manifest.json` says about a run, and what it does not."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bertpre
from bertpre import manifest

PACKAGE = Path(bertpre.__file__).parent


def test_the_commit_is_marked_where_files_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "__file__", str(tmp_path / "bertpre" / "manifest.py"))
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    assert manifest.commit() is None
    monkeypatch.setenv("GIT_COMMIT", "abc1234")  # as in a container
    assert manifest.commit() == "abc1234"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("one")
    for arguments in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    clean = manifest.commit()
    assert clean and not clean.endswith("+")
    (tmp_path / "file").write_text("two")
    assert manifest.commit() == f"{clean}+"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/usr/bin/bertpre", "run", "quickstart"], "/usr/bin/bertpre run quickstart"),
        ([f"{PACKAGE}/__main__.py", "run"], f"{PACKAGE}/__main__.py run"),
        ([f"{PACKAGE}/data/../pretrain.py", "own.yaml"], f"{PACKAGE}/data/../pretrain.py own.yaml"),
        (["train.py", "--password", "hunter2"], "train.py"),
    ],
)
def test_the_arguments_of_other_programs_are_not_stored(
    arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert manifest.command() == expected


def test_the_manifest_says_what_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    hardware = manifest.manifest(torch.device("cpu"), torch.bfloat16, 3)["hardware"]
    assert (hardware["threads"], hardware["processes"], hardware["precision"]) == (77, 3, "bfloat16")
