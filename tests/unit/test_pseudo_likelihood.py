"""Pseudo-likelihoods against the simple computation: one text, all of its copies, all logits."""

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertpre.data.tokenizer import learn_tokenizer
from bertpre.errors import UserError
from bertpre.finetuning import pseudo_likelihood
from bertpre.finetuning.pseudo_likelihood import (
    refuse_without_causal_mask,
    running_text,
    score_from_left,
    score_tokens,
    word_ends,
)
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForMaskedLM, BertPrePreTrainedModel

SIZES = {
    "vocab_size": 128,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}


class WithoutBase(BertPrePreTrainedModel):
    """A masked language model whose encoder is not where transformers looks for it."""

    base_model_prefix = "elsewhere"

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config)
        self.inner = BertPreForMaskedLM(config)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> transformers.utils.ModelOutput:
        return self.inner(**inputs)


NETWORKS = {
    "bertpre bert": lambda: BertPreForMaskedLM(BertPreConfig(**SIZES)),
    "bertpre modern": lambda: BertPreForMaskedLM(BertPreConfig(**SIZES, architecture="modern")),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZES, pad_token_id=0)),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**SIZES, pad_token_id=0)),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(vocab_size=128, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    ),
    "without base": lambda: WithoutBase(BertPreConfig(**SIZES)),
}


