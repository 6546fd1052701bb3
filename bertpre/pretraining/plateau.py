"""A watch of the plateau where a model predicts from word frequencies alone."""


class PlateauWatch:
    """Says when the MLM loss falls below the `context_free_loss`, and explains a loss that stays there."""

    NEAR = 0.15  # nats
    FALL, MIN_STEPS = 0.02, 300  # the loss should fall by this share within this number of steps

    def __init__(self, context_free_loss: float, architecture: str) -> None:
        self.level, self.architecture = context_free_loss, architecture
        self.history: list[tuple[int, float]] = []
        self.has_left = self.has_warned = False

    def __call__(self, step: int, metrics: dict[str, float]) -> str | None:
        """A message about a log line's loss, once each: that it left the plateau, or that it stays there."""
        if "mlm_loss" not in metrics:  # a causal phase
            return None
        loss = metrics["mlm_loss"]
        if not self.history and loss < self.level - 2 * self.NEAR:
            self.has_left = True  # it started from trained weights, or was resumed
        self.history.append((step, loss))
        if not self.has_left and loss < self.level - 2 * self.NEAR:
            self.has_left = True
            return f"MLM loss fell below {self.level:.2f}, the best possible without context, at step {step}"
        if self.has_left or self.has_warned or not self.stands_still(step, loss):
            return None
        self.has_warned = True
        return self.explain(step, loss)

    def stands_still(self, step: int, loss: float) -> bool:
        """Whether the loss is near the level and has hardly fallen for MIN_STEPS steps."""
        earlier = [value for at, value in self.history if at <= step - self.MIN_STEPS]
        if not earlier or abs(loss - self.level) > 2 * self.NEAR:
            return False
        return loss > (1 - self.FALL) * min(earlier[-3:])

    def explain(self, step: int, loss: float) -> str:
        """The warning, with likely causes."""
        causes = [
            "it is early: with small batches, BERT's own recipe usually stays here for a few thousand steps",
            "the learning rate is too high or too low: try a third and three times training.learning_rate "
            "(with muon also training.muon_learning_rate)",
            "the batch is small: raise training.global_batch_size",
            "labels and text do not match: `bertpre doctor` shows masks, vocabulary and pairs",
        ]
        if self.architecture == "bert":
            causes.insert(
                1,
                "learned positions leave it late: try training.initial_attention=neighbours, or "
                "model.architecture=modern, with training.optimizer=muon",
            )
        listed = "".join(f"\n  {number}. {cause}" for number, cause in enumerate(causes, start=1))
        return (
            f"MLM loss {loss:.2f} has stayed near {self.level:.2f} for {self.MIN_STEPS} steps: at step {step} the "
            f"model still predicts from word frequency alone. Likely causes:{listed}"
        )
