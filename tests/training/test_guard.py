import copy
import random

import torch
from torch import nn

from training.guard import LEAST, Guard, RunningStatistics


def falling(steps, noise=0.1, seed=0):
    """A contrastive loss as it falls in training, with noise."""
    rng = random.Random(seed)
    return [5 / (1 + step / 50) + 1 + rng.gauss(0, noise) for step in range(steps)]


def test_a_falling_noisy_loss_has_no_spike():
    for seed in range(20):
        guard = Guard()
        assert not any(guard.is_spike(loss) for loss in falling(500, seed=seed))


def test_of_spikes_in_a_row_the_first_is_one():
    guard = Guard()
    for loss in falling(200):
        guard.is_spike(loss)
    assert [guard.is_spike(loss) for loss in (8.0, 9.0, 2.0, 8.0, 2.0)] == [True, False, False, True, False]


def test_a_loss_that_stays_high_becomes_the_measure():
    guard = Guard()
    spikes = [guard.is_spike(2.0 if step < 200 else 2.4) for step in range(1000)]
    assert spikes.index(True) == 200
    assert sum(spikes) == 1


def test_after_forgetting_there_is_no_verdict():
    guard = Guard()
    for _ in range(100):
        guard.is_spike(2.0)
    guard.forget()
    assert not guard.is_spike(9.0)


def test_before_enough_losses_there_is_no_verdict():
    guard = Guard()
    assert not any(guard.is_spike(loss) for loss in [1.0] * (LEAST - 1) + [100.0])


def test_a_level_loss_may_move_a_tenth():
    guard = Guard()
    for _ in range(100):
        guard.is_spike(2.0)
    assert not guard.is_spike(2.19)
    assert guard.is_spike(2.21)


def test_the_state_goes_on_with_the_same_verdicts():
    guard = Guard()
    guard.skip()
    guard.skip()
    losses = [*falling(300), 9.0]
    for loss in losses[:150]:
        guard.is_spike(loss)
    again = Guard()
    again.load_state_dict(guard.state_dict())
    assert [guard.is_spike(x) for x in losses[150:]] == [again.is_spike(x) for x in losses[150:]]
    assert again.skipped == 2


def test_skips_in_a_row_end_with_a_good_step():
    guard = Guard()
    guard.skip()
    guard.skip()
    assert guard.in_a_row == 2
    guard.is_spike(1.0)
    guard.skip()
    assert (guard.in_a_row, guard.skipped) == (1, 3)


def test_a_skipped_step_leaves_the_running_statistics_as_they_were():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LayerNorm(4)).train()
    model(torch.randn(8, 3))
    before = copy.deepcopy(model.state_dict())
    kept = RunningStatistics(model)
    kept.keep()
    model(torch.full((8, 3), torch.nan))
    assert model[1].running_mean.isnan().all()
    kept.put_back()
    for name, tensor in model.state_dict().items():
        assert tensor.equal(before[name]), name
