"""The documentation: every code block runs, or says why not; every command parses; generated pages are current.

A block that is not run is preceded by an HTML comment: `<!-- not run: why -->`, or `<!-- parsed, not run: why -->`,
where its commands must still parse. All other blocks of a page run in order, in a folder that holds a finished
`runs/quickstart`, with models and budgets that take seconds.
"""

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from transformers import BertConfig, BertForPreTraining

from bertpre.cli import COMMANDS
from bertpre.commands.run import run
from bertpre.recipe import flatten, known_keys, load_recipe
from tests.helpers import LIMIT, ROOT, run_here, tiny_values
from tests.integration.test_readme import check_recipe, parse

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FASTER = {  # what makes each training of the documentation take seconds
    "corpus.limit": 150, "tokenizer.vocab_size": 512, "training.compile": False, "training.precision": "fp32",
    "training.budget": None, "training.max_steps": 4, "training.global_batch_size": 8, "training.eval_pairs": 8,
    "training.phases": [{"max_length": 32}], "training.log_every": 2, "evaluate.limit": 40,
    "pairs.validation_fraction": 0.1,
} | {f"model.{name}": value for name, value in tiny_values(Path(), "modern")["model"].items()}  # fmt: skip
FASTER_TUNING = {"epochs": 1, "min_steps": None, "limit": 80, "max_length": 32, "validation_fraction": 0.2}


