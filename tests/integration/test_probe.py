"""Held-out text; pairs in BLiMP's layout; what cannot be probed."""

import copy
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertpre.commands.probe import probe
from bertpre.data import read_texts
from bertpre.errors import UserError
from bertpre.finetuning.acceptability import CLOSE, SentenceScorer
from bertpre.finetuning.loading import load_masked_lm
from tests.helpers import run_here

MODULE = "bertpre.finetuning.acceptability"
SENTENCES = ["The film is a joy, and Mira said so.", "Nobody saw it twice."]


def test_a_classifier_is_not_a_masked_language_model(tiny_run: Path) -> None:
    with pytest.raises(UserError, match="is not a masked language model: its files lack"):
        load_masked_lm(str(tiny_run / "finetuned"))


def test_a_run_is_probed_on_its_held_out_text(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = probe(str(tiny_run), limit=3, max_length=32)
    assert figures["texts"] == 3
    assert sum(row["tokens"] for row in figures["by_frequency"]) == figures["tokens"]
    losses = sum(row["loss"] * row["tokens"] for row in figures["by_frequency"]) / figures["tokens"]
    assert figures["pseudo_perplexity"] == pytest.approx(math.exp(losses), rel=1e-5)
    right = sum(row["accuracy"] * row["tokens"] for row in figures["by_frequency"]) / figures["tokens"]
    assert figures["accuracy"] == pytest.approx(right)
    assert "pseudo-perplexity" in capsys.readouterr().out


def test_pairs_and_texts_of_any_model(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [
        {"sentence_good": "The film is a joy.", "sentence_bad": "joy The a is film.", "UID": "order"},
        {"sentence_good": "Mira saw it.", "sentence_bad": "saw Mira it.", "UID": "order"},
    ]
    folder = tmp_path / "blimp"
    folder.mkdir()
    for name in ("order", "again"):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES))
    arguments = ("--texts", tmp_path / "texts.txt", "--pairs", folder)
    assert run_here("probe", tiny_run / "model", *arguments) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "of 2 pairs" in out
    assert "of 4 pairs" in out
    assert f"occurrences per million tokens of {tmp_path}/texts.txt" in out
    (tmp_path / "empty.txt").write_text("\u200d\nThe film.\n")
    with pytest.raises(UserError, match="the first 1 lines of .* hold no token"):
        probe(str(tiny_run / "model"), texts=str(tmp_path / "empty.txt"), limit=1)
    copied = tmp_path / "copied"
    shutil.copytree(tiny_run, copied, ignore=shutil.ignore_patterns("data"))
    assert run_here("probe", copied, *arguments) == 0, capsys.readouterr().err  # its data was left elsewhere
    assert "of 4 pairs" in capsys.readouterr().out
    swapped = [{"sentence_good": row["sentence_bad"], "sentence_bad": row["sentence_good"]} for row in pairs]
    swapped[0]["sentence_good"] += "\u2028"  # ends a line for str.splitlines, not in JSON lines
    (tmp_path / "swapped.jsonl").write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in swapped))
    again = tmp_path / "blimp" / "more"
    again.mkdir()
    (again / "order.jsonl").write_text((tmp_path / "swapped.jsonl").read_text())
    every = probe(str(tiny_run / "model"), pairs=str(folder))["acceptability"]
    assert every["pairs"] == 6
    assert set(every["files"]) == {"again", "order", "more/order"}
    one = probe(str(tiny_run / "model"), pairs=str(folder / "order.jsonl"))["acceptability"]
    other = probe(str(tiny_run / "model"), pairs=str(tmp_path / "swapped.jsonl"))["acceptability"]
    assert one["accuracy"] + other["accuracy"] == 1
    assert every["phenomena"] == {}


