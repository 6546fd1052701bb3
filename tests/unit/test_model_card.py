"""The model card: metadata that the Hub's own client reads, and sections that say only what is known."""

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from huggingface_hub import ModelCard

from bertpre.finetuning.encoding import cut
from bertpre.recipe import Recipe, load_recipe
from bertpre.recipe.public import is_public, without_own_places
from bertpre.reporting.card_code import long_texts
from bertpre.reporting.card_facts import Published
from bertpre.reporting.model_card import in_cell, model_card, write_card
from tests.helpers import ROOT

RESULTS: dict[str, Any] = {
    "prepare": {
        "documents": 16847, "tokens": 1246090, "dropped": {"duplicate": 153}, "repeated_line_share": 0.21,
        "pair_lengths_auc": 0.497, "pair_ends_auc": 0.499, "pair_auc_std": 0.004, "pairs_kind": "nsp", "seconds": 9.0,
    },
    "pretrain": {
        "steps": 102, "tokens": 261817, "seconds": 3600.0, "parameters": 1155586, "context_free_loss": 5.48,
        "unigram_entropy": 6.01, "fillings": [{"sentence": "a private [MASK].", "answer": "text", "guesses": ["x"]}],
        "validation": {"mlm_loss": 5.64, "mlm_accuracy": 0.17, "nsp_accuracy": 0.5, "nsp_pairs": 680},
    },
    "finetune": {"epochs": 3, "examples": 7599, "seconds": 1800.0, "init": "pretrained"},
    "evaluate": {
        "accuracy": 0.862, "f1": 0.861, "matthews": 0.724, "loss": 0.4, "intervals": {}, "examples": 1000, "overlap": 3,
        "mistakes": [{"text": "a private text"}],
    },
}  # fmt: skip
ROWS = [
    {"stage": "pretrain", "split": split, "tokens": tokens, "mlm_loss": 8.0 - tokens / 1e6, "nsp_accuracy": 0.5}
    for split in ("train", "validation")
    for tokens in (1000, 2000)
]


def manifest(device: str = "AMD EPYC", processes: int = 1) -> dict[str, Any]:
    hardware = {"device": device, "processes": processes}
    facts = {"versions": {"bertpre": "0.1.0"}, "commit": "abc", "hardware": hardware, "command": "/secret/bertpre run"}
    return {"pretrain": facts, "finetune": facts}


def recipe(*overrides: str) -> Recipe:
    return load_recipe("quickstart", list(overrides))


def card(of: Recipe, device: str = "AMD EPYC", results: dict[str, Any] = RESULTS, processes: int = 1) -> str:
    return model_card(of, results, manifest(device, processes), Published("someone/tiny", "bert"))


def test_names_of_classes_are_no_markup() -> None:
    published = Published("someone/tiny", "bert", classes=["a`b\n# Heading <img src=x>", "``", "plain"])
    text = model_card(recipe(), RESULTS, manifest(), published)
    assert "``a`b # Heading <img src=x>``, ``` `` ```, `plain`." in text
    assert in_cell("a|b\n<img>") == r"a\|b &lt;img>"


def test_the_hubs_client_reads_the_metadata_and_the_metrics() -> None:
    hub = ["corpus.path=owner/corpus", "corpus.name=null", "finetune.path=owner/reviews", "training.init=owner/older"]
    data = ModelCard(card(recipe(*hub, "evaluate.split=test", "hub.license=mit")), ignore_metadata_errors=False).data
    assert (data.license, data.library_name, data.pipeline_tag) == ("mit", "transformers", "fill-mask")
    assert (data.base_model, data.datasets, data.language) == ("owner/older", ["owner/corpus", "owner/reviews"], None)
    assert data.model_name == "tiny"
    found = {(each.task_type, each.dataset_type, each.metric_type, each.metric_value) for each in data.eval_results}
    assert found == {
        ("fill-mask", "owner/corpus", "loss", 5.64),
        ("fill-mask", "owner/corpus", "accuracy", 0.17),
        ("fill-mask", "owner/corpus", "accuracy", 0.5),
        ("text-classification", "owner/reviews", "accuracy", 0.862),
        ("text-classification", "owner/reviews", "f1", 0.861),
        ("text-classification", "owner/reviews", "matthews_correlation", 0.724),
        ("text-classification", "owner/reviews", "loss", 0.4),
    }


