"""Plants single-line faults one by one and runs the tests beside them; prints one JSON line, and each survivor.

python tests/mutants/plant.py [AREA ...]        (default: all; an area is a YAML file beside this one)

Each entry has `file`, `old` (text that occurs once in it), `new` (the fault) and `tests`. Works on a copy of the
repository, so that an interrupted run leaves nothing behind. Not part of `make test`: it takes many minutes.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "runs", "wandb", "__pycache__", ".*_cache", "*.egg-info")


def is_caught(copy: Path, fault: dict[str, str]) -> bool:
    """Plant a fault in the copy, run its tests, and take it out again."""
    file = copy / fault["file"]
    source = file.read_text()
    if source.count(fault["old"]) != 1:
        raise SystemExit(f"{fault['file']}: {fault['old']!r} occurs {source.count(fault['old'])} times, not once")
    file.write_text(source.replace(fault["old"], fault["new"]))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *fault["tests"]]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=900, check=False)
        return done.returncode == 1  # some test failed; 2 and more are errors of pytest itself
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(source)


def main(areas: list[str]) -> None:
    """Plant every fault of the areas."""
    files = [HERE / f"{area}.yaml" for area in areas] or sorted(HERE.glob("*.yaml"))
    faults = [(file.stem, fault) for file in files for fault in yaml.safe_load(file.read_text())]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bertpre"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
        for area, fault in faults:
            caught = is_caught(copy, fault)
            print(f"{'caught  ' if caught else 'SURVIVED'} {area}: {fault['file']}: {fault['new'].strip()}", flush=True)
            survivors += [] if caught else [f"{fault['file']}: {fault['new'].strip()}"]
    print(json.dumps({"planted": len(faults), "caught": len(faults) - len(survivors), "survivors": survivors}))


if __name__ == "__main__":
    main(sys.argv[1:])
