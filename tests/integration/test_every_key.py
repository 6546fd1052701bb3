"""Every key of the recipe reaches what it names: another value makes another training.

A value that is lost on its way from the recipe to its place is seen by no test of that place.
"""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertpre.commands.finetune import finetune
from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.files import file_checksum
from bertpre.recipe import Recipe, known_keys, load_recipe
from bertpre.run_directory import read_results

Keys = dict[str, Any]
TIMES = ("seconds", "seconds_left", "per_second", "wait_fraction", "flops_utilization", "memory_mb")
MODERN = {"base": "modern"}  # the model of the other tiny run
LINES, TABLE = ({"corpus.path": place, "corpus.split": "train"} for place in ("{lines}", "{table}"))
LABELLED = {"finetune.path": "{table}", "finetune.limit": None}
UNLABELLED = {"finetune.unlabelled": {"split": "unsupervised", "limit": 20}}

PLACES = [
    a + b for a in ("sand", "moon", "fire", "rain", "wood") for b in ("bird", "fall", "work", "land", "wind", "bell")
]

# Another value than the base's for each key, and what both trainings have beside it, so that it counts.
PREPARE: dict[str, tuple[Any, Keys]] = {
    "seed": (2, {}),
    "corpus.path": ("{lines}", TABLE),
    "corpus.split": ("train", {}),
    "corpus.text_column": ("other", TABLE),
    "corpus.text_unit": ("paragraph", LINES),
    "corpus.limit": (100, {}),
    "corpus.weight": (0.5, {}),
    "corpus.more": ([{"path": "sample", "split": "unsupervised", "limit": 50}], {}),
    "corpus.validation": ("test", {}),
    "corpus.held_out": ("train", {"corpus.split": "train+articles", "corpus.limit": 5000}),
    "corpus.min_characters": (300, {}),
    "corpus.near_duplicates": (True, LINES),
    "tokenizer.vocab_size": (640, {}),
    "tokenizer.lowercase": (False, {}),
    "tokenizer.strip_accents": (False, LINES),
    "tokenizer.character_coverage": (0.9, LINES),
    "pairs.validation_fraction": (0.3, {}),
}
PRETRAIN: dict[str, tuple[Any, Keys]] = {
    "seed": (2, {}),
    "pairs.kind": ("sop", {}),
    "pairs.short_seq_prob": (0.9, {}),
    "pairs.random_next_prob": (0.1, {}),
    "model.architecture": ("modern", {}),
    "model.hidden_size": (48, {}),
    "model.num_hidden_layers": (3, {}),
    "model.num_attention_heads": (4, {}),
    "model.intermediate_size": (48, {}),
    "model.max_position_embeddings": (80, {}),
    "model.hidden_dropout_prob": (0.3, {}),
    "model.attention_probs_dropout_prob": (0.3, {}),
    "training.init": ("{base}", {}),
    "training.initial_attention": ("neighbours", {"model.num_attention_heads": 4}),
    "training.max_steps": (5, {}),
    "training.max_tokens": (300, {}),
    "training.max_epochs": (0.01, {}),
    "training.global_batch_size": (12, {}),
    "training.phases.max_length": ([{"max_length": 48}], {"training.phases": [{"max_length": 32}]}),
    "training.phases.share": (
        [{"share": 0.3, "max_length": 32}, {"share": 0.7, "max_length": 48}],
        {"training.phases": [{"share": 0.7, "max_length": 32}, {"share": 0.3, "max_length": 48}]},
    ),
    "training.phases.global_batch_size": (
        [{"max_length": 32, "global_batch_size": 12}],
        {"training.phases": [{"max_length": 32}]},
    ),
    "training.phases.objective": (
        [{"max_length": 32, "objective": "mixed"}],
        {"training.phases": [{"max_length": 32}], "pairs.kind": "none"},
    ),
    "training.precision": ("bf16", {}),
    "training.optimizer": ("lamb", {}),
    "training.learning_rate": (2e-3, {}),
    "training.weight_decay": (0.5, {}),
    "training.muon_learning_rate": (0.1, MODERN),
    "training.muon_weight_decay": (0.5, MODERN),
    "training.adam_beta2": (0.9, {}),
    "training.max_grad_norm": (0.1, {}),
    "training.schedule": ("cosine", {}),
    "training.warmup": (0.9, {}),
    "training.decay": (0.9, MODERN),
    "training.masked_lm_prob": (0.4, {}),
    "training.masked_lm_prob_end": (0.05, {}),
    "training.masking": ("words", {}),
    "training.mask_split": ([0.2, 0.4, 0.4], {}),
    "training.log_every": (2, {}),
    "training.eval_every": (1, {}),
    "training.eval_pairs": (4, {}),
    "training.price_per_hour": (1e6, {}),
    "checkpoint.every": (2, {}),
    "checkpoint.keep": (3, {}),
}
FINETUNE: dict[str, tuple[Any, Keys]] = {
    "seed": (2, {}),
    "training.max_grad_norm": (0.1, {}),
    "training.adam_beta2": (0.9, {}),
    "training.muon_weight_decay": (0.9, {"finetune.optimizer": "muon"}),
    "training.precision": ("bf16", {}),
    "training.log_every": (3, {}),
    "finetune.path": ("{table}", {}),
    "finetune.split": ("test", {}),
    "finetune.task": ("regression", LABELLED),
    "finetune.text_column": ("other", LABELLED),
    "finetune.text_pair_column": ("other", LABELLED),
    "finetune.label_column": ("size", LABELLED),
    "finetune.label_names": (["good", "bad"], {}),
    "finetune.limit": (60, {}),
    "finetune.unlabelled.split": ("articles", UNLABELLED),
    "finetune.unlabelled.path": ("{table}", {"finetune.unlabelled": {"path": "{held_out}"}}),
    "finetune.unlabelled.limit": (30, UNLABELLED),
    "finetune.unlabelled.max_length": (16, UNLABELLED),
    "finetune.unlabelled.held_out": ("{held_out}", {"finetune.unlabelled": {"path": "{table}"}}),
    "finetune.init": ("random", {"tokenizer.path": "{base}"}),
    "finetune.epochs": (1, {}),
    "finetune.min_steps": (30, {}),
    "finetune.batch_size": (8, {}),
    "finetune.max_length": (12, {}),
    "finetune.truncation": ("tail", {"finetune.max_length": 12}),
    "finetune.pooling": ("mean", MODERN),
    "finetune.optimizer": ("muon", {}),
    "finetune.learning_rate": (2e-3, {}),
    "finetune.muon_learning_rate": (0.1, {"finetune.optimizer": "muon"}),
    "finetune.layer_decay": (0.5, {}),
    "finetune.weight_decay": (0.9, {}),
    "finetune.warmup": (0.9, {}),
    "finetune.dropout": (0.5, {}),
    "finetune.encoder_dropout": (0.5, {}),
    "finetune.label_smoothing": (0.2, {}),
    "finetune.class_weights": ([1.0, 3.0], {}),
    "finetune.validation_fraction": (0.4, {}),
    "finetune.validation_block": (10, LABELLED),
    "finetune.test_fraction": (0.2, {}),
    "finetune.validation_path": ("{table}", {}),
    "finetune.validation_split": ("test", {}),
    "finetune.seeds": (2, {}),
}
ELSEWHERE = {  # keys without an effect on one training here, or that need what a test of their own brings
    *("output_dir", "corpus.name", "corpus.streaming", "data.path", "prepare.engine", "prepare.workers"),
    *(f"corpus.more.{name}" for name in ("path", "name", "split", "text_column", "text_unit", "limit", "streaming")),
    *("corpus.more.weight", "tokenizer.path", "training.budget", "training.compile", "training.deterministic"),
    *("training.phases.micro_batch_size", "training.wandb_project", "training.tensorboard", "checkpoint.keep_every"),
    *("finetune.name", "finetune.micro_batch_size", "finetune.metric", "finetune.patience", "suite.tasks"),
    *(f"evaluate.{name}" for name in ("path", "split", "limit", "batch_size", "bag_of_words")),
    *(f"hub.{name}" for name in ("repo_id", "push_every", "private", "license", "language")),
}  # fmt: skip