class Block(NamedTuple):
    """A fenced block of a page."""

    note: str  # the comment before it
    language: str
    code: str

    @property
    def is_run(self) -> bool:
        return "not run:" not in self.note and not self.note.startswith("run by ")


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(*(part or "" for part in match.groups())) for match in BLOCK.finditer(page.read_text("utf-8"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def statements(code: str) -> Iterator[str]:
    """The statements of a shell script: lines, with their continuations and here-documents."""
    lines = iter(code.splitlines())
    for line in lines:
        while line.endswith("\\"):
            line = line[:-1] + next(lines)
        if end := re.search(r"<<'(\w+)'", line):
            while not line.endswith(f"\n{end[1]}"):
                line += "\n" + next(lines)
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def words(statement: str) -> list[str]:
    return shlex.split(statement, comments=True)


def faster(arguments: list[str]) -> list[str]:
    """The arguments of a command, with overrides that make it quick where it takes a recipe that is not a run's."""
    command, *rest = arguments
    if command == "quickstart":
        command, rest = "run", ["quickstart"]
    parsed = parse([command, *rest])
    if "overrides" not in parsed or command in ("show", "init") or (Path(parsed["recipe"]) / "recipe.yaml").exists():
        return [command, *rest]
    recipe = load_recipe(parsed["recipe"], parsed["overrides"])
    changes = dict(FASTER) if recipe.corpus else {"training.compile": False}
    if recipe.tokenizer.path:
        del changes["tokenizer.vocab_size"]
    if recipe.finetune:
        changes |= {f"finetune.{key}": value for key, value in FASTER_TUNING.items()}
    return [command, *rest, *(f"{key}={json.dumps(value)}" for key, value in changes.items())]


def run_statement(statement: str) -> None:
    """Run one statement of a shell script: `bertpre` in this process, anything else in a shell."""
    if statement.startswith("bertpre "):
        assert run_here(*faster(words(statement)[1:])) == 0, statement
        return
    shell = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", statement)
    subprocess.run(["bash", "-ec", shell], check=True, timeout=LIMIT)


def check_yaml(text: str, folder: Path) -> None:
    """A recipe loads; a part of one has only keys that exist."""
    if "output_dir" in (values := yaml.safe_load(text)):
        (folder / "block.yaml").write_text(text)
        load_recipe(str(folder / "block.yaml"))
    assert {re.sub(r"\.\d+", "", key) for key in flatten(values)} <= set(known_keys())


@pytest.fixture(scope="session")
def small_quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the recipe `quickstart`, made smaller; not to be written to."""
    folder = tmp_path_factory.mktemp("docs") / "runs/quickstart"
    return run(load_recipe("quickstart", [*faster(["run", "quickstart"])[2:], f"output_dir={folder}"]))


@pytest.fixture
def workplace(small_quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `runs/quickstart`, which readers of the documentation have."""
    shutil.copytree(small_quickstart, tmp_path / "runs/quickstart")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_parameter(page: Path) -> Any:
    """A page, marked as slow where it exports to ONNX, which tests/integration/test_export.py checks too."""
    return pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if page.stem == "onnx" else [])


@pytest.mark.parametrize("page", [as_parameter(page) for page in PAGES if any(each.is_run for each in blocks(page))])
def test_the_blocks_of_a_page_run(page: Path, workplace: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(page):
        if not block.is_run:
            continue
        if block.language == "bash":
            for statement in statements(block.code):
                run_statement(statement)
        elif block.language == "python":
            exec(compile(block.code, name_of(page), "exec"), names)
        else:
            assert block.language == "yaml", f"{block.language}: mark the block `not run`, or indent it"
            check_yaml(block.code, workplace)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_parses(page: Path) -> None:
    for block in blocks(page):
        if block.language != "bash" or block.note.startswith("not run:"):
            continue
        for command in map(words, statements(block.code)):
            if command[0] == "bertpre":
                check_command(command[1:])
            elif "-m" in command and command[command.index("-m") + 1].startswith("bertpre."):
                place = command.index("-m") + 1
                check_command([command[place].removeprefix("bertpre."), *command[place + 1 :]])


def check_command(arguments: list[str]) -> None:
    """The command, its options and its recipe's keys exist."""
    parsed = parse(arguments)
    if parsed.get("recipe") and not parsed["recipe"].startswith("runs/"):
        check_recipe([parsed["recipe"], *(parsed.get("overrides") or [])])


def test_a_page_with_a_mistake_is_noticed(workplace: Path) -> None:
    with pytest.raises(AssertionError, match="fly"):
        check_command(["fly", "quickstart"])
    with pytest.raises(AssertionError):
        check_command(["run", "quickstart", "training.steps=3"])
    with pytest.raises(AssertionError, match="bertpre export runs/nothing"):
        run_statement("bertpre export runs/nothing --to bert")
    with pytest.raises(subprocess.CalledProcessError):
        run_statement("ls no-such-file")
    with pytest.raises(AssertionError):
        check_yaml("training:\n  steps: 3\n", workplace)


def test_a_block_that_is_not_run_says_why() -> None:
    notes = [block.note for page in PAGES for block in blocks(page) if not block.is_run]
    assert notes
    for note in notes:
        assert len(note.partition(": ")[2].split()) > 2 or note.startswith("run by tests/"), note
        for file in re.findall(r"tests/\w+/\w+\.py", note):
            assert (ROOT / file).is_file(), note


def test_the_generated_pages_are_current() -> None:
    script = runpy.run_path(str(DOCS / "generate.py"))
    for page, text in (("recipe.md", script["recipe_page"]()), ("commands.md", script["commands_page"]())):
        assert (DOCS / page).read_text("utf-8") == text, f"docs/{page} is not current: run `make docs`"


def test_the_reference_has_every_key_and_command() -> None:
    recipe, commands = (DOCS / "recipe.md").read_text("utf-8"), (DOCS / "commands.md").read_text("utf-8")
    assert {key.rpartition(".")[2] for key in known_keys()} <= set(re.findall(r"^\| `(\w+)`", recipe, re.MULTILINE)) | {
        key for key in known_keys() if f"## `{key}`" in recipe
    }
    assert {command.name for command in COMMANDS} == set(re.findall(r"^### `bertpre (\w+)`", commands, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_it_links_to_exists(page: Path) -> None:
    text = BLOCK.sub("", page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert target.startswith("https://") or (page.parent / target).is_file(), target
    for file in re.findall(r"`((?:benchmarks|recipes|notebooks|tests)/[\w./-]+)", text):
        assert (ROOT / file.rstrip(".")).exists(), file


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/index.html").is_file()


def test_the_layout_shows_every_folder_and_the_modules_of_the_large_ones() -> None:
    tree = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("    bertpre/\n")[2]
    shown = re.findall(r"^      (\w+)/", tree, re.MULTILINE)
    assert sorted(shown) == sorted(folder.parent.name for folder in (ROOT / "bertpre").glob("*/__init__.py"))
    for folder in ("data", "finetuning", "training"):
        modules = [file.name for file in (ROOT / "bertpre" / folder).glob("[a-z]*.py")]
        assert not [name for name in modules if name not in tree.partition("\n\n")[0]], folder


def test_the_batches_of_the_data_page_fit_a_stock_model(workplace: Path) -> None:
    code = [block.code for block in blocks(DOCS / "data.md") if block.language == "python"]
    store: dict[str, Any] = {}
    exec(code[0], store)
    sentences = store["sentences"]
    assert len(store["third_sentence"]) == sentences[3] - sentences[2] > 0
    assert len(store["first_document"]) > len(store["third_sentence"])
    seen: dict[str, Any] = {}
    exec(code[1], seen)
    batch, tokenizer = seen["batch"], seen["tokenizer"]
    is_target = batch["labels"] != -100
    assert is_target.sum(1).min() >= 1
    assert not is_target[:, 0].any()
    assert seen["position"].offset == 64
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    loss = BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **sizes))(**batch).loss
    assert torch.isfinite(loss)


def test_the_container_and_the_workflows_use_what_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    extras = re.search(r'"\.\[([\w,]+)\]"', dockerfile)
    assert extras
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert re.search(r'^ENTRYPOINT \["bertpre"\]\nCMD \["quickstart"\]$', dockerfile, re.MULTILINE)
    shown = re.findall(r"--build-arg (\w+)=", (DOCS / "how-to/container.md").read_text("utf-8"))
    assert shown
    assert set(shown) <= set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    targets = [target for row in jobs["test"]["strategy"]["matrix"]["include"] for target in row["targets"].split()]
    assert {*targets, "docs"} <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for statement in statements(jobs["wheel"]["steps"][-1]["run"]):
        check_command(words(statement)[1:])


def test_the_citation_has_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (str(citation["version"]), citation["license"]) == (project["version"], project["license"])
