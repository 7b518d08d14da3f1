"""Class weights on the disk, so that a checkpoint's prompts are encoded once for each list of classes.

    facts = facts_of(loaded, names, templates)
    weights_DC = read(folder, facts)            # None where there are none yet
    write(folder, facts, weights_DC)

A file is named by the hash of everything the weights depend on: the checkpoint's hash, the model's config with its text
tower and tokenizer, OpenCLIP's version, names, templates. It also holds those facts and a hash of the weights, and one
that is not what its name says (renamed, mixed up, damaged) is refused, never used.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from data_prep.atomic import write_bytes
from evaluate.errors import RefusedError
from evaluate.models import LoadedModel

FORMAT = 1  # raised when the same facts would give other weights
FACTS, DIGEST, WEIGHTS = "facts", "sha256", "weights_DC"
LOG = logging.getLogger(__name__)


def default_folder() -> Path:
    """Where caches are kept on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "open_clip_linear" / "classifiers"


def facts_of(loaded: LoadedModel, names: Sequence[str], templates: Sequence[str]) -> dict[str, Any]:
    """Everything that class weights depend on, as JSON values."""
    return {
        "format": FORMAT,
        "checkpoint_sha256": loaded.sha256,
        "config": loaded.config,
        "open_clip": metadata.version("open_clip_torch"),
        "names_sha256": _digest(json.dumps(list(names)).encode()),
        "classes": len(names),
        "templates": list(templates),
    }


def file_of(folder: Path, facts: Mapping[str, Any]) -> Path:
    """The file for weights of these facts."""
    return folder / f"{_digest(_spelt(facts).encode())[:32]}.safetensors"


def read(folder: Path, facts: Mapping[str, Any]) -> Tensor | None:
    """The weights (D, C) float32 on the CPU; None where no file is there.

    Raises:
        RefusedError: the file is damaged, or holds the weights of other facts.
    """
    path = file_of(folder, facts)
    try:
        if not path.is_file():
            return None
    except OSError:  # a folder that may not be looked into; `write` says so
        return None
    remove = f"Remove it, or give another --classifier-cache ('' for none): rm {path}"
    try:
        with safe_open(path, "pt") as file:
            found = file.metadata() or {}
            weights_DC = file.get_tensor(WEIGHTS)
        if weights_DC.dtype != torch.float32:
            raise KeyError(f"weights of {weights_DC.dtype}")
    except (SafetensorError, OSError, KeyError) as error:
        raise RefusedError(f"the classifier cache {path} is damaged ({error}). {remove}") from error
    if found.get(FACTS) != _spelt(facts):
        raise RefusedError(f"the classifier cache {path} is {_whose(found.get(FACTS), facts)}. {remove}")
    if found.get(DIGEST) != _digest(_bytes(weights_DC)) or weights_DC.shape[1:] != (facts["classes"],):
        raise RefusedError(f"the classifier cache {path} is damaged (its weights' sha256 differs). {remove}")
    return weights_DC


def write(folder: Path, facts: Mapping[str, Any], weights_DC: Tensor) -> None:
    """Keep the weights; where the disk does not let us, say so and go on."""
    weights_DC = weights_DC.detach().float().cpu().contiguous()
    content = save({WEIGHTS: weights_DC}, {FACTS: _spelt(facts), DIGEST: _digest(_bytes(weights_DC))})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(file_of(folder, facts), content)
    except OSError as error:
        LOG.warning("the classifier is not kept in %s: %s", folder, error.strerror)


def _spelt(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)


def _bytes(weights_DC: Tensor) -> bytes:
    return weights_DC.numpy().tobytes()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _whose(text: str | None, facts: Mapping[str, Any]) -> str:
    """Whose weights a file holds that are not those of `facts`."""
    try:
        found = json.loads(text or "")
        differing = [name for name in facts if found.get(name) != facts[name]]
    except (ValueError, AttributeError):
        return "not one of ours"
    if "checkpoint_sha256" in differing:
        return f"of another checkpoint (sha256 {str(found.get('checkpoint_sha256'))[:16]}…)"
    return f"of another classifier ({', '.join(differing)} differ)"
