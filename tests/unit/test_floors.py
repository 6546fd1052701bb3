"""The floors of the house: which module may import which, read from the source."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import bertpre

PACKAGE = Path(bertpre.__file__).parent
HEAVY = ("torch", "transformers", "datasets", "accelerate", "numpy", "sklearn", "matplotlib", "wandb")
VERBS = {  # starting_point: where the recipe meets the model that fine-tuning starts from
    "prepare", "pretrain", "starting_point", "splits", "finetune", "evaluate", "predict", "baseline", "curve", "suite",
    "probe", "report_evaluation",
    "export", "hub", "model_card", "doctor", "report", "run", "show",
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """An import of one module of bertpre by another, as it happens at run time."""

    of: str
    inside_a_function: bool


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports(module: str) -> frozenset[Import]:
    """What a module imports of bertpre; under `if TYPE_CHECKING` nothing is imported."""
    return frozenset(walk(ast.parse(FILES[module].read_text(encoding="utf-8")), module, False))


def walk(node: ast.AST, module: str, inside: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, inside) for alias in node.names if alias.name.split(".")[0] == "bertpre")
    elif isinstance(node, ast.ImportFrom):
        package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        source = ".".join(filter(None, [package if node.level else "", node.module]))
        if source.split(".")[0] == "bertpre":
            for alias in node.names:
                name = f"{source}.{alias.name}"
                yield Import(name if name in FILES else source, inside)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from walk(child, module, inside)
    else:
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, module, inside)


def modules(*floors: str) -> list[str]:
    """The modules named, and everything below the packages named."""
    return [name for name in FILES if any(name == floor or name.startswith(floor + ".") for floor in floors)]


def imported(module: str) -> set[str]:
    return {entry.of for entry in imports(module)}


def strangers(module: str, *allowed: str) -> set[str]:
    """What a module imports that lies on none of the allowed floors."""
    return {of for of in imported(module) if not any(of == floor or of.startswith(floor + ".") for floor in allowed)}


def test_the_reader_of_imports_sees_what_there_is() -> None:
    assert Import("bertpre.errors", False) in imports("bertpre.recipe")
    assert Import("bertpre.prepare", True) in imports("bertpre.cli")
    assert "bertpre.recipe" not in imported("bertpre.data.labelled")  # for annotations only
    assert "bertpre.data.sample" in imported("bertpre.data.corpus")


@pytest.mark.parametrize("module", modules("bertpre.recipe", "bertpre.runtime", "bertpre.errors"))
def test_the_ground_floor_imports_nothing_of_bertpre(module: str) -> None:
    assert strangers(module, "bertpre.errors") == set()


@pytest.mark.parametrize("module", modules("bertpre.model"))
def test_the_model_stands_on_its_own(module: str) -> None:
    assert strangers(module, "bertpre.model", "bertpre.errors") == set()


def test_attention_stands_on_its_own() -> None:
    for module in modules("bertpre.attention"):
        assert strangers(module, "bertpre.attention", "bertpre.errors") == set(), module


@pytest.mark.parametrize("module", modules("bertpre.data"))
def test_data_knows_neither_model_nor_training_nor_recipe(module: str) -> None:
    assert strangers(module, "bertpre.data", "bertpre.errors") == set()


@pytest.mark.parametrize("module", modules("bertpre.training"))
def test_training_takes_objects_and_knows_no_recipe(module: str) -> None:
    assert strangers(module, "bertpre.training", "bertpre.data", "bertpre.runtime", "bertpre.errors") == set()


def test_only_verbs_and_the_run_directory_know_the_recipe() -> None:
    readers = {module.removeprefix("bertpre.") for module in FILES if "bertpre.recipe" in imported(module)}
    assert readers <= VERBS | {"cli", "run_directory"}


def test_only_the_command_line_and_verbs_import_verbs() -> None:
    verbs = {f"bertpre.{verb}" for verb in VERBS}
    for module in FILES:
        if module not in verbs | {"bertpre.cli"}:
            assert imported(module).isdisjoint(verbs), module
    assert not [module for module in FILES if "bertpre.cli" in imported(module)]


def test_the_command_line_imports_a_verb_only_when_it_is_called() -> None:
    assert {entry.of for entry in imports("bertpre.cli") if not entry.inside_a_function} <= {"bertpre.errors"}


def test_there_are_no_cycles() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for other in sorted(imported(module) - {module}):
                visit(other, (*path, module))
            done.add(module)

    for module in FILES:
        visit(module, ())


@pytest.mark.parametrize(
    "code",
    [
        "import bertpre.cli",
        "import bertpre.cli, bertpre.recipe, bertpre.run_directory",
        "import sys; sys.argv = ['bertpre', '--help']; from bertpre.cli import main; main()",
        "import sys; sys.argv = ['bertpre', 'pretrain', '--help']; from bertpre.cli import main; main()",
    ],
)
def test_help_is_instant_because_nothing_heavy_is_imported(code: str) -> None:
    after = f"\nfinally:\n    print('loaded:', [name for name in {HEAVY} if name in sys.modules])"
    program = f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code{after}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize("file", sorted((PACKAGE.parent / "benchmarks").glob("*.py")), ids=lambda file: file.stem)
def test_what_a_benchmark_imports_is_there(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bertpre":
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{file.name}: {node.module} has no {missing}"