def test_a_synthetic_corpus_is_named_and_no_text_or_command_of_the_run_is_shown() -> None:
    text = card(recipe())
    data = ModelCard(text, ignore_metadata_errors=False).data
    assert {each.dataset_type for each in data.eval_results} == {"synthetic"} and data.datasets is None
    assert data.language == "en" and "NSP label from lengths alone: 0.497" in text
    assert "The corpus is synthetic" in text and "do not expect it to read real ones" in text
    assert "a private" not in text and "secret" not in text
    assert "3 of 1,000 test texts equal a training text" in text and "dropped before training: 153" in text
    assert text.rstrip().endswith("</details>") and "bertpre run recipe.yaml" in text


def test_energy_and_cost_are_not_estimated_where_their_sources_are_not_known() -> None:
    text = card(recipe())
    assert "pretrain 1 h" in text and "kWh" not in text
    assert "Energy: not estimated" in text and "Cost: not estimated" in text
    text = card(recipe("training.price_per_hour=2"), "NVIDIA H200", processes=2)
    assert "about 2.1 kWh, estimated as" in text  # 1.5 h of two GPUs of 700 W
    assert "about 3.00, estimated as the time of pretrain and finetune x 2 per hour" in text


def test_the_reference_of_the_loss_is_explained_where_it_stands() -> None:
    sentence = "The context-free loss is the lowest that word frequencies alone can reach"
    classifier = {stage: RESULTS[stage] for stage in ("finetune", "evaluate")}
    assert sentence in card(recipe()) and sentence not in card(recipe(), results=classifier)


def test_nothing_measured_means_no_metrics() -> None:
    text = card(recipe(), results={})
    assert ModelCard(text, ignore_metadata_errors=False).data.eval_results is None
    for title in ("Metrics", "Leak check", "Time, energy and cost"):
        assert f"## {title}" not in text


@pytest.mark.parametrize("count", [9, 10, 11, 40])
def test_the_cards_code_reads_both_ends_of_a_long_text_as_in_training(count: int) -> None:
    long = long_texts(recipe("finetune.max_length=12", "finetune.truncation=head_tail").required_finetune)
    (code,) = re.findall(r"```python\n(.*?)\n\n\nprint", long, re.DOTALL)
    read: list[list[int]] = []
    names: dict[str, Any] = {"classify": SimpleNamespace()}
    names["classify"].tokenizer = MagicMock(return_value={"input_ids": list(range(count))})
    names["classify"].tokenizer.cls_token_id, names["classify"].tokenizer.sep_token_id = 101, 102
    names["classify"].model = model = MagicMock(device="cpu")
    model.side_effect = lambda ids: read.append(ids[0].tolist()) or SimpleNamespace(logits=[0])
    exec(code, names)  # noqa: S102
    names["read"]("a text")
    assert read == [[101, *cut(np.arange(count), 10, "head_tail").tolist(), 102]]
    model.device, model.side_effect = "meta", lambda ids: SimpleNamespace(logits=[ids.device.type])  # as on a GPU
    assert names["read"]("a text") == "meta"


def test_the_side_that_a_classifier_learned_least_from_is_named() -> None:
    tail = long_texts(recipe("finetune.truncation=tail").required_finetune)
    assert 'tokenizer.truncation_side` should be "left"' in tail
    assert long_texts(recipe("finetune.truncation=head").required_finetune) == ""


@pytest.mark.parametrize(("model_type", "is_trusting"), [("bert", False), ("bertpre", True)])
def test_card_and_picture_of_a_folder(model_type: str, is_trusting: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    write_card(tmp_path, recipe(), RESULTS, manifest(), ROWS, "tiny")
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG") and "](curves.png)" in text
    assert ("trust_remote_code=True" in text) == is_trusting == ("as stock" not in text)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, "card", "exec")


def test_without_curves_there_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.onnx").touch()
    write_card(tmp_path, recipe(), RESULTS, manifest(), [], "tiny")
    assert not (tmp_path / "curves.png").exists() and "curves.png" not in (tmp_path / "README.md").read_text()
    assert "onnxruntime.InferenceSession" in (tmp_path / "README.md").read_text()


def test_the_card_of_an_encoder_claims_no_labelled_texts() -> None:
    encoder = {stage: RESULTS[stage] for stage in ("prepare", "pretrain")}
    text = card(recipe("corpus.path=owner/corpus", "corpus.name=null", "finetune.path=owner/reviews"), results=encoder)
    description, whole_recipe = text.split("## Recipe")
    assert "Labelled texts" not in description and "owner/reviews" not in description
    assert "owner/reviews" in whole_recipe
    assert "The test reviews are generated" not in card(recipe(), results=encoder)


def test_the_recipe_for_others_leads_to_no_place_of_its_author() -> None:
    own = ["hub.repo_id=someone/secret", "hub.push_every=10", "training.wandb_project=plans"]
    text = card(recipe(*own))
    assert "secret" not in text and "plans" not in text
    public = without_own_places(recipe(*own))
    assert (public.hub.repo_id, public.hub.push_every, public.training.wandb_project) == (None, None, None)


