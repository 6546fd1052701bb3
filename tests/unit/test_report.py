"""The report and the closing lines show the right numbers, and nothing from a text becomes HTML."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from bertpre.data.sampler import Position
from bertpre.data.store import open_shards
from bertpre.data.tokenizer import load_tokenizer
from bertpre.pretraining.batches import pair_dataset
from bertpre.recipe import Recipe, load_recipe
from bertpre.reporting import evaluation, masks, page, report
from bertpre.reporting.charts import figure
from bertpre.reporting.comparison import printed_metrics, read_facts, write_comparison
from bertpre.reporting.corpus import corpus_section
from bertpre.reporting.curves import finetuning_charts, machine_charts, pretraining_charts, read_metrics
from bertpre.reporting.masks import guesses_section, masked_pairs, pair
from bertpre.reporting.page import heat_table, tile
from bertpre.reporting.picture import pretraining_figure, pretraining_png
from bertpre.reporting.report import closing_lines, headline_rows, next_lines
from bertpre.reporting.tiles import best_baseline, score_tile, stage_seconds, tiles

MEASURED = {
    "accuracy": 0.75,
    "f1": 0.5,
    "loss": 0.6,
    "examples": 2000,
    "intervals": {"accuracy": [0.7, 0.8], "f1": [-0.25, 0.55]},
    "seconds": 30.0,
}


def results() -> dict[str, Any]:
    """What the stages of a small run leave, in round numbers."""
    return {
        "prepare": {
            "documents": 1200, "tokens": 34_000, "dropped": {"duplicate": 3, "short": 1}, "pairs_kind": "nsp",
        },
        "pretrain": {
            "steps": 1500, "tokens": 2_000_000, "epochs": 58.82, "seconds": 90.0, "unigram_entropy": 6.5,
            "context_free_loss": 6.125,
            "validation": {
                "mlm_loss": 4.25, "mlm_accuracy": 0.3, "nsp_accuracy": 0.7, "nsp_pairs": 1000,
                "nsp_interval": [0.671, 0.7275], "nsp_majority_share": 0.6,
            },
            "fillings": [{"sentence": "a <b> is [MASK].", "answer": "good", "guesses": ["<i>", "bad"]}],
        },
        "finetune": {"epochs": 2, "examples": 1000, "seconds": 45.0, "validation": {"accuracy": 0.8, "f1": 0.6}},
        "evaluate": dict(MEASURED),
    }  # fmt: skip


def test_headline_rows_hold_each_value_and_what_to_compare_it_with() -> None:
    assert headline_rows(results()) == [
        ("Corpus", "1,200 documents, 34,000 tokens"),
        ("Dropped documents", "3 duplicate, 1 short"),
        ("Pretraining", "1,500 steps, 2,000,000 tokens (58.8 times the text), 1 min 30 s"),
        ("MLM loss", "4.250 nats per masked token (context-free loss 6.125, unigram entropy 6.500)"),
        ("MLM accuracy", "30.0%"),
        ("NSP accuracy", "70.0% of 1,000 pairs; 95 % CI 67.1%-72.8% (majority class 60.0%)"),
        ("Fine-tuning", "2 epochs on 1,000 texts, 45 s"),
        ("Test accuracy", "75.00% of 2,000 test texts; 95 % CI 70.00%-80.00%"),
        ("Test f1", "0.5000; 95 % CI -0.2500 to 0.5500"),
    ]
    assert headline_rows({}) == []


def test_seeds_words_and_the_bag_of_words_are_shown() -> None:
    spread = {"values": [0.7, 0.8], "mean": 0.75, "std": 0.05}
    more = {"seeds": {"accuracy": spread, "f1": spread}, "words": 9, "bag_of_words": {"accuracy": 0.625}}
    rows = dict(headline_rows({"evaluate": MEASURED | more}))
    assert rows["Test accuracy"] == (
        "75.00% of 9 test words; 95 % CI 70.00%-80.00%; over 2 seeds 0.7500 ± 0.0500; "
        "bag of words with logistic regression on the same examples: 62.50%"
    )
    assert "bag of words" not in rows["Test f1"]


def test_the_f1_of_two_classes_names_its_class_and_words_that_were_not_scored_are_counted() -> None:
    classes = {"confusion": [[1, 0], [1, 2]], "per_class": {"bad": {}, "good": {}}}
    assert (
        dict(headline_rows({"evaluate": MEASURED | classes}))["Test f1"]
        == "0.5000 of 'good'; 95 % CI -0.2500 to 0.5500"
    )
    words = dict(
        headline_rows({"evaluate": MEASURED | classes | {"words": 9, "unscored_words": 1200}})
    )  # a mean over the tags
    assert words["Test f1"] == "0.5000; 95 % CI -0.2500 to 0.5500"
    assert words["Test accuracy"].startswith(
        "75.00% of 9 test words (1,200 more lie beyond finetune.max_length and are not scored); 95 % CI"
    )


def test_a_run_of_before_the_context_free_loss_is_shown_without_it() -> None:
    older = results()
    del older["pretrain"]["context_free_loss"]
    older["pretrain"]["validation"] = {"mlm_loss": 4.25, "mlm_accuracy": 0.3, "nsp_accuracy": 0.7}
    rows = dict(headline_rows(older))
    assert rows["MLM loss"] == "4.250 nats per masked token (unigram entropy 6.500)"
    assert rows["NSP accuracy"] == "70.0%"
    row = {"stage": "pretrain", "split": "train", "tokens": 1, "mlm_loss": 5, "nsp_accuracy": 0.5}
    assert "unigram entropy 6.5" in pretraining_charts([row], older)
    assert "context-free" not in pretraining_charts([row], older)
    assert "the context-free loss was not recorded" in tiles(older, None)


def test_the_overlap_of_test_and_training_is_shown() -> None:
    more = {"overlap": 123, "overlap_unlabelled": 0, "without_overlap": {"accuracy": 0.7421, "f1": 0.4}}
    rows = dict(headline_rows({"evaluate": MEASURED | more}))
    assert rows["Overlap"] == "123 of 2,000 test texts equal a training text; accuracy without them 0.7421"


def test_sentence_order_is_named_as_such() -> None:
    measured = results()
    measured["prepare"]["pairs_kind"] = "sop"
    assert "SOP accuracy" in dict(headline_rows(measured))


def test_texts_are_escaped() -> None:
    guesses = guesses_section([], results())
    assert "a &lt;b&gt; is <mark>[MASK]</mark>." in guesses and "<td>&lt;i&gt; · bad</td>" in guesses
    assert "<" not in pair(["<p>"], {}, "").split("class=pair>")[1].split("<div")[0]
    assert "&lt;p&gt;<rt>&lt;b&gt;</rt>" in pair(["<p>"], {0: "<b>"}, "")
    assert "<a>" not in heat_table([[1]], ["<a>"], "<a>") + tile("<a>", "<a>", "<a>", unit="<a>")
    assert "'" not in figure("", "", "it's <b>", "").split("aria-label='")[1].split("'>")[0]
    assert page.table([("<a>", "<b>")], ("<c>",)).count("&lt;") == 3
    row = {"label": "<p>", "prediction": "no", "probability": 0.987, "id": "test/3", "text": "a < b"}
    shown = evaluation.mistakes([row])
    assert "true &lt;p&gt;, predicted no (probability 98.7%); test/3" in shown and "a &lt; b" in shown


def test_the_runs_own_row_is_below_the_baselines() -> None:
    baseline = {"tf-idf": {"validation": None, "accuracy": 0.6, "f1": 0.4, "matthews": 0.2, "seconds": 3.0}}
    measured = results() | {"baseline": baseline}
    measured["evaluate"]["matthews"] = 0.3
    own = evaluation.own_row("classification", measured)
    assert own == {"validation": 0.8, "accuracy": 0.75, "f1": 0.5, "matthews": 0.3, "seconds": 75.0}
    other = measured | {"evaluate": measured["evaluate"] | {"compared": "others"}, "baseline_of": "these"}
    assert "this run" not in evaluation.baselines(other, "classification") and best_baseline(other, "accuracy") is None
    measured = other | {"baseline_of": "others"}
    table = evaluation.baselines(measured, "classification")
    assert table.index("tf-idf") < table.index("this run")
    assert "<td class=number>75 s</td>" in table and "<td class=number>0.8000</td>" in table


def test_class_rows_are_in_the_order_of_their_columns() -> None:
    per_class = {"good": {"examples": 1200, "f1": 0.3, "recall": 0.2, "precision": 0.1}}
    assert evaluation.class_rows(per_class) == [("good", "0.1000", "0.2000", "0.3000", "1,200")]


def test_closing_lines_name_the_files_that_exist(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results()))
    lines = closing_lines(tmp_path, load_recipe("imdb-mini-cpu"))
    assert "  a <b> is [MASK].\n    -> <i>, bad (original: good)" in lines
    assert lines[-2:] == ["Files", f"  {tmp_path / 'results.json'}  (all results)"]


@pytest.mark.parametrize(
    ("overrides", "in_corpus", "in_test"),
    [
        ((), True, True),
        (("finetune=null",), True, False),
        (("finetune.path=reviews.csv",), True, False),
        (("evaluate.path=opinions.csv",), True, False),
        (("corpus.path=texts",), False, True),
        (("corpus.path=texts", "finetune.path=reviews.csv"), False, False),
    ],
)
def test_a_synthetic_corpus_is_named_as_such(
    overrides: tuple[str, ...], in_corpus: bool, in_test: bool, tmp_path: Path
) -> None:
    recipe = load_recipe("quickstart", list(overrides))
    (tmp_path / "results.json").write_text(json.dumps(results()))
    for shown in (
        "\n".join(report.closing_lines(tmp_path, recipe)),
        report.write_report(tmp_path, recipe).read_text(),
    ):
        assert ("The corpus is synthetic" in shown) == in_corpus
        assert ("not how well the classifier reads real reviews" in shown) == in_test


def test_pairs_without_a_label_have_no_accuracy() -> None:
    found, validation = results(), {"mlm_loss": 4.25, "mlm_accuracy": 0.3}
    for extra in ({}, {"nsp_accuracy": 0.0, "nsp_pairs": 0, "nsp_interval": [0.0, 1.0], "nsp_majority_share": 0.0}):
        found["pretrain"]["validation"] = validation | extra
        assert dict(headline_rows(found))["NSP accuracy"] == "not measured: no validation pair has a label"
    found["prepare"]["pairs_kind"] = "none"
    found["pretrain"]["validation"] = validation
    assert "NSP accuracy" not in dict(headline_rows(found))


def test_the_next_commands_suit_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "predict" not in "\n".join(next_lines(Path("runs/my films"), load_recipe("quickstart")))  # nothing is there
    for name in ("runs/my films", "RUN"):
        (tmp_path / name / "finetuned").mkdir(parents=True)
    lines = "\n".join(next_lines(Path("runs/my films"), load_recipe("quickstart")))
    assert "bertpre predict 'runs/my films' \"A wonderful film.\"" in lines
    assert 'pipeline("text-classification", "runs/my films/finetuned", truncation=True)' in lines
    other = load_recipe("own-text", ["corpus.path=x.txt", "finetune.path=labels.csv"])
    assert 'bertpre predict RUN "A text of yours."' in "\n".join(next_lines(Path("RUN"), other))
    assert "bertpre init own-text my.yaml" in lines
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"auto_map": {}}')
    lines = "\n".join(next_lines(tmp_path, load_recipe("own-text", ["corpus.path=x.txt", "finetune=null"])))
    assert f'pipeline("fill-mask", "{tmp_path / "model"}", trust_remote_code=True)' in lines
    assert "predict" not in lines and "init" not in lines


def test_a_run_without_metrics_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"ste')  # the disk was full
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]


def test_tiles_show_each_number_and_what_it_is_compared_with() -> None:
    measured = results()
    measured["evaluate"] |= {"bag_of_words": {"accuracy": 0.7}}
    measured["baseline"] = {"NB-SVM": {"accuracy": 0.72, "f1": None}, "tf-idf": {"accuracy": 0.71, "f1": None}}
    shown = tiles(measured, "classification")
    for text in (
        "1.875 better than the context-free loss 6.125",
        "95 % CI 67.1%-72.8%; majority class 60.0%",
        "95 % CI 70.0%-80.0%; 3.0 points above NB-SVM (72.0%)",
        "Time of all stages",
    ):
        assert text in shown
    measured["pretrain"]["validation"]["mlm_loss"] = 7.0
    assert "0.875 worse than the context-free loss" in tiles(measured, None)
    assert "Test accuracy" not in tiles(measured, None) and tiles({}, None) == ""
    assert best_baseline({}, "accuracy") is None and best_baseline(measured, "f1") is None


def test_the_main_metric_of_a_task_is_on_its_tile() -> None:
    numbers = {"evaluate": {"pearson": -0.25, "spearman": 0.1, "loss": 1.0, "intervals": {"pearson": [-0.5, 0.1]}}}
    shown = score_tile(numbers, "regression")
    assert "Test pearson" in shown and "-0.250" in shown and "95 % CI -0.500 to 0.100" in shown
    assert "<svg" not in shown  # the scale of the picture begins at 0


def test_the_time_of_a_stage_is_shown_where_it_was_recorded() -> None:
    assert stage_seconds({"evaluate": {"seconds": 1.5}, "prepare": {}, "curve": [{"seconds": 2}]}) == {"evaluate": 1.5}


def test_the_guesses_of_every_evaluation_are_shown_and_the_right_one_is_marked() -> None:
    rows = [
        {
            "stage": "pretrain", "split": "validation", "step": step,
            "fillings": [
                {"sentence": "a [MASK] b", "answer": "cat", "guesses": [f"word{step}", "cat" if step else "x"]},
            ],
        }
        for step in range(100)
    ]  # fmt: skip
    shown = guesses_section(rows, {"pretrain": {}})
    assert shown.count("<th scope=row>") == 8 and ">0</th>" in shown and ">99</th>" in shown
    assert "word99 · <mark class=kept>cat</mark>" in shown and "word0 · x" in shown
    assert "of the final model" in guesses_section([], results()) and "of the final model" not in shown
    assert (
        "No guesses were recorded" in guesses_section([], {"pretrain": {"steps": 1}}) and guesses_section([], {}) == ""
    )


def test_each_kind_of_target_is_marked_as_what_it_is() -> None:
    shown = pair(["[CLS]", "[MASK]", "dog", "ran", "##ning", "."], {1: "cat", 2: "dog", 3: "sat"}, "in order")
    assert "<ruby class=masked>[MASK]<rt>cat</rt></ruby>" in shown
    assert "<ruby class=kept>dog<rt>dog</rt></ruby>" in shown
    assert "<ruby class=random>ran<rt>sat</rt></ruby>ning ." in shown
    assert "6 tokens, 3 targets; the segments are in order" in shown
    assert "<span class=sep>[SEP]</span> ##ing" in pair(["[SEP]", "##ing"], {}, "")  # a segment that starts in a word


def test_the_first_validation_pairs_are_shown_with_their_masks_and_without_padding(tiny_run: Path) -> None:
    recipe = load_recipe(
        str(tiny_run), ["training.phases=[{share: 0.5, max_length: 48}, {share: 0.5, max_length: 24}]"]
    )
    shown = masked_pairs(tiny_run, recipe)
    lengths = [int(re.search(r"(\d+) tokens, ", each)[1]) for each in shown]  # type: ignore[index]
    assert 24 < max(lengths) <= 48 and len(set(lengths)) > 1  # of the first phase
    for each, length in zip(shown, lengths, strict=True):
        assert "[PAD]" not in each and f"{length} tokens, {each.count('<ruby')} targets" in each


@pytest.mark.parametrize(
    ("kind", "names"),
    [("nsp", ("B is the true next segment", "B is a random segment")), ("sop", ("in order", "in the wrong order"))],
)
def test_labels_of_pairs_are_named_as_the_data_has_them(
    kind: str, names: tuple[str, str], tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "SHOWN_PAIRS", 12)
    recipe = load_recipe(str(tiny_run), [f"pairs.kind={kind}"])
    shards = open_shards(tiny_run / "data", "validation")
    pairs = pair_dataset(recipe, load_tokenizer(tiny_run / "tokenizer"), recipe.training.phases[0], shards)
    examples, shown = pairs.take(Position(), 12)[0], masked_pairs(tiny_run, recipe)
    assert {0, 1} <= {example.is_random_next for example in examples}
    for example, text in zip(examples, shown, strict=True):
        named = [name for name in names if f"{name}<" in text]
        assert named == ([] if example.is_random_next < 0 else [names[example.is_random_next]])


def test_bins_of_few_examples_are_marked() -> None:
    bins = [{"confidence": 0.6, "accuracy": 0.5, "examples": 9}, {"confidence": 0.9, "accuracy": 0.8, "examples": 10}]
    shown = evaluation.calibration_part({"expected_error": 0.1, "brier": 0.2, "bins": bins})
    assert shown.count("<circle class='hollow") == 1 and shown.count("fewer than 10: uncertain") == 1
    assert "hollow: fewer than 10 examples" in shown
    bins[0]["examples"] = 10
    shown = evaluation.calibration_part({"expected_error": 0.1, "brier": 0.2, "bins": bins})
    assert "hollow" not in shown and "fewer than" not in shown


def test_a_confusion_matrix_is_a_heat_map_and_of_many_classes_a_list() -> None:
    shown = evaluation.confusion([[3, 1], [0, 0]], ["no", "yes"])
    assert "style='--share:0.75'>3<small>75%" in shown and "style='--share:0.00'>0<small>0%" in shown
    counts = [[5 * (row == column) + (row == 2) * (column == 7) * 4 for column in range(21)] for row in range(21)]
    shown = evaluation.confusion(counts, [f"class {number}" for number in range(21)])
    assert "Most frequent confusions" in shown and shown.count("<th scope=row>") == 1
    assert "class 2</th><td class=number>class 7</td><td class=number>4</td>" in shown
    counts[5][6] = 9
    shown = evaluation.confusion(counts, [f"class {number}" for number in range(21)])
    assert shown.index("<td class=number>class 6</td>") < shown.index("<td class=number>class 7</td>")  # the most first
    shares = evaluation.confusion([[3, 1], [1, 1]], ["no", "yes"])
    assert shares.count("<small>50%</small>") == 2  # of the row, not of all


@pytest.mark.parametrize("kept", [(), ("prepare",), ("pretrain",), ("finetune",), ("finetune", "evaluate")])
def test_a_run_without_some_stages_has_a_page(kept: tuple[str, ...], tmp_path: Path) -> None:
    some = {stage: found for stage, found in results().items() if stage in kept}
    (tmp_path / "results.json").write_text(json.dumps(some))
    shown = report.write_report(tmp_path, load_recipe("quickstart")).read_text()
    assert ("<div class=label>MLM loss" in shown) == ("pretrain" in kept)
    assert ("<div class=label>Test accuracy" in shown) == ("evaluate" in kept)
    for link in ("#recipe", "#what-to-do-next"):
        assert f"href='{link}'" in shown and f"id='{link[1:]}'" in shown
    assert "name=viewport" in shown and "prefers-color-scheme: dark" in shown and "<script" not in shown


def write_run(folder: Path, found: dict[str, Any], *overrides: str) -> tuple[Path, Recipe]:
    """A run directory that holds results and two rows of metrics."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(found))
    rows: list[dict[str, Any]] = [
        {"stage": "pretrain", "split": "validation", "step": step, "tokens": 10**6 * step, "mlm_loss": 9 - step}
        for step in (0, 1)
    ]
    rows.append(
        {"stage": "pretrain", "split": "train", "step": 1, "tokens": 10**6, "tokens_per_second": 500, "grad_norm": 2}
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, load_recipe("quickstart", [f"output_dir={folder}", *overrides])


def test_runs_side_by_side(tmp_path: Path) -> None:
    better = results()
    better["pretrain"]["validation"] |= {"mlm_loss": 4.0, "mlm_accuracy": 0.3}
    better["evaluate"] |= {"accuracy": 0.5, "matthews": 0.1, "loss": 0.5}
    worse = results()
    worse["evaluate"]["matthews"] = 0.1
    runs = [write_run(tmp_path / "one", worse), write_run(tmp_path / "two", better, "seed=7")]
    file = write_comparison(read_facts(runs))
    shown = file.read_text()
    assert file == tmp_path / "one" / "comparison.html"
    assert "<td class='number'>4.250</td><td class='number best'>4.000</td>" in shown  # the lower loss
    assert "<td class='number best'>75.0% (70.0% to 80.0%)</td><td class='number'>50.0%" in shown
    assert "MLM accuracy</th><td class='number'>30.0%</td><td class='number'>30.0%" in shown
    assert "seed</th><td>0</td><td>7</td>" in shown and "output_dir</th>" not in shown
    assert "MLM loss by million tokens: one from 9 to 8; two from 9 to 8" in shown
    assert "nats below the context-free loss</th><td class='number'>1.875</td><td class='number best'>2.125" in shown
    assert "test loss</th><td class='number'>0.600</td><td class='number best'>0.500" in shown
    assert "Throughput by million tokens: one from 500 to 500" in shown
    assert "GLUE" not in shown
    lines = list(printed_metrics(read_facts(runs)))
    assert len({len(line) for line in lines}) == 1 and lines[0].split() == ["one", "two"]
    assert lines[1].split() == ["MLM", "loss", "4.250", "4.000"]
    assert next(line for line in lines if line.startswith("test matthews")).split()[-2:] == ["0.100", "0.100"]


def test_suites_are_compared_by_their_tasks(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, {"glue": {"tasks": {"cola": {"matthews": score}}, "average": score}})
        for name, score in (("one #1", 0.25), ("two", 0.5))
    ]
    shown = write_comparison(read_facts(runs)).read_text()
    for name in ("cola matthews", "average"):
        assert f"GLUE {name}</th><td class='number'>0.2500</td><td class='number best'>0.5000</td>" in shown
    assert "href='report.html'" in shown and "href='../two/report.html'" in shown
    assert "href='../one%20%231/report.html'" in write_comparison(read_facts(runs[::-1])).read_text()


