"""Every schedule against open_clip_train's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from open_clip_train.scheduler import const_lr, const_lr_cooldown, cosine_lr

from training.schedule import learning_rate
from training.settings import SCHEDULES, Settings


@pytest.mark.parametrize("name", SCHEDULES)
@given(warmup=st.integers(0, 6), middle=st.integers(1, 20), cooldown=st.integers(1, 6), end=st.floats(0, 1e-4))
def test_schedules_equal_openclips(name, warmup, middle, cooldown, end):
    steps = warmup + middle + cooldown
    settings = Settings(lr=3e-4, warmup=warmup, lr_scheduler=name)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = {
        "cosine": lambda: cosine_lr(optimizer, settings.lr, warmup, steps),
        "const": lambda: const_lr(optimizer, settings.lr, warmup, steps),
        "const-cooldown": lambda: const_lr_cooldown(optimizer, settings.lr, warmup, steps, cooldown, 2.0, end),
    }[name]()
    if name == "const-cooldown":
        settings.cooldown, settings.lr_cooldown_power, settings.lr_cooldown_end = cooldown, 2.0, end
    for step in range(steps):
        theirs(step)
        assert learning_rate(step, settings, steps) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_of_warm_up_alone_has_no_division_by_zero(name):
    settings = Settings(lr=1.0, warmup=4, lr_scheduler=name)
    assert [learning_rate(step, settings, 4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
