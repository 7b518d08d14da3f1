"""The Python that has img2dataset: whether it is there, and the environment that it starts in.

check_program("i2d/bin/python")
subprocess.Popen(["i2d/bin/python", "-m", "data_prep.laion.fetch", …], env=environment("i2d/bin/python"))
"""

import os
import subprocess
import sys
from pathlib import Path
from urllib.request import getproxies_environment

from data_prep.errors import DataError

_ROOT = Path(__file__).resolve().parents[2]


def check_program(python: str) -> None:
    """That `python` is there and has img2dataset.

    Raises:
        DataError: one of the two is not.
    """
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('img2dataset') is None)"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    except OSError as error:
        raise DataError(f"{python} does not start ({error.strerror}); name another by --img2dataset-python") from None
    if not found:
        raise DataError(
            f"{python} has no img2dataset; install it there (pip install 'img2dataset>=1.47', Python 3.11 or 3.12), or "
            "name the Python of an environment that has it by --img2dataset-python"
        )


def warn_of_proxies() -> None:
    """Say so where the environment names proxies, which are not used (http.py says why)."""
    if named := sorted(f"{kind}_proxy" for kind in getproxies_environment() if kind in ("http", "https", "all")):
        print(
            f"{' and '.join(named)} of the environment not used: pictures are fetched straight from public addresses, "
            "so this machine must reach them itself",
            file=sys.stderr,
            flush=True,
        )


def environment(python: str) -> dict[str, str]:
    """Where this checkout's modules are, and for Spark the Python, also for the workers; a thread each in libraries."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}  # which would tell others of the run
    python = os.path.abspath(python) if os.sep in python else python
    return {"PYSPARK_PYTHON": python, **os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", **quiet}
