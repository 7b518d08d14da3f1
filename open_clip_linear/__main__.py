"""`python -m open_clip_linear MODULE ARGS...`: run any module with this package's models known to OpenCLIP.

OpenCLIP's trainer and the tools built on it know the models of the process they run in, and have no option that would
import one more package. This command imports the plugin and then runs MODULE as `python -m MODULE ARGS...` would: same
`sys.argv`, same `sys.path`, same exit code, and its errors are its own. `list` and `convert` are commands of this
package and never taken for modules.

A process that MODULE starts by `spawn` or `forkserver` imports MODULE and not this command: if it creates models by
name (DataLoader workers create none), MODULE must import open_clip_linear itself.
"""

import difflib
import importlib
import importlib.util
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from open_clip_linear.registry import add_model_configs

COMMANDS = {"list": "open_clip_linear.listing", "convert": "open_clip_linear.convert.command"}
USAGE = """usage: python -m open_clip_linear [--model-configs DIR] MODULE ARGS...
       python -m open_clip_linear list [--json]
       python -m open_clip_linear convert ...
       python -m open_clip_linear --help
"""
HELP = f"""{USAGE}
MODULE ARGS...  run a module as `python -m MODULE ARGS...` does, with this package's models known to OpenCLIP
--model-configs DIR  let OpenCLIP know the model-config JSON files of a folder as well
list            the models, with their attention, parameters and multiply-adds
convert         turn a checkpoint of one attention kind into another

examples:
  python -m open_clip_linear list
  python -m open_clip_linear convert --from stock.pt --to-model ViT-B-16-eq7 --output ViT-B-16-eq7.pt
  python -m open_clip_linear open_clip_train.main --model ViT-S-16-eq7 --train-data 'shards/{{000000..000099}}.tar' ...
  torchrun --nproc-per-node 2 -m -- open_clip_linear open_clip_train.main --model ViT-S-16-eq7 --logs logs ...

Without the `--`, torchrun on many Pythons refuses --logs: it takes it for an abbreviation of its own options.
"""


def is_missing(name: str) -> bool:
    """Whether there is no such module. Imports its parent packages, whose own errors pass through."""
    if not name or name.startswith("."):
        return True
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError as error:
        # A parent that is not there is named by the error; anything else is missing inside a parent that is.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return True
        raise


def nearest_module(name: str) -> str | None:
    """The module or command closest to `name`, found part by part and without importing anything."""
    found: list[str] = []
    path: Sequence[str] | None = None
    for part in name.split("."):
        spec = PathFinder.find_spec(".".join([*found, part]), path)
        if spec is None:
            known = [module.name for module in pkgutil.iter_modules(path)] + ([] if found else list(COMMANDS))
            close = difflib.get_close_matches(part, known, n=1)
            if not close:
                return None
            part = close[0]
            spec = PathFinder.find_spec(".".join([*found, part]), path)
        found.append(part)
        path = list((spec and spec.submodule_search_locations) or [])
    return ".".join(found)


def why_not(name: str) -> str | None:
    """A sentence that says why `name` cannot be run as a module, or None."""
    file = Path(name)
    if name.endswith(".py") and file.is_file():
        module = ".".join(part for part in file.with_suffix("").parts if part not in (".", ".."))
        if file.is_absolute():
            module = f"{file.stem}, from its folder"
        return f"{name!r} is a file; give the module's name as after `python -m`, such as {module}"
    if is_missing(name):
        close = nearest_module(name)
        hint = f"; did you mean {close!r}?" if close else ""
        return f"there is no module {name!r}, neither installed nor in the current folder{hint}"
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None and is_missing(f"{name}.__main__"):
        return f"{name!r} is a package without a __main__ module, so there is nothing to run; name one of its modules"
    return None


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a module as `python -m` does; its exceptions, SystemExit among them, pass through."""
    sys.argv[:] = [name, *arguments]  # runpy puts the module's file in the name's place
    if reason := why_not(name):
        print(f"error: {reason}", file=sys.stderr)
        return 2
    runpy.run_module(name, run_name="__main__", alter_sys=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of this package, or a module; returns the exit code, 2 for a wrong command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv:
        print(USAGE, end="", file=sys.stderr)
        return 2
    if argv[0] == "--model-configs":
        if len(argv) < 3:
            print(f"{USAGE}error: --model-configs needs a folder and a MODULE after it", file=sys.stderr)
            return 2
        if argv[2] in COMMANDS:
            print(f"{USAGE}error: --model-configs stands before a MODULE, not before {argv[2]}", file=sys.stderr)
            return 2
        try:
            add_model_configs(Path(argv[1]))
        except ValueError as error:
            print(f"error: --model-configs: {error}", file=sys.stderr)
            return 1
        argv = argv[2:]
    command, *rest = argv
    if command in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if command in COMMANDS:
        return importlib.import_module(COMMANDS[command]).main(rest)
    if command.startswith("-"):
        print(f"{USAGE}error: unknown option {command!r}; MODULE's own options stand after MODULE", file=sys.stderr)
        return 2
    return run(command, rest)


if __name__ == "__main__":
    sys.exit(main())
