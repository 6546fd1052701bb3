"""`bertpre doctor`: says what the machine can do, repeats the audit, finds damage, and writes nothing."""

from pathlib import Path

import pytest

from bertpre.commands.doctor import doctor
from bertpre.errors import UserError
from bertpre.recipe import load_recipe
from bertpre.run_directory import read_results
from tests.helpers import copy_run, tree_hash


def examine(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    doctor(load_recipe(str(run / "recipe.yaml"), [f"output_dir={run}"]))
    return capsys.readouterr().out


def test_it_repeats_the_audit_and_counts_the_masks(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree_hash(tiny_run)
    told, figures = examine(tiny_run, capsys), read_results(tiny_run)["prepare"]
    assert tree_hash(tiny_run) == before
    assert "GFLOP/s in fp32" in told or "GFLOP/s in float32" in told
    assert "GiB of disk" in told
    assert "torch.compile: " in told
    assert "agree with their checksums" in told
    assert f"{figures['tokens']:,} tokens, about {figures['pairs']:,} examples per epoch" in told
    assert f"unigram entropy {figures['unigram_entropy']:.3f} nats" in told
    assert "of the tokens are targets" in told


def test_without_data_it_says_what_makes_it(
    tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(load_recipe(str(tiny_recipe), []))
    assert "`bertpre prepare` makes it" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_a_flipped_bit_and_another_tokenizer_are_found(
    tiny_run: Path, tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(tiny_run, tmp_path / "copy", "prepare")
    file = next((run / "data").glob("*.tokens.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"{file.name} is missing or damaged"):
        examine(run, capsys)
    content[-1] ^= 1
    file.write_bytes(content)
    (run / "tokenizer" / "tokenizer.json").write_text(
        (run / "tokenizer" / "tokenizer.json").read_text().replace('"the"', '"teh"')
    )
    with pytest.raises(UserError, match="made with another tokenizer"):
        examine(run, capsys)


def test_it_rehearses_the_training_and_writes_nothing(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree_hash(tiny_run)
    told = examine(tiny_run, capsys)
    assert tree_hash(tiny_run) == before
    assert "phase 1: 8 pairs of 32 tokens a step = 8 in a pass x 1 passes x 1 processes" in told
    assert "the largest batches fit" in told
    assert "training.max_steps ends it after about 10 steps" in told
    assert "one batch learned by heart: MLM loss 6." in told
    assert "checkpoints of" in told


@pytest.mark.parametrize(
    ("overrides", "finding"),
    [
        ([], "! fewer than 100 steps"),
        (["training.learning_rate=0.5"], "! training.learning_rate is 0.5; with adamw 2e-05 to 0.001 is usual"),
        (["training.learning_rate=1e-7"], "! a batch shown again and again is not learned"),
        (["training.warmup=0"], "! post-LN without warm-up tends to diverge"),
        (["training.optimizer=muon", "training.muon_learning_rate=3"], "! training.muon_learning_rate is 3"),
        (["training.masked_lm_prob=0.9"], "! training.masked_lm_prob is 0.9"),
        (["training.global_batch_size=4096"], "! a step takes more pairs than the corpus gives"),
    ],
)
def test_a_finding_comes_with_its_remedy(
    overrides: list[str], finding: str, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={tiny_run}", *overrides]))
    assert finding in capsys.readouterr().out
