"""The notebooks run from the first cell to the last, and are committed without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers import ROOT


def test_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"DOCUMENTS": "60", "HIDDEN_SIZE": "32", "MAX_STEPS": "6", "LABELLED": "100"}
    for name, value in {"OUTPUT_DIR": str(tmp_path / "run"), **tiny}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "notebooks" / "01_quickstart.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=300, startup_timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises where a cell does
    assert (tmp_path / "run" / "results.json").is_file()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("file", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda file: file.name)
def test_it_is_committed_without_outputs(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)
