"""The model card of a pushed model: what it is, how to load it, its training and its metrics."""

import re
from pathlib import Path
from typing import Any

import yaml

from bertpre.recipe import PATH_KEYS, Finetune, Recipe, Source, to_yaml
from bertpre.reporting.report import headline_rows

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # owner/name
PATHS = (*PATH_KEYS, "output_dir")  # keys that may hold a path on this machine

LOADING = """```python
from transformers import pipeline

fill_mask = pipeline("fill-mask", model="{repo_id}")
print(fill_mask("It is a [MASK].", top_k=3))
```
"""
LOADING_SUBFOLDER = """
The folder `classifier/` holds a model for {task}:

```python
from transformers import {auto_class}, AutoTokenizer, pipeline

model = {auto_class}.from_pretrained("{repo_id}", subfolder="classifier")
tokenizer = AutoTokenizer.from_pretrained("{repo_id}", subfolder="classifier")
classify = pipeline("{pipeline}", model=model, tokenizer=tokenizer{choice})
print(classify({text}))
```
"""
LOADING_CLASSIFIER = """```python
from transformers import pipeline

classify = pipeline("{pipeline}", model="{repo_id}"{choice})
print(classify({text}))
```
"""
TASKS = {
    "classification": "text classification",
    "multi_label": "multi-label text classification",
    "regression": "text regression",
    "tokens": "token classification",
}
OBJECTIVES = {
    "nsp": "masked language modelling and next sentence prediction",
    "sop": "masked language modelling and sentence order prediction (Lan et al. 2019)",
    "none": "masked language modelling alone",
}


def model_card(
    recipe: Recipe,
    results: dict[str, Any],
    manifest: dict[str, Any],
    model_type: str,
    repo_id: str,
    license: str = "unknown",  # of the weights; only the person who pushes them knows it
) -> str:
    """The README.md of a Hub repository, whose model is a stock `model_type` of transformers.

    Stages without an entry in `results` or `manifest` are left out; of a path on this machine only the last part is
    shown.
    """
    recipe = without_local_paths(recipe)
    parts = [
        f"---\n{yaml.safe_dump(front_matter(recipe, results, model_type, license), sort_keys=False)}---\n",
        f"# {repo_id.split('/')[-1]}\n",
        f"{what_it_is(recipe, results, model_type)}\n",
        "## How to load it\n",
        how_to_load(recipe, results, repo_id),
        "## Training\n",
        f"{training_data(recipe, results)}\n",
        f"The complete recipe:\n\n```yaml\n{to_yaml(recipe)}```\n",
    ]
    if rows := headline_rows(results):
        lines = [f"| {name} | {value} |" for name, value in rows]
        parts += ["## Metrics\n", "\n".join(["| | |", "|---|---|", *lines, ""])]
    if manifest:
        lines = [machine(stage, facts) for stage, facts in manifest.items()]
        parts += ["## Hardware and versions\n", "\n".join([*lines, ""])]
    return "\n".join(parts)


def without_local_paths(recipe: Recipe) -> Recipe:
    """The recipe without paths on this machine: only the last part of each is kept."""

    def public(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: public(name, part) for name, part in value.items()}
        if isinstance(value, list):
            return [public(key, part) for part in value]
        is_path = key in PATHS and isinstance(value, str)
        return Path(value).name if is_path and (Path(value).exists() or not HUB_ID.fullmatch(value)) else value

    return Recipe.model_validate(public("", recipe.model_dump()))


def is_classifier(results: dict[str, Any]) -> bool:
    """Whether the repository holds only a fine-tuned model."""
    return "finetune" in results and "pretrain" not in results


def front_matter(recipe: Recipe, results: dict[str, Any], model_type: str, license: str) -> dict[str, Any]:
    """The metadata that the Hub's search and widget read."""
    tuned = recipe.finetune
    paths = [*(source.path for source in sources(recipe)), *([tuned.path] if tuned else [])]
    datasets = sorted({path for path in paths if HUB_ID.fullmatch(path)})
    base = recipe.required_finetune.init if is_classifier(results) else recipe.training.init
    facts = {
        "license": license,
        "library_name": "transformers",
        "pipeline_tag": pipeline_of(recipe.required_finetune) if is_classifier(results) else "fill-mask",
        "tags": [model_type, "bertpre", *([] if is_classifier(results) else ["masked-lm"])],
        "base_model": base if base and HUB_ID.fullmatch(base) else None,
        "datasets": datasets,
    }
    return {name: fact for name, fact in facts.items() if fact}