def test_the_recipe_for_others_keeps_hub_ids_unless_they_are_folders_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_public("path", "owner/reviews") and is_public("init", "bert-base-uncased") and is_public("path", "sample")
    assert not is_public("path", "reviews") and not is_public("path", "/owner/reviews")
    (tmp_path / "owner" / "reviews").mkdir(parents=True)
    assert not is_public("path", "owner/reviews")


def test_the_recipe_for_others_prepares_its_own_data(tmp_path: Path) -> None:
    assert without_own_places(recipe(f"data.path={tmp_path}")).data.path is None
    for key in ("evaluate.path", "tokenizer.path", "corpus.held_out"):
        assert "Put your own paths" in card(recipe(f"{key}={tmp_path}/mine.txt"))


@pytest.mark.parametrize("name", ["classifier", "text-classification", "fill-mask"])
def test_the_name_of_a_folder_changes_no_other_words_of_the_code(name: str) -> None:
    text = model_card(recipe(), RESULTS, manifest(), Published(name, "bertpre"))
    assert f'"{name}", trust_remote_code=True' in text
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, "card", "exec")


def test_a_classifier_with_its_own_code_is_no_stock_model() -> None:
    tuned = {stage: RESULTS[stage] for stage in ("finetune", "evaluate")}
    text = model_card(recipe(), tuned, manifest("AMD EPYC", 1), Published("someone/tiny", "bertpre"))
    assert "It contains its own code" in text and "loads as stock" not in text


def test_a_model_of_the_hub_without_an_owner_is_no_local_file(tmp_path: Path) -> None:
    tuned = {stage: RESULTS[stage] for stage in ("finetune", "evaluate")}
    text = card(recipe("finetune.init=bert-base-uncased"), results=tuned)
    assert "fine-tuned by bertpre from [bert-base-uncased](https://huggingface.co/bert-base-uncased)" in text
    assert ModelCard(text).data.base_model == "bert-base-uncased"
    (tmp_path / "mine").mkdir()
    text = card(recipe(f"finetune.init={tmp_path / 'mine'}"), results=tuned)
    assert "from local files, `mine/`" in text and "Put your own paths" in text
    assert ModelCard(text).data.base_model is None


def test_a_graph_is_not_said_to_load_in_transformers() -> None:
    text = model_card(recipe(), RESULTS, manifest(), Published("someone/tiny", "bert", is_onnx=True))
    assert "It loads as stock" not in text and "with both heads" not in text
    data = ModelCard(text).data
    assert data.library_name == "onnx"
    assert "NSP accuracy" not in {each.metric_name for each in data.eval_results}
    assert "hf download someone/tiny --local-dir someone/tiny" in text
    assert "hf download" not in model_card(
        recipe(), RESULTS, manifest(), Published("export-onnx", "bert", is_onnx=True)
    )


def test_a_modernbert_has_no_accuracy_on_pairs() -> None:
    text = model_card(recipe("model.architecture=modern"), RESULTS, manifest(), Published("someone/tiny", "modernbert"))
    assert "NSP accuracy" not in {each.metric_name for each in ModelCard(text).data.eval_results}
    assert "neither segments nor a head for sentence pairs" in text


def test_the_code_says_where_it_reads_other_ends_than_the_metrics() -> None:
    assert "The metrics were measured on both its ends" in card(recipe("finetune.truncation=head_tail"))
    assert "lost their start in training" in card(recipe("finetune.truncation=tail"))
    assert "in training: `tokenizer" not in card(recipe("finetune.truncation=head"))
    assert "top_k=None" in card(recipe("finetune.task=multi_label"))
    assert 'function_to_apply="none"' in card(recipe("finetune.task=regression"))


