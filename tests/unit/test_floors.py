"""The floors of the house: which folder may import which, read from the source."""

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
FLOORS = [  # top to bottom; a folder or file may import those below its own floor, and files of its own folder
    {"__main__", "pretrain", "finetune"},
    {"cli", "api"},
    {"commands", "launch"},
    {"hub"},
    {"reporting", "finetuning"},
    {"pretraining"},
    {"training", "run_directory"},
    {"model", "data", "recipe"},
    {"runtime", "manifest"},
    {"compiler", "hardware", "files"},
    {"guard"},
    {"errors", "console"},
]
ALONE = {"attention", "model"}  # these import nothing else of bertpre but errors and files
KNOW_NO_RECIPE = {
    "attention",
    "data",
    "model",
    "training",
    "runtime",
    "manifest",
    "compiler",
    "hardware",
    "files",
    "guard",
    "errors",
    "console",
}


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


def imported(module: str) -> set[str]:
    return {entry.of for entry in imports(module)}


def room(module: str) -> str:
    """The folder or file directly below bertpre that a module belongs to; empty for the package itself."""
    return (module.split(".") + [""])[1]


def floor(of: str) -> int:
    (found,) = [number for number, rooms in enumerate(FLOORS) if of in rooms]
    return found


def annotated(module: str) -> set[str]:
    """What a module imports of bertpre, under `if TYPE_CHECKING` too."""
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


def test_the_reader_of_imports_sees_what_there_is() -> None:
    assert Import("bertpre.errors", False) in imports("bertpre.recipe.loading")
    assert Import("bertpre.recipe", True) in imports("bertpre.cli")
    assert "bertpre.recipe" not in imported("bertpre.finetuning.examples")  # for annotations only
    assert "bertpre.recipe" in annotated("bertpre.finetuning.examples")
    assert "bertpre.data.sample" in imported("bertpre.data.corpus")


def test_every_folder_and_file_has_a_floor() -> None:
    rooms = {room(module) for module in FILES} - {""}
    assert rooms - ALONE == set().union(*FLOORS) - ALONE


@pytest.mark.parametrize("module", sorted(name for name in FILES if room(name) not in {"", *ALONE}))
def test_no_import_runs_upwards(module: str) -> None:
    own = room(module)
    others = {room(name) for name in imported(module)} - {own, ""}
    assert {other for other in others if floor(other) <= floor(own)} == set()


@pytest.mark.parametrize("module", sorted(name for name in FILES if room(name) in ALONE))
def test_model_and_attention_stand_on_their_own(module: str) -> None:
    assert {room(name) for name in imported(module)} <= {room(module), "errors", "files"}


@pytest.mark.parametrize("module", sorted(name for name in FILES if room(name) in KNOW_NO_RECIPE))
def test_data_model_and_training_know_no_recipe_not_even_for_annotations(module: str) -> None:
    assert not [name for name in annotated(module) if room(name) == "recipe"]


@pytest.mark.parametrize(
    "module", sorted(name for name in FILES if room(name) not in {*FLOORS[0], "cli", "api", "commands"})
)
def test_only_the_command_line_the_python_interface_and_commands_import_commands(module: str) -> None:
    assert not [name for name in imported(module) if room(name) in {"cli", "commands"}]


def test_the_command_line_imports_a_command_only_when_it_is_called() -> None:
    assert {entry.of for entry in imports("bertpre.cli") if not entry.inside_a_function} <= {
        "bertpre.errors",
        "bertpre.console",
        "bertpre.guard",
    }


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
        "import bertpre; dir(bertpre), bertpre.UserError, bertpre.load_recipe, bertpre.run, bertpre.open_run",
        "import bertpre; bertpre.data.__all__, bertpre.model.__all__",
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
            names = [alias.name for alias in node.names if f"{node.module}.{alias.name}" not in FILES]
            missing = [name for name in names if not hasattr(module, name)]
            assert not missing, f"{file.name}: {node.module} has no {missing}"