def test_the_curve_of_several_seeds_is_that_of_the_one_that_was_kept(tmp_path: Path) -> None:
    folder, recipe = write_run(tmp_path / "one", results() | {"finetune": {"seed": 1, "seconds": 1.0}})
    with (folder / "metrics.jsonl").open("a") as stream:
        for stage, accuracy in (("finetune", 0.25), ("finetune seed 1", 0.75)):
            row = {"stage": stage, "split": "validation", "step": 5, "tokens": 9, "accuracy": accuracy}
            stream.write(json.dumps(row) + "\n")
    shown = write_comparison(read_facts([(folder, recipe), write_run(tmp_path / "two", results())])).read_text()
    assert "one from 75 % to 75 %" in shown


def test_different_tasks_are_not_ranked(tmp_path: Path) -> None:
    other = {"evaluate": {"pearson": 0.5, "spearman": 0.5, "loss": 0.1, "intervals": {}, "seconds": 1.0}}
    found = results()
    found["evaluate"]["matthews"] = 0.1
    runs = [write_run(tmp_path / "a" / "x", found), write_run(tmp_path / "b" / "x", other, "finetune.task=regression")]
    shown = write_comparison(read_facts(runs)).read_text()
    assert "a/x" in shown and "b/x" in shown and "best'>0.100" not in shown