def test_words_are_labelled_by_the_code_of_the_documentation() -> None:
    tokens, tuned = recipe("finetune.task=tokens"), {"finetune": RESULTS["finetune"]}
    card_of = partial(model_card, tokens, manifest=manifest(), published=Published("runs/names/finetuned", "bert"))
    (code,) = re.findall(r"```python\n.*?```\n", card_of(results=tuned), re.DOTALL)
    assert code in (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")
    place = '"runs/names/finetuned"'
    assert code.replace(place, f'{place}, subfolder="classifier"') in card_of(results=RESULTS)


def test_the_model_that_the_weights_began_with_is_named_throughout() -> None:
    further = recipe("training.init=owner/older")
    tuned = {stage: RESULTS[stage] for stage in ("finetune", "evaluate")}
    text = card(further, results=tuned)
    assert ModelCard(text).data.base_model == "owner/older" and "further from [owner/older]" in text
    assert ModelCard(text).data.language is None and "They are synthetic" not in text
    text = card(recipe("finetune.init=owner/other"))
    assert "The classifier was fine-tuned from another encoder: [owner/other]" in text
    assert "another encoder" not in card(recipe())


def test_a_checkpoint_is_said_to_be_one() -> None:
    text = model_card(recipe(), {}, {}, Published("someone/tiny", "bert", step=1500))
    assert "A checkpoint at step 1,500 of a pretraining that had not ended. An encoder" in text
    assert "A checkpoint" not in card(recipe())


def test_the_card_of_a_graph_names_its_branch_and_the_classifiers_graph() -> None:
    text = model_card(recipe(), RESULTS, manifest(), Published("someone/tiny", "bert", is_onnx=True, revision="dev"))
    assert "hf download someone/tiny --revision dev --local-dir" in text and "`classifier/model.onnx`" in text
    encoder = {stage: found for stage, found in RESULTS.items() if stage in ("prepare", "pretrain")}
    assert "classifier/" not in model_card(recipe(), encoder, {}, Published("someone/tiny", "bert", is_onnx=True))


@pytest.mark.parametrize(
    ("override", "arguments"),
    [
        ("seed=0", '"It is good."'),
        ("finetune.text_pair_column=other", '"It is good.", "I like it."'),
        ("finetune.task=tokens", '["It", "is", "good", "."], is_split_into_words=True'),
    ],
)
def test_the_card_of_a_graph_shows_what_its_classifier_reads(override: str, arguments: str) -> None:
    tuned = {"finetune": RESULTS["finetune"]}
    alone, both = (
        model_card(recipe(override), results, manifest(), Published("someone/tiny", "bert", is_onnx=True))
        for results in (tuned, RESULTS)
    )
    call = f'tokenizer({arguments}, truncation=True, return_tensors="np")'
    assert f"inputs = {call}\n" in alone
    assert ("on both its ends" in alone) == ("on both its ends" in both) == ("tokens" not in override)  # head_tail
    assert 'inputs = tokenizer("It is [MASK].", truncation=True' in both and f"it reads\n`{call}`" in both


def test_a_classifier_made_from_another_model_claims_nothing_of_this_runs_pretraining() -> None:
    tuned = {stage: RESULTS[stage] for stage in ("prepare", "finetune", "evaluate")}
    text = card(recipe("corpus.path=owner/corpus", "corpus.name=null", "finetune.init=owner/other"), results=tuned)
    shown = text.split("## Recipe")[0]
    for claim in ("owner/corpus", "16,847 documents", "153", "NSP label", "prepare 9 s", "pretrain: device"):
        assert claim not in shown, claim
    assert "from [owner/other]" in shown and "finetune: device AMD EPYC" in shown and "path: owner/corpus" not in text
    assert "16,847 documents" in card(recipe(), results=tuned)


def test_texts_that_another_model_had_learned_from_are_not_said_to_be_synthetic() -> None:
    text = card(recipe("finetune.init=owner/other"))
    assert "They are synthetic" not in text and ModelCard(text).data.language is None
    assert "That of the texts that the model had learned from before is not recorded" in text


def test_unlabelled_texts_are_among_the_datasets() -> None:
    more = recipe("finetune.path=owner/reviews", "finetune.unlabelled={path: owner/more, split: unsupervised}")
    assert ModelCard(card(more)).data.datasets == ["owner/more", "owner/reviews"]
    named = ["finetune.path=owner/glue", "finetune.name=sst2"]
    for unlabelled, words in {"owner/glue": ", configuration `sst2`, split", "owner/more": ", split"}.items():
        text = card(recipe(*named, f"finetune.unlabelled={{path: {unlabelled}, split: unsupervised}}"))
        (line,) = (line for line in text.splitlines() if "pseudo-labelled" in line)
        assert f"{unlabelled}){words} `unsupervised`" in line


@pytest.mark.parametrize(
    ("override", "chosen", "name"),
    [
        ("seed=0", False, "owner/reviews, test texts"),
        ("seed=0", True, "owner/reviews, test texts, on which the best epoch was selected"),
        ("finetune.test_fraction=0.1", False, "owner/reviews, held-out part"),
    ],
)
def test_the_index_says_what_the_metrics_were_measured_on(override: str, chosen: bool, name: str) -> None:
    results = RESULTS | {"evaluate": RESULTS["evaluate"] | {"chosen_on_test": chosen}}
    of = recipe("finetune.path=owner/reviews", "evaluate.split=null", override)
    assert name in {each.dataset_name for each in ModelCard(card(of, results=results)).data.eval_results}
