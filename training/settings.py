"""What a run is: every setting, its default, and where it may come from.

A recipe (`--config NAME.toml`) gives values, options on the command line override it, and whatever is unknown or
out of range is refused before anything is built. Option names are OpenCLIP's where the meaning is the same.
"""

import argparse
import ast
import math
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import open_clip
import timm.optim
from open_clip.transform import AugmentationCfg, image_transform
from PIL import Image

from open_clip_linear import add_model_configs
from open_clip_linear.spec import nearest

PRECISIONS = ("auto", "fp32", "amp_bf16")


class SettingsError(ValueError):
    """A setting that cannot be used; the message says which, what was found and what is allowed."""


def _setting(default: Any, help: str, **metadata: Any) -> Any:
    """A field with its help text; the option's name is the field's with dashes."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": help, **metadata})
    return field(default=default, metadata={"help": help, **metadata})


@dataclass
class Settings:
    """The resolved settings of a run. `batch_size` is per process, as in OpenCLIP."""

    model: str = _setting("", "name of a model config, such as ViT-B-16-eq7mean")
    model_configs: str = _setting("", "folder of further model-config JSON files that --model may name")
    train_data: str = _setting("", "folder of shards with a manifest.jsonl")
    output: str = _setting("", "folder of the run; must not hold a finished run")
    steps: int = _setting(0, "optimizer steps of the whole run", least=1)
    batch_size: int = _setting(64, "image-text pairs per process and step", least=1)
    opt: str = _setting("adamw", "adamw, or timm/NAME for one of timm's optimizers, such as timm/nmuon")
    lr: float = _setting(5e-4, "peak learning rate", least=0)
    wd: float = _setting(0.2, "weight decay of matrices and embeddings", least=0)
    beta1: float = _setting(0.9, "the optimizer's first-moment decay", least=0, below=1)
    beta2: float = _setting(0.98, "the optimizer's second-moment decay", least=0, below=1)
    eps: float = _setting(1e-6, "the optimizer's epsilon", least=0)
    warmup: int = _setting(100, "steps of linear warm-up, of the total", least=0)
    grad_clip_norm: float = _setting(0.0, "clip the gradient's norm to this; 0 does not clip", least=0)
    precision: str = _setting("auto", "auto is amp_bf16 where the hardware has bf16, else fp32", allowed=PRECISIONS)
    workers: int = _setting(1, "data-loading processes per training process", least=0)
    seed: int = _setting(0, "seed of weights, sample order and augmentation", least=0, below=2**31)
    shuffle_buffer: int = _setting(5000, "samples held back for shuffling, per worker", least=1)
    unique_key: str = _setting(
        "",
        "JSON field of a sample of which no two in a global batch may share a value (for small sets where several "
        "pictures have one caption and would count as negatives of each other); every process then reads all shards, "
        "and samples left over at the end of an epoch wait for another",
    )
    log_every_n_steps: int = _setting(10, "steps between lines of metrics.jsonl", least=1)
    aug_cfg: dict[str, Any] = _setting({}, "OpenCLIP's augmentation settings, as key=value words")


_FIELDS = {f.name: f for f in fields(Settings)}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_recipe(path: Path) -> dict[str, Any]:
    """The settings of a TOML recipe.

    Raises:
        SettingsError: the file cannot be read, is not TOML, or has a key that is no setting.
    """
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:  # TOML and UTF-8 errors
        raise SettingsError(f"--config {path} is not TOML: {error}") from None
    for key in recipe:
        if key not in _FIELDS:
            known = ", ".join(_FIELDS)
            raise SettingsError(f"--config {path}: unknown key {key!r}{nearest(key, _FIELDS)}; known: {known}")
    return recipe


def parser() -> argparse.ArgumentParser:
    """The command line: one option a setting, plus --config."""
    result = argparse.ArgumentParser(
        prog="python -m training",
        description="Pretrain an OpenCLIP model on webdataset shards, on one process or under torchrun.",
        epilog="example: python -m training --config configs/training/quickstart.toml --model tiny-emoji-softmax "
        "--output runs/softmax\n"
        "         torchrun --nproc-per-node 2 -m training --config configs/training/quickstart.toml --batch-size 64",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument("--config", type=Path, metavar="FILE.toml", help="recipe that gives defaults to all below")
    for name, setting in _FIELDS.items():
        text = setting.metadata["help"]
        if name == "aug_cfg":
            result.add_argument(_option(name), nargs="*", default=None, metavar="KEY=VALUE", help=text)
            continue
        kind = setting.type if isinstance(setting.type, type) else str
        default = f" (default: {setting.default})" if setting.default != "" else ""
        result.add_argument(
            _option(name),
            type=kind,
            default=None,
            choices=setting.metadata.get("allowed"),
            metavar=None if "allowed" in setting.metadata else kind.__name__.upper(),
            help=text + default,
        )
    return result


def resolve(arguments: argparse.Namespace) -> Settings:
    """Recipe, then command line, into checked settings.

    Raises:
        SettingsError: see `read_recipe` and `check`.
    """
    values = read_recipe(arguments.config) if arguments.config else {}
    for name in _FIELDS:
        given = getattr(arguments, name)
        if given is not None:
            values[name] = _parse_words(given) if name == "aug_cfg" else given
    settings = Settings(**values)
    check(settings)
    return settings


def _parse_words(words: list[str]) -> dict[str, Any]:
    """`scale=(0.5,1.0)` words as a dict of Python literals."""
    result: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise SettingsError(f"--aug-cfg {word!r}: write key=value")
        try:
            result[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            result[key] = value
    return result


def check(settings: Settings) -> None:
    """Raise SettingsError for the first setting that cannot work."""
    for name, setting in _FIELDS.items():
        value, kind = getattr(settings, name), setting.type
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 1e300 else math.inf
            setattr(settings, name, value)
        elif name != "aug_cfg" and (not isinstance(value, kind) or isinstance(value, bool)):  # type: ignore[arg-type]
            raise SettingsError(f"{name} must be {getattr(kind, '__name__', kind)}, found {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{name} must be a finite number, found {value!r}")
        below = setting.metadata.get("below")
        if below is not None and not value < below:
            raise SettingsError(f"{name} must be less than {below}, found {value!r}")
        least, allowed = setting.metadata.get("least"), setting.metadata.get("allowed")
        if least is not None and not value >= least:
            raise SettingsError(f"{name} must be at least {least}, found {value!r}")
        if allowed and value not in allowed:
            raise SettingsError(f"{name} must be one of {', '.join(allowed)}, found {value!r}")
    for name in ("model", "train_data", "output"):
        if not getattr(settings, name):
            raise SettingsError(f"{_option(name)} is missing: give it as an option or in the recipe")
    if settings.model_configs:
        try:
            add_model_configs(Path(settings.model_configs))
        except ValueError as error:
            raise SettingsError(f"--model-configs: {error}") from error
    if settings.model not in open_clip.list_models():
        raise SettingsError(f"--model {settings.model!r} is unknown{nearest(settings.model, open_clip.list_models())}")
    config = open_clip.get_model_config(settings.model)
    if "multimodal_cfg" in config or "init_logit_bias" in config:
        raise SettingsError(f"--model {settings.model!r} is a CoCa or SigLIP model; this trainer has CLIP's loss only")
    optimizers = ["adamw", *(f"timm/{name}" for name in timm.optim.list_optimizers())]
    if settings.opt not in optimizers:
        raise SettingsError(f"--opt {settings.opt!r} is unknown{nearest(settings.opt, optimizers)}")
    if settings.warmup > settings.steps:
        raise SettingsError(f"warmup ({settings.warmup}) must not exceed steps ({settings.steps})")
    _check_augmentation(settings.aug_cfg)


def _check_augmentation(aug_cfg: Any) -> None:
    known = [f.name for f in fields(AugmentationCfg)]
    if not isinstance(aug_cfg, dict):
        raise SettingsError(f"aug_cfg must be a table, found {aug_cfg!r}")
    for key in aug_cfg:
        if key not in known:
            raise SettingsError(f"aug_cfg: unknown key {key!r}{nearest(key, known)}; known: {', '.join(known)}")
    try:
        image_transform(8, is_train=True, aug_cfg=aug_cfg)(Image.new("RGB", (16, 16)))
    except Exception as error:  # torchvision and timm raise many kinds for values they cannot use
        reason = str(error).strip() or type(error).__name__
        raise SettingsError(f"aug_cfg {aug_cfg} cannot be used by OpenCLIP: {reason}") from error
