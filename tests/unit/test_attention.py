"""The mechanisms of the notebooks: the numbers that must come out, and equality with torch's own modules."""

import pytest
import torch
from torch import Tensor, nn

from bertpre.attention.dot_product import (
    attend,
    causal_mask,
    look_up,
    padding_mask,
    scaled_dot_product_attention,
    simple_self_attention,
)
from bertpre.attention.heads import AttentionHead, MultiHeadAttention, copy_from_torch
from bertpre.attention.recurrent import Seq2Seq
from bertpre.attention.scores import AdditiveScore, BilinearScore, dot_score, scaled_dot_score
from bertpre.attention.transformer import Block, LanguageModel, Translator, VisionTransformer, sinusoidal_positions

WORDS = ["Life", "is", "short", "eat", "dessert", "first"]


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def sentence() -> Tensor:
    """The vectors of six words, indexed by the sorted words; (6, 3)."""
    torch.manual_seed(123)
    return nn.Embedding(50_000, 3)(torch.tensor([sorted(WORDS).index(word) for word in WORDS])).detach()


# ---- dot products ----------------------------------------------------------------------------------------------------


def test_the_second_word_of_the_sentence_has_the_known_scores_weights_and_context() -> None:
    states = sentence()
    torch.manual_seed(123)
    query, key, value = (states @ torch.rand(3, size) for size in (2, 2, 4))
    context, weights = scaled_dot_product_attention(query, key, value)
    assert dot_score(query, key)[1, :3].tolist() == pytest.approx([-0.6004, 3.4707, -1.5023], abs=5e-5)
    assert weights[1].tolist() == pytest.approx([0.0386, 0.6870, 0.0204, 0.0840, 0.1470, 0.0229], abs=5e-5)
    assert context[1].tolist() == pytest.approx([0.5313, 1.3607, 0.7891, 1.3110], abs=5e-5)


def test_scaling_turns_112_and_96_into_14_and_12() -> None:
    query = torch.full((1, 64), 1.0)
    key = torch.stack((torch.full((64,), 112 / 64), torch.full((64,), 96 / 64)))
    assert dot_score(query, key).tolist() == [[112.0, 96.0]]
    assert scaled_dot_score(query, key).tolist() == [[14.0, 12.0]]
    _, weights = scaled_dot_product_attention(query, key, torch.eye(2))
    assert weights[0].tolist() == pytest.approx([0.88, 0.12], abs=5e-3)


def test_simple_self_attention_is_permutation_equivariant() -> None:
    states, order = torch.randn(7, 5), torch.randperm(7)
    mixed, weights = simple_self_attention(states)
    torch.testing.assert_close(simple_self_attention(states[order])[0], mixed[order])
    torch.testing.assert_close(weights.sum(-1), torch.ones(7))
    torch.testing.assert_close(mixed[2], (states @ states[2]).softmax(0) @ states)


def test_a_row_that_may_see_nothing_is_zero_and_has_a_gradient() -> None:
    scores, values = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    mixed, weights = attend(scores, values, mask)
    mixed.sum().backward()
    assert mixed[1].eq(0).all() and weights[1].eq(0).all() and weights[0, 1] == 0
    assert scores.grad is not None and scores.grad.isfinite().all()


def test_attention_becomes_a_look_up_when_scores_grow() -> None:
    query, key, value = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4, 2)
    torch.testing.assert_close(scaled_dot_product_attention(1e4 * query, key, value)[0], look_up(query, key, value))


@pytest.mark.parametrize("scaled", [True, False])
def test_it_is_torchs_function(scaled: bool) -> None:
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    mask = padding_mask(torch.tensor([6, 4]), 6).unsqueeze(1)
    scale = None if scaled else 1.0
    expected = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    score = scaled_dot_score if scaled else dot_score
    torch.testing.assert_close(attend(score(query, key), value, mask)[0], expected)


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_additive_and_bilinear_scores_follow_their_formulas() -> None:
    query, key = torch.randn(2, 3, 5), torch.randn(2, 4, 6)
    additive, bilinear = AdditiveScore(5, 6, hidden_size=8), BilinearScore(5, 6)
    inner = torch.tanh(additive.key.weight @ key[1, 2] + additive.query.weight @ query[1, 0] + additive.query.bias)
    torch.testing.assert_close(additive(query, key)[1, 0, 2], additive.energy.weight[0] @ inner)
    torch.testing.assert_close(bilinear(query, key)[1, 0, 2], key[1, 2] @ bilinear.weight @ query[1, 0])
    assert additive(query, key).shape == bilinear(query, key).shape == (2, 3, 4)


def test_without_its_bias_the_additive_score_is_odd() -> None:
    query, key = torch.randn(3, 5), torch.randn(4, 6)
    odd, free = AdditiveScore(5, 6, 8, bias=False), AdditiveScore(5, 6, 8)
    torch.testing.assert_close(odd(-query, -key), -odd(query, key))
    assert not torch.allclose(free(-query, -key), -free(query, key), atol=1e-3)


