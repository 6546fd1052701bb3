"""What a pretraining step measures."""

from types import SimpleNamespace

import torch

from bertpre.training.metrics import PretrainingObjective


def test_pairs_without_a_label_do_not_count() -> None:
    objective, zero = PretrainingObjective(), torch.tensor(0.0)
    outputs = SimpleNamespace(
        loss=zero, mlm_loss=zero, nsp_loss=zero, prediction_logits=torch.ones(3, 1, 4),
        seq_relationship_logits=torch.tensor([[1.0, 0.0]] * 3),
    )  # fmt: skip
    for labels, pairs, accuracy in (([0, 1, -100], 2, 0.5), ([-100, -100, -100], 0, 0.0)):
        batch = {"labels": torch.zeros(3, 1, dtype=torch.long), "next_sentence_label": torch.tensor(labels)}
        counts = objective.counts(batch)
        assert counts["num_pairs_in_batch"] == pairs
        assert objective.measure(outputs, batch, counts)["nsp_accuracy"] == accuracy
