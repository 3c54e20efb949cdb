"""When a request that brought no answer is sent again: the one policy for every server.

| what came                                  | sent again                                       |
|--------------------------------------------|--------------------------------------------------|
| no connection, a broken one, none in time  | after a pause of `Backoff`                       |
| status 408, 425, 429 or 5xx                | after what the server asks for, else a pause     |
| any other status                           | never                                            |

How often is the caller's: `turnwise.models.client` repeats within a deadline,
`turnwise.engine.http` a number of times.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Google's endpoints say it in the body, as google.rpc.RetryInfo.
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d{1,9}(?:\.\d{1,9})?)s"')


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential pauses with full-range jitter.

    Attributes:
        first_s: Mean seconds before the first repeat; doubles each time.
        max_s: The mean grows no further.
    """

    first_s: float = 0.5
    max_s: float = 20.0

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after `failures` failures in a row, at least 1: the mean times a random
        number in [0.5, 1.5], so that episodes which failed together do not return together.
        """
        mean = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 64))
        return mean * random.uniform(0.5, 1.5)


def is_transient(status: int) -> bool:
    """Whether a server or a router in front of it says that it did not do the work this time."""
    return status in (408, 425, 429) or 500 <= status < 600


def retry_after_s(
    headers: Mapping[str, str], body: str = "", *, now: datetime | None = None
) -> float | None:
    """Seconds that a server asks to wait, None if it does not say.

    Args:
        headers: `Retry-After`, seconds or an HTTP date (RFC 9110, 10.2.3), a date in the past
            being 0; else `retry-after-ms`, milliseconds.
        body: Searched for a `retryDelay` if the headers say nothing.
        now: For dates; the clock's time without it.
    """
    seconds = _header_s(headers.get("Retry-After", "").strip(), now)
    if seconds is not None:
        return seconds
    thousandths = _header_s(headers.get("retry-after-ms", "").strip(), now)
    if thousandths is not None:
        return thousandths / 1000
    found = _RETRY_DELAY.search(body)
    return float(found[1]) if found else None


def _header_s(header: str, now: datetime | None) -> float | None:
    try:
        seconds = float(header)
    except ValueError:
        pass
    else:
        return seconds if seconds >= 0 and math.isfinite(seconds) else None
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())
