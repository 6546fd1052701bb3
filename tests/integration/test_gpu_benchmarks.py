"""The script that measures a GPU: on a CPU its checks pass in small, and one part's failure does not end the others."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, run_process

ABSENT = ("datasets", "wandb")  # on the machine that it is for
SCRIPTS = ("against_stock", "gpu_ablation", "gpu_recipe", "loop", "step_profile")
FAKE_PYTHON = """#!/bin/sh
case $1 in
    benchmarks/step_profile.py) echo progress; echo '{"half": 1}'; echo 'Error: "out" of memory' >&2; exit 3 ;;
    benchmarks/*) echo '{"benchmark": "whole"}' ;;
    *) exec PYTHON "$@" ;;
esac
"""


@pytest.mark.slow  # two minutes where the processor emulates bf16
def test_the_checks_pass_in_small_without_the_packages_that_are_not_needed() -> None:
    program = f"""
import runpy, sys
sys.path.insert(0, "benchmarks")
sys.modules.update(dict.fromkeys({ABSENT}))
import {", ".join(SCRIPTS)}
sys.argv = ["gpu_checks.py", "--smoke"]
runpy.run_path("benchmarks/gpu_checks.py", run_name="__main__")
"""
    done = run_process([sys.executable, "-c", program], TORCHDYNAMO_DISABLE="1", PYTHONPATH=str(ROOT))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line["check"] for line in lines if line["ok"]] == [
        "machine",
        "loss_falls",
        "compiled_and_uncompiled_agree",
        "resume_is_bit_identical",
        "nan_is_survived",
        "checkpoint_is_restored",
        "export_equals_stock",
        "unpadded_agrees_with_padded",
        "classifiers_and_sentence_scores_are_those_of_the_cpu",
    ]


@pytest.mark.slow  # half a minute where the processor emulates bf16, as the next one
def test_the_profile_shares_out_the_time_of_a_step() -> None:
    command = [sys.executable, "benchmarks/step_profile.py", "tiny"]
    done = run_process(command, TORCHDYNAMO_DISABLE="1", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    shares = json.loads(done.stdout)["shares"]
    assert abs(sum(shares.values()) - 1) < 0.01
    assert shares["matrix products"] > 0


@pytest.mark.slow
def test_every_case_of_the_ablation_does_a_step() -> None:
    program = """
import sys
sys.path.insert(0, "benchmarks")
from gpu_ablation import GROUPS, SWEEP, build, setting
for group, cases in GROUPS.items():
    for name in cases if group not in SWEEP else ():
        build(*setting(group, name, True))()
        print(group, name)
"""
    done = run_process([sys.executable, "-c", program], TORCHDYNAMO_DISABLE="1", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert {"compile each_layer", "compile each_layer_graphs"} < set(done.stdout.splitlines())


def test_a_part_that_fails_leaves_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(FAKE_PYTHON.replace("PYTHON", sys.executable))
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    done = gpu_sh("profile", "loop", PYTHON=str(fake))
    assert done.returncode == 1
    half, failure, whole, success = map(json.loads, done.stdout.splitlines())
    assert half == {"half": 1} and whole == {"benchmark": "whole"}
    assert failure["part"] == "profile" and failure["error"] == 'exit status 3: Error: "out" of memory'
    assert success["part"] == "loop" and "error" not in success
    assert "progress" in done.stderr


def test_an_unknown_part_shows_the_parts() -> None:
    done = gpu_sh("nonsense")
    assert done.returncode == 2 and "checks" in done.stderr and not done.stdout


def test_a_run_without_prepared_text_is_refused(tmp_path: Path) -> None:
    done = gpu_sh("profile", RUN=str(tmp_path))
    assert done.returncode == 2 and f"RUN={tmp_path} has no prepared text" in done.stderr


def gpu_sh(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `benchmarks/gpu.sh`."""
    return run_process(["bash", "benchmarks/gpu.sh", *arguments], **environment)
