"""Push to a Hub on loopback: the files that arrive, second pushes, revisions, faults, and loading what was pushed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import constants
from safetensors.torch import load

from bertpre.commands.pretrain import pretrain
from bertpre.commands.push import push, push_result
from bertpre.errors import UserError
from bertpre.files import file_checksum
from bertpre.hub.background import BackgroundPush
from bertpre.hub.folder import public_results
from bertpre.hub.upload import explained_errors, write_inventory
from bertpre.recipe import load_recipe, to_yaml
from bertpre.reporting.card_facts import Published
from bertpre.reporting.model_card import model_card
from bertpre.run_directory import read_manifest, read_results
from tests.helpers import LIMIT, copy_run, run_here, run_process, training_with
from tests.hub_server import TOKEN, Fault, HubServer, running_hub

MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
ABOUT = {".gitattributes", "README.md", "bertpre.json", "curves.png", "recipe.yaml", "results.json"}
STRANGER = "import sys\nsys.modules['bertpre'] = None\n"  # a process that cannot import bertpre


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub that this process and those started by the test talk to."""
    with running_hub() as server:
        for name, value in server.environment(tmp_path / "cache").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))  # not the user's own
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)  # what huggingface_hub read when it was imported
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield server


def push_encoder(run: Path, **options: object) -> None:
    """Push the pretrained model alone, which is quicker."""
    push(str(run), "someone/tiny", license="mit", only="encoder", **options)  # type: ignore[arg-type]


# ---- what arrives ----------------------------------------------------------------------------------------------------


