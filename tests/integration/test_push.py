"""Push to a fake Hub on loopback: the files that arrive, the model card, the errors."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from huggingface_hub import constants

from bertpre.commands.push import push
from bertpre.errors import UserError
from bertpre.recipe import load_recipe
from bertpre.reporting.model_card import model_card
from bertpre.run_directory import read_manifest, read_results
from tests.helpers import run_cli

TOKEN = "hf_of_the_test"


class FakeHub(ThreadingHTTPServer):
    """The endpoints that `create_repo` and `upload_folder` use; `files` is what was committed."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.created: list[dict] = []
        self.large: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.is_full = False

    def commit(self, lines: list[dict]) -> None:
        """Take a commit: small files come inside it, large ones were put before."""
        for line in lines:
            if line["key"] == "file":
                self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                self.files[line["value"]["path"]] = self.large[line["value"]["oid"]]


class FakeHubHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: FakeHub

    def log_message(self, *arguments: object) -> None:
        """Keep the tests' output clean."""

    def answer(self, body: dict, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def do_GET(self) -> None:
        self.answer({"error": "Repository not found"}, 404)

    def do_PUT(self) -> None:
        if self.server.is_full:
            self.body()
            self.answer({"error": "Storage quota exceeded"}, 402)
            return
        self.server.large[self.path.removeprefix("/large/")] = self.body()
        self.answer({})

    def do_POST(self) -> None:
        body, url = self.body(), self.server.url
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self.answer({"url": f"{url}/someone/{self.server.created[-1]['name']}"})
        elif self.path == "/api/validate-yaml":
            self.answer({"warnings": [], "errors": []})
        elif self.path == "/api/models/someone/tiny/preupload/main":
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            self.answer({"files": [{"path": n, "uploadMode": modes[n], "shouldIgnore": False} for n in names]})
        elif self.path == "/someone/tiny.git/info/lfs/objects/batch":
            objects = json.loads(body)["objects"]
            actions = [{"upload": {"href": f"{url}/large/{item['oid']}"}} for item in objects]
            pairs = zip(objects, actions, strict=True)
            self.answer({"transfer": "basic", "objects": [item | {"actions": action} for item, action in pairs]})
        elif self.path == "/api/models/someone/tiny/commit/main":
            self.server.commit([json.loads(line) for line in body.splitlines()])
            self.answer({"commitUrl": f"{url}/someone/tiny/commit/1", "commitOid": "1" * 40})
        else:
            self.answer({"error": f"the fake Hub has no {self.path}"}, 404)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A fake Hub that this process and those started by the test talk to."""
    server = FakeHub()
    thread = Thread(target=server.serve_forever)
    thread.start()
    environment = {
        "HF_ENDPOINT": server.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",  # Xet's storage is a server of its own
        "HF_TOKEN": TOKEN,
        "HF_TOKEN_PATH": str(tmp_path / "no-token"),  # not the user's own
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)  # what huggingface_hub read when it was imported
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", environment["HF_TOKEN_PATH"])
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_stock_folder_and_card_arrive_and_the_cards_code_runs(
    tiny_modern_run: Path, hub: FakeHub, tmp_path: Path
) -> None:
    done = run_cli("push", tiny_modern_run, "someone/tiny", "--private")
    assert done.returncode == 0, done.stderr
    assert f"push: {hub.url}/someone/tiny" in done.stdout and not done.stderr
    (created,) = hub.created
    assert (created["organization"], created["name"]) == ("someone", "tiny")
    assert created.get("visibility") == "private" or created.get("private")  # as the client's version says it
    parts = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert hub.files.keys() == {"README.md", *parts, *(f"classifier/{part}" for part in parts)}
    assert json.loads(hub.files["config.json"])["model_type"] == "modernbert"
    assert not (tiny_modern_run / "export-modernbert").exists()

    # The commands of the card run as they stand where the repository's name leads to what was pushed.
    for name, content in hub.files.items():
        file = tmp_path / "someone" / "tiny" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    blocks = re.findall(r"```python\n(.*?)```", hub.files["README.md"].decode(), re.DOTALL)
    assert len(blocks) == 2
    code = "import sys\nsys.modules['bertpre'] = None\n" + "\n".join(blocks)
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "'sequence'" in done.stdout and "tive'" in done.stdout


def test_the_classifier_alone_goes_to_the_root_where_pipelines_look(tiny_modern_run: Path, hub: FakeHub) -> None:
    push(str(tiny_modern_run), "someone/tiny", private=False, license="mit", only="classifier")
    assert hub.files.keys() == {
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    assert json.loads(hub.files["config.json"])["architectures"] == ["ModernBertForSequenceClassification"]
    head, body = hub.files["README.md"].decode().split("---\n")[1:3]
    assert yaml.safe_load(head)["pipeline_tag"] == "text-classification"
    assert yaml.safe_load(head)["license"] == "mit"
    assert "from an encoder pretrained by bertpre" in body and "subfolder" not in body
    with pytest.raises(UserError, match="--only decoder: choose one of encoder, classifier"):
        push(str(tiny_modern_run), "someone/tiny", private=False, only="decoder")


def test_refusals_name_the_remedy(tiny_run: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(repo_id: str, endpoint: str = hub.url, token: str = TOKEN, offline: bool = False) -> str:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(UserError) as caught:
            push(str(tiny_run), repo_id, private=False)
        return str(caught.value)

    assert "write OWNER/NAME" in refusal("someone/tiny/model")
    assert "401: log in with `hf auth login`" in refusal("someone/tiny", token="")
    assert "cannot be reached" in refusal("someone/tiny", endpoint="http://127.0.0.1:9")  # nobody listens at port 9
    assert "unset it" in refusal("someone/tiny", offline=True)
    assert "404, the fake Hub has no /api/models/someone/other/preupload" in refusal("someone/other")
    assert not hub.files


def test_a_failed_upload_is_one_message(tiny_run: Path, hub: FakeHub) -> None:
    hub.is_full = True
    with pytest.raises(UserError, match=r"uploading 'model.safetensors' to the Hub. 402, Storage quota exceeded; .*un"):
        push(str(tiny_run), "someone/tiny", private=False, only="encoder")
    assert not hub.files


def test_card_shows_what_is_there_and_no_path_of_this_machine(tiny_run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret" / "clinic"
    secret.mkdir(parents=True)
    overrides = [
        f"corpus.path={secret}", "corpus.name=null", f"corpus.more=[{{path: {secret}/more, split: here}}]",
        "finetune.path=stanfordnlp/imdb", f"finetune.validation_path={secret}/held", f"evaluate.path={secret}/test",
        f"finetune.unlabelled.path={secret}/unread", f"training.init={secret}/older", "pairs.kind=none",
    ]  # fmt: skip
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), overrides)
    card = model_card(recipe, read_results(tiny_run), read_manifest(tiny_run), "bert", "someone/tiny")
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
    for expected in ("| MLM loss |", "| Test accuracy |", "- pretrain: device ", 'subfolder="classifier"'):
        assert expected in body
    for expected in ("`clinic`", "`more`, split `here`", "texts: local files, `unread`", "further from local files"):
        assert expected in body
    assert "masked language modelling alone: BERT" in body and "untrained" in body and "next sentence" not in body

    recipe = load_recipe(str(tiny_run / "recipe.yaml"))
    pretrained_only = {"prepare": read_results(tiny_run)["prepare"]}
    card = model_card(recipe, pretrained_only, {}, "bert", "someone/tiny")
    assert "from scratch by bertpre, with masked language modelling and next sentence prediction: BERT" in card
    assert "Test accuracy" not in card and "## Hardware" not in card and "classifier/" not in card
    assert "## Metrics" not in model_card(recipe, {}, {}, "bert", "someone/tiny")
