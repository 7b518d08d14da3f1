"""From a recipe and options to settings: `--config NAME.toml` gives values, options override it."""

import argparse
import ast
import tomllib
from pathlib import Path
from typing import Any

from open_clip_linear.spec import nearest
from training.settings import FIELDS, KINDS, Settings, SettingsError, check, option

EPILOG = """\
example: python -m training --config configs/training/quickstart.toml --model tiny-emoji-softmax --output runs/softmax
         torchrun --nproc-per-node 2 -m training --config configs/training/quickstart.toml --batch-size 64

exit codes: 0 the run is finished; 1 it failed; 2 it was not started (wrong options or data);
            75 a signal (SIGTERM, SIGINT, SIGUSR1) stopped it after a checkpoint: start it again with --resume auto;
            130 Ctrl-C before the first step, or twice: no checkpoint was written for it"""


def parser() -> argparse.ArgumentParser:
    """The command line: one option a setting, plus --config and --dry-run."""
    result = argparse.ArgumentParser(
        prog="python -m training",
        description="Pretrain an OpenCLIP model on webdataset shards, on one process or under torchrun.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument("--config", type=Path, metavar="FILE.toml", help="recipe that gives defaults to all below")
    result.add_argument(
        "--dry-run", action="store_true", help="build everything, time ten steps, say what the run would be, and stop"
    )
    for name, setting in FIELDS.items():
        kind, text = KINDS[name], setting.metadata["help"]
        if kind is bool:
            action = argparse.BooleanOptionalAction
            result.add_argument(option(name), action=action, default=None, help=f"{text} (default: {setting.default})")
        elif kind in (dict, list):
            metavar, element, number = ("KEY=VALUE", str, "*") if kind is dict else ("N", int, "+")
            result.add_argument(option(name), nargs=number, type=element, default=None, metavar=metavar, help=text)
        else:
            allowed = setting.metadata.get("allowed")
            default = f" (default: {setting.default})" if setting.default != "" else ""
            word = None if allowed else kind.__name__.upper()
            result.add_argument(option(name), type=kind, choices=allowed, metavar=word, help=text + default)
    return result


def resolve(arguments: argparse.Namespace) -> Settings:
    """Recipe, then command line, into checked settings.

    Raises:
        SettingsError: see `read_recipe` and `settings.check`.
    """
    values = read_recipe(arguments.config) if arguments.config else {}
    for name in FIELDS:
        given = getattr(arguments, name)
        if given is not None:
            values[name] = _parse_words(given) if name == "aug_cfg" else given
    lengths = {name for name in ("epochs", "max_steps") if getattr(arguments, name) is not None}
    if len(lengths) == 1:  # a length on the command line takes the place of the recipe's, in whichever unit that is
        values[({"epochs", "max_steps"} - lengths).pop()] = 0
    settings = Settings(**values)
    check(settings)
    return settings


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
        if key not in FIELDS:
            known = ", ".join(FIELDS)
            raise SettingsError(f"--config {path}: unknown key {key!r}{nearest(key, FIELDS)}; known: {known}")
    return recipe


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