def independent_score(network: torch.nn.Module, tokenizer: transformers.PreTrainedTokenizerBase, text: str) -> float:
    """PLL-word-l2r (Kauf and Ivanova 2023) as in their paper: one token, one forward pass."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    tokens, total = tokenizer.convert_ids_to_tokens(ids[0].tolist()), 0.0
    for place in range(1, len(tokens) - 1):
        masked = ids.clone()
        masked[0, place] = tokenizer.mask_token_id
        later = place + 1
        while tokens[later].startswith("##"):
            masked[0, later] = tokenizer.mask_token_id
            later += 1
        with torch.no_grad():
            logits = network(input_ids=masked).logits
        total += torch.log_softmax(logits[0, place], dim=-1)[ids[0, place]].item()
    return total


def test_scores_are_those_of_an_independent_scorer(tiny_run: Path, tmp_path: Path) -> None:
    pairs = [
        ("Nobody has ever seen the brilliant photographs.", "Somebody has ever seen the brilliant photographs."),
        ("The actresses who liked Mira were laughing.", "The actresses who liked Mira was laughing."),
        ("What did the customer remember about?", "What did the customer remember the about?"),
    ]
    network = transformers.BertForMaskedLM.from_pretrained(tiny_run / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_run / "model")
    expected = [independent_score(network, tokenizer, side) for pair in pairs for side in pair]
    texts = [side for pair in pairs for side in pair]
    ours, own_tokenizer = load_masked_lm(str(tiny_run))
    scores = SentenceScorer(own_tokenizer, ours).scores(ours, texts)
    assert scores == pytest.approx(expected, abs=1e-3)
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    found = probe(str(tiny_run / "model"), pairs=str(tmp_path / "pairs.jsonl"))["acceptability"]
    right = [good > bad for good, bad in zip(expected[::2], expected[1::2], strict=True)]
    assert found["accuracy"] == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("run", ["tiny_run", "tiny_modern_run"])
def test_causal_scores_see_only_the_tokens_before(run: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(run)
    network, tokenizer = load_masked_lm(str(place))
    texts, expected = [*SENTENCES, "Nobody saw it."], []
    for text in texts:  # a row that ends after the token before has no later one to see
        ids = tokenizer(text)["input_ids"]
        rows = [torch.tensor([ids[:count]]) for count in range(1, len(ids) - 1)]
        scores = [network(input_ids=row).logits[0, -1].log_softmax(-1)[ids[row.shape[1]]] for row in rows]
        expected.append(sum(score.item() for score in scores))
    scorer = SentenceScorer(tokenizer, network, causal=True)
    assert scorer.scores(network, texts) == pytest.approx(expected, abs=1e-3)
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"sentence_good": texts[1], "sentence_bad": texts[2]}))
    found = probe(str(place / "model"), pairs=str(tmp_path / "pairs.jsonl"), causal=True)["acceptability"]
    assert found["accuracy"] == float(expected[1] > expected[2])


def test_many_pairs_are_scored_by_compiled_layers(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, programs, original = [], [], torch.nn.Module.compile

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        programs.append(graph)
        return graph

    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, dynamic: original(self, backend=backend))
    monkeypatch.setattr(f"{MODULE}.pays_to_compile", lambda _, tokens: asked.append(tokens) or True)
    monkeypatch.setattr(f"{MODULE}.choose_dtype", lambda *_: torch.float32)
    network, tokenizer = load_masked_lm(str(tiny_run))
    expected = SentenceScorer(tokenizer, network).scores(network, SENTENCES)
    torch._dynamo.reset()
    scorer = SentenceScorer.for_texts(network, tokenizer, SENTENCES)
    assert scorer.scores(scorer.exact, SENTENCES) == pytest.approx(expected, abs=1e-4)
    lengths = [len(ids) for ids in tokenizer(SENTENCES, add_special_tokens=False)["input_ids"]]
    assert asked == [sum(length**2 for length in lengths)] and programs
    monkeypatch.setattr(f"{MODULE}.choose_dtype", lambda *_: torch.bfloat16)
    scorer, count = SentenceScorer.for_texts(network, tokenizer, SENTENCES, causal=True), sum(lengths)
    assert (scorer.quick.dtype, scorer.exact.dtype) == (torch.bfloat16, torch.float32)
    assert asked[1:] == [count, count // 10]  # each text is read once, and the close pairs by the other network


def test_close_pairs_are_read_again_in_fp32_and_the_decisions_are_its_own(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = list(read_texts("sample", split="articles", limit=30))
    words = [text.split()[:7] for text in texts]
    pairs = [(" ".join(each), " ".join([each[1], each[0], *each[2:]])) for each in words]
    pairs.append((pairs[0][0], pairs[0][0]))  # a tie
    network, tokenizer = load_masked_lm(str(tiny_run))
    read, original = [], SentenceScorer.scores

    def counting(scorer: SentenceScorer, model: torch.nn.Module, texts: list[str]) -> np.ndarray:
        read.append((model.dtype, len(texts)))
        return original(scorer, model, texts)

    monkeypatch.setattr(SentenceScorer, "scores", counting)
    exact = SentenceScorer(tokenizer, network).pair_scores(pairs)
    found = SentenceScorer(tokenizer, network, copy.deepcopy(network).to(torch.bfloat16)).pair_scores(pairs)
    assert (np.sign(found[:, 0] - found[:, 1]) == np.sign(exact[:, 0] - exact[:, 1])).all()
    close = 2 * int((np.abs(exact[:, 0] - exact[:, 1]) < CLOSE).sum())
    count = 2 * len(pairs)
    assert read[:2] == [(torch.float32, count), (torch.bfloat16, count)]
    assert read[2][0] == torch.float32 and 0 < read[2][1] <= count and abs(read[2][1] - close) <= 8


def test_scores_that_are_no_numbers_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    network, tokenizer = load_masked_lm(str(tiny_run))
    pair = (SENTENCES[0], SENTENCES[1])
    quick = copy.deepcopy(network)
    torch.nn.init.constant_(next(quick.parameters()), math.nan)  # as where fp16 overflows
    scores = SentenceScorer(tokenizer, network).pair_scores([pair])
    assert np.array_equal(SentenceScorer(tokenizer, network, quick).pair_scores([pair]), scores)
    with pytest.raises(UserError, match="the model's score is not a finite number: 'The film"):
        SentenceScorer(tokenizer, quick).pair_scores([pair])


def test_ties_are_wrong_and_counted_and_phenomena_have_their_own_lines(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def pair(good: str, bad: str, term: str) -> dict[str, str]:
        return {"sentence_good": good, "sentence_bad": bad, "linguistics_term": term}

    unknown = pair("\u4e00 \u4e8c", "\u4e09 \u56db", "binding")  # characters that the vocabulary lacks
    known = pair("Mira saw it.", "saw Mira it.", "argument_structure")
    other = pair("saw Mira it.", "Mira saw it.", "s-selection")
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "one.jsonl").write_text("\n".join(map(json.dumps, [unknown, unknown, known])))
    (folder / "two.jsonl").write_text("\n".join(map(json.dumps, [other, known | {"linguistics_term": None}])))
    found = probe(str(tiny_run / "model"), pairs=str(folder))["acceptability"]
    assert found["phenomena"]["binding"] == {"accuracy": 0.0, "pairs": 2, "ties": 2}
    assert found["phenomena"]["argument_structure"] == {"accuracy": 0.5, "pairs": 2, "ties": 0}
    assert {name: share["ties"] for name, share in found["files"].items()} == {"one": 2, "two": 0}
    assert (found["pairs"], found["ties"]) == (5, 2)
    right = sum(share["accuracy"] * share["pairs"] for share in found["files"].values())
    assert found["accuracy"] == pytest.approx(right / 5)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if " pairs" in line]
    assert [line[1] for line in lines] == ["one", "two", "argument_structure", "binding", "all"]
    assert [" ".join(line[-5:]) == "(2 equal, counted as wrong)" for line in lines] == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}/model"], "nothing to probe"),
        (["{run}/tokenizer", "--texts", "{tmp}/a.txt"], "is not a masked language model"),
        (["{run}", "--texts", "{tmp}/none.txt"], "cannot be read as text"),
        (["{run}/model", "--pairs", "{tmp}/a.txt"], "line 1 of {tmp}/a.txt is not a pair"),
        (["{run}/model", "--pairs", "{tmp}/empty"], "holds no .jsonl file"),
        (["{run}/model", "--texts", "{tmp}/markup.txt"], "holds only markup"),
        (["{run}/model", "--texts", "{tmp}/markup.txt", "--pairs", "{tmp}/a.txt"], "line 1 of"),
    ],
)
def test_a_mistake_is_one_message(
    arguments: list[str], words: str, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("not JSON")
    (tmp_path / "empty").mkdir()
    (tmp_path / "markup.txt").write_text("<br />\n&nbsp;")
    places = {"run": tiny_run, "tmp": tmp_path}
    assert run_here("probe", *(argument.format(**places) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert words.format(**places) in error
    assert len(error.splitlines()) == 1
