"""Executes notebooks from a clean kernel, stores them with their outputs, and prints the minutes of each.

python notebooks/execute.py [FILE ...]

By default all of them. Notebooks 4 and 9 read IMDB: from the folder in the environment variable IMDB, else from the
Hub. A picture of each, from the cell with the tag `index`, is kept in `index/` for README.md. A hash of the code is
stored with the outputs: the tests fail where the code was changed and not executed again.
"""

import base64
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.ipynb"))


def source_hash(notebook: nbformat.NotebookNode) -> str:
    """A hash of the code of all cells."""
    code = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def execute(file: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook after all cells ran in a new kernel, with `folder` as the current one; raises where a cell does."""
    notebook = nbformat.read(file, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    environment = {
        **os.environ,
        "PYTHONPATH": str(FOLDER),
    }  # for pictures.py and the other modules beside the notebooks
    client = NotebookClient(
        notebook,
        timeout=900,
        startup_timeout=300,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    notebook.metadata.language_info = {"name": "python"}  # without the version of this machine's Python
    notebook.metadata.source_hash = source_hash(notebook)
    return notebook


def index_picture(notebook: nbformat.NotebookNode) -> bytes:
    """The first picture of the cell with the tag `index`, as PNG."""
    (cell,) = (cell for cell in notebook.cells if "index" in cell.metadata.get("tags", []))
    pictures = (output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {}))
    return base64.b64decode(next(pictures))


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:] or map(str, FILES)):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            current = Path(folder, "notebooks")  # so that ../runs, where notebooks write, is new and is deleted too
            current.mkdir()
            notebook = execute(file, current)
        nbformat.write(notebook, file)
        (FOLDER / "index").mkdir(exist_ok=True)
        (FOLDER / "index" / f"{file.stem[:2]}.png").write_bytes(index_picture(notebook))
        print(f"{file.name:34} {(time.perf_counter() - start) / 60:4.1f} minutes", flush=True)
