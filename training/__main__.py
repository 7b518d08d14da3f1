"""`python -m training` and `torchrun -m training`: settings from a recipe and options, then the loop."""

import json
import logging
import os
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import torch

import open_clip_linear  # noqa: F401  (registers the models that --model may name)
from data_prep.errors import DataError
from evaluate.errors import RefusedError
from training import command_line, folder
from training.checkpoint import CheckpointError
from training.distributed import end_with_torchrun, join, peer_lost
from training.dry_run import dry_run
from training.settings import SettingsError
from training.signals import EXIT_STOPPED, StopRequest
from training.train import TrainingError, train


def main() -> int:
    """The exit code; `--help` says what each means."""
    for stream in (sys.stdout, sys.stderr):  # a member's name may hold what no encoding has
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    arguments = command_line.parser().parse_args()
    # Random weights are what a run starts from; OpenCLIP warns of them on the root logger.
    logging.getLogger().addFilter(lambda record: "initialized randomly" not in record.getMessage())
    where = f" (process {os.environ['RANK']})" if "RANK" in os.environ else ""
    command = "python -m training " + shlex.join(sys.argv[1:])
    stop = StopRequest()
    end_with_torchrun()
    try:
        settings = command_line.resolve(arguments)
        with join() as world, ExitStack() as held:
            if arguments.dry_run:
                figures = dry_run(settings, world)
                if world.is_first:
                    print(json.dumps(figures, indent=2))
                return 0
            run = Path(settings.output) / settings.name
            world.from_first(lambda: held.enter_context(folder.locked(run)))
            finished = train(settings, world, command, stop)
        return 0 if finished else EXIT_STOPPED
    except torch.OutOfMemoryError as error:
        print(
            f"error{where}: {error}\nUse a smaller --batch-size with a larger --accum-freq (the gradients stay those "
            "of the full batch), --grad-checkpointing, or --fsdp",
            file=sys.stderr,
        )
        return 1
    except (SettingsError, RefusedError) as error:
        print(f"error{where}: {error}", file=sys.stderr)
        return 2
    except (DataError, CheckpointError, TrainingError) as error:
        print(f"error{where}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error{where}: {error}; checkpoints written before are whole", file=sys.stderr)
        return 1
    except RuntimeError as error:
        if lost := peer_lost(error):
            text = f"another process of the run ended or cannot be reached: {lost}"
        elif "DataLoader worker" in str(error):
            text = f"{error} If memory ran out, use fewer workers."
        else:
            raise
        print(f"error{where}: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"ended at once by {stop.name}; --resume auto continues from the last checkpoint, if any", file=sys.stderr
        )
        return 130 if stop.name == "SIGINT" else EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main())