def test_the_same_recipe_twice_has_no_differences(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, results() | {"evaluate": {}}) for name in ("one", "two")]
    assert "The recipes are the same but for output_dir." in write_comparison(read_facts(runs)).read_text()


def test_the_curves_are_a_picture_too(tmp_path: Path) -> None:
    folder, _ = write_run(tmp_path / "one", results())
    rows = [row | {"nsp_accuracy": 0.5 + row["step"] / 10} for row in read_metrics(folder)]
    assert pretraining_png(rows, results()).startswith(b"\x89PNG")
    loss, accuracy = pretraining_figure(rows, results()).axes
    shown = [{line.get_label(): list(line.get_ydata()) for line in axis.get_lines()} for axis in (loss, accuracy)]
    assert shown[0] == {
        "training": [],
        "validation": [9, 8],
        "context-free loss": [6.125] * 2,
        "unigram entropy": [6.5] * 2,
    }
    assert shown[1] == {"training": [0.6], "validation": [0.5, 0.6], "majority class": [0.6, 0.6]}
    assert (loss.get_title(), accuracy.get_title()) == ("MLM loss", "NSP accuracy")


def test_the_numbers_of_a_regression_are_short() -> None:
    shown = evaluation.mistakes([{"label": 2.0, "prediction": 1.8039871454238892, "id": "test/1", "text": "a"}])
    assert "true 2, predicted 1.804;" in shown


