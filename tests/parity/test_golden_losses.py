"""Twenty training steps of each architecture give the listed losses, so no change of the arithmetic goes unnoticed."""

import pytest
import torch

from bertpre.model import BertPreConfig, BertPreForPreTraining
from bertpre.training.optimizer import Muon, build_optimizers, set_learning_rate

VOCABULARY, ROWS, SEQUENCE, SLOTS, STEPS = 64, 8, 16, 3, 20
MUON_RATE = 3e-4  # small, for Muon amplifies the rounding that differs between CPUs
MASK_ID, FIRST_WORD_ID = 4, 5

# `python -m tests.parity.test_golden_losses` prints these lists. A commit that changes them must say why.
GOLDEN = {
    "bert": [
        5.266898, 4.831757, 4.584308, 4.376889, 4.417936, 4.362116, 3.891267, 3.809252, 3.555430, 3.490061,
        3.346056, 3.131435, 3.335816, 3.134008, 2.849360, 3.084155, 2.802651, 2.673277, 3.012386, 2.527029,
    ],
    "modern": [
        4.856513, 4.788939, 4.685568, 4.381674, 4.256316, 4.098972, 3.912431, 3.750055, 3.525354, 3.602460,
        3.336330, 3.196845, 3.269042, 3.120204, 2.941991, 3.155474, 3.018144, 2.845060, 2.991485, 2.992810,
    ],
}  # fmt: skip


def build_model(architecture: str) -> BertPreForPreTraining:
    torch.manual_seed(0)
    return BertPreForPreTraining(
        BertPreConfig(
            architecture=architecture, vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=48, max_position_embeddings=SEQUENCE,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
        )
    )  # fmt: skip


def batch(step: int) -> dict[str, torch.Tensor]:
    """Rows of two segments, the second of which is "random" where it counts in twos; three masks a row; padding."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(4, (ROWS, 1), generator=generator)
    is_random = torch.randint(2, (ROWS, 1), generator=generator)
    is_second = (torch.arange(SEQUENCE) >= SEQUENCE // 2).long()
    words = FIRST_WORD_ID + start + torch.arange(SEQUENCE) * (1 + is_second * is_random)
    lengths = torch.randint(SEQUENCE // 2 + 2, SEQUENCE + 1, (ROWS, 1), generator=generator)
    positions = torch.stack([torch.randperm(SEQUENCE // 2, generator=generator)[:SLOTS] for _ in range(ROWS)])
    return {
        "input_ids": words.scatter(1, positions, MASK_ID),
        "attention_mask": (torch.arange(SEQUENCE) < lengths).long(),
        "token_type_ids": is_second.expand(ROWS, -1),
        "masked_positions": positions,
        "labels": words.gather(1, positions),
        "next_sentence_label": is_random.flatten(),
    }


def train(architecture: str) -> list[float]:
    """The loss before each step."""
    model = build_model(architecture)
    name = "muon" if architecture == "modern" else "adamw"
    optimizers = build_optimizers(model, name, learning_rate=5e-3, weight_decay=0.01, muon_learning_rate=MUON_RATE)
    for optimizer in optimizers:
        if isinstance(optimizer, Muon):
            optimizer.dtype = torch.float32  # on every CPU
    losses = []
    for step in range(STEPS):
        set_learning_rate(optimizers, min(1.0, (step + 1) / 5))
        loss = model(**batch(step)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("architecture", list(GOLDEN))
def test_twenty_steps_give_the_listed_losses(architecture: str) -> None:
    assert train(architecture) == pytest.approx(GOLDEN[architecture], rel=1e-5)


if __name__ == "__main__":
    for architecture in GOLDEN:
        print(architecture, [round(loss, 6) for loss in train(architecture)])
