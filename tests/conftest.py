"""Shared fixtures. Importing the plugin here registers its models for every test."""

import os

# Tests share two cores with each other's subprocesses; results must not depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "2")

import pytest
import torch
from hypothesis import settings

import open_clip_linear  # noqa: F401

# Time is never asserted, as a busy machine is slow; the same examples every time.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
