"""Pretraining's batches: phases, the falling mask rate, shares of processes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DistributedType

from bertpre.data.pairs import IGNORE_INDEX
from bertpre.data.sampler import PairDataset, Position
from bertpre.data.store import open_shards
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.pretraining import batches
from bertpre.pretraining.batches import PretrainingData, cut_padding, filled_share
from bertpre.pretraining.model import initial_model
from bertpre.recipe import load_recipe
from bertpre.training.intervals import wilson_interval
from bertpre.training.micro_batches import rows_of_similar_length


def data_of(run: Path, *overrides: str, accelerator: Any = None) -> PretrainingData:  # noqa: ANN401
    recipe = load_recipe(str(run / "recipe.yaml"), list(overrides))
    accelerator = accelerator or Accelerator(cpu=True)
    return PretrainingData(recipe, load_tokenizer(run / "tokenizer"), run / "data", accelerator)


def process(index: int, count: int) -> SimpleNamespace:
    """What the batches ask of one of several processes."""
    kind, device = DistributedType.MULTI_CPU, torch.device("cpu")
    return SimpleNamespace(process_index=index, num_processes=count, distributed_type=kind, device=device)


def test_under_fsdp_each_process_needs_a_validation_example(tiny_run: Path) -> None:
    two = process(0, 2)
    two.distributed_type = DistributedType.FSDP
    assert len(data_of(tiny_run, "training.eval_pairs=3", accelerator=two).validation) == 2
    with pytest.raises(UserError, match="1 validation examples are too few for 2 processes; raise training.eval_pairs"):
        data_of(tiny_run, "training.eval_pairs=1", accelerator=two)


def test_the_mask_rate_falls_linearly(tiny_run: Path) -> None:
    data = data_of(tiny_run, "training.masked_lm_prob=0.4", "training.masked_lm_prob_end=0.1")
    assert [data.masked_lm_prob_at(share) for share in (0.0, 0.5, 1.0)] == pytest.approx([0.4, 0.25, 0.1])
    counts = [int((data(Position(), share).micro_batches[0]["labels"] != -100).sum()) for share in (0.0, 0.69)]
    assert counts[0] > 1.5 * counts[1]
    assert data_of(tiny_run).masked_lm_prob_at(1.0) == 0.15


def test_a_new_phase_has_its_own_length_and_begins_a_new_epoch(tiny_run: Path) -> None:
    data = data_of(tiny_run)  # shares 0.7 and 0.3, lengths 32 and 48
    assert [data.phase_at(share) for share in (0.0, 0.69, 0.7, 1.0, 1.2)] == [0, 0, 1, 1, 1]
    rounded = data_of(
        tiny_run,
        "training.phases=[{share: 0.1, max_length: 32}, {share: 0.2, max_length: 32}, {share: 0.7, max_length: 48}]",
    )  # 0.1 + 0.2 is more than 0.3
    assert [rounded.phase_at(share) for share in (0.09, 0.1, 0.29, 0.3)] == [0, 1, 1, 2]
    step = data(Position(phase=0, epoch=2, offset=5), 0.7)
    assert step.micro_batches[0]["input_ids"].shape == (8, 48)
    assert step.after == Position(phase=1, epoch=3, offset=8, step=1)  # epoch 2's examples were partly seen
    assert data(step.after, 0.8).after == Position(phase=1, epoch=3, offset=16, step=2)
    # A budget's progress falls a little where a run resumes: the phase stays.
    assert data(step.after, 0.69).after == Position(phase=1, epoch=3, offset=16, step=2)


@pytest.mark.parametrize(("kind", "has_mask"), [("none", False), ("nsp", True), ("sop", True)])
def test_batches_have_an_attention_mask_throughout_or_never(kind: str, has_mask: bool, tiny_run: Path) -> None:
    data = data_of(tiny_run, f"pairs.kind={kind}")
    batches, position = list(data.largest()), Position()
    while position.epoch < 2:
        step = data(position, 0.0)
        batches, position = batches + step.micro_batches, step.after
    assert {"attention_mask" in batch for batch in batches} == {has_mask}
    pad = data.phases[0].collator.special_ids["[PAD]"]
    assert any((batch["input_ids"] == pad).any() for batch in batches) == has_mask


def test_rows_of_a_store_with_less_text_than_one_row_keep_their_attention_mask(tiny_run: Path) -> None:
    (shard,) = open_shards(tiny_run / "data", "train")
    length = len(shard.tokens) + len(shard.documents) + 2
    overrides = (f"training.phases=[{{share: 1.0, max_length: {length}}}]", f"model.max_position_embeddings={length}")
    batch = data_of(tiny_run, "pairs.kind=none", *overrides).largest()[0]
    assert (batch["attention_mask"].sum(1) < length).all()


@pytest.mark.parametrize("kind", ["none", "nsp", "sop"])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_batches_of_several_processes_are_those_of_one(kind: str, count: int, tiny_run: Path) -> None:
    alone = data_of(tiny_run, f"pairs.kind={kind}")
    rows = len(alone.phases[0].dataset.plan(0)[1])
    for position in (Position(), Position(offset=rows - 3)):  # the second step is of two epochs
        whole = alone(position, 0.0)
        shares = [
            data_of(tiny_run, f"pairs.kind={kind}", accelerator=process(index, count))(position, 0.0)
            for index in range(count)
        ]
        assert {share.after for share in shares} == {whole.after}
        for name, values in whole.micro_batches[0].items():
            assert torch.equal(torch.cat([share.micro_batches[0][name] for share in shares]), values), name


def test_a_process_looks_up_no_examples_but_its_own(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, looked_up = data_of(tiny_run, accelerator=process(1, 4)), []
    example = PairDataset.example
    monkeypatch.setattr(PairDataset, "example", lambda *call: looked_up.append(call[1]) or example(*call))
    data(Position(), 0.0)
    assert looked_up == data.phases[0].dataset.take_rows(Position(), 8)[1][2:4].tolist()


def test_the_documents_of_a_step_are_those_of_all_processes(tiny_run: Path) -> None:
    alone, share = data_of(tiny_run), data_of(tiny_run, accelerator=process(1, 4))
    documents = share(Position(), 0.0).documents()
    assert documents == alone(Position(), 0.0).documents()
    assert 1 < len(documents) <= 16 and all(" document " in name for name in documents)


def test_batches_without_pairs_have_no_label_of_them(tiny_run: Path) -> None:
    for kind, has_label in (("none", False), ("nsp", True)):
        data = data_of(tiny_run, f"pairs.kind={kind}")
        batches = [*data(Position(), 0.0).micro_batches, *data.largest(), *data.validation_batches()]
        assert {"next_sentence_label" in batch for batch in batches} == {has_label}


def test_a_causal_phase_predicts_all_tokens_and_validation_stays_masked(tiny_run: Path) -> None:
    phases = "[{share: 0.5, max_length: 32, objective: causal}, {share: 0.5, max_length: 48}]"
    data = data_of(tiny_run, "pairs.kind=none", f"training.phases={phases}")
    masked = data_of(tiny_run, "pairs.kind=none")
    causal, later = (data(Position(phase=number), share).micro_batches[0] for number, share in ((0, 0.0), (1, 0.5)))
    assert (causal["labels"] != -100).sum() == 8 * 31
    assert torch.equal(causal["input_ids"][:, 1:], causal["labels"][:, :-1])
    assert not (causal["input_ids"] == data.phases[0].collator.special_ids["[MASK]"]).any()
    assert later["labels"].shape[1] < 16
    assert set(data.phases[0].sample(4)) == set(causal)
    for ours, theirs in zip(data.validation_batches(), masked.validation_batches(), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("rows", [8, 1200])
def test_a_mixed_phase_is_causal_in_every_other_step(tiny_run: Path, rows: int) -> None:
    phases = "[{share: 1.0, max_length: 32, objective: mixed}]"
    data = data_of(tiny_run, "pairs.kind=none", f"training.phases={phases}", f"training.global_batch_size={rows}")
    assert 8 < len(data.phases[0].dataset.plan(0)[0]) < 1200  # a step may be of more than an epoch
    position, kinds = Position(), []
    for _ in range(4):
        step = data(position, 0.0)
        kinds.append("masked_positions" in step.micro_batches[0])
        position = step.after
    assert kinds == [True, False, True, False]
    assert ["masked_positions" in batch for batch in data.largest()] == [True, False]
    assert "masked_positions" not in data.phases[0].sample(4)
    assert all("masked_positions" in batch for batch in data.validation_batches())


LONG_ROWS = ("training.phases=[{share: 1.0, max_length: 512}]", "model.max_position_embeddings=512")


def test_only_rows_of_much_padding_are_sorted_and_only_on_a_cpu(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))  # no GPU has to be there
    gpu = process(0, 1)
    gpu.device = torch.device("cuda")
    assert [phase.sorts for phase in data_of(tiny_run).phases] == [False, False]
    assert data_of(tiny_run, *LONG_ROWS).phases[0].sorts
    assert not data_of(tiny_run, *LONG_ROWS, "pairs.kind=none").phases[0].sorts
    assert not data_of(tiny_run, *LONG_ROWS, "training.precision=fp32", accelerator=gpu).phases[0].sorts


@pytest.mark.parametrize(("kind", "expected"), [("nsp", True), ("none", False)])
def test_only_padded_rows_leave_their_padding_out_and_differ_in_shape(
    kind: str, expected: bool, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "choose_unpadding", lambda *_: True)
    data = data_of(tiny_run, f"pairs.kind={kind}")
    assert [phase.unpads for phase in data.phases] == [expected, expected]
    assert data.shapes_differ == expected
    monkeypatch.undo()
    assert not data_of(tiny_run).shapes_differ and data_of(tiny_run, *LONG_ROWS).shapes_differ


def test_sorted_rows_without_a_target_or_without_padding_are_batches_too(tiny_run: Path) -> None:
    data = data_of(tiny_run, *LONG_ROWS)
    batch = replace(data.phases[0], sorts=False).first(2)
    batch["labels"] = torch.full_like(batch["labels"], IGNORE_INDEX)
    assert cut_padding(batch)["labels"].shape == (2, 1)
    data.held_out.has_padding = False  # as where no held-out row is short
    assert all("attention_mask" not in batch for batch in data.validation_batches())


def test_the_filled_share_is_that_of_the_attention_mask(tiny_run: Path) -> None:
    phase = data_of(tiny_run, *LONG_ROWS).phases[0]
    mask = replace(phase, sorts=False).first(1024)["attention_mask"]
    assert filled_share(phase.dataset) == pytest.approx(mask.float().mean().item())


def test_sorted_rows_have_no_more_padding_and_slots_than_the_longest_needs(tiny_run: Path) -> None:
    phase = data_of(tiny_run, *LONG_ROWS).phases[0]
    assert phase.micro_batch_size == 4  # rows of 512 tokens, of the 8 of a step
    batches = list(phase.micro_batches(phase.dataset.take(Position(), 30)[0]))
    lengths = [batch["attention_mask"].sum(1) for batch in batches]
    assert [len(rows) for rows in lengths] == [4] * 7 + [2]
    assert torch.cat(lengths).tolist() == sorted(torch.cat(lengths).tolist())
    for batch, rows in zip(batches, lengths, strict=True):
        width, slots = batch["input_ids"].shape[1], batch["labels"].shape[1]
        assert width % 8 == 0 and rows.max() <= width < rows.max() + 8
        assert slots == (batch["labels"] != -100).sum(1).max()
        widths = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), width)
        widths |= dict.fromkeys(("masked_positions", "labels"), slots)
        assert {name: batch[name].shape[1] for name in widths} == widths
    assert batches[0]["input_ids"].shape[1] < batches[-1]["input_ids"].shape[1] < 512


@pytest.mark.parametrize("masking", ["tokens", "words", "spans"])
def test_sorted_rows_have_the_loss_and_gradients_of_padded_ones(masking: str, tiny_run: Path) -> None:
    data = data_of(tiny_run, *LONG_ROWS, f"training.masking={masking}")
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), [*LONG_ROWS, "model.hidden_dropout_prob=0"])
    model = initial_model(recipe, load_tokenizer(tiny_run / "tokenizer"))
    examples, _ = data.phases[0].dataset.take(Position(), 8)
    padded = list(replace(data.phases[0], sorts=False, micro_batch_size=8).micro_batches(examples))
    assert len(padded) == 1 and padded[0]["input_ids"].shape == (8, 512)
    counts = {
        "num_items_in_batch": (padded[0]["labels"] != -100).sum(),
        "num_pairs_in_batch": (padded[0]["next_sentence_label"] != -100).sum(),
    }
    results = []
    for parts in (padded, list(data.phases[0].micro_batches(examples))):
        model.eval().zero_grad()
        loss = sum(model(**batch, **counts).loss for batch in parts)
        loss.backward()
        results.append([loss.detach(), *(weight.grad.clone() for weight in model.parameters())])
    for sorted_rows, padded_rows in zip(*reversed(results), strict=True):
        torch.testing.assert_close(sorted_rows, padded_rows, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("share", "length", "rows"), [(32, 128, 16), (8, 128, 8), (31, 128, 16), (256, 512, 4), (6, 4096, 1)]
)
def test_a_cpu_takes_2048_slots_of_sorted_rows_at_a_time(share: int, length: int, rows: int) -> None:
    assert rows_of_similar_length(share, length) == rows


def test_the_seed_decides_the_masks_too(tiny_run: Path) -> None:
    one, other = (data_of(tiny_run, f"seed={seed}").phases[0] for seed in (1, 2))
    examples, _ = one.dataset.take(Position(), 8)
    batches = [phase.collator(examples) for phase in (one, one, other)]
    assert torch.equal(batches[0]["masked_positions"], batches[1]["masked_positions"])
    assert not torch.equal(batches[0]["masked_positions"], batches[2]["masked_positions"])


def test_an_accuracy_of_pairs_is_judged_by_those_that_have_a_label(tiny_run: Path) -> None:
    data = data_of(tiny_run, "training.eval_pairs=1000")
    labels = [each.is_random_next for each in data.validation if each.is_random_next != IGNORE_INDEX]
    assert 0 < len(labels) < len(data.validation)
    judged = data.judge_pairs(0.6)
    assert judged["nsp_pairs"] == len(labels)
    assert judged["nsp_majority_share"] == max(labels.count(0), labels.count(1)) / len(labels) >= 0.5
    assert judged["nsp_interval"] == wilson_interval(0.6, len(labels))


def test_the_context_free_loss_is_that_of_the_mask_split(tiny_run: Path) -> None:
    losses = [
        data_of(tiny_run, f"training.mask_split={split}").frequencies["context_free_loss"]
        for split in ([0.8, 0.1, 0.1], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0])
    ]
    assert losses[1] < losses[0] < losses[2]  # a word that is shown is known


def test_plans_made_ahead_give_the_same_batches(tiny_run: Path) -> None:
    """As on a GPU."""
    here, ahead = data_of(tiny_run), data_of(tiny_run)
    mine = theirs = Position()
    with ahead.planned_ahead():
        assert all(phase.dataset.make_plan != phase.dataset.plan_group for phase in ahead.phases)
        for progress in (0.0, 0.2, 0.4, 0.8, 0.9):  # both phases
            one, other = here(mine, progress), ahead(theirs, progress)
            for batch, expected in zip(other.micro_batches, one.micro_batches, strict=True):
                assert batch.keys() == expected.keys()
                assert all(torch.equal(batch[name], expected[name]) for name in batch)
            mine, theirs = one.after, other.after
            assert theirs == mine
