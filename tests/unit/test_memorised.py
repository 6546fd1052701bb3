"""The warning of a pretraining whose held-out loss was lower before its end."""

from bertpre.commands.pretrain import RISE, memorised


def test_a_held_out_loss_that_has_risen_is_a_warning() -> None:
    losses = (7.96, 2.0, 1.75, 1.9)
    rows = [{"step": 500 * number, "mlm_loss": loss} for number, loss in enumerate(losses)]
    warning = memorised(rows, 75.6)
    assert warning is not None
    assert "was 1.750 at step 1,000 and is 1.900 at the end, after 76 times the text" in warning


def test_a_held_out_loss_that_varies_or_falls_or_rises_in_the_first_epochs_is_none() -> None:
    for losses in ((7.96,), (7.96, 1.9, 1.75), (7.96, 1.75, 1.75 + 0.9 * RISE)):
        assert memorised([{"step": 0, "mlm_loss": loss} for loss in losses], 9.0) is None
    assert memorised([{"step": step, "mlm_loss": 2.0 + step} for step in range(3)], 1.9) is None
    assert memorised([], 9.0) is None  # the log was removed
