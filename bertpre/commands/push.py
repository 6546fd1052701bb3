"""`bertpre push`: a run's stock export and its model card on the Hugging Face Hub."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from bertpre.commands.export import write_models
from bertpre.errors import UserError, first_line
from bertpre.reporting.model_card import model_card
from bertpre.run_directory import load_run, read_manifest, read_results

WITHOUT = {"encoder": ("finetune", "evaluate"), "classifier": ("pretrain",)}  # what the card then says nothing of


def push(run_dir: str, repo_id: str, private: bool, license: str = "unknown", only: str | None = None) -> None:
    """Upload the run's models as stock folders, with a model card, to the Hub repository `repo_id`.

    Both models, the classifier in a folder below the pretrained one; or `only` the `encoder` or the `classifier`, where
    `pipeline` looks for it. The repository is made where it does not exist; the files of an earlier push, the card too,
    are replaced. `license` is the card's.
    Raises UserError for a run without a model, a bad repository id, and where the Hub refuses or is out of reach.
    """
    run, recipe = load_run(run_dir)
    with TemporaryDirectory() as temporary, explained(repo_id):
        validate_repo_id(repo_id)
        folder, api = Path(temporary) / "export", HfApi(library_name="bertpre")
        write_models(run, None, folder, only)
        model_type = json.loads((folder / "config.json").read_text())["model_type"]
        repo = api.create_repo(repo_id, private=private, exist_ok=True)
        results = {stage: figures for stage, figures in read_results(run).items() if stage not in WITHOUT.get(only, ())}
        card = model_card(recipe, results, read_manifest(run), model_type, repo.repo_id, license)
        (folder / "README.md").write_text(card, encoding="utf-8")
        api.upload_folder(repo_id=repo.repo_id, folder_path=folder, commit_message="Push a bertpre run")
    unknown = "; its card says `license: unknown`: give one with --license, e.g. --license mit"
    print(f"push: {repo}{unknown if license == 'unknown' else ''}")


@contextmanager
def explained(repo_id: str) -> Iterator[None]:
    """Turn the Hub's errors into UserErrors that name the remedy."""
    try:
        yield
    except HFValidationError as error:
        raise UserError(f"repository id {repo_id!r}: {error}; write OWNER/NAME, e.g. your-name/bert-mini") from None
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE keeps the Hub away: unset it to push") from None
    except HfHubHTTPError as error:
        raise UserError(f"the Hub refuses {repo_id!r}: {refusal(error)}") from None
    except HTTPError as error:
        reason = type(error).__name__
        raise UserError(
            f"the Hub at {constants.ENDPOINT} cannot be reached ({reason}): push again where there is a network; "
            "`bertpre export` works without one"
        ) from None


def refusal(error: HfHubHTTPError) -> str:
    """What the Hub answered, and what to do about it."""
    status = error.response.status_code
    if status in (401, 403):
        return f"{status}: log in by `hf auth login` with a token that may write there, or set HF_TOKEN to one"
    said = error.server_message or first_line(error)
    return f"{status}, {said}; mend that, or push again later"