def test_stock_folder_and_card_arrive_and_the_cards_code_runs(
    tiny_modern_run: Path, hub: HubServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_here("push", tiny_modern_run, "someone/tiny", "--private") == 0
    said = capfd.readouterr()
    assert f"push: {hub.url}/someone/tiny" in said.out and not said.err
    repository = hub.model("someone/tiny")
    assert repository.is_private and repository.messages[-1] == "Push a bertpre run"
    files = repository.files()
    assert files.keys() == ABOUT | MODEL | {f"classifier/{part}" for part in MODEL}
    assert json.loads(files["config.json"])["model_type"] == "modernbert"
    assert not (tiny_modern_run / "export-modernbert").exists()
    for name in ("recipe.yaml", "results.json", "README.md", "bertpre.json"):  # no path, no text of the corpus
        assert str(tiny_modern_run) not in files[name].decode()
    assert not re.search("fillings|mistakes", files["results.json"].decode())

    blocks = re.findall(r"```python\n(.*?)```", files["README.md"].decode(), re.DOTALL)
    assert len(blocks) == 3  # the encoder, the classifier, and long texts
    done = in_own_process(STRANGER + "\n".join(blocks), hub, tmp_path)
    assert "'sequence'" in done and "tive'" in done and "{0: 'negative', 1: 'positive'} [" in done
    assert "order of the logits: `negative`, `positive`." in files["README.md"].decode()


def test_save_pretrained_uploads_the_code_with_the_weights(hub: HubServer, tmp_path: Path) -> None:
    code = """
from bertpre.model import BertPreConfig, BertPreForMaskedLM
sizes = dict(vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
BertPreForMaskedLM(BertPreConfig(**sizes)).save_pretrained("own", push_to_hub=True, repo_id="someone/own")
"""
    in_own_process(code, hub, tmp_path)
    files = hub.model("someone/own").files()
    needed = {f"{each.split('.')[0]}.py" for each in json.loads(files["config.json"])["auto_map"].values()}
    assert needed | {"layers_bertpre.py", "losses_bertpre.py", "model.safetensors"} <= files.keys()


def test_results_are_pushed_without_texts_and_paths() -> None:
    per_class = {"init": {"f1": 0.5}, "mistakes": {"f1": 0.7}}  # names of classes
    evaluated = {"accuracy": 0.9, "mistakes": [{"text": "secret"}], "per_class": per_class}
    prepared = {"tokens": 7, "unknown_words": {"secret": 3}, "mostly_removed_example": "secret"}
    results = {"prepare": prepared, "finetune": {"init": "/home/secret/run", "seed": 0}, "evaluate": evaluated}
    results |= {"curve": [{"init": "/home/secret/run", "fraction": 1.0}, {"init": "random", "fraction": 1.0}]}
    expected = {"prepare": {"tokens": 7}, "finetune": {"seed": 0}, "evaluate": {"accuracy": 0.9}}
    expected["evaluate"]["per_class"] = per_class
    expected |= {"curve": [{"fraction": 1.0}, {"init": "random", "fraction": 1.0}]}
    assert public_results(results) == expected


def test_what_was_pushed_computes_the_same_where_bertpre_is_missing(
    tiny_run: Path, hub: HubServer, tmp_path: Path
) -> None:
    push_encoder(tiny_run)
    code = """
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer
model, tokenizer = (part.from_pretrained({source!r}) for part in (AutoModelForMaskedLM, AutoTokenizer))
logits = model(**tokenizer("It is good, is it not?", return_tensors="pt")).logits
torch.save(logits, {file!r})
"""
    for source, name in (("someone/tiny", "pushed.pt"), (str(tiny_run / "model"), "own.pt")):
        in_own_process(STRANGER + code.format(source=source, file=str(tmp_path / name)), hub, tmp_path)
    assert torch.equal(torch.load(tmp_path / "pushed.pt"), torch.load(tmp_path / "own.pt"))


def in_own_process(code: str, hub: HubServer, folder: Path) -> str:
    """What Python code prints in a process with an empty cache."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, cwd=folder,
        env=hub.environment(folder / "cache"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_classifier_alone_goes_to_the_root_where_pipelines_look(tiny_modern_run: Path, hub: HubServer) -> None:
    push(str(tiny_modern_run), "someone/tiny", license="mit", only="classifier")
    files = hub.model("someone/tiny").files()
    assert files.keys() == (ABOUT - {"curves.png"}) | MODEL
    assert json.loads(files["config.json"])["architectures"] == ["ModernBertForSequenceClassification"]
    head, body = files["README.md"].decode().split("---\n")[1:3]
    assert yaml.safe_load(head)["pipeline_tag"] == "text-classification"
    assert yaml.safe_load(head)["license"] == "mit"
    assert "from an encoder pretrained by bertpre" in body and "subfolder" not in body


def test_with_code_of_its_own_the_card_says_to_trust_it(tiny_run: Path, hub: HubServer) -> None:
    push_encoder(tiny_run, to="bertpre")
    files = hub.model("someone/tiny").files()
    assert "modeling_bertpre.py" in files and json.loads(files["config.json"])["model_type"] == "bertpre"
    assert 'model="someone/tiny", trust_remote_code=True' in files["README.md"].decode()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "tensorflow"}, "--to tensorflow: choose one of bert, modernbert, bertpre, onnx"),
        ({"commit_message": " "}, "--commit-message: is empty"),
        ({"only": "decoder"}, "--only decoder: choose one of encoder, classifier"),
        ({"create_pr": True, "revision": "dev"}, "leave --revision and --checkpoints out"),
        ({"create_pr": True, "checkpoints": True}, "leave --revision and --checkpoints out"),
        ({"checkpoints": True, "to": "onnx"}, "leave --to out"),
    ],
)
def test_bad_options_are_refused(tiny_run: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        push(str(tiny_run), "someone/tiny", **options)  # type: ignore[arg-type]


# ---- second pushes ---------------------------------------------------------------------------------------------------


def test_a_second_push_removes_what_it_no_longer_has_and_nothing_else(
    tiny_run: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    push(str(tiny_run), "someone/tiny", license="mit")
    repository = hub.model("someone/tiny")
    repository.commit("main", repository.files() | {"notes.md": b"by hand"})
    assert "classifier/config.json" in repository.files()
    push_encoder(tiny_run)
    assert repository.files().keys() == ABOUT | MODEL | {"notes.md"}
    assert "removed classifier/config.json, " in capsys.readouterr().out
    assert json.loads(repository.files()["bertpre.json"])["files"].keys() == (ABOUT | MODEL) - {
        ".gitattributes",
        "bertpre.json",
    }
    commits = len(repository.messages)
    push_encoder(tiny_run)  # nothing is new
    assert len(repository.messages) == commits


def test_what_was_changed_by_hand_since_is_kept_or_named(
    tiny_run: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    push(str(tiny_run), "someone/tiny")
    repository = hub.model("someone/tiny")
    mine = {name: b"better" for name in ("classifier/model.safetensors", "classifier/config.json", "config.json")}
    repository.commit("main", repository.files() | mine)
    push_encoder(tiny_run)
    files, printed = repository.files(), capsys.readouterr().out
    assert files["classifier/model.safetensors"] == files["classifier/config.json"] == b"better"
    assert "classifier/tokenizer.json" not in files and files["config.json"] != b"better"
    assert "kept classifier/config.json, classifier/model.safetensors, which" in printed
    assert "replaced config.json, which somebody had changed" in printed


def test_a_card_that_was_edited_is_kept(tiny_run: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    push_encoder(tiny_run)
    repository = hub.model("someone/tiny")
    edited = repository.files()["README.md"] + b"\nBy hand.\n"
    repository.commit("main", repository.files() | {"README.md": edited})
    for _ in range(2):  # the second push must not take the first one's card for the edited one
        push_encoder(tiny_run)
        assert repository.files()["README.md"] == edited
        assert b"By hand" not in repository.files()["README.bertpre.md"]
        assert "README.md was edited on the Hub and is kept" in capsys.readouterr().out
    push_encoder(tiny_run, overwrite_card=True)
    assert repository.files().keys() == ABOUT | MODEL and b"By hand" not in repository.files()["README.md"]


def test_a_commit_of_somebody_else_during_a_push_is_not_overwritten(
    tiny_run: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_encoder(tiny_run)
    repository = hub.model("someone/tiny")

    def meanwhile(*given: Any) -> Any:  # noqa: ANN401
        repository.commit("main", repository.files() | {"README.md": b"By hand"})
        return write_inventory(*given)

    monkeypatch.setattr("bertpre.hub.upload.write_inventory", meanwhile)
    with pytest.raises(UserError, match="412, A commit has happened since"):
        push_encoder(tiny_run, commit_message="again")
    assert repository.files()["README.md"] == b"By hand"


def test_a_repository_with_a_card_but_no_push_keeps_it(tiny_run: Path, hub: HubServer) -> None:
    hub.create("someone/tiny").commit("main", {"README.md": b"Mine", "old.bin": b"1", "bertpre.json": b"damaged"})
    push_encoder(tiny_run)
    files = hub.model("someone/tiny").files()
    assert files["README.md"] == b"Mine" and files["old.bin"] == b"1" and "README.bertpre.md" in files


def test_a_public_repository_is_not_pushed_to_as_a_private_one(tiny_run: Path, hub: HubServer) -> None:
    hub.create("someone/tiny")
    with pytest.raises(UserError, match="someone/tiny exists and is public"):
        push_encoder(tiny_run, private=True, revision="dev")
    assert hub.model("someone/tiny").files().keys() == {".gitattributes"}
    assert "dev" not in hub.model("someone/tiny").refs


def test_a_later_push_does_as_the_recipe_says_for_the_hub(tiny_run: Path, tmp_path: Path, hub: HubServer) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    recipe = load_recipe(str(run / "recipe.yaml"), ["hub.license=mit", "hub.language=ko", "hub.private=true"])
    (run / "recipe.yaml").write_text(to_yaml(recipe))
    assert run_here("push", run, "someone/tiny", "--license", "apache-2.0") == 0
    repository = hub.model("someone/tiny")
    head = yaml.safe_load(repository.files()["README.md"].decode().split("---")[1])
    assert (repository.is_private, head["license"], head["language"]) == (True, "apache-2.0", "ko")


def test_branches_pull_requests_and_checkpoints(
    tiny_run: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    push_encoder(tiny_run, revision="dev", commit_message="A try")
    repository = hub.model("someone/tiny")
    assert repository.files().keys() == {".gitattributes"} and "model.safetensors" in repository.files("dev")
    assert repository.messages[-1] == "A try" and '"someone/tiny", revision="dev"' in readme(repository, "dev")
    assert f"push: {hub.url}/someone/tiny/tree/dev" in capsys.readouterr().out

    push_encoder(tiny_run, create_pr=True)
    assert repository.files().keys() == {".gitattributes"} and "config.json" in repository.files("refs/pr/1")
    assert f"push: {hub.url}/someone/tiny/discussions/1" in capsys.readouterr().out

    push_encoder(tiny_run, revision="refs/pr/1")  # to the pull request
    assert repository.files("refs/pr/1").keys() == ABOUT | MODEL

    push_encoder(tiny_run, checkpoints=True)
    branches = sorted(name for name in repository.refs if name.startswith("step-"))
    assert branches == ["step-00000005", "step-00000010"]
    assert "A checkpoint at step 5 of a pretraining" in readme(repository, "step-00000005")
    assert "A checkpoint at" not in readme(repository, "step-00000010")  # the last
    stored = [repository.files(revision)["model.safetensors"] for revision in (*branches, "main")]
    weights = [load(content)["bert.embeddings.word_embeddings.weight"] for content in stored]
    assert torch.equal(weights[1], weights[2]) and not torch.equal(weights[0], weights[2])
    assert 'revision="step-00000005"' in readme(repository, "step-00000005")
    assert "| MLM loss |" not in readme(repository, "step-00000005")  # those are the finished model's


def readme(repository: object, revision: str) -> str:
    """The card at a revision."""
    return repository.files(revision)["README.md"].decode()  # type: ignore[attr-defined]


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_refusals_name_the_remedy(tiny_run: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(repo_id: str, endpoint: str = hub.url, token: str = TOKEN, offline: bool = False) -> str:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(UserError) as caught:
            push(str(tiny_run), repo_id, only="encoder")
        return str(caught.value)

    assert "write OWNER/NAME" in refusal("someone/tiny/model")
    assert "write OWNER/NAME" in refusal("tiny")  # its card would name no repository
    assert "401: log in with `hf auth login`" in refusal("someone/tiny", token="")
    assert "cannot be reached" in refusal("someone/tiny", endpoint="http://127.0.0.1:9")  # nobody listens at port 9
    assert "unset it" in refusal("someone/tiny", offline=True)
    assert not hub.repositories


@pytest.mark.parametrize(
    ("pattern", "status", "message"),
    [
        ("commit/main", 403, "403: log in with `hf auth login`"),
        ("repos/create", None, "cannot be reached"),
        ("GET /api/models/someone/tiny", 500, "500, out of order; fix that, or push again later"),
        ("resolve/main/bertpre.json", 500, "500, out of order"),
        ("PUT /large", 402, "uploading '.*' to the Hub. 402, out of order; .*unchanged"),
        ("PUT /large", None, "push again later; someone/tiny is unchanged"),
        ("validate-yaml", 400, "Invalid metadata in README.md.; someone/tiny is unchanged"),
        ("commit/main", 500, "500, out of order; fix that, or push again later"),
        ("commit/main", None, "cannot be reached"),
    ],
)
def test_a_failed_push_is_one_message_and_the_same_command_continues(
    tiny_run: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, pattern: str, status: int | None, message: str
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client waits between its tries
    push_encoder(tiny_run, to="bertpre")  # an earlier push, with other files
    before = hub.model("someone/tiny").files()
    hub.large.clear()
    hub.faults = [Fault(pattern, status)]
    with pytest.raises(UserError, match=message) as caught:
        push_encoder(tiny_run)
    assert "\n" not in str(caught.value) and hub.model("someone/tiny").files() == before
    hub.faults, hub.log = [], []
    uploaded = set(hub.large)
    push_encoder(tiny_run)
    assert hub.model("someone/tiny").files().keys() == ABOUT | MODEL
    sent = {line.removeprefix("PUT /large/") for line in hub.log if line.startswith("PUT")}
    assert not sent & uploaded  # large files that had arrived are not sent again


def test_a_storage_that_cannot_be_reached_is_no_fault_of_a_file() -> None:
    with (
        pytest.raises(UserError, match=r"the storage of the Hub cannot be reached \(request error\): .*unchanged"),
        explained_errors("someone/tiny"),
    ):
        raise ConnectionError("request error")  # as the storage's own client raises it


def test_a_short_fault_is_tried_again(tiny_run: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.faults = [Fault("PUT /large", 503, times=2), Fault("preupload", 502, times=1)]
    push_encoder(tiny_run)
    assert hub.model("someone/tiny").files().keys() == ABOUT | MODEL


def test_a_full_disk_is_one_message() -> None:
    with (
        pytest.raises(UserError, match="no space left on device; someone/tiny is unchanged"),
        explained_errors("someone/tiny"),
    ):
        raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("error", [UserError("away"), OSError(28, "No space left"), RuntimeError("logits differ")])
def test_a_run_goes_on_after_a_push_that_fails(
    error: Exception, tiny_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("bertpre.commands.push.write_run", fail)
    push_result(load_recipe(str(tiny_run / "recipe.yaml"), ["hub.repo_id=someone/tiny"]))
    said = capsys.readouterr().out
    assert said.startswith("push: failed: ") and "The run is whole; push it later with `bertpre push" in said
    assert ("set TMPDIR to a folder on another disk" in said) == isinstance(error, OSError)


def test_a_training_that_ends_early_stops_its_push(tmp_path: Path) -> None:
    push = BackgroundPush(tmp_path, tokenizer=None, every=1)  # type: ignore[arg-type]
    push.stop()
    push.model.mkdir()
    push.process = process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    push.stop()
    assert process.returncode == -signal.SIGKILL and push.process is None and not push.model.exists()


def test_a_push_that_takes_too_long_at_the_end_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    push = BackgroundPush(tmp_path, tokenizer=None, every=1)  # type: ignore[arg-type]
    push.log.touch()
    push.process = process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    push.end(0.05)
    assert process.returncode == -signal.SIGKILL and push.process is None
    assert "push: failed; the training is not affected: it was stopped" in capsys.readouterr().out


def test_a_push_whose_log_is_gone_does_not_end_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    push = BackgroundPush(tmp_path, tokenizer=None, every=10)  # type: ignore[arg-type]
    push.process = subprocess.Popen([sys.executable, "-c", ""])
    push.end()
    assert push.process is None and "it was stopped" in capsys.readouterr().out


# ---- from training ---------------------------------------------------------------------------------------------------


def test_training_pushes_in_the_background_and_at_its_end(tiny_run: Path, hub: HubServer, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run", "prepare")
    slow = [f"output_dir={run}", "hub.repo_id=someone/tiny", "hub.push_every=2", "hub.private=true"]
    program = training_with("time.sleep(4 if step in (3, 5) else 0)")  # so long a push takes, on a slow machine longer
    done = run_process([sys.executable, "-c", program, str(run / "recipe.yaml"), *slow])
    assert done.returncode == 0, done.stderr
    repository = hub.model("someone/tiny")
    assert repository.is_private and "step 2 of its pretraining" in repository.messages[1]
    assert repository.messages[-1] == "Push a bertpre run"
    finished = json.loads(repository.files()["results.json"])
    assert finished.keys() == {"prepare", "pretrain"} and not (run / "pushing").exists()
    assert "push: step 2, " in done.stdout and "is still running" in done.stdout
    assert weights_of(run) == weights_of(tiny_run)  # the same as without a push


def weights_of(run: Path) -> str:
    """The checksum of a run's pretrained weights."""
    return file_checksum(run / "model" / "model.safetensors")


def test_training_ends_well_where_the_hub_is_away(
    tiny_run: Path, hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults = [Fault("repos/create", 503)]
    run = copy_run(tiny_run, tmp_path / "run", "prepare")
    overrides = [f"output_dir={run}", "hub.repo_id=someone/tiny", "hub.push_every=9"]
    pretrain(load_recipe(str(run / "recipe.yaml"), overrides))
    said = capsys.readouterr().out
    assert "push: failed; the training is not affected: the Hub refused 'someone/tiny': 503" in said
    assert f"push it later with `bertpre push {run} someone/tiny`" in said and not hub.repositories
    assert weights_of(run) == weights_of(tiny_run)


def test_training_ends_well_where_a_model_cannot_be_written_for_a_push(
    tiny_run: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such weight")

    monkeypatch.setattr("bertpre.hub.background.save_model", fail)
    run = copy_run(tiny_run, tmp_path / "run", "prepare")
    overrides = [f"output_dir={run}", "hub.repo_id=someone/tiny", "hub.push_every=9"]
    pretrain(load_recipe(str(run / "recipe.yaml"), overrides))
    assert "push: step 9 is not pushed: no such weight" in capsys.readouterr().out
    assert weights_of(run) == weights_of(tiny_run) and not (run / "pushing").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["hub.push_every=5"], "hub.push_every: there is no repository to push to; set hub.repo_id"),
        (["hub.repo_id=tiny"], "hub.repo_id: 'tiny' is not a repository: write OWNER/NAME"),
    ],
)
def test_mistakes_in_the_recipe_show_at_once(tiny_recipe: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(str(tiny_recipe), overrides)


# ---- the card --------------------------------------------------------------------------------------------------------


def test_card_shows_what_is_there_and_no_path_of_this_machine(tiny_run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret" / "clinic"
    secret.mkdir(parents=True)
    overrides = [
        f"corpus.path={secret}", "corpus.name=null", f"corpus.more=[{{path: {secret}/more, split: here}}]",
        "finetune.path=stanfordnlp/imdb", f"finetune.validation_path={secret}/held", f"evaluate.path={secret}/test",
        f"finetune.unlabelled.path={secret}/unread", f"training.init={secret}/older", "pairs.kind=none",
    ]  # fmt: skip
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), overrides)
    card = model_card(recipe, read_results(tiny_run), read_manifest(tiny_run), Published("someone/tiny", "bert"))
    head, body = card.split("---\n")[1:3]
    facts = yaml.safe_load(head)
    (index,) = facts.pop("model-index")
    assert {each["dataset"]["type"] for each in index["results"]} == {"local"}
    assert facts == {
        "license": "unknown",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["bert", "bertpre", "masked-lm"],
        "datasets": ["stanfordnlp/imdb"],
    }
    assert "secret" not in card and str(tiny_run.parent) not in card
    for expected in ("| MLM loss |", "| Test accuracy |", "- pretrain, finetune: device ", 'subfolder="classifier"'):
        assert expected in body
    for expected in ("`clinic`", "`more`, split `here`", "texts: local files, `unread`", "further from local files"):
        assert expected in body
    assert "masked language modelling alone: BERT" in body and "untrained" in body and "next sentence" not in body

    recipe = load_recipe(str(tiny_run / "recipe.yaml"))
    pretrained_only = {"prepare": read_results(tiny_run)["prepare"]}
    card = model_card(recipe, pretrained_only, read_manifest(tiny_run), Published("someone/tiny", "bert"))
    assert "- pretrain: device " in card
    card = model_card(recipe, pretrained_only, {}, Published("someone/tiny", "bert"))
    assert "from scratch by bertpre, with masked language modelling and next sentence prediction: BERT" in card
    assert "Test accuracy" not in card and "## Hardware" not in card and "classifier/" not in card
    assert "## Metrics" not in model_card(recipe, {}, {}, Published("someone/tiny", "bert"))