# ---- heads -----------------------------------------------------------------------------------------------------------


def test_wide_and_narrow_heads_have_the_known_numbers_of_parameters() -> None:
    def count(module: nn.Module) -> int:
        return sum(weight.numel() for weight in module.parameters())

    assert count(MultiHeadAttention(128, 8, head_dim=128, bias=False)) == 524_288
    assert count(MultiHeadAttention(512, 8, bias=False)) == 4 * 512 * 512
    assert MultiHeadAttention(512, 8).head_dim == 64


def test_many_heads_are_single_heads_side_by_side() -> None:
    together, states = MultiHeadAttention(12, 3, bias=False), torch.randn(2, 5, 12)
    parts = []
    for number in range(3):
        head, rows = AttentionHead(12, 4, 4), slice(4 * number, 4 * number + 4)
        for name in ("query", "key", "value"):
            getattr(head, name).weight.data = getattr(together, name).weight.data[rows]
        parts.append(head(states)[0])
    torch.testing.assert_close(together(states)[0], together.output(torch.cat(parts, -1)))


@pytest.mark.parametrize("is_crossed", [False, True])
def test_many_heads_are_torchs_module(is_crossed: bool) -> None:
    theirs, ours = nn.MultiheadAttention(16, 4, batch_first=True), MultiHeadAttention(16, 4)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    copy_from_torch(ours, theirs)
    states, memory, lengths = torch.randn(3, 5, 16), torch.randn(3, 7, 16), torch.tensor([7, 4, 1])
    source = memory if is_crossed else torch.cat((states, states[:, :2]), 1)
    mask = padding_mask(lengths, 7)
    expected, weights = theirs(states, source, source, key_padding_mask=~mask.squeeze(1), average_attn_weights=False)
    computed, ours_weights = ours(states, mask.unsqueeze(1), source)
    torch.testing.assert_close(computed, expected)
    torch.testing.assert_close(ours_weights, weights)


def test_heads_that_do_not_divide_the_states_are_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        MultiHeadAttention(10, 4)


# ---- recurrent -------------------------------------------------------------------------------------------------------


def small_seq2seq(attends: bool = True) -> tuple[Seq2Seq, Tensor, Tensor, Tensor]:
    source, lengths = torch.randint(1, 20, (3, 7)), torch.tensor([7, 5, 2])
    source *= padding_mask(lengths, 7).squeeze(1)
    return Seq2Seq(20, 30, 16, attends).eval(), source, lengths, torch.randint(1, 30, (3, 6))


def test_padding_of_the_source_changes_nothing() -> None:
    model, source, lengths, target = small_seq2seq()
    logits, weights = model(source, lengths, target)
    alone, _ = model(source[2:, :2], lengths[2:], target[2:])
    torch.testing.assert_close(logits[2:], alone)
    assert weights[2, :, 2:].eq(0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 6))


def test_without_attention_the_decoder_sees_the_last_states_alone() -> None:
    model, source, lengths, target = small_seq2seq(attends=False)
    before, weights = model(source, lengths, target)
    assert weights.eq(0).all() and model.decoder.score is None
    memory, last = model.encoder(source, lengths)
    state = model.decoder.first_state(last)
    logits, _, _ = model.decoder.step(target[:, 0], state, memory * 0, last, padding_mask(lengths, 7))
    torch.testing.assert_close(logits, before[:, 0])


def test_greedy_takes_the_most_probable_token_and_one_beam_does_the_same() -> None:
    model, source, lengths, _ = small_seq2seq()
    tokens, _ = model.greedy(source, lengths, start=1, end=2, longest=9)
    fed = torch.cat((torch.ones(3, 1, dtype=torch.long), tokens[:, :-1]), 1)
    logits, _ = model(source, lengths, fed)
    assert torch.equal(logits[0].argmax(-1), tokens[0])
    ((_, beam),) = model.beam_search(source[0], start=1, end=2, longest=9, beams=1)
    assert beam == tokens[0].tolist()[: len(beam)]


def test_beam_search_finds_the_best_of_all_short_translations() -> None:
    torch.manual_seed(3)
    model, source, lengths = Seq2Seq(20, 5, 16).eval(), torch.randint(1, 20, (1, 4)), torch.tensor([4])
    for weight in model.parameters():
        weight.data *= 3
    end, longest = 2, 3

    def mean_log_probability(ids: list[int]) -> float:
        fed = torch.tensor([[1, *ids[:-1]]])
        with torch.no_grad():
            table = model(source, lengths, fed)[0].log_softmax(-1)[0]
        return sum(table[place, token].item() for place, token in enumerate(ids)) / len(ids)

    others = [token for token in range(5) if token != end]
    every = [[end], *([a, end] for a in others), *([a, b, end] for a in others for b in others)]
    best = max(every, key=mean_log_probability)
    found = model.beam_search(source[0], start=1, end=end, longest=longest, beams=64)
    assert found[0][1] == best
    assert found[0][0] == pytest.approx(mean_log_probability(best), abs=1e-5)