NOT_CAUSAL = {
    "convbert": lambda: transformers.ConvBertForMaskedLM(transformers.ConvBertConfig(**SIZES, embedding_size=16)),
    "deberta-v2": lambda: transformers.DebertaV2ForMaskedLM(
        transformers.DebertaV2Config(**SIZES, relative_attention=True)
    ),
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_tokenizer(iter(["dull fine one two three"] * 3), 128, lowercase=True, max_length=64)


@pytest.fixture(scope="module")
def network() -> PreTrainedModel:
    return build("bertpre modern")


def build(name: str) -> PreTrainedModel:
    """A network with random weights, large enough that tokens differ in likelihood."""
    torch.manual_seed(0)
    network = (NETWORKS | NOT_CAUSAL)[name]().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    return network


def some_rows() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Texts of several lengths, three of them twice, two that differ in one word; and the ends of their words."""
    generator = np.random.default_rng(0)
    rows = [generator.integers(5, 60, size=length) for length in (7, 3, 1, 7, 12, 3)]
    rows += [rows[1], rows[4], rows[0], np.where(np.arange(7) == 3, 61, rows[0])]
    words = [np.arange(len(row)) // 2 for row in rows]
    return rows, [word_ends(each.tolist()) for each in words]


@torch.no_grad()
def simple_scores(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: np.ndarray, ends: np.ndarray
) -> tuple[list[float], list[bool]]:
    """Each token's log-likelihood when it and the rest of its word are masked, and whether it is the likeliest."""
    values, right = [], []
    for place, end in enumerate(ends):
        row = [tokenizer.cls_token_id, *ids.tolist(), tokenizer.sep_token_id]
        row[place + 1 : end + 1] = [tokenizer.mask_token_id] * (end - place)
        logits = network(input_ids=torch.tensor([row])).logits[0, place + 1]
        values.append(logits.log_softmax(-1)[ids[place]].item())
        right.append(logits.argmax().item() == ids[place])
    return values, right


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_those_of_the_simple_computation(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    network = build(name)
    rows, ends = some_rows()
    for word_end in (None, ends):
        scored = score_tokens(network, tokenizer, rows, word_end)
        for number, (ids, (values, right)) in enumerate(zip(rows, scored, strict=True)):
            end = np.arange(len(ids)) + 1 if word_end is None else word_end[number]
            expected = simple_scores(network, tokenizer, ids, end)
            np.testing.assert_allclose(values, expected[0], atol=1e-4)
            assert right.tolist() == expected[1]


@pytest.mark.parametrize("name", NETWORKS)
def test_only_masked_positions_reach_the_vocabulary(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    network = build(name)
    decoder = network.inner.get_output_embeddings() if name == "without base" else network.get_output_embeddings()
    read: list[torch.Size] = []
    hook = decoder.register_forward_pre_hook(lambda _module, inputs: read.append(inputs[0].shape))
    score_tokens(network, tokenizer, [np.array([7, 8, 9, 10])])
    hook.remove()
    assert read == [(4, 6 if name == "without base" else 1, 16)]
    assert network(input_ids=torch.tensor([[7, 8, 9]])).logits.shape == (1, 3, 128)  # no hook is left


def test_equal_copies_are_computed_once(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    one, other = np.array([7, 8, 9, 10]), np.array([7, 8, 30, 10])
    read: list[torch.Tensor] = []
    hook = network.register_forward_pre_hook(
        lambda _module, _inputs, named: read.append(named["input_ids"]), with_kwargs=True
    )
    first, second, again = score_tokens(network, tokenizer, [one, other, one])
    hook.remove()
    assert sum(map(len, read)) == 2 * 4 - 1  # where the words differ, the copies are the same
    assert first[0].tolist() == again[0].tolist()
    assert first[0][2] != second[0][2]


@pytest.mark.parametrize(("constant", "value"), [("TOKENS", 20), ("TOKENS", 1), ("COPIES", 100), ("COPIES", 1)])
def test_the_size_of_batches_changes_nothing(
    constant: str,
    value: int,
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, ends = some_rows()
    expected = score_tokens(network, tokenizer, rows, ends)
    monkeypatch.setattr(pseudo_likelihood, constant, value)
    for (values, right), (other, other_right) in zip(
        score_tokens(network, tokenizer, rows, ends), expected, strict=True
    ):
        np.testing.assert_allclose(values, other, atol=1e-4)
        assert right.tolist() == other_right.tolist()


def test_unknown_tokens_are_counted_and_not_scored(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    unknown, counts = tokenizer.unk_token_id, np.ones(len(tokenizer), dtype=np.int64)
    rows = [np.array([5, unknown, 7, 8]), np.array([unknown, 9])]
    found = running_text(network, tokenizer, rows, counts)
    assert (found["tokens"], found["unknown_tokens"]) == (4, 2)
    scored = np.concatenate([values for values, _ in score_tokens(network, tokenizer, rows)])
    assert found["pseudo_perplexity"] == pytest.approx(np.exp(-scored[[0, 2, 3, 5]].mean()))
    with pytest.raises(UserError, match="every token of the texts is unknown"):
        running_text(network, tokenizer, [np.array([unknown])], counts)


def test_too_long_a_text_is_refused(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [np.full(length, 7) for length in (3, 38, 39)]
    assert len(score_tokens(network, tokenizer, rows[:2])) == 2
    with pytest.raises(UserError, match="a text has 41 tokens, but the model reads 40: shorten it"):
        score_tokens(network, tokenizer, rows)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_that_can_hide_what_follows_is_read_from_the_left(
    name: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    network = build(name)
    refuse_without_causal_mask(network, tokenizer)
    text, other = score_from_left(network, tokenizer, [np.array([7, 8, 9, 10]), np.array([7, 8, 9, 11])])
    np.testing.assert_allclose(text[:-1], other[:-1], atol=1e-5)
    assert abs(text[-1] - other[-1]) > 1e-4


@pytest.mark.parametrize(
    ("name", "words"),
    [("convbert", "reads the tokens that follow"), ("deberta-v2", "takes no mask that hides later tokens")],
)
def test_a_model_that_cannot_hide_what_follows_is_refused(
    name: str, words: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(UserError, match=f"--causal: a {name} {words}"):
        refuse_without_causal_mask(build(name), tokenizer)


def test_a_causal_mask_does_not_replace_a_local_one(tokenizer: PreTrainedTokenizerBase) -> None:
    config = transformers.ModernBertConfig(**SIZES, pad_token_id=0, global_attn_every_n_layers=2, local_attention=16)
    network = transformers.ModernBertForMaskedLM(config).eval()
    assert len(score_from_left(network, tokenizer, [np.full(6, 7)])[0]) == 6
    with pytest.raises(UserError, match="--causal: a text has 9 tokens, more than the 8 that a local layer looks back"):
        score_from_left(network, tokenizer, [np.full(7, 7)])


def test_the_pieces_of_a_word_end_together() -> None:
    assert word_ends([0, 0, 0, 1, 2, 2]).tolist() == [3, 3, 3, 4, 6, 6]
