"""Shared fixtures. Importing the plugin here registers its models for every test."""

import os

# Tests share two cores with each other's subprocesses; results must not depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "2")

import pytest
import torch

import open_clip_linear  # noqa: F401


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