def test_beam_search_is_not_ended_by_many_early_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source, _, _ = small_seq2seq()
    steps = iter(range(99))

    def step(previous: Tensor, state: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None]:
        end = 0.99 if next(steps) == 6 else 0.1  # of token 2; else it is token 1
        return torch.tensor([1e-9, 1 - end, end]).log().expand(len(previous), 3), state, None

    monkeypatch.setattr(model.decoder, "step", step)
    assert model.beam_search(source[0], start=1, end=2, longest=20)[0][1] == [1] * 6 + [2]


# ---- transformer -----------------------------------------------------------------------------------------------------


def test_moving_along_the_sinusoids_is_one_rotation_for_every_position() -> None:
    positions = sinusoidal_positions(50, 8).double()
    shift = torch.linalg.lstsq(positions[:40], positions[5:45]).solution
    torch.testing.assert_close(positions[5:] @ torch.eye(8).double(), positions[:45] @ shift, atol=1e-5, rtol=0)
    assert positions[0].tolist() == [0.0, 1.0] * 4


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_block_is_torchs_encoder_layer(norm_first: bool) -> None:
    theirs = nn.TransformerEncoderLayer(16, 4, 64, 0.0, "gelu", batch_first=True, norm_first=norm_first).eval()
    ours = Block(16, 4, norm_first=norm_first)
    copy_from_torch(ours.attention, theirs.self_attn)
    pairs = {"linear1": ours.feed_forward[0], "linear2": ours.feed_forward[2], "norm1": ours.norms[0],
             "norm2": ours.norms[1]}  # fmt: skip
    for name, module in pairs.items():
        module.load_state_dict(getattr(theirs, name).state_dict())
    states, lengths = torch.randn(3, 5, 16), torch.tensor([5, 3, 1])
    mask = padding_mask(lengths, 5)
    expected = theirs(states, src_key_padding_mask=~mask.squeeze(1))
    computed = ours(states, mask.unsqueeze(1))
    is_token = mask.mT.expand_as(states)
    torch.testing.assert_close(computed[is_token], expected[is_token])
    causal = theirs(states, src_mask=~causal_mask(5))
    torch.testing.assert_close(ours(states, causal_mask(5)), causal)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_block_with_memory_is_torchs_decoder_layer(norm_first: bool) -> None:
    theirs = nn.TransformerDecoderLayer(16, 4, 64, 0.0, "gelu", batch_first=True, norm_first=norm_first).eval()
    ours = Block(16, 4, attends_to_memory=True, norm_first=norm_first)
    copy_from_torch(ours.attention, theirs.self_attn)
    copy_from_torch(ours.cross_attention, theirs.multihead_attn)
    pairs = {"linear1": ours.feed_forward[0], "linear2": ours.feed_forward[2]}
    pairs |= {f"norm{number + 1}": norm for number, norm in enumerate(ours.norms)}
    for name, module in pairs.items():
        module.load_state_dict(getattr(theirs, name).state_dict())
    states, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    mask = padding_mask(torch.tensor([7, 3]), 7)
    expected = theirs(states, memory, tgt_mask=~causal_mask(5), memory_key_padding_mask=~mask.squeeze(1))
    torch.testing.assert_close(ours(states, causal_mask(5), memory, mask.unsqueeze(1)), expected)
    assert ours.weights.shape == (2, 4, 5, 5) and ours.weights[:, :, 0, 1:].eq(0).all()
    assert ours.cross_weights.shape == (2, 4, 5, 7) and ours.cross_weights[1, :, :, 3:].eq(0).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_only_the_causal_model_is_blind_to_what_comes(is_causal: bool) -> None:
    model = LanguageModel(20, 16, 2, 2, longest=8, is_causal=is_causal)
    ids = torch.randint(20, (1, 8))
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % 20
    same = torch.allclose(model(ids)[:, :-1], model(changed)[:, :-1])
    assert same == is_causal


def test_a_translator_does_not_see_the_next_target_nor_the_padding() -> None:
    model, lengths = Translator(20, 20, 16, 2, 1, longest=9), torch.tensor([5])
    source, target = torch.randint(20, (1, 7)), torch.randint(20, (1, 6))
    logits = model(source, padding_mask(lengths, 7), target)
    source[0, 5:] = 0
    target[0, 4:] = 1
    torch.testing.assert_close(model(source, padding_mask(lengths, 7), target)[:, :4], logits[:, :4])


def test_patches_are_cut_row_by_row() -> None:
    model = VisionTransformer(side=4, patch=2, num_classes=3, hidden_size=8, num_heads=2, num_layers=1)
    image = torch.arange(16.0).view(1, 4, 4)
    assert model.patches(image)[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert model(image).shape == (1, 3)
