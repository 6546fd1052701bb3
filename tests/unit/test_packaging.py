"""The wheel has every package and every file that bertpre reads."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from tests.helpers import ROOT

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_is_in_the_wheel() -> None:
    folders = {file.parent.relative_to(ROOT) for file in (ROOT / "bertpre").rglob("*.py")}
    packages = {".".join(folder.parts) for folder in folders}
    assert packages | {"bertpre.recipes"} == set(SETUPTOOLS["packages"])


def test_every_file_that_is_not_code_is_in_the_wheel() -> None:
    missing = []
    for package in SETUPTOOLS["packages"]:
        folder = ROOT / SETUPTOOLS["package-dir"].get(package, package.replace(".", "/"))
        patterns = SETUPTOOLS["package-data"].get(package, [])
        for file in data_files(folder):
            if not any(fnmatch(str(file.relative_to(folder)), pattern) for pattern in patterns):
                missing.append(str(file.relative_to(ROOT)))
    assert missing == []


def data_files(folder: Path) -> list[Path]:
    """The files of one package that are not code; folders without code are part of it."""
    found = []
    for path in folder.iterdir():
        if path.is_dir() and path.name != "__pycache__" and not list(path.rglob("*.py")):
            found += [file for file in path.rglob("*") if file.is_file()]
        elif path.is_file() and path.suffix != ".py":
            found.append(path)
    return found
