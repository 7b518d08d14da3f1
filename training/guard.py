"""What watches the loss: steps that are no number, and spikes."""

import statistics
from collections import deque
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

WINDOW = 128  # losses that a new one is compared with
LEAST = 32  # before so many there is no verdict
SIGMAS = 8.0
RISE = 0.1  # of the median: with a nearly noiseless loss, eight sigmas are nothing


class Guard:
    """Counts skipped steps and finds spikes: a loss far above those of the last 128 steps.

    Far is more than 8 standard deviations (from the median absolute deviation, which a spike does not move) and more
    than a tenth above their median. The state goes into checkpoints, so a resumed run decides as an unbroken one.
    """

    def __init__(self) -> None:
        self.skipped = 0  # in all
        self.in_a_row = 0
        self.is_high = False  # the last loss was far above those before it
        self.losses: deque[float] = deque(maxlen=WINDOW)

    def skip(self) -> None:
        """A step was left out because its loss or gradient was no number."""
        self.skipped += 1
        self.in_a_row += 1

    def is_spike(self, loss: float) -> bool:
        """Judge the loss of a good step and remember it. Of spikes in a row only the first is one."""
        self.in_a_row = 0
        was_high, self.is_high = self.is_high, False
        if len(self.losses) >= LEAST:
            median = statistics.median(self.losses)
            deviation = 1.4826 * statistics.median(abs(x - median) for x in self.losses)
            self.is_high = loss > median + max(SIGMAS * deviation, RISE * abs(median))
        self.losses.append(
            loss
        )  # spikes too: they do not move a median, and a loss that stays high becomes the measure
        return self.is_high and not was_high

    def forget(self) -> None:
        """Begin anew to gather losses."""
        self.losses.clear()
        self.is_high = False

    def state_dict(self) -> dict[str, Any]:
        counts = {"skipped": self.skipped, "in_a_row": self.in_a_row}
        return counts | {"is_high": self.is_high, "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self.in_a_row, self.is_high = state["skipped"], state["in_a_row"], state["is_high"]
        self.losses = deque(state["losses"], maxlen=WINDOW)


class RunningStatistics:
    """The running statistics of a ResNet's BatchNorms, which a forward pass moves before its step is judged.

    A skipped step puts them back: a NaN in a running mean never heals. A model without BatchNorm costs nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
        self.buffers = [buffer for norm in norms for buffer in norm.buffers()]

    def keep(self) -> None:
        """A step begins."""
        self.kept = [buffer.clone() for buffer in self.buffers]

    def put_back(self) -> None:
        """The step is skipped."""
        for buffer, kept in zip(self.buffers, self.kept, strict=True):
            buffer.copy_(kept)
