"""`bertpre push`: a run's stock export and its model card on the Hugging Face Hub."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from bertpre.errors import UserError
from bertpre.export import STOCK, write_models
from bertpre.recipe import Recipe, to_yaml
from bertpre.report import figures
from bertpre.run_directory import load_run, read_results

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # owner/name

LOADING = """```python
from transformers import pipeline

fill_mask = pipeline("fill-mask", model="{repo_id}")
print(fill_mask("It is a [MASK].", top_k=3))
```
"""
LOADING_CLASSIFIER = """
The folder `classifier/` holds a classifier of texts:

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

model = AutoModelForSequenceClassification.from_pretrained("{repo_id}", subfolder="classifier")
classify = pipeline("text-classification", model=model, tokenizer=AutoTokenizer.from_pretrained("{repo_id}"))
print(classify("I would see it again.", truncation=True))
```
"""


def push(run_dir: str, repo_id: str, private: bool) -> None:
    """Upload the run's models as stock folders, with a model card, to the Hub repository `repo_id`.

    The repository is made where it does not exist; the files of an earlier push, the card too, are replaced.
    Raises UserError for a run without a model, a bad repository id, and where the Hub refuses or is out of reach.
    """
    run, recipe = load_run(run_dir)
    with TemporaryDirectory() as temporary, explained(repo_id):
        validate_repo_id(repo_id)
        folder, api = Path(temporary) / "export", HfApi(library_name="bertpre")
        write_models(run, STOCK[recipe.model.architecture], folder)
        repo = api.create_repo(repo_id, private=private, exist_ok=True)
        card = model_card(without_local_paths(recipe), read_results(run), read_manifest(run), repo.repo_id)
        (folder / "README.md").write_text(card, encoding="utf-8")
        api.upload_folder(repo_id=repo.repo_id, folder_path=folder, commit_message="Push a bertpre run")
    print(f"push: {repo}; its card says `license: unknown`: choose a licence there, in the head of README.md")


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
    said = error.server_message or str(error).strip().splitlines()[0]
    return f"{status}, {said}; mend that, or push again later"


def read_manifest(run: Path) -> dict[str, Any]:
    """What the run's stages were run with."""
    file = run / "manifest.json"
    return json.loads(file.read_text()) if file.exists() else {}


def without_local_paths(recipe: Recipe) -> Recipe:
    """The recipe as it may be published: of paths on this machine only the last part is left."""
    public = recipe.model_copy(deep=True)
    public.output_dir = Path(public.output_dir).name
    places = [(public.corpus, "path"), (public.tokenizer, "path"), (public.finetune, "path"), (public.finetune, "init")]
    for section, key in places:
        value = getattr(section, key, None)
        if value and (Path(value).exists() or not HUB_ID.fullmatch(value)):
            setattr(section, key, Path(value).name)
    return public


def model_card(recipe: Recipe, results: dict[str, Any], manifest: dict[str, Any], repo_id: str) -> str:
    """The README.md of a Hub repository: what the model is, how to load it, what made it and how good it is.

    Says nothing of a stage that has left no figures in `results`, or no machine in `manifest`.
    """
    parts = [
        f"---\n{yaml.safe_dump(front_matter(recipe), sort_keys=False)}---\n",
        f"# {repo_id.split('/')[-1]}\n",
        f"{what_it_is(recipe, results)}\n",
        "## How to load it\n",
        LOADING.format(repo_id=repo_id) + (LOADING_CLASSIFIER.format(repo_id=repo_id) if "finetune" in results else ""),
        "## Training\n",
        f"{training_data(recipe)}\n",
        f"The whole recipe:\n\n```yaml\n{to_yaml(recipe)}```\n",
    ]
    if rows := figures(results):
        lines = [f"| {name} | {value} |" for name, value in rows]
        parts += ["## Figures\n", "\n".join(["| | |", "|---|---|", *lines, ""])]
    if manifest:
        lines = [machine(stage, facts) for stage, facts in manifest.items()]
        parts += ["## Hardware and versions\n", "\n".join([*lines, ""])]
    return "\n".join(parts)


def front_matter(recipe: Recipe) -> dict[str, Any]:
    """What the Hub's search and its widget read."""
    paths = [recipe.corpus.path, *([recipe.finetune.path] if recipe.finetune else [])]
    datasets = sorted({path for path in paths if HUB_ID.fullmatch(path)})
    facts = {
        "license": "unknown",  # of the weights: nobody but who pushes them can say
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": [STOCK[recipe.model.architecture], "bertpre", "masked-lm"],
    }
    return facts | ({"datasets": datasets} if datasets else {})


def what_it_is(recipe: Recipe, results: dict[str, Any]) -> str:
    """The model in a few sentences."""
    model = recipe.model
    kind = {
        "bert": "BERT (Devlin et al. 2018), with both its heads. It loads as stock `bert` of transformers.",
        "modern": "ModernBERT's layers (Warner et al. 2024) with full attention. It loads as stock `modernbert` of "
        "transformers, which has neither segments nor a head for their order: those stayed behind, single texts are "
        "encoded as before.",
    }[model.architecture]
    size = f"{model.num_hidden_layers} layers of {model.num_attention_heads} heads, hidden size {model.hidden_size}"
    if parameters := results.get("pretrain", {}).get("parameters"):
        size += f", {parameters:,} parameters in pretraining"
    return (
        "An encoder pretrained from scratch by bertpre, with masked language modelling and next sentence prediction: "
        f"{kind}\n\nIts size: {size}."
    )


def training_data(recipe: Recipe) -> str:
    """Which texts the model was trained on."""
    corpus, tuning = recipe.corpus, recipe.finetune
    lines = [f"- Pretraining: {dataset(corpus.path, corpus.name, corpus.split)}."]
    if tuning:
        lines.append(
            f"- Classifier: {dataset(tuning.path, tuning.name, tuning.split)}; of texts longer than "
            f"{tuning.max_length} tokens the {tuning.truncation.replace('_', ' and ')} was kept, in the tests as well."
        )
    return "\n".join(lines)


def dataset(path: str, name: str | None, split: str) -> str:
    """A source of texts, linked where it is on the Hub."""
    if path == "sample":
        where = "the corpus embedded in bertpre, which a generator made up"
    elif HUB_ID.fullmatch(path):
        where = f"[{path}](https://huggingface.co/datasets/{path})"
    else:
        where = f"local files, `{path}`"
    return where + (f", configuration `{name}`" if name else "") + f", split `{split}`"


def machine(stage: str, facts: dict[str, Any]) -> str:
    """One stage's hardware and versions in a line."""
    hardware = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts["hardware"].items())
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items() if value)
    return f"- {stage}: {hardware}; {versions}; bertpre commit {facts['commit']}"
