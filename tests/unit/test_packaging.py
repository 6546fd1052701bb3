"""The wheel has every package and every file that bertpre reads."""

import ast
import re
import sys
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


def imports_of(file: Path) -> tuple[set[str], set[str]]:
    """The packages that a module imports: when it is imported itself, and at any time."""
    found: tuple[set[str], set[str]] = (set(), set())
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for nodes, names in zip((tree.body, ast.walk(tree)), found, strict=True):
        for node in nodes:
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").partition(".")[0])
    return found


IMPORTS = [imports_of(file) for file in (ROOT / "bertpre").rglob("*.py")]


def test_what_few_commands_need_is_imported_where_it_is_used() -> None:
    seldom = {"datasets", "matplotlib", "onnx", "onnxruntime", "pandas", "scipy", "sklearn", "wandb"}
    assert not seldom & set().union(*(at_once for at_once, _ in IMPORTS))


def test_what_is_required_and_what_is_imported_are_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split("[>=]", entry)[0] for entry in project["dependencies"]}
    optional = {"onnx", "onnxruntime", "ray", "rensa", "zstandard"}
    names = {"PyYAML": "yaml", "scikit-learn": "sklearn"}
    imported = set().union(*(at_any_time for _, at_any_time in IMPORTS)) - sys.stdlib_module_names - {"bertpre"}
    assert imported - optional == {names.get(name, name) for name in required}


def test_no_text_file_is_read_or_written_in_the_code_page_of_the_system() -> None:
    without = []
    for file in (ROOT / "bertpre").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                names = {keyword.arg for keyword in node.keywords}
                if node.func.attr in ("read_text", "write_text") and "encoding" not in names:
                    without.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert without == []
