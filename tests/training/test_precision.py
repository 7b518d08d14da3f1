"""Precisions by name, and the scaling of float16's losses."""

import torch
from torch import nn

from training.precision import autocast, precision_of, scaler_of
from training.settings import Settings

CPU = torch.device("cpu")


def test_auto_follows_the_hardware_and_a_name_stays(monkeypatch):
    for answer, expected in ((True, "amp_bf16"), (False, "fp32")):
        monkeypatch.setattr("training.precision.computes_in_bf16", lambda device, answer=answer: answer)
        assert precision_of(Settings(), CPU) == expected
    assert precision_of(Settings(precision="amp"), CPU) == "amp"


def test_products_are_computed_in_the_precision_named():
    layer, x = nn.Linear(8, 8), torch.randn(2, 8)
    for precision, dtype in (("fp32", torch.float32), ("amp_bf16", torch.bfloat16), ("amp", torch.float16)):
        with autocast(precision, CPU):
            assert layer(x).dtype == dtype


def test_only_float16_scales_its_losses_and_skips_an_overflow():
    assert scaler_of("fp32", CPU) is None
    assert scaler_of("amp_bf16", CPU) is None
    scaler = scaler_of("amp", CPU)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], fused=True)
    scaler.scale(weight.sum() * torch.inf).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    assert torch.equal(weight.detach(), torch.ones(3))
    assert scaler.get_scale() == before / 2
