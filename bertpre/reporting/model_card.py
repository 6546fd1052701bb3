"""The model card of a pushed model: what it is, how to load it, its training and its metrics."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertpre.console import dropped_text, time_text
from bertpre.data.raw_text import reads_raw_texts
from bertpre.recipe import Recipe, to_yaml
from bertpre.recipe.paths import NAMES, paths_in
from bertpre.recipe.public import HUB_ID, MODEL_ID, is_public, without_own_places
from bertpre.recipe.yaml_core import write_yaml
from bertpre.reporting.card_code import how_to_load, how_to_load_onnx
from bertpre.reporting.card_facts import (
    TASKS,
    Published,
    front_matter,
    is_classifier,
    is_synthetic,
    model_index,
    sources,
    text_paths,
)
from bertpre.reporting.corpus import leak_rows
from bertpre.reporting.evaluation import overlap_text
from bertpre.reporting.picture import pretraining_png
from bertpre.reporting.report import hardware_text, headline_rows, synthetic_notes, versions_text
from bertpre.reporting.tiles import stage_seconds

PICTURE = "curves.png"
OBJECTIVES = {
    "nsp": "masked language modelling and next sentence prediction",
    "sop": "masked language modelling and sentence order prediction (Lan et al. 2019)",
    "none": "masked language modelling alone",
}
PHASES = {
    "causal": "causal language modelling", "mixed": "causal and masked language modelling by turns",
    "masked": "masked language modelling",
}  # fmt: skip
GPU_WATTS = {  # rated power by the name that the driver gives
    "NVIDIA H200": 700, "NVIDIA H100 80GB HBM3": 700, "NVIDIA A100-SXM4-80GB": 400, "NVIDIA A100-SXM4-40GB": 400,
    "NVIDIA L4": 72, "Tesla T4": 70,
}  # fmt: skip
MODERN = """
@misc{warner2024modernbert,
  title = {Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory Efficient, and Long Context
    Finetuning and Inference},
  author = {Warner, Benjamin and Chaffin, Antoine and Clavi{\\'e}, Benjamin and others},
  year = {2024},
  eprint = {2412.13663},
  archivePrefix = {arXiv}
}
"""
CITATION = """```bibtex
@inproceedings{devlin2019bert,
  title = {{BERT}: Pre-training of Deep Bidirectional Transformers for Language Understanding},
  author = {Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina},
  booktitle = {Proceedings of NAACL-HLT},
  year = {2019}
}
{modern}
@software{bertpre,
  title = {bertpre: {BERT} pretraining from raw text to a fine-tuned, Hub-ready encoder},
  author = {{bertpre developers}}
}
```"""


def write_card(
    folder: Path,
    recipe: Recipe,
    results: dict[str, Any],
    manifest: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    repo_id: str,
    revision: str | None = None,
    step: int | None = None,
) -> None:
    """Write `README.md` and, of a pretraining with logged `rows`, `curves.png` into the folder of an export.

    `rows` are those of `metrics.jsonl`; the rest is as in `model_card`.
    """
    has_curves = "pretrain" in results and any(row["stage"] == "pretrain" for row in rows)
    if has_curves:
        (folder / PICTURE).write_bytes(pretraining_png(rows, results))
    published = Published(
        repo_id=repo_id,
        model_type=json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"],
        revision=revision,
        step=step,
        has_curves=has_curves,
        is_onnx=(folder / "model.onnx").exists(),
        cleans=reads_raw_texts(folder),
        classes=classes_of(folder),
    )
    (folder / "README.md").write_text(model_card(recipe, results, manifest, published), encoding="utf-8")


def classes_of(folder: Path) -> list[str]:
    """The names of the classes of an export's classifier; none without one, and for a regression."""
    file = folder / "classifier" / "config.json"
    config = json.loads((file if file.exists() else folder / "config.json").read_text(encoding="utf-8"))
    is_classifier = (config.get("architectures") or [""])[0].endswith("Classification")
    is_regression = config.get("problem_type") == "regression"
    return list(config.get("id2label", {}).values()) if is_classifier and not is_regression else []


def model_card(recipe: Recipe, results: dict[str, Any], manifest: dict[str, Any], published: Published) -> str:
    """The README.md of a Hub repository.

    Stages without an entry in `results` or `manifest` are left out; of a path on this machine only the last part is
    shown.
    """
    hub, public, model_type = recipe.hub, without_own_places(recipe), published.model_type
    recipe, results, own, unused = true_of_the_model(public, results, manifest)
    head = front_matter(recipe, results, hub, model_type, published.is_onnx)
    name = published.repo_id.split("/")[-1]
    if index := model_index(recipe, results, name, lacks_pairs=published.is_onnx or model_type == "modernbert"):
        head["model-index"] = index
    shown = to_yaml(public, unused)
    sections = {
        "How to load it": (how_to_load_onnx if published.is_onnx else how_to_load)(recipe, results, published),
        "Metrics": metrics(results),
        "Training": training(recipe, results, published),
        "Leak check": leak_check(recipe, results),
        "Intended use": intended_use(recipe, results),
        "Limits and bias": limits(recipe, results),
        "Hardware and versions": machines(own),
        "Time, energy and cost": expense(recipe, results, own),
        "Reproduce it": reproduction(public, own),
        "Citation": CITATION.replace("{modern}", MODERN if model_type == "modernbert" else ""),
        "Recipe": f"<details><summary>The complete recipe</summary>\n\n```yaml\n{shown}```\n\n</details>",
    }
    parts = [f"---\n{write_yaml(head)}---\n", f"# {name}\n"]
    parts.append(f"{what_it_is(recipe, results, published)}\n")
    parts += [f"## {title}\n\n{text.strip()}\n" for title, text in sections.items() if text]
    return "\n".join(parts)


def true_of_the_model(
    recipe: Recipe, results: dict[str, Any], manifest: dict[str, Any]
) -> tuple[Recipe, dict[str, Any], dict[str, Any], list[str]]:
    """What of recipe, results and manifest is true of a model with these results; and the sections it did not use."""
    # An encoder has not seen the labelled texts that its recipe may have.
    own_recipe = recipe if "finetune" in results else recipe.model_copy(update={"finetune": None})
    own = {stage: facts for stage, facts in manifest.items() if stage != "finetune" or stage in results}
    if not is_classifier(results) or recipe.required_finetune.init in NAMES:
        return own_recipe, results, own, []
    # This run's corpus and pretraining say nothing about a classifier that was made from another model.
    own_recipe = own_recipe.model_copy(update={"corpus": None})
    results = {stage: values for stage, values in results.items() if stage != "prepare"}
    own = {stage: facts for stage, facts in own.items() if stage not in ("prepare", "pretrain")}
    return own_recipe, results, own, ["corpus", "prepare", "tokenizer", "pairs", "model"]


def what_it_is(recipe: Recipe, results: dict[str, Any], published: Published) -> str:
    """The model in a few sentences."""
    model_type, is_onnx, step = published.model_type, published.is_onnx, published.step
    loads = f"It loads as stock `{model_type}` of transformers"
    if is_onnx:
        loads = "It is an ONNX graph, which onnxruntime executes"
    elif model_type == "bertpre":
        loads = "It contains its own code, which transformers 5.17 or later loads"
    if is_classifier(results):
        further = f" further from {linked(recipe.training.init, '')}" if recipe.training.init else ""
        own = {"random": "random weights", "pretrained": f"an encoder pretrained{further} by bertpre"}
        settings = recipe.required_finetune
        start = own.get(settings.init) or linked(settings.init, "")
        return f"A model for {TASKS[settings.task]}, fine-tuned by bertpre from {start}. {loads}."
    model = recipe.model
    order_head = ", with both heads" if recipe.pairs.kind != "none" else ", whose `seq_relationship` head is untrained"
    if is_onnx:
        order_head = ", with the head for masked words"
    kind = {
        "bert": f"BERT (Devlin et al. 2018){order_head}",
        "modern": "ModernBERT (Warner et al. 2024) with full attention in every layer",
    }[model.architecture]
    if model_type == "modernbert" and not is_onnx:
        loads += (
            ", which has neither segments nor a head for sentence pairs: those were left out, and single texts are "
            "encoded as in pretraining"
        )
    kind += f". {loads}."
    size = f"{model.num_hidden_layers} layers of {model.num_attention_heads} heads, hidden size {model.hidden_size}"
    if parameters := results.get("pretrain", {}).get("parameters"):
        size += f", {parameters:,} parameters in pretraining"
    size += f", pretrained on rows of up to {max(phase.max_length for phase in recipe.training.phases)} tokens"
    start = f"further from {linked(recipe.training.init, '')}" if recipe.training.init else "from scratch"
    objectives = OBJECTIVES[recipe.pairs.kind]
    if any(phase.objective != "masked" for phase in recipe.training.phases):
        shares = dict[str, float]()  # in the order of the phases
        for phase in recipe.training.phases:
            shares[phase.objective] = shares.get(phase.objective, 0) + phase.share
        parts = [f"{PHASES[name]} for {share:.0%} of the training" for name, share in shares.items()]
        objectives = ", then ".join(parts)
    part = "" if step is None else f"A checkpoint at step {step:,} of a pretraining that had not ended. "
    other = ""
    if "finetune" in results and recipe.required_finetune.init not in NAMES:
        other = f"\n\nThe classifier was fine-tuned from another encoder: {linked(recipe.required_finetune.init, '')}."
    return f"{part}An encoder pretrained {start} by bertpre, with {objectives}: {kind}\n\nSize: {size}.{other}"


def metrics(results: dict[str, Any]) -> str:
    """The main results as a table, with a line on what the loss is compared with."""
    rows = [f"| {in_cell(name)} | {in_cell(value)} |" for name, value in headline_rows(results)]
    note = "\n\nThe context-free loss is the lowest that word frequencies alone can reach, without reading the context."
    has_reference = "context_free_loss" in results.get("pretrain", {})
    return "\n".join(["| Metric | Value |", "|---|---|", *rows]) + note * has_reference if rows else ""


def in_cell(text: str) -> str:
    """Text in a cell of a Markdown table: a class may have any name."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def as_code(text: str) -> str:
    """Text as code in Markdown, whatever is in it."""
    text = " ".join(text.split())
    fence = "`" * (1 + max((len(each) for each in re.findall("`+", text)), default=0))
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def training(recipe: Recipe, results: dict[str, Any], published: Published) -> str:
    """The training data, its licence, and the curves of the pretraining."""
    classes = ", ".join(as_code(name) for name in published.classes)
    named = f"Classes, in the order of the logits: {classes}." if classes else ""
    picture = f"![Loss and accuracy over the tokens of the pretraining]({PICTURE})" if published.has_curves else ""
    texts = training_data(recipe, results, published.cleans)
    parts = [texts, named, data_licence(recipe), *synthetic_notes(recipe), picture]
    return "\n\n".join(part for part in parts if part)


def training_data(recipe: Recipe, results: dict[str, Any], cleans: bool) -> str:
    """The texts that the model was trained on."""
    lines, tuning = [], recipe.finetune
    reads_words = tuning is not None and tuning.task == "tokens"
    if not is_classifier(results) or recipe.required_finetune.init == "pretrained":
        lines += [f"- Pretraining: {dataset(source.path, source.name, source.split)}." for source in sources(recipe)]
    if tuning is not None:
        kept = "head" if reads_words else tuning.truncation.replace("_", " and ")
        lines.append(
            f"- Labelled texts: {dataset(tuning.path, tuning.name, tuning.split)}, truncated to {tuning.max_length} "
            f"tokens ({kept} kept), as in testing."
        )
        if more := tuning.unlabelled:
            own = tuning.name if more.path in (None, tuning.path) else None  # of finetune.path alone
            where = dataset(more.path or tuning.path, own, more.split)
            lines.append(f"- Texts pseudo-labelled by NB-SVM, itself trained on the labelled texts: {where}.")
    if reads_words and is_classifier(results):
        lines.append("- Unicode was brought into its form NFC; give the model such words.")
    else:
        own = "the tokenizer does this for most tags and entities, and for NFC"
        lines.append(
            "- HTML tags, entities, wiki marks and wrapped lines were removed first, and Unicode was brought into its "
            f"form NFC; {own if cleans else 'give the model such texts'}."
        )
    return "\n".join(lines)


def dataset(path: str, name: str | None, split: str) -> str:
    """A source of texts, linked where it is on the Hub."""
    where = "the synthetic corpus built into bertpre" if path == "sample" else linked(path, "datasets/")
    return where + (f", configuration `{name}`" if name else "") + f", split `{split}`"


def linked(path: str, kind: str) -> str:
    """A Hub id of a model (`kind` is empty) or a dataset as a link, or a local path as code."""
    if (HUB_ID if kind else MODEL_ID).fullmatch(path):
        return f"[{path}](https://huggingface.co/{kind}{path})"
    return f"local files, `{path}`"


def data_licence(recipe: Recipe) -> str:
    """What is known of the licence of the texts."""
    paths = text_paths(recipe)
    if paths == {"sample"}:
        more = (
            "" if is_synthetic(recipe) else " That of the texts that the model had learned from before is not recorded."
        )
        return f"Licence of the texts: Apache-2.0, as bertpre, which generates them.{more}"
    if any(HUB_ID.fullmatch(path) for path in paths):
        return "Licence of the texts: see the page of each dataset. That of local files is not recorded."
    return "The licence of the texts is not recorded." if paths else ""


def leak_check(recipe: Recipe, results: dict[str, Any]) -> str:
    """What the audit found: duplicates, what the form of a pair tells, and test texts seen in training."""
    prepared, measured = results.get("prepare", {}), results.get("evaluate", {})
    lines = []
    if "dropped" in prepared:
        lines.append(f"Documents dropped before training: {dropped_text(prepared['dropped'])}")
    if "repeated_line_share" in prepared:
        lines.append(f"Repeated lines: {prepared['repeated_line_share']:.1%}")
    if recipe.corpus is not None and prepared.get("pairs_kind", recipe.pairs.kind) != "none":
        kind = prepared.get("pairs_kind", recipe.pairs.kind).upper()
        lines += [f"{kind} label{name.removeprefix('Label')}: {value}" for name, value in leak_rows(prepared)]
    if "overlap" in measured:
        lines.append(overlap_text(measured))
    return "\n".join(f"- {line}." for line in lines)


def intended_use(recipe: Recipe, results: dict[str, Any]) -> str:
    """What the models are for."""
    uses = []
    if not is_classifier(results):
        uses.append(
            "The encoder fills masked words and is meant to be fine-tuned on labelled texts like those it was trained "
            "on. It does not generate text."
        )
    if "finetune" in results:
        task = TASKS[recipe.required_finetune.task]
        uses.append(f"The fine-tuned model is for {task} of texts like its labelled ones.")
    return " ".join(uses)


def limits(recipe: Recipe, results: dict[str, Any]) -> str:
    """What the models cannot do, and what nobody has measured."""
    encoder = f" The encoder reads at most {recipe.model.max_position_embeddings:,} tokens."
    if recipe.untrained_from is not None:
        encoder += f" Its positions from {recipe.untrained_from} on were not trained."
    longest = encoder if not is_classifier(results) else ""
    made_up = " They are synthetic: do not expect it to read real ones well." if is_synthetic(recipe) else ""
    return (
        f"The model knows only what its training texts hold, their errors and prejudices too.{made_up}{longest} Bias "
        "was not measured. The metrics hold for texts like those they were measured on: measure on your own before you "
        "rely on it, and do not let it decide about people alone."
    )


def machines(manifest: dict[str, Any]) -> str:
    """The hardware and versions of the stages; those that are equal share a line."""
    stages: dict[str, list[str]] = {}
    for stage, facts in manifest.items():
        stages.setdefault(machine(facts), []).append(stage)
    return "\n".join(f"- {', '.join(names)}: {facts}" for facts, names in stages.items())


def machine(facts: dict[str, Any]) -> str:
    """One stage's hardware and versions on one line."""
    return f"{hardware_text(facts)}; {versions_text(facts)}; bertpre commit {facts['commit']}"


def expense(recipe: Recipe, results: dict[str, Any], manifest: dict[str, Any]) -> str:
    """The time of each stage and, where they can be known, the energy and the cost, with how they were estimated."""
    stages = stage_seconds(results)
    if not stages:
        return ""
    lines = ["- Time: " + ", ".join(f"{name} {time_text(seconds)}" for name, seconds in stages.items()) + "."]
    trained = {name: seconds / 3600 for name, seconds in stages.items() if name in ("pretrain", "finetune")}
    named = " and ".join(trained)
    if not trained:
        return lines[0]
    if energy := gpu_energy(trained, manifest):
        lines.append(
            f"- Energy: about {energy:.2g} kWh, estimated as the time of {named} x the rated power of the GPUs, "
            "without the rest of the machine."
        )
    else:
        lines.append("- Energy: not estimated, because the power of this machine is not known.")
    if price := recipe.training.price_per_hour:
        cost = f"{price * sum(trained.values()):,.2f}"
        lines.append(f"- Cost: about {cost}, estimated as the time of {named} x {price:g} per hour (`price_per_hour`).")
    else:
        lines.append("- Cost: not estimated, because the recipe has no `training.price_per_hour`.")
    return "\n".join(lines)


def gpu_energy(hours: dict[str, float], manifest: dict[str, Any]) -> float | None:
    """The rated energy of the training in kWh; None where a stage's device has no power in GPU_WATTS."""
    total = 0.0
    for stage, time in hours.items():
        hardware = manifest.get(stage, {}).get("hardware", {})
        if (watts := GPU_WATTS.get(hardware.get("device", ""))) is None:
            return None
        total += watts * hardware["processes"] * time / 1000
    return total


def reproduction(recipe: Recipe, manifest: dict[str, Any]) -> str:
    """The command that trains the model again."""
    facts: dict[str, Any] = next(iter(manifest.values()), {})
    own = f" {facts['versions']['bertpre']}" if facts else ""
    given = [(name, values[name]) for _, values, name in paths_in(recipe.model_dump(exclude={"output_dir", "data"}))]
    local = not all(is_public(name, path) for name, path in given)
    files = " Put your own paths where it names local files." if local else ""
    words = f"Save the recipe at the end as `recipe.yaml`.{files} With bertpre{own}:"
    return f"{words}\n\n```bash\nbertpre run recipe.yaml\n```"
