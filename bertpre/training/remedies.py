"""What errors advise."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Remedies:
    """What errors advise, in the words of whoever builds the trainer, such as a recipe's keys."""

    memory: str = "use a smaller micro-batch"
    not_finite: str = "lower the learning rate, lengthen the warm-up or compute in fp32"
    budget: str = "the time budget"  # the name of what is too short
    compiler: str = "turn it off"
