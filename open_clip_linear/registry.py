"""Registration with OpenCLIP: the model configs this package ships, and the seam that reads attention specs."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import open_clip
import open_clip.model

from open_clip_linear.attention import KINDS
from open_clip_linear.towers import vit

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registration:
    """What `register` added to OpenCLIP."""

    models: tuple[str, ...]


_registration: Registration | None = None
_own: set[str] = set()  # names a user added, which may be added again


def model_config_dir() -> Path:
    """The folder of the model configs: inside an installed package, or `configs/models` of a checkout."""
    package = Path(__file__).parent
    for folder in (package / "model_configs", package.parent / "configs" / "models"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"no model configs beside {package}: neither model_configs/ (a wheel) nor ../configs/models (a checkout); "
        "install the package again"
    )


def add_model_configs(folder: Path) -> tuple[str, ...]:
    """Register a user's own model-config JSON files with OpenCLIP, which reads them without a word about bad ones.

    Returns:
        The names that were added: the files' stems.

    Raises:
        ValueError: no such folder, no config in it, a file that is no model config or whose attention cannot be
            built, or a name that is taken.
    """
    if not folder.is_dir():
        raise ValueError(f"model configs {folder}: no such folder")
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"model configs {folder}: no *.json file in it")
    for path in paths:
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            open_clip.model.CLIPVisionCfg(**config["vision_cfg"])
            open_clip.model.CLIPTextCfg(**config["text_cfg"])
            config["embed_dim"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is no model config OpenCLIP can use: {type(error).__name__}: {error}") from error
    names = tuple(path.stem for path in paths)
    taken = sorted(set(names) & (set(open_clip.list_models()) - _own))
    if taken:
        raise ValueError(f"model configs {folder}: OpenCLIP has {', '.join(taken)} already; give yours other names")
    _own.update(names)
    open_clip.add_model_config(folder)
    return names


def register() -> Registration:
    """Register the models and the attention kinds with OpenCLIP; calling it again changes nothing.

    Returns:
        The names that were added.

    Raises:
        RuntimeError: one of the model names is taken by another config already.
    """
    global _registration
    if _registration is not None:
        return _registration
    folder = model_config_dir()
    models = tuple(sorted(path.stem for path in folder.glob("*.json")))
    taken = sorted(set(models) & set(open_clip.list_models()))
    if taken:
        raise RuntimeError(
            f"OpenCLIP has models of these names already: {', '.join(taken)}; import open_clip_linear before adding "
            "configs, and give yours other names"
        )
    vit.install()
    open_clip.add_model_config(folder)
    _registration = Registration(models)
    _logger.info("open_clip_linear added %d models and the attention kinds %s", len(models), ", ".join(KINDS))
    return _registration