def test_the_audit_warns_and_an_older_one_is_shown_as_it_is() -> None:
    lengths = {"5%": 3, "median": 12, "95%": 30}
    prepared = {
        "documents": 1200, "tokens": 34_000, "dropped": {"duplicate": 3}, "unknown_share": 0.0,
        "repeated_line_share": 0.6, "tokens_in_document": lengths | {"median": 90}, "tokens_in_sentence": lengths,
        "histograms": {"tokens_in_sentence": [0, 2, 5]}, "pair_lengths_auc": 0.61, "pair_auc_std": 0.004,
    }  # fmt: skip
    shown = corpus_section(prepared)
    assert "Warning: 60% of the lines repeat others" in shown and "Warning: segment lengths predict the label" in shown
    assert "median 12; 90 % from 3 to 30" in shown and "1: 0, 2: 2, 4: 5" in shown and "3 duplicate" in shown
    older = corpus_section({"documents": 1200, "tokens": 34_000, "dropped": {}})
    assert "1,200" in older and "arn" not in older and corpus_section({}) == ""


def test_the_curves_of_the_kept_seed_are_shown() -> None:
    rows = [
        {"stage": stage, "split": "validation", "step": step, "accuracy": step / 10}
        for stage, steps in (("finetune", (1, 2)), ("finetune seed 1", (3, 4)))
        for step in steps
    ]
    tuned = {"seed": 1, "seeds": [{}, {}], "validation": {"accuracy": 0.4}}
    shown = report.finetuning_section(rows, {"finetune": tuned})
    assert "validation from 30 % to 40 %" in shown and "The curves of seed 1, the best of 2." in shown
    assert "validation from 10 % to 20 %" in report.finetuning_section(rows, {"finetune": tuned | {"seed": 0}})
    del tuned["validation"]
    assert "The curves of seed 1, the first of 2." in report.finetuning_section(rows, {"finetune": tuned})
    assert "seed" not in report.finetuning_section(rows[:2], {"finetune": {"seed": 0}})
    assert report.finetuning_section([], {}) == ""


