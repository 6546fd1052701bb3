"""The supported versions: what `make test-oldest` installs is what pyproject.toml declares."""

import tomllib

from packaging.requirements import Requirement
from packaging.version import Version

from tests.helpers import ROOT

NOT_TESTED = {"bertpre", "jupyterlab", "mkdocs-material", "mypy", "pre-commit", "ray", "ruff", "torch", "types-pyyaml"}
NOT_PINNED = {"bertpre", "jupyterlab", "ray"}  # they have no part in the tests


def test_constraints_pin_each_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    names = {Requirement(line).name.lower() for line in [*project["dependencies"], *extras]} - NOT_PINNED
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= pinned, names - pinned


def test_the_oldest_versions_are_the_declared_floors() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    floors: dict[str, Version] = {}
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        if (name := requirement.name.lower()) not in NOT_TESTED:
            (bound,) = (spec for spec in requirement.specifier if spec.operator == ">=")
            assert floors.setdefault(name, Version(bound.version)) == Version(bound.version), name
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    oldest = {name.lower(): Version(version) for name, version in pins.items()}
    del oldest["torch"]
    assert oldest == floors
