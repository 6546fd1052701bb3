"""The planted faults follow the code: the text that each replaces occurs once, and its tests exist."""

from pathlib import Path

import pytest
import yaml

from tests.helpers import ROOT


@pytest.mark.parametrize("area", sorted((ROOT / "tests" / "mutants").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_fault_can_be_planted(area: Path) -> None:
    for fault in yaml.safe_load(area.read_text(encoding="utf-8")):
        assert (ROOT / fault["file"]).read_text(encoding="utf-8").count(fault["old"]) == 1, fault["old"]
        for place in fault["tests"]:
            file, _, test = place.partition("::")
            assert f"def {test.split('[')[0]}" in (ROOT / file).read_text(encoding="utf-8"), place
