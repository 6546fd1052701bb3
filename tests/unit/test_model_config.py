"""The configuration accepts only values that a model can be built from, and names the wrong one."""

import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassError

from bertpre.model import BertPreConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "roberta"}, "architecture must be one of bert, modern"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": 32.0}, "hidden_size"),
        ({"hidden_size": 30, "num_attention_heads": 4}, "multiple of num_attention_heads"),
        ({"num_attention_heads": 0}, "multiple of num_attention_heads"),
        ({"architecture": "modern", "hidden_size": 9, "num_attention_heads": 3}, "even head dimension"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob must be in \[0, 1\)"),
        ({"rope_theta": -1.0}, "rope_theta must be positive"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, "as rope_theta"),
        ({"is_decoder": True}, "is_decoder is not read"),
        ({"vocab_size": 4}, "mask_token_id"),
        ({"classifier_pooling": "max"}, "classifier_pooling must be one of cls, mean"),
        ({"architecture": "bert", "classifier_pooling": "mean"}, "'mean' needs 'modern'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be True"),
    ],
)
def test_wrong_value_is_named(fields: dict, message: str) -> None:
    with pytest.raises(StrictDataclassError, match=message):
        BertPreConfig(**fields)


def test_probabilities_may_be_integers() -> None:
    config = BertPreConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, classifier_dropout=0)
    assert config.hidden_dropout_prob == 0


def test_every_field_survives_saving(tmp_path: Path) -> None:
    config = BertPreConfig(
        architecture="modern", vocab_size=99, hidden_size=24, num_attention_heads=2, rope_theta=500.0,
        classifier_pooling="mean", classifier_dropout=0.3, num_labels=5, problem_type="regression", pad_token_id=7,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert BertPreConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_options_of_a_tokenizer_do_not_count_as_fields(tmp_path: Path) -> None:
    BertPreConfig(truncation="head_tail").save_pretrained(tmp_path)
    for asked in (True, False):  # AutoTokenizer passes its own on, which tell whether to cut texts
        assert BertPreConfig.from_pretrained(tmp_path, truncation=asked).truncation == "head_tail"
    assert BertPreConfig.from_pretrained(tmp_path, truncation="tail").truncation == "tail"


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import bertpre, bertpre.model, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
