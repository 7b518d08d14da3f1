"""The learning rate of every step: linear warm-up, then OpenCLIP's cosine, constant, or constant with cool-down."""

import math

from training.settings import Settings


def learning_rate(step: int, settings: Settings, steps: int) -> float:
    """The rate of `step` (from 0) in a run of `steps`, equal to open_clip_train.scheduler's.

    cosine falls as half a cosine that would reach 0 at step `steps`; const stays; const-cooldown stays until the last
    `cooldown` steps, in which it falls to `lr_cooldown_end` with the power `lr_cooldown_power` (1: linearly).
    """
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.lr_scheduler == "cosine":
        progress = (step - settings.warmup) / max(steps - settings.warmup, 1)
        return settings.lr * 0.5 * (1 + math.cos(math.pi * progress))
    begin = steps - settings.cooldown  # const has no cool-down: its cooldown is 0
    if step < begin or not settings.cooldown:
        return settings.lr
    decay = (1 - (step - begin) / settings.cooldown) ** settings.lr_cooldown_power
    return decay * (settings.lr - settings.lr_cooldown_end) + settings.lr_cooldown_end