def sources(recipe: Recipe) -> list[Source]:
    """All sources of the pretraining text."""
    return [recipe.corpus, *recipe.corpus.more] if recipe.corpus else []


def what_it_is(recipe: Recipe, results: dict[str, Any], model_type: str) -> str:
    """The model in a few sentences."""
    if is_classifier(results):
        own = {"random": "random weights", "pretrained": "an encoder pretrained by bertpre"}
        settings = recipe.required_finetune
        start = own.get(settings.init) or linked(settings.init, "")
        return (
            f"A model for {TASKS[settings.task]}, fine-tuned by bertpre from {start}. It loads as stock "
            f"`{model_type}` of transformers."
        )
    model = recipe.model
    order_head = "with both heads" if recipe.pairs.kind != "none" else "whose `seq_relationship` head is untrained"
    kind = {
        "bert": f"BERT (Devlin et al. 2018), {order_head}. It loads as stock `bert` of transformers.",
        "modern": "ModernBERT (Warner et al. 2024) with full attention in every layer. It loads as stock `modernbert` "
        "of transformers, which has neither segments nor a head for sentence pairs: those were left out, and single "
        "texts are encoded as in pretraining.",
    }[model.architecture]
    size = f"{model.num_hidden_layers} layers of {model.num_attention_heads} heads, hidden size {model.hidden_size}"
    if parameters := results.get("pretrain", {}).get("parameters"):
        size += f", {parameters:,} parameters in pretraining"
    start = f"further from {linked(recipe.training.init, '')}" if recipe.training.init else "from scratch"
    return f"An encoder pretrained {start} by bertpre, with {OBJECTIVES[recipe.pairs.kind]}: {kind}\n\nSize: {size}."


def pipeline_of(settings: Finetune) -> str:
    """The name of transformers' pipeline for the task."""
    return "token-classification" if settings.task == "tokens" else "text-classification"


def how_to_load(recipe: Recipe, results: dict[str, Any], repo_id: str) -> str:
    """Code that loads and runs the repository's models."""
    if "finetune" not in results:
        return LOADING.format(repo_id=repo_id)
    settings = recipe.required_finetune
    is_tokens = settings.task == "tokens"
    text = '"I would see it again."'
    if settings.text_pair_column is not None:
        text = '{"text": "I would see it again.", "text_pair": "Once was enough."}'
    choices = {
        "repo_id": repo_id,
        "task": TASKS[settings.task],
        "auto_class": "AutoModelForTokenClassification" if is_tokens else "AutoModelForSequenceClassification",
        "pipeline": pipeline_of(settings),
        "choice": ', aggregation_strategy="first"' if is_tokens else "",  # words, not pieces of them
        "text": text if is_tokens else f"{text}, truncation=True",
    }
    if is_classifier(results):
        return LOADING_CLASSIFIER.format(**choices)
    return LOADING.format(repo_id=repo_id) + LOADING_SUBFOLDER.format(**choices)


def training_data(recipe: Recipe, results: dict[str, Any]) -> str:
    """The texts that the model was trained on."""
    lines = []
    if not is_classifier(results) or recipe.required_finetune.init == "pretrained":
        lines += [f"- Pretraining: {dataset(source.path, source.name, source.split)}." for source in sources(recipe)]
    if tuning := recipe.finetune:
        lines.append(
            f"- Labelled texts: {dataset(tuning.path, tuning.name, tuning.split)}, truncated to {tuning.max_length} "
            f"tokens ({tuning.truncation.replace('_', ' and ')} kept), as in testing."
        )
        if more := tuning.unlabelled:
            where = dataset(more.path or tuning.path, tuning.name, more.split)
            lines.append(f"- Texts pseudo-labelled by NB-SVM, itself trained on the labelled texts: {where}.")
    return "\n".join(lines)


def dataset(path: str, name: str | None, split: str) -> str:
    """A source of texts, linked where it is on the Hub."""
    where = "the synthetic corpus built into bertpre" if path == "sample" else linked(path, "datasets/")
    return where + (f", configuration `{name}`" if name else "") + f", split `{split}`"


def linked(path: str, kind: str) -> str:
    """A Hub id as a link, or a local path as code."""
    if HUB_ID.fullmatch(path):
        return f"[{path}](https://huggingface.co/{kind}{path})"
    return f"local files, `{path}`"


def machine(stage: str, facts: dict[str, Any]) -> str:
    """One stage's hardware and versions on one line."""
    hardware = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts["hardware"].items())
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items() if value)
    return f"- {stage}: {hardware}; {versions}; bertpre commit {facts['commit']}"
