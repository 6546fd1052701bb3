"""The recipe: unknown keys never pass, overrides reach every key, and a resolved recipe loads again unchanged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bertpre.errors import UserError
from bertpre.recipe import (
    Recipe,
    binding_values,
    differences,
    flatten,
    known_keys,
    load_recipe,
    seconds,
    shipped_recipes,
    to_yaml,
)
from bertpre.recipe.yaml_core import read_yaml_text, write_yaml

MINIMAL = "output_dir: out\ncorpus: {path: sample}\ntraining: {max_steps: 5}\n"


def load(folder: Path, text: str, *overrides: str) -> Recipe:
    file = folder / "recipe.yaml"
    file.write_text(text, encoding="utf-8")
    return load_recipe(str(file), list(overrides))


def mistake(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, text, *overrides)
    return str(caught.value)


def test_a_recipe_needs_only_a_few_keys(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL)
    assert (recipe.corpus.path, recipe.training.max_steps, recipe.model.hidden_size) == ("sample", 5, 768)


@pytest.mark.parametrize(
    ("override", "unknown", "nearest"),
    [
        ("sead=1", "sead", "seed"),
        ("ouput_dir=x", "ouput_dir", "output_dir"),
        ("corpus.spilt=test", "corpus.spilt", "corpus.split"),
        ("tokenizer.vocabsize=100", "tokenizer.vocabsize", "tokenizer.vocab_size"),
        ("pairs.short_seq_probability=0.2", "pairs.short_seq_probability", "pairs.short_seq_prob"),
        ("model.hiden_size=32", "model.hiden_size", "model.hidden_size"),
        ("training.max_step=9", "training.max_step", "training.max_steps"),
        ("training.phases.0.max_lenght=64", "training.phases.0.max_lenght", "training.phases.0.max_length"),
        ("checkpoint.evry=5", "checkpoint.evry", "checkpoint.every"),
        ("finetune.epoch=1", "finetune.epoch", "finetune.epochs"),
        ("evaluate.splitt=test", "evaluate.splitt", "evaluate.split"),
        ("trainning.max_steps=3", "trainning", "training"),
    ],
)
def test_an_unknown_key_at_any_level_names_the_nearest_known_one(
    override: str, unknown: str, nearest: str, tmp_path: Path
) -> None:
    text = MINIMAL.replace("max_steps: 5", "max_steps: 5, phases: [{share: 1.0}]") + "finetune: {path: sample}\n"
    message = mistake(tmp_path, text, override)
    assert f"unknown key {unknown!r}; did you mean {nearest!r}?" in message
    assert message.startswith("unknown key ")  # the file has no such mistake


def test_a_list_without_brackets_is_refused_with_the_way_to_write_it(tmp_path: Path) -> None:
    message = mistake(tmp_path, MINIMAL, "training.mask_split=0.8,0.1,0.1")
    assert message == (
        "training.mask_split: must be a list (given: '0.8,0.1,0.1'); write training.mask_split='[0.8,0.1,0.1]'"
    )
    assert "write" not in mistake(tmp_path, MINIMAL, "training.mask_split=0.8")


def test_a_table_in_place_of_a_path_is_not_printed_whole(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(MINIMAL)
    texts = ["a long text"] * 1000
    for section in ({"corpus": {"path": texts}}, {"corpus": texts}, {"finetune": {"path": texts}}):
        with pytest.raises(UserError) as caught:
            load_recipe(tmp_path / "recipe.yaml", section)
        assert len(str(caught.value)) < 600
    assert "finetune.path: must be a valid string" in str(caught.value)
    assert str(caught.value).endswith("...); write the texts to a file, and give its name")


def test_a_mistake_of_the_file_names_it_and_one_of_an_override_does_not(tmp_path: Path) -> None:
    text = MINIMAL.replace("max_steps: 5", "max_steps: x, budget: soon")
    steps, tokens, budget = mistake(tmp_path, text, "training.max_tokens=many").splitlines()
    assert steps == f"{tmp_path}/recipe.yaml: training.max_steps: must be an integer (given: 'x')"
    assert tokens == "training.max_tokens: must be an integer (given: 'many')"
    assert budget.startswith(f"{tmp_path}/recipe.yaml: training.budget: 'soon' is not a duration")


@pytest.mark.parametrize(
    "text",
    [
        "output_dir: &a [*a]\n",
        "".join(f"k{n}: &k{n} [{', '.join(['x' if n == 0 else f'*k{n - 1}'] * 9)}]\n" for n in range(9)),
    ],
)
def test_aliases_without_end_are_one_message(text: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match="recipe.yaml: its aliases .* repeat each other without end"):
        load_recipe(str(tmp_path / "recipe.yaml"))


def test_a_key_without_a_near_match_lists_the_known_keys(tmp_path: Path) -> None:
    assert "known keys: output_dir, seed, corpus" in mistake(tmp_path, MINIMAL, "zzzzqqq=1")


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    message = mistake(tmp_path, MINIMAL, "sead=1", "model.hidden_size=0", "training.schedule=step")
    assert len(message.splitlines()) == 3
    assert "model.hidden_size: must be at least 1 (given: 0)" in message
    assert "training.schedule: must be 'linear', 'cosine' or 'trapezoid' (given: 'step')" in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.budget=45", "training.budget"),
        ("training.budget=45min", "training.budget: '45min' is not a duration: write 90s, 45m, 1.5h or 2d"),
        ("training.budget=0m", "training.budget: '0m' is not a duration"),
        ("training.max_steps=null", "training: give max_steps, max_tokens, max_epochs or a budget such as 45m"),
        ("training.max_steps=many", "training.max_steps"),
        ("training.phases=[{share: 0.5}]", "training.phases: the shares must add up to 1"),
        (
            "training.phases.0.max_length=1024",
            "training.phases.0.max_length: is 1024, but model.max_position_embeddings is only 512",
        ),
        ("finetune.max_length=1024", "finetune.max_length: is 1024, but model.max_position_embeddings is only 512"),
        ("model.hidden_size=100", "model.hidden_size: must be a multiple of model.num_attention_heads"),
        ("model={architecture: modern, hidden_size: 36}", "must be even"),
        ("model.hidden_dropout_prob=1.0", "model.hidden_dropout_prob: must be less than 1"),
        (
            "training={max_steps: 5, init: x, initial_attention: neighbours}",
            "training.initial_attention: neighbours is for model.architecture bert from scratch",
        ),
        ("finetune.pooling=mean", "finetune.pooling: mean needs model.architecture modern"),
        ("pairs.validation_fraction=0.5", "pairs.validation_fraction"),
        ("training.wandb_project=team/project", "training.wandb_project"),
        ("seed=-1", "seed"),
        ("output_dir=''", "output_dir: String should have at least 1 character"),
        ("corpus.more.0.path=x", "corpus.more.0.path: 'corpus.more' has 0 entries, counted from 0; give the whole"),
        ("seed=99999999999999999999", "seed"),
        ("tokenizer.vocab_size=10", "tokenizer.vocab_size"),
        ("corpus=null", "corpus"),
        ("corpus.path=null", "corpus.path"),
        ("corpus=sample", "corpus"),
        ("corpus.weight=1.5", "corpus.weight: must be a fraction of the documents, up to 1, or a whole number"),
        ("corpus.weight=0", "corpus.weight"),
        ("training.masked_lm_prob_end=0.16", "training.masked_lm_prob_end: must not be above masked_lm_prob (0.15)"),
        ("training.mask_split=[0.8, 0.1, 0.2]", "training.mask_split: the three fractions must add up to 1"),
        ("training.mask_split=[0.8, 0.1, 0.05]", "training.mask_split: the three fractions must add up to 1"),
        ("finetune={path: sample, optimizer: muon, layer_decay: 0.9}", "finetune.layer_decay: is for adamw only"),
        ("finetune={path: sample, task: regression, label_smoothing: 0.1}", "finetune.label_smoothing: is for class"),
        ("finetune={path: sample, task: multi_label, class_weights: balanced}", "finetune.class_weights: is for class"),
        (
            "finetune={path: sample, max_length: 64, unlabelled: {path: sample, max_length: 65}}",
            "finetune.unlabelled",
        ),
        ("finetune.micro_batch_size=5", "finetune.batch_size: must be a multiple of micro_batch_size (5), not 32"),
        (
            "finetune.micro_batch_size=0",
            "finetune.micro_batch_size: must be 'auto' or at least 1 (given: 0)",
        ),
        (
            "training.phases=[{micro_batch_size: all}]",
            "training.phases.0.micro_batch_size: must be 'auto' or an integer (given: 'all')",
        ),
        (
            "training={max_steps: 5, global_batch_size: 8, phases: [{micro_batch_size: 3}]}",
            "training.global_batch_size: must be a multiple of micro_batch_size (3), not 8",
        ),
        (
            "training.phases=[{share: 0.5}, {share: 0.5, global_batch_size: 7, micro_batch_size: 2}]",
            "training.phases.1.global_batch_size: must be a multiple of micro_batch_size (2), not 7",
        ),
        ("training.mask_split=[0.8, 0.2]", "training.mask_split: has too few entries; give the whole list"),
        ("training.phases=[]", "training.phases: must have at least 1 item, not 0"),
        (
            "training.phases=[{objective: causal}]",
            "training.phases: the last one must have the objective masked or mixed",
        ),
        (
            "training.phases=[{share: 0.5, objective: causal}, {share: 0.5}]",
            "training.phases.0.objective: causal needs pairs.kind none",
        ),
        (
            "training.phases=[{objective: mixed}]",
            "training.phases.0.objective: mixed needs pairs.kind none",
        ),
        ("finetune.metric=pearson", "finetune.metric: for classification use one of accuracy, f1, matthews, loss"),
        ("finetune={path: sample, patience: 2, validation_fraction: 0}", "finetune.patience: needs a validation part"),
        ("finetune={path: sample, task: tokens, text_pair_column: b}", "finetune.text_pair_column: is not for"),
        ("finetune={path: sample, label_names: [false, x]}", "(given: False); put it in quotes"),
        ("finetune={path: sample, label_names: [1, x]}", "(given: 1); put it in quotes"),
        ("finetune={path: sample, task: regression, label_names: [a]}", "finetune.label_names: a regression has no"),
        ("finetune={path: sample, label_names: [a, b, a]}", "finetune.label_names: 'a' is there twice"),
        (
            "finetune={path: sample, task: multi_label, label_column: [a, a]}",
            "finetune.label_column: 'a' is there twice",
        ),
        ("finetune.label_column=[a, b]", "finetune.label_column: a list of columns is for the task multi_label"),
    ],
)
def test_a_bad_value_is_named_with_its_key(override: str, words: str, tmp_path: Path) -> None:
    text = MINIMAL.replace("max_steps: 5", "max_steps: 5, phases: [{share: 1.0}]") + "finetune: {path: sample}\n"
    assert words in mistake(tmp_path, text, override)


@pytest.mark.parametrize("other", ["path", "split"])
def test_a_second_test_set_is_refused(other: str, tmp_path: Path) -> None:
    text = MINIMAL + "finetune: {path: labels.csv, test_fraction: 0.1}\n"
    message = mistake(tmp_path, text, f"evaluate.{other}=test")
    assert f"10% of the labelled texts aside for testing, and evaluate.{other} names a test set too" in message
    assert f"fine-tune with finetune.test_fraction=0, else set evaluate.{other}=null" in message


def test_only_bert_can_begin_by_attending_to_neighbours(tmp_path: Path) -> None:
    text = MINIMAL.replace("max_steps: 5", "max_steps: 5, initial_attention: neighbours")
    assert load(tmp_path, text).training.initial_attention == "neighbours"
    assert "training.initial_attention: neighbours is for" in mistake(tmp_path, text, "model.architecture=modern")


def test_a_missing_key_says_how_to_give_it(tmp_path: Path) -> None:
    text = "output_dir: out\ntraining: {max_steps: 5}\ncorpus: {name: x}\n"
    assert "key 'corpus.path' is missing; set it in the file or with corpus.path=..." in mistake(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 1\nseed: 2\n" + MINIMAL, "key 'seed' is given twice"),
        ("output_dir: out\ncorpus: {path: a, path: b}\ntraining: {max_steps: 5}\n", "key 'path' is given twice"),
        ("", "mapping"),
        ("- a\n- b\n", "mapping"),
        ("output_dir: [\n", "cannot be read as YAML"),
        ("? [a, b]\n: 1\n", "cannot be read as YAML"),
        ("1: 2\n" + MINIMAL, "1"),
        ("output_dir: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML"),
    ],
)
def test_a_file_that_is_not_a_recipe_is_refused(text: str, words: str, tmp_path: Path) -> None:
    assert words in mistake(tmp_path, text)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UserError, match="cannot be read as YAML"):
        load_recipe(str(tmp_path / "binary.yaml"))


def test_a_run_without_its_recipe_is_not_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match="is a folder without recipe.yaml, so no run directory; give a file"):
        load_recipe(str(tmp_path))


def test_a_missing_recipe_lists_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such recipe; give a file, .*quickstart"):
        load_recipe(str(tmp_path / "none.yaml"))


def test_a_file_comes_before_a_shipped_recipe_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("quickstart").output_dir != "mine"
    (tmp_path / "quickstart").write_text(MINIMAL.replace("out\n", "mine\n", 1))
    assert load_recipe("quickstart").output_dir == "mine"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=7", "seed", 7),
        ("training.learning_rate=1e-4", "training.learning_rate", 1e-4),
        ("training.compile=false", "training.compile", False),
        ("training.budget=1.5h", "training.budget", "1.5h"),
        ("corpus.split=train+unsupervised", "corpus.split", "train+unsupervised"),
        ("corpus.path=a=b", "corpus.path", "a=b"),
        ("corpus.name=20231101.en", "corpus.name", "20231101.en"),
        ("finetune.path=sample", "finetune.path", "sample"),
        ("corpus.limit=", "corpus.limit", None),
        ("corpus.weight=0.25", "corpus.weight", 0.25),
        ("corpus.weight=3", "corpus.weight", 3.0),
        ("training.masked_lm_prob_end=0.1", "training.masked_lm_prob_end", 0.1),
        ("corpus.text_column=Issue #", "corpus.text_column", "Issue #"),
        ("corpus.text_column=#1 String", "corpus.text_column", "#1 String"),
        ("corpus.text_column=Review: text", "corpus.text_column", "Review: text"),
        ("corpus.text_column='a b '", "corpus.text_column", "a b "),
        ("output_dir=2026-11-28", "output_dir", "2026-11-28"),
        ("corpus.name=null", "corpus.name", None),
        ("corpus.name=2026", "corpus.name", "2026"),
        ("corpus.path=[1]", "corpus.path", "[1]"),
        ("finetune={path: a, label_column: no}", "finetune.label_column", "no"),
        ("finetune={path: a, label_names: [no, yes]}", "finetune.label_names", ["no", "yes"]),
        ("seed=010", "seed", 10),
        ("training.max_tokens=1e9", "training.max_tokens", 10**9),
        ("tokenizer.lowercase=no", "tokenizer.lowercase", False),
    ],
)
def test_an_override_sets_one_key(override: str, key: str, value: object, tmp_path: Path) -> None:
    assert flatten(load(tmp_path, MINIMAL, override).model_dump())[key] == value


@pytest.mark.parametrize("column", ["Issue #", "a: b", "2024", "[one, two]"])
def test_a_label_column_is_text_unless_it_is_a_list(column: str, tmp_path: Path) -> None:
    is_list = column.startswith("[")
    task = "multi_label" if is_list else "classification"
    recipe = load(tmp_path, MINIMAL, f"finetune={{path: a, task: {task}}}", f"finetune.label_column={column}")
    assert flatten(recipe.model_dump())["finetune.label_column"] == (["one", "two"] if is_list else column)


@pytest.mark.parametrize(("text", "value"), [("1_0", 10), ("0x10", 16), ("1_", "1_"), ("1__0", "1__0"), ("-.5", -0.5)])
def test_numbers_are_those_of_the_core_schema(text: str, value: object) -> None:
    assert read_yaml_text(text) == value


@pytest.mark.parametrize("text", ["010", "1e9", "no", "on", "2026-11-28", "12:30", "=", "<<", "null", "", "1_0", "~"])
def test_any_text_of_a_recipe_survives_its_file_for_every_reader_of_yaml(text: str) -> None:
    written = write_yaml({"text": text})
    assert read_yaml_text(written) == yaml.safe_load(written) == {"text": text}


def test_a_merge_key_brings_what_is_not_given(tmp_path: Path) -> None:
    text = "output_dir: out\ncorpus: &a {path: x, limit: 5}\ntraining: {max_steps: 5}\nfinetune: {<<: *a, path: y}\n"
    recipe = load(tmp_path, text)
    assert (recipe.required_finetune.path, recipe.required_finetune.limit) == ("y", 5)


def test_an_override_of_what_an_alias_repeats_changes_one_place(tmp_path: Path) -> None:
    phases = "phases: [&a {share: 0.5, max_length: 32}, *a]"
    text = MINIMAL.replace("max_steps: 5", f"max_steps: 5, {phases}")
    recipe = load(tmp_path, text, "training.phases.0.max_length=64")
    assert [phase.max_length for phase in recipe.training.phases] == [64, 32]


@pytest.mark.parametrize("value", ["!!int abc", "!!float x", "!!bool maybe", "!!timestamp soon"])
def test_a_value_that_is_not_of_its_tag_is_a_message(value: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="recipe.yaml: cannot be read as YAML"):
        load(tmp_path, f"{MINIMAL}seed: {value}\n")
    with pytest.raises(UserError, match="seed"):
        load(tmp_path, MINIMAL, f"seed={value}")


def test_a_raised_number_is_no_place_in_a_list(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="training.phases"):
        load(tmp_path, MINIMAL, "training.phases.².max_length=16")


def test_what_is_merged_may_itself_be_merged() -> None:
    text = "b: &b {a: 1}\nx: {mid: &m {<<: *b, a: 2}}\ny: {<<: *m, d: 3}\n"
    assert read_yaml_text(text) == yaml.safe_load(text)
    with pytest.raises(yaml.YAMLError, match="'a' is given twice"):
        read_yaml_text("b: &b {c: 1}\nx: &m {<<: *b, a: 2, a: 3}\ny: {<<: *m}\n")


def test_a_recipe_takes_the_overrides_that_its_file_takes() -> None:
    changes = ["training.mask_split.0=0.7", "training.mask_split.1=0.2"]
    assert load_recipe(load_recipe("quickstart"), changes) == load_recipe("quickstart", changes)


def test_keywords_add_to_nested_overrides() -> None:
    training = load_recipe("quickstart", {"training": {"max_steps": 9}}, training={"log_every": 1}).training
    assert (training.max_steps, training.log_every) == (9, 1)


def test_a_number_in_an_override_picks_from_a_list(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL, "training.phases.0.max_length=64").training.phases[0].max_length == 64
    phases = "training.phases=[{share: 0.9}, {share: 0.1}]"
    recipe = load(tmp_path, MINIMAL, phases, "training.phases.1.max_length=64")
    assert [phase.max_length for phase in recipe.training.phases] == [128, 64]


@pytest.mark.parametrize(
    "override",
    [
        "seed",
        "=1",
        "seed.x=1",
        "training.phases.1.max_length=64",
        "training.phases.1=64",
        "training.phases.x.max_length=64",
        "seed=[1",
    ],
)
def test_an_override_that_fits_nowhere_is_refused(override: str, tmp_path: Path) -> None:
    text = MINIMAL.replace("max_steps: 5", "max_steps: 5, phases: [{share: 1.0}]")
    assert override.split("=")[0].split(".")[0] in mistake(tmp_path, text, override)


def test_a_run_directory_stands_for_its_own_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(MINIMAL)
    assert load_recipe(str(tmp_path)) == load_recipe(str(tmp_path / "recipe.yaml"))


@pytest.mark.parametrize("value", ["auto", "null"])
def test_a_micro_batch_size_of_null_in_an_older_recipe_is_auto(value: str, tmp_path: Path) -> None:
    overrides = f"training.phases=[{{micro_batch_size: {value}}}]", f"finetune={{path: x, micro_batch_size: {value}}}"
    recipe = load(tmp_path, MINIMAL, *overrides)
    assert recipe.training.phases[0].micro_batch_size == recipe.required_finetune.micro_batch_size == "auto"


def test_overrides_do_not_leak_into_the_next_recipe(tmp_path: Path) -> None:
    load(tmp_path, MINIMAL, "training.phases=[{max_length: 64}]", "training.phases.0.micro_batch_size=2")
    assert load(tmp_path, MINIMAL).training.phases[0].micro_batch_size == "auto"


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_the_resolved_copy_loads_again_unchanged(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, ["output_dir=sömewhere/日本", "training.learning_rate=1e-05"])
    again = load(tmp_path, to_yaml(recipe))
    assert again == recipe
    assert to_yaml(again) == to_yaml(recipe)


def test_the_resolved_copy_holds_every_key(tmp_path: Path) -> None:
    resolved = flatten(load(tmp_path, MINIMAL, "finetune.path=sample", "finetune.unlabelled.split=test").model_dump())
    sections = {key for key in known_keys() if any(other.startswith(key + ".") for other in known_keys())}
    lists = {"training.phases", "corpus.more"}
    expected = {key for key in known_keys() if not key.startswith(tuple(f"{name}." for name in lists))}
    assert set(resolved) == expected - (sections - lists)


@pytest.mark.parametrize(
    ("duration", "expected"), [("90s", 90), ("45m", 2700), ("1.5h", 5400), ("2d", 172800), (" 5m ", 300)]
)
def test_durations_are_read_in_seconds(duration: str, expected: float) -> None:
    assert seconds(duration) == expected


@pytest.mark.parametrize("duration", ["", "45", "m", "-5m", "1h30m", "5 minutes", "0s", "infs"])
def test_what_is_not_a_duration_is_refused(duration: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(duration)


def test_differences_are_listed_by_key(tmp_path: Path) -> None:
    def recipe(*overrides: str) -> Recipe:
        return load(tmp_path, MINIMAL, *overrides)

    cases: list[tuple[list[str], list[str]]] = [
        ([], []),
        (["seed=3"], ["seed"]),
        (["corpus.limit=5", "model.num_hidden_layers=2"], ["corpus.limit", "model.num_hidden_layers"]),
        (["training.phases=[{max_length: 64}]"], ["training.phases"]),
        (["training.phases=[{micro_batch_size: 8}]"], []),
        (["finetune.path=sample"], ["finetune"]),
    ]
    for overrides, expected in cases:
        assert differences(recipe(), recipe(*overrides)) == expected
        assert differences(recipe(*overrides), recipe()) == expected


def test_only_these_keys_may_change_when_a_run_resumes(tmp_path: Path) -> None:
    whole = load(tmp_path, MINIMAL + "finetune: {path: sample}\n")
    free = flatten(whole.model_dump()).keys() - binding_values(whole).keys()
    training = {"log_every", "eval_every", "wandb_project", "tensorboard", "price_per_hour", "compile"}
    others = {"checkpoint.every", "checkpoint.keep", "checkpoint.keep_every", "data.path", "finetune.micro_batch_size"}
    assert free == {f"training.{key}" for key in training} | others


def test_a_phase_says_how_many_examples_it_reads_and_predicts(tmp_path: Path) -> None:
    phases = "[{share: 0.5, objective: causal}, {share: 0.25, objective: mixed, global_batch_size: 8}, {share: 0.25}]"
    keys = (f"training.phases={phases}", "training.masked_lm_prob=0.2", "pairs.kind=none")
    training = load(tmp_path, MINIMAL, *keys).training
    assert [training.batch_size(phase) for phase in training.phases] == [256, 8, 256]
    assert [training.predicted_share(phase) for phase in training.phases] == pytest.approx([1.0, 0.6, 0.2])


@pytest.mark.parametrize(
    ("shares", "steps", "expected"),
    [
        ((0.97, 0.03), 24, [True, False]),
        ((0.97, 0.03), 34, [True, True]),
        ((0.9, 0.1), 9, [True, False]),
        ((0.9, 0.1), 10, [True, True]),
        ((0.1, 0.2, 0.7), 3, [True, False, True]),
        ((0.1, 0.2, 0.7), 10, [True, True, True]),
        ((0.1, 0.9), None, [True, True]),
    ],
)
def test_phases_in_which_no_step_begins_are_known(
    shares: tuple[float, ...], steps: int | None, expected: list[bool], tmp_path: Path
) -> None:
    phases = ", ".join(f"{{share: {share}}}" for share in shares)
    keys = (f"training.phases=[{phases}]", f"training.max_steps={steps or 'null'}", "training.max_tokens=1000")
    training = load(tmp_path, MINIMAL, *keys).training
    assert training.reached_phases == expected
    ends = np.cumsum(shares)
    if steps:
        met = {min(int(sum(ends <= step / steps + 1e-9)), len(shares) - 1) for step in range(steps)}  # as training does
        assert [number in met for number in range(len(shares))] == expected


def test_defaults_are_not_shared_between_recipes(tmp_path: Path) -> None:
    first: Any = load(tmp_path, MINIMAL)
    first.model.hidden_size = 1
    first.training.phases[0].max_length = 9
    second = load(tmp_path, MINIMAL)
    assert (second.model.hidden_size, second.training.phases[0].max_length) == (768, 128)
