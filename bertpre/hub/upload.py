"""A folder becomes one commit of a Hub repository: files that an earlier push left are replaced or removed."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import (
    build_hf_headers,
    disable_progress_bars,
    hf_raise_for_status,
    logging,
    validate_repo_id,
)

from bertpre.errors import UserError, first_line, reason
from bertpre.files import file_checksum, write_text

INVENTORY = "bertpre.json"  # the files of the last push, with their SHA-256
CARD, NEW_CARD = "README.md", "README.bertpre.md"  # the second name where someone has edited the first


@dataclass(frozen=True)
class Target:
    """Where a folder goes, and how."""

    repo_id: str
    revision: str | None = None  # a branch, made where it is missing; None: main
    private: bool = False  # of a repository that is made
    commit_message: str = "Push a bertpre run"
    create_pr: bool = False
    overwrite_card: bool = False


@dataclass(frozen=True)
class Pushed:
    """What a commit did."""

    url: str  # of the repository, its branch or the pull request
    removed: tuple[str, ...]  # files of an earlier push that this one has not
    kept: tuple[str, ...]  # such files, but changed by hand since
    replaced: tuple[str, ...]  # files of both pushes, changed by hand in between
    kept_card: bool  # README.md was edited by hand: the new card lies beside it, as NEW_CARD


def upload(folder: Path, target: Target) -> Pushed:
    """Commit a folder's files to a repository, which is made where it is missing; adds INVENTORY to the folder.

    Only files that an earlier push put there, and nobody has changed since, are removed; a README.md that differs from
    that push's is kept unless `overwrite_card`. Large files that a failed push has left on the Hub are not sent again.
    Raises UserError for a bad repository id, for a public repository that should be private, and where the Hub refuses,
    fails or cannot be reached.
    """
    disable_progress_bars()
    logging.set_verbosity_error()
    with explained_errors(target.repo_id):
        validate_repo_id(target.repo_id)
        api = HfApi(library_name="bertpre")
        # None instead of False: what the organization has set for new repositories then counts.
        repo = api.create_repo(target.repo_id, private=target.private or None, exist_ok=True)
        if target.private and not api.model_info(repo.repo_id).private:
            raise UserError(
                f"{target.repo_id} exists and is public: make it private in its settings first, or leave --private "
                "(hub.private) out; nothing was uploaded"
            )
        if target.revision is not None and not target.revision.startswith("refs/"):  # such as a pull request's
            api.create_branch(repo.repo_id, branch=target.revision, exist_ok=True)
        parent = api.model_info(repo.repo_id, revision=target.revision).sha
        tree = api.list_repo_tree(repo.repo_id, recursive=True, revision=target.revision)
        there = {file.path: file for file in tree if isinstance(file, RepoFile)}
        known = remote_inventory(repo.repo_id, target.revision) if INVENTORY in there else {}
        kept_card = CARD in there and not target.overwrite_card
        kept_card = kept_card and is_edited(folder, repo.repo_id, target.revision, known)
        if kept_card:
            (folder / CARD).rename(folder / NEW_CARD)
        files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != INVENTORY)
        added = [CommitOperationAdd(file.relative_to(folder).as_posix(), file) for file in files]
        new = write_inventory(folder, added)
        old = known.keys() & there.keys() - {CARD}
        changed = {path for path in old if remote_checksum(repo.repo_id, there[path], target.revision) != known[path]}
        removed = sorted(old - new.keys() - changed)
        commit = api.create_commit(
            repo.repo_id,
            [*added, CommitOperationAdd(INVENTORY, folder / INVENTORY), *map(CommitOperationDelete, removed)],
            commit_message=target.commit_message,
            revision=target.revision,
            create_pr=target.create_pr,
            parent_commit=parent,  # refused where someone has committed since: their edit would be overwritten
        )  # fmt: skip
    branch = "" if target.revision is None else f"/tree/{target.revision}"
    kept, replaced = sorted(changed - new.keys()), sorted(changed & new.keys())
    return Pushed(commit.pr_url or f"{repo}{branch}", tuple(removed), tuple(kept), tuple(replaced), kept_card)


def write_inventory(folder: Path, added: list[CommitOperationAdd]) -> dict[str, str]:
    """Write INVENTORY into a folder; returns its other files' SHA-256 by path, which the Hub's client has computed."""
    checksums = {each.path_in_repo: each.upload_info.sha256.hex() for each in added}
    write_text(folder / INVENTORY, json.dumps({"bertpre": version("bertpre"), "files": checksums}, indent=2) + "\n")
    return checksums


def read_remote(repo_id: str, path: str, revision: str | None) -> bytes:
    """A small file of a repository."""
    url = hf_hub_url(repo_id, path, revision=revision)
    response = get_session().get(url, headers=build_hf_headers(library_name="bertpre"), follow_redirects=True)
    hf_raise_for_status(response)
    return response.content


def remote_checksum(repo_id: str, file: RepoFile, revision: str | None) -> str:
    """The SHA-256 of a file of a repository, which the Hub knows of large ones; the others are read."""
    return file.lfs.sha256 if file.lfs else hashlib.sha256(read_remote(repo_id, file.path, revision)).hexdigest()


def remote_inventory(repo_id: str, revision: str | None) -> dict[str, str]:
    """What the last push to a revision has written; empty where its INVENTORY is damaged."""
    try:
        return dict(json.loads(read_remote(repo_id, INVENTORY, revision))["files"])
    except (ValueError, KeyError, TypeError):
        return {}


def is_edited(folder: Path, repo_id: str, revision: str | None, known: dict[str, str]) -> bool:
    """Whether the repository's README.md is neither the last push's nor the folder's."""
    checksum = hashlib.sha256(read_remote(repo_id, CARD, revision)).hexdigest()
    return checksum not in (known.get(CARD), file_checksum(folder / CARD))


