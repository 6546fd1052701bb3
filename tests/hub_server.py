"""A Hub on loopback for the tests: repositories, revisions, large files, pull requests, and faults on demand.

It answers what `huggingface_hub`, `transformers` and `datasets` ask, as the real Hub does (huggingface_hub 2.4):
https://huggingface.co/docs/hub/api. Nothing is stored on disk.
"""

import base64
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of_the_test"
LARGE = (".safetensors", ".parquet", ".onnx", ".png")  # stored as Git LFS
Files = dict[str, bytes]


@dataclass
class Repository:
    """A repository's commits, by identifier, and what its branches, tags and pull requests point to."""

    is_private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, revision: str, files: Files, message: str = "") -> str:
        """Add a commit with these files; the revision points to it."""
        self.messages.append(message)
        identifier = hashlib.sha1(f"{revision} {len(self.messages)}".encode()).hexdigest()
        self.commits[identifier] = files
        self.refs[revision] = identifier
        return identifier

    def identifier(self, revision: str) -> str | None:
        """The commit of a branch, tag or pull request, or of itself."""
        return revision if revision in self.commits else self.refs.get(revision)

    def files(self, revision: str = "main") -> Files:
        """The files at a revision."""
        return self.commits[self.refs[revision]]


@dataclass
class Fault:
    """What goes wrong where a request's line, such as `PUT /large/0a1b`, matches a pattern."""

    pattern: str
    status: int | None  # of the answer; None: the connection is dropped
    message: str = "out of order"
    times: int = 1_000_000


class HubServer(ThreadingHTTPServer):
    """The server; `repositories` by kind and name, `log` has a line for each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.large: dict[str, bytes] = {}  # by SHA-256
        self.faults: list[Fault] = []
        self.log: list[str] = []
        self.lock = Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent where a client hangs up."""

    def create(self, name: str, kind: str = "models", is_private: bool = False) -> Repository:
        """A new repository; as on the Hub, its first commit has a .gitattributes alone."""
        repository = self.repositories[kind, name] = Repository(is_private)
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        return repository

    def add_folder(self, name: str, folder: Path, kind: str = "models") -> Repository:
        """A repository with a folder's files."""
        files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        repository = self.create(name, kind)
        repository.commit("main", files, "add a folder")
        return repository

    def model(self, name: str) -> Repository:
        """A model's repository."""
        return self.repositories["models", name]

    def environment(self, cache: Path) -> dict[str, str]:
        """What a process needs to talk to this Hub with a cache of its own."""
        return os.environ | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",  # Xet's storage is a server of its own
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": TOKEN,
        }


