"""Shares are of absolute values, and the entropy is that of textbooks."""

import math

import pytest
import torch

from evaluate.looking.shares import entropy_of, shares_of


def test_signed_weights_of_any_sum() -> None:
    shares = shares_of(torch.tensor([[2.0, -6.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64))
    assert shares.tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]


def test_entropy_of_even_shares_is_log_n_and_of_one_key_zero() -> None:
    even, one = torch.full((49,), 1 / 49, dtype=torch.float64), torch.tensor([0.0, 1.0, 0.0])
    assert float(entropy_of(even)) == pytest.approx(math.log(49), abs=1e-12)
    assert float(entropy_of(one)) == 0.0
