"""Baselines and the label curve: the same examples, one table; n-grams worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertpre.commands.curve import draw
from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.linear import fit_nbsvm, linear_models
from tests.helpers import copy_run, run_here


def examples_of(texts: list[str], labels: list[int], classes: tuple[str, ...]) -> Examples:
    return Examples([f"train/{number}" for number in range(len(texts))], texts, None, np.array(labels), classes)


@pytest.mark.parametrize("name", linear_models("classification"))
@pytest.mark.parametrize("count", [2, 3])
def test_a_bag_learns_what_words_tell(name: str, count: int) -> None:
    words, classes = ("dull", "fine", "odd"), ("a", "b", "c")[:count]
    texts = [f"a {words[number % count]} film {number % 7}" for number in range(60)]
    training = examples_of(texts, [number % count for number in range(60)], classes)
    predict = linear_models("classification")[name](training)
    probabilities = predict(examples_of([f"one {word} one" for word in words[:count]], [0] * count, classes))
    assert probabilities.argmax(1).tolist() == list(range(count))
    np.testing.assert_allclose(probabilities.sum(1), 1)


@pytest.mark.parametrize("name", linear_models("classification"))
def test_a_class_that_training_lacks_is_never_told(name: str) -> None:
    training = examples_of(["dull dull", "fine fine"] * 4, [0, 2] * 4, ("a", "b", "c"))
    assert (linear_models("classification")[name](training)(training).argmax(1) == training.labels).all()


@pytest.mark.parametrize("name", linear_models("multi_label"))
def test_labels_are_learned_one_by_one(name: str) -> None:
    texts = ["dull", "fine", "dull fine", "odd"] * 5
    labels = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 0], [0, 0, 1, 0]] * 5)  # the third all have, none the last
    training = examples_of(texts, labels, ("dull", "fine", "every", "none"))
    assert ((linear_models("multi_label")[name](training)(training) > 0.5) == labels).all()
    single = examples_of(texts, labels[:, :1], ("dull",))
    assert ((linear_models("multi_label")[name](single)(single) > 0.5) == labels[:, :1]).all()


def test_regression_on_words() -> None:
    examples = examples_of(["dull", "fine", "fine fine", "dull dull"] * 5, [0, 1, 1, 0] * 5, ("grade",))
    for build in linear_models("regression").values():
        low, high = build(examples)(examples_of(["dull", "fine"], [0, 0], ("grade",)))
        assert low < 0.3 < 0.7 < high


def test_few_texts_without_a_word_in_common_have_a_bag() -> None:
    for texts in (["alpha", "beta", "gamma", "delta"], ["\N{GRINNING FACE}", "\N{SKULL}", "a", "b"]):
        examples = examples_of(texts, [0, 1, 0, 1], ("no", "yes"))
        for build in linear_models("classification").values():
            assert (build(examples)(examples).argmax(1) == examples.labels).all()


def test_nbsvm_reads_runs_of_words() -> None:
    texts = ["not good at all", "good at last", "not bad at all", "bad at last"] * 5
    training = examples_of(texts, [0, 1, 1, 0] * 5, ("no", "yes"))
    assert (fit_nbsvm(training)(training).argmax(1) == training.labels).all()


def test_a_share_keeps_the_classes_even() -> None:
    examples = examples_of(list("abcdefghij"), [0] * 4 + [1] * 6, ("no", "yes"))
    drawn = draw(examples, 0.5, seed=1)
    assert np.bincount(drawn.labels).tolist() == [2, 3]
    assert drawn.texts == draw(examples, 0.5, seed=1).texts
    with pytest.raises(UserError, match=r"--fractions: 0.1 of 4 examples of no is none"):
        draw(examples, 0.1, seed=1)


def test_one_table_on_the_same_examples(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain", "finetune", "evaluate")
    recipe = run / "recipe.yaml"
    assert run_here("baseline", recipe, f"output_dir={run}") == 0, capsys.readouterr().err
    rows = json.loads((run / "results.json").read_text())["baseline"]
    assert set(rows) == {*linear_models("classification"), "no pretraining"}
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("baseline:")]
    assert len(lines) == 5
    assert "this run" in lines[-1]
    assert run_here("curve", recipe, f"output_dir={run}", "--fractions", "0.2,0.5") == 0, capsys.readouterr().err
    points = json.loads((run / "results.json").read_text())["curve"]
    shares = [(point["fraction"], point["init"], point["examples"]) for point in points]
    assert shares == [(0.2, "pretrained", 16), (0.2, "random", 16), (0.5, "pretrained", 40), (0.5, "random", 40)]
    capsys.readouterr()
    assert run_here("curve", recipe, f"output_dir={run}", "--fractions", "0.2") == 0
    assert "curve:" not in capsys.readouterr().out  # it was finished
    file = run / "results.json"
    others = [point | {"recipe": "another"} for point in points]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"curve": others}))
    assert run_here("curve", recipe, f"output_dir={run}", "--fractions", "0.2") == 0
    kept = json.loads(file.read_text())["curve"]
    assert [(point["fraction"], point["init"]) for point in kept] == [(0.2, "pretrained"), (0.2, "random")]
    for shares in ("0.2,2", "0", "few"):
        assert run_here("curve", recipe, f"output_dir={run}", "--fractions", shares) == 2
        assert "--fractions" in capsys.readouterr().err