def test_damaged_files_do_not_keep_a_run_from_its_report(tmp_path: Path) -> None:
    folder, recipe = write_run(tmp_path / "one", results() | {"evaluate": {}})
    for name in ("model", "tokenizer"):
        (folder / name).mkdir()
    (folder / "model" / "config.json").write_text('{"model_type": "bert"}')
    (folder / "model" / "model.safetensors").write_bytes(b"")
    shown = report.write_report(folder, recipe).read_text()
    assert "The attention cannot be shown: " in shown and "The masked pairs cannot be shown: " in shown


def test_a_training_that_diverged_has_a_report(tmp_path: Path) -> None:
    found = results()
    for loss in (1e7, math.nan):
        found["pretrain"]["validation"]["mlm_loss"] = loss
        (tmp_path / "results.json").write_text(json.dumps(found))
        assert "perplexity" not in report.write_report(tmp_path, load_recipe("quickstart")).read_text()
    assert "perplexity 70.1" in tiles(results(), None)


def test_the_label_curve_shows_accuracy_by_labels_and_a_deviation_of_several_seeds_only() -> None:
    points = [
        {"init": init, "examples": examples, "accuracy": {"mean": mean, "std": 0.01, "values": [mean, mean]}}
        for init, mean in (("pretrained", 0.8), ("random", 0.6))
        for examples in (100, 1000)
    ]
    shown = evaluation.label_chart(points)
    assert "pretrained from 80 % to 80 %; no pretraining from 60 % to 60 %" in shown and "± 1 std" in shown
    assert ">100</text>" in shown and ">1,000</text>" in shown
    ends = [tuple(map(float, each)) for each in re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", shown)]
    (upper, upper_top), (lower, lower_top) = ends[0], ends[-1]  # of 0.8 and of 0.6
    assert upper - upper_top == pytest.approx((lower + lower_top - upper - upper_top) / 2 / 10, abs=0.2)
    bars = shown.count("class='curve")
    for point in points:
        point["accuracy"]["values"] = [point["accuracy"]["mean"]]
    shown = evaluation.label_chart(points)
    assert "±" not in shown and shown.count("class='curve") == bars - len(points)


def test_the_average_of_glue_stands_below_its_tasks() -> None:
    found = {"tasks": {"rte": {"accuracy": 0.5}}, "average": 0.625, "average_without_wnli": 0.75}
    assert [row for row in ("rte", "average", "average without wnli") if f">{row}<" in evaluation.glue(found)] == [
        "rte",
        "average",
        "average without wnli",
    ]


def test_each_chart_shows_its_own_metric() -> None:
    train = {"stage": "pretrain", "split": "train", "step": 1, "tokens": 10**6}
    causal = train | {"clm_loss": 5.5, "loss": 5.5}
    masked = train | {"mlm_loss": 4.5, "mlm_accuracy": 0.25, "nsp_accuracy": 0.625, "loss": 5.0, "tokens": 2 * 10**6}
    shown = pretraining_charts([causal, masked], results())
    for said in (
        "MLM loss by million tokens: training from 4.5 to 4.5",
        "MLM accuracy by million tokens: training from 25 % to 25 %",
        "next-token loss by million tokens: training from 5.5 to 5.5",
        "NSP accuracy by million tokens: training from 62.5 % to 62.5 %",
    ):
        assert said in shown
    machine = train | {"learning_rate": 0.003, "grad_norm": 0.7, "tokens_per_second": 1234}
    shown = machine_charts([machine], "pretrain")
    for said in ("learning rate by step: values from 0.003", "gradient norm by step: values from 0.7"):
        assert said in shown
    assert "tokens per second by step: values from 1,234" in shown
    tuned = {"stage": "finetune", "split": "validation", "step": 1, "loss": 0.5, "accuracy": 0.75, "f1": 0.25}
    shown = finetuning_charts([tuned], "finetune")
    for said in (
        "loss by step: validation from 0.5",
        "accuracy by step: validation from 75 %",
        "f1 by step: validation from 0.25",
    ):
        assert said in shown


def test_a_regressions_and_a_multi_label_tasks_further_metrics_are_shown() -> None:
    found = {"pearson": 0.5, "rmse": 2.0, "mae": 1.5, "f1_macro": 0.25, "loss": 4.0, "examples": 9, "intervals": {}}
    rows = dict(headline_rows({"evaluate": found | {"seeds": {"pearson": {"values": [0.5], "mean": 0.5, "std": 0.0}}}}))
    assert rows == {
        "Test pearson": "0.5000; over 1 seeds 0.5000",
        "Test f1_macro": "0.2500",
        "Test rmse": "2.0000",
        "Test mae": "1.5000",
    }


def test_small_errors_are_shown_and_a_test_set_that_chose_the_epoch_is_named() -> None:
    found = {"pearson": 0.5, "rmse": 0.00012346, "mae": 0.0, "intervals": {"rmse": [0.0001, 0.01]}, "examples": 9}
    rows = dict(headline_rows({"evaluate": found | {"chosen_on_test": True}}))
    assert (rows["Test rmse"], rows["Test mae"]) == ("0.0001235; 95 % CI 0.0001-0.0100", "0.0000")
    assert rows["Selection"] == "the best epoch was selected on these test texts, so the scores are optimistic"
    assert "Selection" not in dict(headline_rows({"evaluate": found | {"chosen_on_test": False}}))