@contextmanager
def running_hub() -> Iterator[HubServer]:
    """A Hub that runs in a thread."""
    server = HubServer()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Keep the tests' output clean."""

    # ---- requests ----------------------------------------------------------------------------------------------------

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def do_PUT(self) -> None:
        self.respond()

    def do_POST(self) -> None:
        self.respond()

    def respond(self) -> None:
        """Answer any request, or fail as asked."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        with self.server.lock:
            line = f"{self.command} {self.path}"
            self.server.log.append(line)
            fault = next((each for each in self.server.faults if each.times and re.search(each.pattern, line)), None)
            if fault is not None:
                fault.times -= 1
                self.fail(fault)
                return
            parts = [unquote(part) for part in url.path.strip("/").split("/")]
            self.route(parts, {key: values[0] for key, values in parse_qs(url.query).items()}, body)

    def fail(self, fault: Fault) -> None:
        """Answer with the fault's status, or hang up."""
        if fault.status is None:
            self.close_connection = True
            self.connection.close()
        else:
            self.answer({"error": fault.message}, fault.status)

    def route(self, parts: list[str], query: dict[str, str], body: bytes) -> None:
        """Find the endpoint of a path."""
        if parts[0] == "large":
            self.large_file(parts[1], body)
        elif parts[0] == "api" and parts[1] in ("models", "datasets"):
            self.api(parts[1], "/".join(parts[2:4]), parts[4:], query, body)
        elif parts[:3] == ["api", "repos", "create"]:
            self.create_repository(json.loads(body))
        elif parts[:2] == ["api", "validate-yaml"]:
            self.answer({"warnings": [], "errors": []})
        elif parts[:2] == ["api", "whoami-v2"]:
            self.answer({"type": "user", "name": "someone", "orgs": []})
        elif parts[-3:] == ["lfs", "objects", "batch"]:
            self.large_batch(json.loads(body))
        else:
            kind = parts.pop(0) if parts[0] == "datasets" else "models"
            if len(parts) > 4 and parts[2] == "resolve":
                self.resolve(kind, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
            else:
                self.answer({"error": f"this Hub has no {self.path}"}, 404)

    def api(self, kind: str, name: str, rest: list[str], query: dict[str, str], body: bytes) -> None:
        """`/api/models/NAME/...` and `/api/datasets/NAME/...`."""
        repository = self.find(kind, name)
        if repository is None:
            return
        action, revision = (rest or ["revision"])[0], (rest[1:] or ["main"])[0]
        if action == "branch":
            self.create_branch(repository, revision)
            return
        if action not in ("revision", "tree", "paths-info", "preupload", "commit", "refs"):
            self.answer({"error": f"this Hub has no {self.path}"}, 404)
            return
        identifier = repository.identifier(revision)
        if identifier is None:
            self.answer({"error": f"Invalid rev id: {revision}"}, 404, {"X-Error-Code": "RevisionNotFound"})
            return
        files = repository.commits[identifier]
        if action == "revision":
            self.answer(description(name, repository, identifier))
        elif action == "refs":
            self.answer({"branches": [{"name": name, "ref": name, "targetCommit": at} for name, at in
                                      repository.refs.items()], "converts": [], "tags": []})  # fmt: skip
        elif action == "tree":
            self.answer(tree(files, "/".join(rest[2:]), query.get("recursive", "").lower() in ("true", "1")))
        elif action == "paths-info":
            wanted = parse_qs(body.decode()).get("paths", []) or json.loads(body)["paths"]
            found = [entry for path in wanted for entry in (path_info(files, path),) if entry is not None]
            self.answer(found)
        elif self.is_allowed():
            (self.preupload if action == "preupload" else self.commit)(name, repository, revision, query, body)

    # ---- endpoints ---------------------------------------------------------------------------------------------------

    def find(self, kind: str, name: str) -> Repository | None:
        """A repository that exists; what is private needs the token."""
        repository = self.server.repositories.get((kind, name))
        if repository is None or (repository.is_private and not self.has_token()):
            self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return None
        return repository

    def create_repository(self, asked: dict[str, Any]) -> None:
        if not self.is_allowed():
            return
        kind = asked.get("type", "model") + "s"
        name = f"{asked.get('organization') or 'someone'}/{asked['name']}"
        answer = {"url": f"{self.server.url}/{name}", "name": name, "id": "1"}
        if (kind, name) in self.server.repositories:
            self.answer(answer | {"error": "You already created this model repo"}, 409)
            return
        self.server.create(name, kind, bool(asked.get("private") or asked.get("visibility") == "private"))
        self.answer(answer)

    def create_branch(self, repository: Repository, branch: str) -> None:
        if not self.is_allowed():
            return
        if branch in repository.refs:
            self.answer({"error": f"Reference already exists: {branch}"}, 409)
            return
        repository.refs[branch] = repository.refs["main"]
        self.answer({})

    def preupload(self, name: str, repository: Repository, revision: str, query: dict[str, str], body: bytes) -> None:
        files = repository.files(revision) if revision in repository.refs else {}
        answers = []
        for asked in json.loads(body)["files"]:
            path = asked["path"]
            stored = entry(path, files[path]) if path in files else {}
            mode = "lfs" if path.endswith(LARGE) else "regular"
            oid = stored.get("lfs", stored).get("oid")
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer({"files": answers})

    def large_batch(self, asked: dict[str, Any]) -> None:
        if not self.is_allowed():
            return
        objects = []
        for item in asked["objects"]:
            upload = {"upload": {"href": f"{self.server.url}/large/{item['oid']}"}}
            objects.append(item if item["oid"] in self.server.large else item | {"actions": upload})
        self.answer({"transfer": "basic", "objects": objects})

    def large_file(self, oid: str, body: bytes) -> None:
        if self.command == "PUT":
            assert hashlib.sha256(body).hexdigest() == oid
            self.server.large[oid] = body
            self.answer({})
        else:
            self.send_content(self.server.large[oid], {})

    def commit(self, name: str, repository: Repository, revision: str, query: dict[str, str], body: bytes) -> None:
        files, message = dict(repository.files(revision)), ""
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, repository.identifier(revision)):
                    self.answer({"error": "A commit has happened since. Please refresh and try again."}, 412)
                    return
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        answer = {}
        if query.get("create_pr") == "1":
            number = next(number for number in itertools.count(1) if f"refs/pr/{number}" not in repository.refs)
            revision = f"refs/pr/{number}"
            answer = {"pullRequestUrl": f"{self.server.url}/{name}/discussions/{number}"}
        identifier = repository.commit(revision, files, message)
        self.answer({"commitUrl": f"{self.server.url}/{name}/commit/{identifier}", "commitOid": identifier} | answer)

    def resolve(self, kind: str, name: str, revision: str, path: str) -> None:
        """A file's content, and in the head what the client's cache needs."""
        repository = self.find(kind, name)
        if repository is None:
            return
        identifier = repository.identifier(revision)
        if identifier is None:
            self.answer({"error": f"Invalid rev id: {revision}"}, 404, {"X-Error-Code": "RevisionNotFound"})
            return
        commit = {"X-Repo-Commit": identifier}
        content = repository.commits[identifier].get(path)
        if content is None:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"} | commit)
            return
        stored = entry(path, content)
        self.send_content(content, commit | {"ETag": f'"{stored.get("lfs", stored)["oid"]}"'})

    # ---- answers -----------------------------------------------------------------------------------------------------

    def has_token(self) -> bool:
        """Whether the request comes with the test's token."""
        return self.headers["Authorization"] == f"Bearer {TOKEN}"

    def is_allowed(self) -> bool:
        """Whether the request may write; answers it where not."""
        if not self.has_token():
            self.answer({"error": "Invalid username or password."}, 401)
        return self.has_token()

    def answer(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Answer with JSON; the Hub repeats an error in the head, for requests without a body."""
        data = json.dumps(body).encode()
        self.send_response(status)
        if isinstance(body, dict) and "error" in body:
            self.send_header("X-Error-Message", body["error"])
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_content(self, content: bytes, headers: dict[str, str]) -> None:
        """Answer with a file's bytes, or the range of them that is asked for."""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        size = len(content)
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1)
            content = content[first : last + 1]
            headers = headers | {"Content-Range": f"bytes {first}-{last}/{size}"}
        self.send_response(206 if wanted else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def description(name: str, repository: Repository, identifier: str) -> dict[str, Any]:
    """A repository as `model_info` and `dataset_info` read it."""
    siblings = [{"rfilename": path} for path in repository.commits[identifier]]
    return {
        "_id": "1", "id": name, "modelId": name, "sha": identifier, "private": repository.is_private, "tags": [],
        "downloads": 0, "likes": 0, "siblings": siblings, "gated": False, "disabled": False,
        "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip


def entry(path: str, content: bytes) -> dict[str, Any]:
    """A file as the tree lists it; `oid` is Git's, and of a large file the SHA-256 stands in `lfs`."""
    found: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
    if path.endswith(LARGE):
        oid = hashlib.sha256(content).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n".encode()
        return found | {"oid": blob(pointer), "lfs": {"oid": oid, "size": len(content), "pointerSize": len(pointer)}}
    return found | {"oid": blob(content)}


def blob(content: bytes) -> str:
    """Git's identifier of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def tree(files: Files, folder: str, is_recursive: bool) -> list[dict[str, Any]]:
    """The entries of a folder, and with `is_recursive` those below."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, dict[str, Any]] = {}
    for path, content in sorted(files.items()):
        if not path.startswith(prefix):
            continue
        names = path.removeprefix(prefix).split("/")
        for depth in range(1, len(names)):
            above = prefix + "/".join(names[:depth])
            if depth == 1 or is_recursive:
                found[above] = {"type": "directory", "path": above, "oid": blob(above.encode()), "size": 0}
        if len(names) == 1 or is_recursive:
            found[path] = entry(path, content)
    return list(found.values())


def path_info(files: Files, path: str) -> dict[str, Any] | None:
    """A file or folder by its path."""
    if path in files:
        return entry(path, files[path])
    if any(each.startswith(f"{path}/") for each in files):
        return {"type": "directory", "path": path, "oid": blob(path.encode()), "size": 0}
    return None