def test_no_key_is_forgotten() -> None:
    keys = set(known_keys())
    leaves = {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}
    tried = {*PREPARE, *PRETRAIN, *FINETUNE}
    assert leaves - tried - ELSEWHERE == set()
    assert ELSEWHERE - leaves == tried & ELSEWHERE == set()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A text file of wrapped lines, some almost equal, with accents; and a table with two texts and two labels."""
    folder = tmp_path_factory.mktemp("places")
    stories = [f"A naïve tale of {place}.\nIt was told {n} times in the café.\n" for n, place in enumerate(PLACES)]
    again = "It was told on a very long and quite rainy evening in the small café beside the old bridge over the river"
    rare = "".join(map(chr, range(0x4E00, 0x4E80)))
    lines = "\n".join([*stories, f"{again} once.\n", f"{again} twice.\n", f"{rare}\n"])
    (folder / "lines.txt").write_text(lines, encoding="utf-8")
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "other", "label", "size"])
        writer.writerows([f"the {word} is fine", f"no {word} here", n % 2, n % 3] for n, word in enumerate(PLACES))
    (folder / "held_out.txt").write_text("\n".join(f"the {word} is fine" for word in PLACES[:20]), encoding="utf-8")
    return {name: str(next(folder.glob(f"{name}.*"))) for name in ("lines", "table", "held_out")}


def trace(folder: Path, stage: str) -> list[Any]:
    """What a stage leaves, without times: its results, its log, the names of its files and the weights."""
    log = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    kept = [
        {name: value for name, value in row.items() if not name.endswith(TIMES)}
        for row in [read_results(folder)[stage], *rows]
    ]
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    weights = [
        file_checksum(file)
        for file in sorted(folder.glob("*/model.safetensors")) + sorted(folder.glob("data/*.tokens.npy"))
    ]
    return [kept, files, weights]


DEFAULTS = {
    "prepare": {},
    "pretrain": {
        "data.path": "{base}", "training.max_steps": 4, "training.eval_every": 2, "checkpoint.every": 1,
        "training.phases": [{"share": 0.5, "max_length": 32}, {"share": 0.5, "max_length": 48}],
    },
    "finetune": {"finetune.init": "{base}", "training.log_every": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def left(
    places: dict[str, str], tiny_run: Path, tiny_modern_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:  # noqa: ANN401
    """Does a stage with some keys, each set of them once, and says what it leaves."""
    folder, done = tmp_path_factory.mktemp("every-key"), dict[str, list[Any]]()

    def what_is_left(stage: Callable[[Recipe], Any], keys: Keys) -> list[Any]:
        own = places | {"base": str(tiny_modern_run if "base" in keys else tiny_run)}
        text = json.dumps(DEFAULTS[stage.__name__] | {name: value for name, value in keys.items() if name != "base"})
        for name, place in own.items():
            text = text.replace(f"{{{name}}}", place)
        if text not in done:
            place = folder / str(len(done))
            overrides = [f"{name}={json.dumps(value)}" for name, value in json.loads(text).items()]
            recipe = load_recipe(f"{own['base']}/recipe.yaml", [*overrides, f"output_dir={place}"])
            if stage is pretrain:
                prepare(recipe)
            stage(recipe)
            done[text] = trace(place, stage.__name__)
        return done[text]

    return what_is_left


@pytest.mark.parametrize("stage", [prepare, pretrain, finetune])
def test_a_key_of_another_stage_changes_nothing(stage: Callable[[Recipe], Any], left: Callable[..., list[Any]]) -> None:
    assert left(stage, {}) == left(stage, {"evaluate.limit": 7})


@pytest.mark.parametrize("key", PREPARE)
def test_it_changes_what_is_prepared(key: str, left: Callable[..., list[Any]]) -> None:
    value, beside = PREPARE[key]
    assert left(prepare, beside) != left(prepare, beside | {key: value})


@pytest.mark.slow  # a training for each key
@pytest.mark.parametrize("key", PRETRAIN)
def test_it_changes_pretraining(key: str, left: Callable[..., list[Any]]) -> None:
    value, beside = PRETRAIN[key]
    changed = {key.removesuffix(f".{key.rpartition('.')[2]}") if "phases." in key else key: value}
    assert left(pretrain, beside) != left(pretrain, beside | changed)


@pytest.mark.slow  # a training for each key
@pytest.mark.parametrize("key", FINETUNE)
def test_it_changes_fine_tuning(key: str, left: Callable[..., list[Any]]) -> None:
    value, beside = FINETUNE[key]
    assert left(finetune, beside) != left(finetune, beside | {key: value})
