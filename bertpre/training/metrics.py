"""What a step measures: numbers that add up over micro-batches and processes to those of the step."""

import sys
from collections.abc import Mapping
from typing import Any, Protocol

import psutil
import torch

from bertpre.data.pairs import IGNORE_INDEX

Batch = Mapping[str, torch.Tensor]

STEPS_WITH_PAIRS = "steps_with_pairs"
STEPS_WITH_TARGETS = {"mlm": "steps_with_masked_tokens", "clm": "steps_with_next_tokens"}  # by objective


class Objective(Protocol):
    """What a training measures; `count_names` are the arguments of the model that say how many targets there are.

    `options` are further ones, the same in every step.
    """

    metric_names: tuple[str, ...]
    count_names: tuple[str, ...]
    options: dict[str, bool]

    def counts(self, batch: Batch) -> dict[str, int]: ...

    def measure(self, outputs: Any, batch: Batch, counts: Mapping[str, Any]) -> dict[str, torch.Tensor]: ...


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


def peak_memory_mb(device: torch.device) -> int:
    """The peak memory so far: on a GPU what torch has allocated there, else this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return memory.peak_wset // 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)
