"""Shared fixtures. Importing the plugin here registers its models for every test."""

import os

# Tests share two cores with each other's subprocesses; results must not depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "2")

import pytest
import torch
from hypothesis import settings

import open_clip_linear  # noqa: F401

settings.register_profile("no-deadline", deadline=None)  # time is never asserted, and a busy machine is slow
settings.load_profile("no-deadline")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
