"""What pretraining measures: the losses and accuracies of a step, and of a whole set of examples."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bertpre.data.pairs import IGNORE_INDEX
from bertpre.training.batches import add_counts
from bertpre.training.metrics import STEPS_WITH_PAIRS, STEPS_WITH_TARGETS, Batch
from bertpre.training.sharding import is_sharded


class PretrainingObjective:
    """Masked language modelling and, where there are pairs, next-sentence prediction.

    Without masked positions a batch is one of causal language modelling, whose metrics have names of their own.
    """

    def __init__(self, has_pairs: bool = True) -> None:
        self.has_pairs, self.options = has_pairs, {"needs_logits": False}
        self.metric_names = ("loss", "mlm_loss", "mlm_accuracy") + (("nsp_loss", "nsp_accuracy") if has_pairs else ())
        self.count_names = ("num_items_in_batch",) + (("num_pairs_in_batch",) if has_pairs else ())

    def counts(self, batch: Batch) -> dict[str, int]:
        """The batch's masked tokens and its pairs: what its losses are means over."""
        labels = (batch["labels"], batch["next_sentence_label"]) if self.has_pairs else (batch["labels"],)
        return {name: int((label != IGNORE_INDEX).sum()) for name, label in zip(self.count_names, labels, strict=True)}

    def measure(self, outputs: Any, batch: Batch, counts: Mapping[str, float]) -> dict[str, torch.Tensor]:
        """This batch's share of the losses (nats) and accuracies (fractions); `counts` are the whole step's.

        STEPS_WITH_PAIRS adds up to 1 over a step, or to 0 where none of its pairs has a label; so does the entry of
        STEPS_WITH_TARGETS, or to 0 where all tokens are unknown ones.
        """
        if outputs.prediction_logits is None:
            right_tokens = outputs.num_right
        else:
            with torch.no_grad():
                # max() also gives the place of the largest, four times as fast as argmax() on a CPU.
                right_tokens = (outputs.prediction_logits.max(-1).indices == batch["labels"]).sum()
        kind = "mlm" if "masked_positions" in batch else "clm"
        # Clamped tensors, since a GPU's value should not be waited for.
        targets = torch.as_tensor(counts["num_items_in_batch"]).clamp(min=1)
        measured = {
            "loss": outputs.loss.detach(),
            f"{kind}_loss": outputs.mlm_loss.detach(),
            f"{kind}_accuracy": right_tokens / targets,
            STEPS_WITH_TARGETS[kind]: (batch["labels"] != IGNORE_INDEX).sum() / targets,
        }
        if self.has_pairs:
            labels = batch["next_sentence_label"]
            right_pairs = (outputs.seq_relationship_logits.argmax(-1) == labels).sum()
            measured["nsp_loss"] = outputs.nsp_loss.detach()
            pairs = torch.as_tensor(counts["num_pairs_in_batch"]).clamp(min=1)
            measured["nsp_accuracy"] = right_pairs / pairs
            measured[STEPS_WITH_PAIRS] = (labels != IGNORE_INDEX).sum() / pairs
        return measured

    def means(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Means over a whole set, from sums that were measured with all counts set to one.

        Where no pair has a label, nothing is said of pairs.
        """
        tokens, pairs = counts["num_items_in_batch"], counts.get("num_pairs_in_batch", 0)
        averages = {name: value / tokens for name, value in sums.items() if name.startswith("mlm")}
        if pairs:
            averages |= {name: value / pairs for name, value in sums.items() if name.startswith("nsp")}
        return {"loss": averages["mlm_loss"] + averages.get("nsp_loss", 0.0), **averages}


def evaluate_batches(
    accelerator: Accelerator,
    model: nn.Module,
    objective: PretrainingObjective,
    batches: Iterable[Batch],
    dtype: torch.dtype,
) -> dict[str, float]:
    """The objective's metrics over all batches of all processes.

    Runs uncompiled (`forward` is called directly): a second program would cost more than it saves. A sharded model has
    to be called itself, and is never compiled.
    """
    forward, device = (model if is_sharded(model) else model.forward), accelerator.device
    ones = torch.ones((), device=device)
    sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in objective.metric_names}
    counts = dict.fromkeys(objective.count_names, 0)
    with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        for batch in batches:
            batch_counts = objective.counts(batch)
            outputs = forward(**batch, **dict.fromkeys(batch_counts, ones))
            measured = objective.measure(outputs, batch, dict.fromkeys(batch_counts, 1.0))
            sums = {name: value + measured[name].double() for name, value in sums.items()}
            counts = add_counts([counts, batch_counts])
    # A process without a batch takes part with zeros.
    everything = torch.tensor([*map(float, sums.values()), *counts.values()], dtype=torch.float64, device=device)
    total = accelerator.reduce(everything).tolist()
    return objective.means(dict(zip(sums, total, strict=False)), dict(zip(counts, total[len(sums) :], strict=True)))
