"""Why a picture is missing, in the words that http.py and fetch.py give, and which of them may pass with time.

transient("HTTP 503")   # True: `retry` asks again; what was opted out or is gone is never asked for again
"""

import re

_PASSING = frozenset({"timeout", "deadline", "DNS", "connection", "cut short", "empty", "bad answer"})
_STATUS = re.compile(r"HTTP (408|425|429|5\d\d)")


def transient(reason: str) -> bool:
    """Whether the same request may well succeed later: time-outs, lost connections, DNS, busy or failing servers."""
    return reason in _PASSING or _STATUS.fullmatch(reason) is not None