@contextmanager
def explained_errors(repo_id: str) -> Iterator[None]:
    """Turn the Hub's errors into UserErrors that name the remedy."""
    try:
        yield
    except HFValidationError as error:
        raise UserError(f"repository id {repo_id!r}: {error}; write OWNER/NAME, e.g. your-name/bert-mini") from None
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: unset it to push") from None
    except HfHubHTTPError as error:
        raise UserError(f"the Hub refused {repo_id!r}: {refusal(error)}") from None
    except HTTPError as error:
        raise UserError(
            f"the Hub at {constants.ENDPOINT} cannot be reached ({type(error).__name__}): connect to a network and "
            f"push again; {repo_id} is unchanged; `bertpre export` needs no network"
        ) from None
    except RuntimeError as error:  # of a large file; its cause is what the storage answered
        cause = error.__cause__
        why = refusal(cause) if isinstance(cause, HfHubHTTPError) else f"{first_line(cause or error)}; push again later"
        raise UserError(f"{first_line(error)} {why}; {repo_id} is unchanged") from None
    except ValueError as error:  # the Hub does not take the card's metadata, such as an unknown licence
        raise UserError(f"{' '.join(str(error).split())}; {repo_id} is unchanged") from None
    except ConnectionError as error:  # of the storage, which is another machine than the Hub
        raise UserError(
            f"the storage of the Hub cannot be reached ({first_line(error)}): a proxy or a firewall may block it; "
            f"{repo_id} is unchanged; `bertpre export` needs no network"
        ) from None
    except OSError as error:
        raise UserError(f"push: a file cannot be read or written: {reason(error)}; {repo_id} is unchanged") from None


def refusal(error: HfHubHTTPError) -> str:
    """The Hub's answer and what to do about it."""
    status = error.response.status_code
    if status in (401, 403):
        return f"{status}: log in with `hf auth login` and a token that may write there, or set HF_TOKEN to one"
    return f"{status}, {error.server_message or first_line(error)}; fix that, or push again later"
