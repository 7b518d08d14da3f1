"""`python -m training` and `torchrun -m training`: settings from a recipe and options, then the loop."""

import logging
import os
import shlex
import sys

import open_clip_linear  # noqa: F401  (registers the models that --model may name)
from data_prep.errors import DataError
from training import settings
from training.distributed import join
from training.train import TrainingError, train


def main() -> int:
    """Exit code 0 when trained, 1 when the run could not start or go on, 2 for a wrong command line."""
    arguments = settings.parser().parse_args()
    # Random weights are what a run starts from; OpenCLIP warns of them on the root logger.
    logging.getLogger().addFilter(lambda record: "initialized randomly" not in record.getMessage())
    where = f" (process {os.environ['RANK']})" if "RANK" in os.environ else ""
    command = "python -m training " + shlex.join(sys.argv[1:])
    try:
        resolved = settings.resolve(arguments)
        with join() as world:
            train(resolved, world, command)
    except settings.SettingsError as error:
        print(f"error{where}: {error}", file=sys.stderr)
        return 2
    except (DataError, TrainingError) as error:
        print(f"error{where}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error{where}: {error}; the run ended here and may have saved no checkpoint", file=sys.stderr)
        return 1
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        print(f"error{where}: {error} If memory ran out, use fewer workers.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was saved", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
