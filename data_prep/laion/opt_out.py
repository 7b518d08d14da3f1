"""A list of URLs and domains whose owners do not want their pictures used, one a line.

    https://example.org/me.jpg      this picture, by http or https
    https://example.org/me/         everything below it
    example.com                     everything there and at www.example.com; so too https://example.com
    # a comment

The list is held in memory, about 150 bytes a line.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.errors import DataError
from data_prep.laion.urls import clean_url, host_of


class OptOut:
    """The list of `path`.

    Raises:
        DataError: a line is neither a URL nor a domain (with its number), or the file holds none.
    """

    def __init__(self, path: Path) -> None:
        self._urls: set[str] = set()
        self._domains: set[str] = set()
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                text = line.strip()
                if text and not text.startswith("#"):
                    self._add(text, f"{path} line {number}")
        if not self._urls and not self._domains:
            raise DataError(f"{path} holds no URL and no domain; leave --opt-out away if that is meant")

    def _add(self, text: str, where: str) -> None:
        """One line."""
        url = clean_url(text if "://" in text else f"http://{text}/")
        if url is None or ("://" not in text and url.count("/") > 3):
            raise DataError(f"{where}: {text[:80]!r} is neither a URL nor a domain; correct it or put # before it")
        address = _without_scheme(url)
        if address.index("/") < len(address) - 1:
            self._urls.add(address)
        else:
            self._domains.add(host_of(url))

    def allows(self, urls: Sequence[str]) -> np.ndarray:
        """bool (N,): which of the clean URLs are not on the list, by http or https."""
        return np.array([not self._has(url) for url in urls], dtype=bool)

    def _has(self, url: str) -> bool:
        address = _without_scheme(url)
        path = address.partition("?")[0]
        if address in self._urls or any(path[: slash.end()] in self._urls for slash in re.finditer("/", path)):
            return True
        host = host_of(url)
        while host not in self._domains:
            _, dot, host = host.partition(".")
            if not dot:
                return False
        return True


def _without_scheme(url: str) -> str:
    return url.partition("://")[2]
