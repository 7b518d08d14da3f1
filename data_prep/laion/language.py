"""The language of captions, by py3langid (97 languages, BSD, 5 MB), which is installed only by those who ask for it.

About 60 µs a caption on one core: 10 M rows take ten minutes more. On a few words it is wrong now and then.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from data_prep.errors import DataError, UsageError

PACKAGE = "py3langid"


class Spoken:
    """Which captions are in one language, given as its ISO 639-1 code."""

    def __init__(self, code: str) -> None:
        self._code, self._package = code, _package()
        known = sorted(found for found, _ in self._package.rank("a"))
        if code not in known:
            raise UsageError(f"--language {code!r} is none of {', '.join(known)}")

    def __call__(self, captions: Sequence[str]) -> np.ndarray:
        """bool (N,)."""
        return np.array([self._package.classify(caption)[0] == self._code for caption in captions], dtype=bool)


def package_version() -> str:
    """What a plan says of the package, whose next version may judge otherwise.

    Raises:
        DataError: it is not installed.
    """
    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        raise DataError(f"--language needs the package {PACKAGE}: pip install {PACKAGE}") from None


def _package() -> Any:
    package_version()
    import py3langid

    return py3langid
