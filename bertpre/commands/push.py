"""`bertpre push`: a run's stock export and its model card on the Hugging Face Hub."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from bertpre.errors import UserError, first_line
from bertpre.model.export import PARTS, export_run
from bertpre.reporting.model_card import model_card
from bertpre.run_directory import load_run, read_manifest, read_results
from bertpre.runtime import quiet_transformers

WITHOUT = {"encoder": ("finetune", "evaluate"), "classifier": ("pretrain",)}  # stages that the card then leaves out


def push(run_dir: str, repo_id: str, private: bool, license: str = "unknown", only: str | None = None) -> None:
    """Upload the run's models as stock folders, with a model card, to the Hub repository `repo_id`.

    The pretrained model goes to the root and the classifier to `classifier/`; with `only`, `encoder` or `classifier`,
    that one goes to the root, where `pipeline` looks for it. A missing repository is created; the files of an earlier
    push are replaced, the card too. `license` is the card's.
    Raises UserError for a run without a model, a bad repository id, and where the Hub refuses or cannot be reached.
    """
    if only is not None and only not in PARTS:
        raise UserError(f"--only {only}: choose one of {', '.join(PARTS)}")
    run, recipe = load_run(run_dir)
    quiet_transformers()
    with TemporaryDirectory() as temporary, explained_errors(repo_id):
        validate_repo_id(repo_id)
        folder, api = Path(temporary) / "export", HfApi(library_name="bertpre")
        export_run(run, None, folder, only)
        model_type = json.loads((folder / "config.json").read_text())["model_type"]
        repo = api.create_repo(repo_id, private=private, exist_ok=True)
        left_out = WITHOUT.get(only or "", ())
        results = {stage: values for stage, values in read_results(run).items() if stage not in left_out}
        card = model_card(recipe, results, read_manifest(run), model_type, repo.repo_id, license)
        (folder / "README.md").write_text(card, encoding="utf-8")
        megabytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
        print(f"push: uploading {megabytes:,.1f} MB", flush=True)
        upload(api, repo.repo_id, folder)
    hint = "; its card says `license: unknown`: set it with --license, e.g. --license mit"
    print(f"push: {repo}{hint if license == 'unknown' else ''}")


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
        reason = type(error).__name__
        raise UserError(
            f"the Hub at {constants.ENDPOINT} cannot be reached ({reason}): connect to a network and push again; "
            "`bertpre export` needs no network"
        ) from None


def upload(api: HfApi, repo_id: str, folder: Path) -> None:
    """Upload a folder in one commit; raises UserError, which names the file, where the Hub's storage fails."""
    try:
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Push a bertpre run")
    except RuntimeError as error:  # of a large file; its cause is what the storage answered
        cause = error.__cause__
        why = refusal(cause) if isinstance(cause, HfHubHTTPError) else f"{first_line(cause or error)}; push again later"
        raise UserError(f"{first_line(error)} {why}; {repo_id} is unchanged") from None


def refusal(error: HfHubHTTPError) -> str:
    """The Hub's answer and what to do about it."""
    status = error.response.status_code
    if status in (401, 403):
        return f"{status}: log in with `hf auth login` and a token that may write there, or set HF_TOKEN to one"
    return f"{status}, {error.server_message or first_line(error)}; fix that, or push again later"
