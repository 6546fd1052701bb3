"""A user's mistake is one message that names the key or the file, exit status 2, and nothing lost."""

import errno
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from bertpre.files import file_checksum
from bertpre.recipe import load_recipe
from bertpre.run_directory import claim
from tests.helpers import LIMIT, ROOT, run_cli, run_here, tiny_values, tree_hash, write_recipe

TEXTS = [f"A film. It was film number {number}." for number in range(60)]
TINY = "tiny.yaml output_dir=new corpus.split=train"
LATE = ("=one.txt", "=blank.txt", "=blank.jsonl", "vocab_size=64")  # found after parts of the corpus were cleaned


# ---- a folder full of mistakes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the cases below are typed."""
    folder = tmp_path_factory.mktemp("home")
    write_tables(folder)
    write_texts(folder)
    write_recipes(folder)
    write_runs(folder, tiny_run)
    return folder


def write_tables(folder: Path) -> None:
    """Labelled texts, nearly all with a fault."""
    good = pd.DataFrame({"text": TEXTS, "label": ["no", "yes"] * 30})
    good.to_csv(folder / "good.csv", index=False)
    good.rename(columns={"text": "body", "label": "stars"}).to_csv(folder / "columns.csv", index=False)
    good.assign(label="yes").to_csv(folder / "one-class.csv", index=False)
    good.assign(label=range(60)).to_csv(folder / "ids.csv", index=False)
    good.assign(label=[0.5, 1.5] * 30).to_csv(folder / "fractions.csv", index=False)
    good.assign(label=[None, "yes"] * 30).to_csv(folder / "unlabelled.csv", index=False)
    good.assign(text=[None, "A film."] * 30).to_csv(folder / "no-text.csv", index=False)
    good.assign(text=range(60)).to_csv(folder / "numbers.csv", index=False)
    (folder / "latin-1.csv").write_bytes("text,label\nAm\xe9lie,yes\n".encode("latin-1") * 30)
    (folder / "binary.csv").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe" * 20)
    (folder / "header.csv").write_text("text,label\n")
    (folder / "empty.csv").write_text("")
    (folder / "unclosed.csv").write_text('text,label\n"A film.,yes\n' + "A good film.,no\n" * 9)
    rows = '"A film.\tyes\n' + "A good film.\tno\n" * 9 + 'The "end"\tno\nno label\n'
    (folder / "unclosed.tsv").write_text("text\tlabel\n" + rows)
    (folder / "tagged.tsv").write_text("EU\tNNP\tB-ORG\nrejects\tVBZ\tO\nPeter\tNNP\tB-PER\n\n" * 9)
    (folder / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    (folder / "letter.docx").write_bytes(b"PK\x03\x04 a Word file")


def write_texts(folder: Path) -> None:
    """Corpora, none of which can be prepared."""
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text("\n \n\n")
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"A film. " * 999)[:30])
    (folder / "one.txt").write_text("The only document there is. It has two sentences.\n")
    (folder / "latin-1.txt").write_bytes("Am\xe9lie is a film.\n".encode("latin-1") * 30)
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 9)
    (folder / "empty.jsonl").write_text("")
    (folder / "blank.jsonl").write_text('{"text": " "}\n{"text": "<br />"}\n')
    (folder / "cut.jsonl").write_text('{"text": "A film."}\n{"text": "A fi')
    (folder / "not.jsonl").write_text("A film.\nAnother film.\n")
    (folder / "empty").mkdir()
    (folder / "texts").mkdir()
    for name in ("train", "more"):
        (folder / "texts" / f"{name}.txt").write_text("A film.\n" * 30)


def write_recipes(folder: Path) -> None:
    """A tiny recipe, and files that are none."""
    values = tiny_values(Path("run")) | {"prepare": {"workers": 1}}
    text = write_recipe(folder / "tiny.yaml", values).read_text()
    (folder / "twice.yaml").write_text(f"{text}seed: 3\n")
    (folder / "misspelt.yaml").write_text(f"{text}speed: 3\n")
    (folder / "broken.yaml").write_text("output_dir: [")
    (folder / "tab.yaml").write_text("output_dir: run\ncorpus:\n\tpath: sample\n")
    (folder / "empty.yaml").write_text("")
    (folder / "list.yaml").write_text("- output_dir: run\n")
    (folder / "latin-1.yaml").write_bytes("# \xe9\noutput_dir: run\n".encode("latin-1"))
    (folder / "thesis").mkdir()
    (folder / "thesis" / "thesis.tex").write_text("years of work")


def write_runs(folder: Path, run: Path) -> None:
    """A finished run, and copies of it with a damaged file each."""

    def copy(name: str) -> Path:
        target = Path(shutil.copytree(run, folder / name, copy_function=os.link))  # a file is replaced, never changed
        claim(load_recipe(str(folder / "tiny.yaml"), [f"output_dir={target}"]))
        return target

    def damage(name: str, file: str, change: Callable[[bytes], bytes]) -> None:
        target = copy(name) / file
        content = change(target.read_bytes())
        target.unlink()
        target.write_bytes(content)

    copy("run")
    prepared = copy("prepared")
    for stage in ("checkpoints", "model", "finetuned"):
        shutil.rmtree(prepared / stage)
    for file in ("results.json", "predictions.parquet"):
        (prepared / file).unlink()
    damage("bad-results", "results.json", lambda content: content[: len(content) // 2])
    damage("bad-recipe", "recipe.yaml", lambda content: content + b"speed: 3\n")
    damage("bad-store", "data/part-00000.train.tokens.npy", lambda content: content[:-100])
    damage("bad-config", "finetuned/config.json", lambda content: b"{")
    damage("bad-weights", "finetuned/model.safetensors", lambda content: content[:100])
    damage("bad-tokenizer", "finetuned/tokenizer.json", lambda content: b"{}")
    damage("bad-model", "model/model.safetensors", lambda content: content[:100])
    shutil.rmtree(copy("no-classifier") / "finetuned")


CASES = {
    # ---- recipes and keys
    "show none.yaml": "none.yaml: there is no such recipe",
    "run": "Missing argument 'RECIPE'",
    "shwo tiny.yaml": "No such command 'shwo'",
    "show twice.yaml": "twice.yaml: cannot be read as YAML: key 'seed' is given twice",
    "show misspelt.yaml": "misspelt.yaml: unknown key 'speed'; did you mean 'seed'?",
    "show broken.yaml": "broken.yaml: cannot be read as YAML",
    "show tab.yaml": "tab.yaml: cannot be read as YAML",
    "show empty.yaml": "empty.yaml: a recipe must be a mapping",
    "show list.yaml": "list.yaml: a recipe must be a mapping",
    "show latin-1.yaml": "latin-1.yaml: cannot be read as YAML",
    "show good.csv": "good.csv: ",
    "show thesis": "thesis",
    "show tiny.yaml sead=1": "unknown key 'sead'; did you mean 'seed'?",
    "show tiny.yaml training.max_step=1": "unknown key 'training.max_step'; did you mean 'training.max_steps'?",
    "show tiny.yaml training.phases.0.max_lenght=8": "did you mean 'training.phases.0.max_length'?",
    "show tiny.yaml training": "'training': write key=value",
    "show tiny.yaml --training.max_steps=100": "training.max_steps=100",
    "show tiny.yaml --training.max_steps 100": "training.max_steps=100",
    "show tiny.yaml -seed=3": "seed=3",
    "show tiny.yaml --seed 3": "seed=3",
    "show tiny.yaml training.max_steps = 100": "training.max_steps",
    "show tiny.yaml training.phases.7.max_length=8": "training.phases.7",
    "show tiny.yaml training.learning_rate=1e400": "training.learning_rate: must be a finite number",
    "show tiny.yaml training.learning_rate=.nan": "training.learning_rate",
    "show tiny.yaml training.weight_decay=.inf": "training.weight_decay",
    "show tiny.yaml training.learning_rate=fast": "training.learning_rate",
    "show tiny.yaml training.learning_rate=-1": "training.learning_rate",
    "show tiny.yaml training.learning_rate=0,001": "training.learning_rate",
    "show tiny.yaml training.max_steps=10.5": "training.max_steps",
    "show tiny.yaml training.max_steps=1e-3": "training.max_steps",
    "show tiny.yaml training.budget=soon": "training.budget: 'soon' is not a duration: write 90s, 45m, 1.5h or 2d",
    "show tiny.yaml training.budget=45": "training.budget: '45' is not a duration",
    "show tiny.yaml training.precision=half": "training.precision",
    "show tiny.yaml training.optimizer=sgd": "training.optimizer",
    "show tiny.yaml training.mask_split=[0.8,0.1,0.2]": "training.mask_split: the three fractions must add up to 1",
    "show tiny.yaml model.hidden_size=33": "model.hidden_size",
    "show tiny.yaml model.num_hidden_layers=two": "model.num_hidden_layers",
    "show tiny.yaml finetune.max_length=128": "finetune.max_length",
    "show tiny.yaml finetune.label_column=[a]": "finetune.label_column",
    "show tiny.yaml corpus.limit=three": "corpus.limit",
    "show tiny.yaml corpus.weight=1.5": "corpus.weight",
    "show tiny.yaml seed=-1": "seed",
    "show tiny.yaml corpus=sample": "corpus: is a section, not a single value; set its keys: corpus.KEY=VALUE",
    "show tiny.yaml corpus=null": "corpus: is missing",
    # ---- corpora
    f"prepare {TINY} corpus.path=none": "corpus.path: 'none' is neither a file or folder nor a Hub id",
    f"prepare {TINY} corpus.path=none.txt": "corpus.path: 'none.txt' is neither a file or folder",
    f"prepare {TINY} corpus.path=no*.txt": "corpus.path: the pattern 'no*.txt' matches no file",
    f"prepare {TINY} corpus.path=some/where": "corpus.path: there is no folder 'some/where'",
    f"prepare {TINY} corpus.path=empty": "corpus.path: empty contains no data file",
    f"prepare {TINY} corpus.path=letter.docx": "letter.docx",
    f"prepare {TINY} corpus.path=empty.txt": "corpus.path: empty.txt is empty",
    f"prepare {TINY} corpus.path=blank.txt": "corpus: blank.txt",
    f"prepare {TINY} corpus.path=empty.jsonl": "empty.jsonl",
    f"prepare {TINY} corpus.path=blank.jsonl": "blank.jsonl",
    f"prepare {TINY} corpus.path=cut.jsonl": "corpus: cut.jsonl",
    f"prepare {TINY} corpus.path=not.jsonl": "corpus: not.jsonl",
    f"prepare {TINY} corpus.path=latin-1.txt": "latin-1.txt",
    f"prepare {TINY} corpus.path=binary.txt": "binary.txt",
    f"prepare {TINY} corpus.path=one.txt": "corpus",
    f"prepare {TINY} corpus.path=columns.csv": "corpus.text_column: columns.csv has no column 'text'",
    f"prepare {TINY} corpus.path=broken.parquet": "broken.parquet",
    f"prepare {TINY} corpus.path=texts": "texts",
    f"prepare {TINY} corpus.path=good.csv corpus.split=test": "corpus.split",
    "prepare tiny.yaml output_dir=new corpus.split=dev": "corpus.split: the embedded sample has no split 'dev'",
    f"prepare {TINY} tokenizer.path=nowhere": "tokenizer.path: there is no folder 'nowhere'",
    f"prepare {TINY} tokenizer.path=thesis": "tokenizer.path: no tokenizer in 'thesis': it has no tokenizer.json",
    f"prepare {TINY} tokenizer.vocab_size=64": "tokenizer.vocab_size",
    f"prepare {TINY} corpus.held_out=none.csv": "corpus.held_out: 'none.csv' is neither a file or folder",
    f"prepare {TINY} corpus.validation=none.csv": "corpus.validation: 'none.csv' is neither a file or folder",
    f"prepare {TINY} corpus.validation=dev": "corpus.validation: the embedded sample has no split 'dev'",
    f"prepare {TINY} --shard 9/8": "--shard '9/8'",
    f"prepare {TINY} --shard two": "--shard 'two'",
    f"prepare {TINY} --shard 1/1 --merge": "--merge: runs after all shares are done",
    "prepare tiny.yaml output_dir=thesis": "output_dir: thesis is neither empty nor a run directory",
    "prepare tiny.yaml output_dir=good.csv": "output_dir: good.csv cannot be written: there is a file of this name",
    "prepare tiny.yaml output_dir=good.csv/run": "output_dir: good.csv/run",
    "prepare tiny.yaml output_dir=/proc/run": "output_dir: /proc/run",
    "prepare tiny.yaml output_dir=run": "run",
    "prepare tiny.yaml output_dir=": "output_dir",
    # ---- training
    f"pretrain {TINY}": "run `bertpre prepare`",
    "pretrain tiny.yaml output_dir=run seed=7": "output_dir: run was started with another recipe",
    "pretrain tiny.yaml output_dir=bad-store": "part-00000.train.tokens.npy",
    "pretrain tiny.yaml output_dir=prepared training.init=nowhere": "training.init: there is no folder 'nowhere'",
    # ---- labels
    f"finetune {TINY} finetune.path=good.csv": "finetune.init: no pretrained model in new/model",
    f"finetune {TINY} finetune.path=good.csv finetune.init=nowhere": "finetune.init: there is no folder 'nowhere'",
    f"finetune {TINY} finetune.path=good.csv finetune.init=thesis": "finetune.init: 'thesis'",
    f"finetune {TINY} finetune=null": "finetune: the recipe has no such section",
    f"run {TINY} finetune.path=none.csv": "finetune.path: 'none.csv' is neither a file or folder",
    f"run {TINY} finetune.path=columns.csv": "finetune.text_column=... (the first line of a CSV",
    f"run {TINY} finetune.path=good.csv finetune.label_column=stars": "finetune.label_column: good.csv has no column",
    f"run {TINY} finetune.path=tagged.tsv finetune.task=tokens": "its lines are words with tags: for",
    f"run {TINY} finetune.path=one-class.csv": "finetune: one-class.csv has one class only (yes)",
    f"run {TINY} finetune.path=ids.csv": "finetune.label_column: 'label' of ids.csv has 60 different values",
    f"run {TINY} finetune.path=fractions.csv": "fractions.csv",
    f"run {TINY} finetune.path=unlabelled.csv": "unlabelled.csv",
    f"run {TINY} finetune.path=no-text.csv": "no-text.csv",
    f"run {TINY} finetune.path=numbers.csv": "numbers.csv",
    f"run {TINY} finetune.path=latin-1.csv": "save it as UTF-8",
    f"run {TINY} finetune.path=binary.csv": "binary.csv",
    f"run {TINY} finetune.path=header.csv": "finetune.path: header.csv is empty",
    f"run {TINY} finetune.path=empty.csv": "empty.csv",
    f"run {TINY} finetune.path=unclosed.csv": "a quote is not closed",
    f"run {TINY} finetune.path=unclosed.tsv": "unclosed.tsv has an unclosed quote",
    f"run {TINY} finetune.path=good.csv finetune.task=regression": "good.csv",
    f"run {TINY} finetune.path=good.csv finetune.task=tokens": "good.csv",
    f"run {TINY} finetune.path=good.csv finetune.class_weights=[1,2,3]": "3 weights for 2 classes (no, yes)",
    f"run {TINY} finetune.path=good.csv": "evaluate: the classifier is trained on good.csv",
    f"run {TINY} finetune.path=good.csv evaluate.path=sample evaluate.split=dev": "evaluate.split: ",
    f"evaluate {TINY}": "run `bertpre finetune` first",
    "run tiny.yaml output_dir=bad-results": "bad-results/results.json is damaged",
    "curve tiny.yaml output_dir=run --fractions x": "--fractions x",
    "curve tiny.yaml output_dir=run --fractions 0,2": "--fractions",
    "baseline tiny.yaml output_dir=run finetune.task=tokens": "finetune.task",
    "suite tiny.yaml output_dir=new suite.tasks=[imdb]": "suite.tasks",
    # ---- finished runs and other models
    "predict nowhere hi": "there is no folder 'nowhere'",
    "predict '' hi": "MODEL: is empty; give a run directory",
    f"predict {'x' * 300} hi": "file name too long",
    "evaluate run --file ''": "--file: is empty; give a file or a folder",
    "evaluate run --file none.csv": "--file: 'none.csv' is neither a file or folder",
    "evaluate run --file empty": "--file: empty contains no data file",
    "evaluate run --file columns.csv": "columns.csv has no column 'text'; its columns are body, stars",
    "predict thesis hi": "thesis",
    "predict good.csv hi": "'good.csv' is a file",
    "predict run/model hi": "run/model",
    "predict no-classifier hi": "no-classifier",
    "predict bad-config hi": "bad-config/finetuned",
    "predict bad-weights hi": "bad-weights/finetuned",
    "predict bad-tokenizer hi": "bad-tokenizer/finetuned",
    "predict bad-recipe hi": "bad-recipe/recipe.yaml",
    "predict run ''": "TEXT '' has no text in it",
    "predict run tiny.yaml": "TEXT 'tiny.yaml' is a file; give its texts with --file tiny.yaml",
    f"run {TINY} finetune.init=none": "finetune.init: there is no folder 'none'",
    "prepare quickstrat": "there is no such recipe; did you mean quickstart?",
    "pretrain tiny.yaml training.epochs=3": "unknown key 'training.epochs'; did you mean 'training.max_epochs'?",
    "pretrain tiny.yaml training.phases.max_length=8": "if it is a list, write training.phases.0.max_length",
    "predict run 'A film.' '<br />'": "TEXT '<br />' has no text in it",
    "predict run --file none.txt": "--file",
    "predict run --file empty.txt": "--file: empty.txt holds no text",
    "predict run --file cut.txt.gz": "--file: cut.txt.gz cannot be read as text: Compressed file ended",
    "predict run --file columns.csv": "its columns are body, stars; name the one with the texts with --text-column",
    "predict run --file columns.csv --text-column bdy": "columns.csv has no column 'bdy'; its columns are body, stars;",
    "predict run --file columns.csv --text-column body --text-pair-column hypothesis": (
        "--text-pair-column: this classifier reads single texts; leave it out"
    ),
    "predict run --text-column body": "--text-column: give it with --file FILE",
    "predict run --file good.txt --text-column body": "--text-column: give it with --file FILE",
    "predict quickstart hi": "MODEL: quickstart is a recipe; give its run directory, runs/quickstart",
    "predict nowhere/quickstart hi": "there is no folder 'nowhere/quickstart'",
    "probe tiny.yaml": "MODEL: tiny.yaml is a recipe; give its run directory, ",
    "report imdb-mini-cpu": "RUN_DIR: imdb-mini-cpu is a recipe; give its run directory, runs/imdb-mini-cpu",
    "predict run --file latin-1.txt": "--file: latin-1.txt cannot be read as text",
    "predict run hi --file good.csv": "--file good.csv: give texts as arguments or a file, not both",
    "fill nowhere [MASK]": "there is no folder 'nowhere'",
    "fill run 'A film.'": "TEXT 'A film.' has no [MASK]: put it in the place of a word",
    "fill prepared [MASK]": "the run directory prepared has no model",
    "probe nowhere": "there is no folder 'nowhere'",
    "probe prepared": "the run directory prepared has no model",
    "probe run/tokenizer": "run/tokenizer",
    "probe bad-model": "'bad-model' is not a masked language model: its weights are damaged",
    "probe run --limit 0": "--limit",
    "probe run --causal": "--causal: is about pairs; give them with --pairs",
    "probe run --texts none.txt": "--texts",
    "probe run --pairs good.csv": "--pairs",
    "export run --to tensorflow": "--to tensorflow: choose one of",
    "export run --to modernbert": "run/model: architecture bert cannot become modernbert",
    "export bad-model --to bert": "bad-model: a file of a model is damaged",
    "export bad-config --to bert": "bad-config: a file of a model is damaged",
    "export bad-tokenizer --to bert": "bad-tokenizer: a file of a model is damaged",
    "export thesis --to bert": "thesis: is not a run directory",
    "export nowhere --to bert": "nowhere",
    "export prepared --to bert": "prepared has no model: run `bertpre pretrain prepared`",
    "export run --to bert --output-dir thesis": "thesis exists and is not empty",
    "push run my/own/model": "REPO_ID: 'my/own/model' is not a repository: write OWNER/NAME",
    "push run me/model --only decoder": "--only decoder: choose one of",
    "push nowhere me/model": "nowhere",
    "push run me/model --revision ''": "--revision: is empty; name a branch",
    "push prepared me/model --checkpoints": "--checkpoints: prepared has none",
    "push prepared me/model --only classifier": "prepared has no classifier: run `bertpre finetune prepared` first",
    "quickstart --output-dir thesis": "thesis is neither empty nor a run directory",
}


@pytest.fixture(scope="module")
def contents(home: Path) -> dict[str, str]:
    """The checksums of all files before the first case."""
    return tree_hash(home)


def written(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What changes where a file below a folder is written again; quicker than its checksum."""
    files = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {name: (found.st_ino, found.st_size, found.st_mtime_ns) for name, found in files.items()}


@pytest.mark.parametrize("command", CASES)
def test_a_mistake_is_one_message_and_nothing_is_lost(
    command: str,
    home: Path,
    contents: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    before = written(home)
    status = run_here(*shlex.split(command))
    said, after = capfd.readouterr().err.replace(f"{home}/", ""), written(home)  # paths are shown in full
    new = [name for name in after if name not in before and not (name.startswith("new/") and command.endswith(LATE))]
    shutil.rmtree(home / "new", ignore_errors=True)
    assert status == 2, said
    assert CASES[command] in said
    assert said.startswith(("error: ", "Usage: "))
    assert len(re.findall("^error: ", said, re.MULTILINE | re.IGNORECASE)) == 1, said
    assert "Traceback" not in said
    rewritten = [name for name in before if after.get(name) != before[name]]
    assert [name for name in rewritten if file_checksum(home / name) != contents[name]] == []
    assert not new


AS_PROCESSES = (
    "run",
    "show tiny.yaml --training.max_steps=100",
    f"prepare {TINY} corpus.path=none",
    "predict nowhere hi",
)


@pytest.mark.parametrize("command", AS_PROCESSES)
def test_a_process_ends_in_the_same_way(command: str, home: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "bertpre", *shlex.split(command)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, cwd=home, env=environment, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert CASES[command] in done.stderr
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE | re.IGNORECASE)) == 1, done.stderr
    assert not (home / "new").exists()


@pytest.mark.parametrize("command", ["prepare", "pretrain", "finetune", "evaluate", "run"])
def test_another_recipes_run_is_left_unchanged(
    command: str, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    before = tree_hash(home)
    assert run_here(command, "tiny.yaml", "seed=2", "model.hidden_size=64") == 2
    said = capfd.readouterr().err
    assert "output_dir: run was started with another recipe, which differs in model.hidden_size, seed" in said
    assert "nothing was changed" in said
    assert tree_hash(home) == before


def test_a_corrected_recipe_continues_in_the_same_folder(tiny_recipe: Path) -> None:
    run = tiny_recipe.parent / "run"
    assert run_here("prepare", tiny_recipe, "tokenizer.vocab_size=64", "prepare.workers=1") == 2
    assert (run / "data.partial").is_dir()
    assert run_here("prepare", tiny_recipe, "prepare.workers=1") == 0
    assert (run / "data" / "manifest.json").is_file()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run_cli("run", tmp_path / "none.yaml", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "UserError" in done.stderr


def test_without_a_standard_input_there_is_no_text(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as where a daemon has closed it
    assert run_here("predict", tiny_run) == 2
    assert "no text to predict" in capsys.readouterr().err


def test_a_report_on_a_disk_that_is_read_only_is_one_message(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path, _: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), folder / "report.html.1.partial")

    monkeypatch.setattr("bertpre.commands.report.write_report", fail)
    assert run_here("report", tiny_run) == 2
    assert f"error: {tiny_run}: cannot be written: read-only file system; copy the run" in capsys.readouterr().err
