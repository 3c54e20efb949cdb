"""When a request that brought no answer is sent again."""

from __future__ import annotations

import math
import random
import re
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


def retry_after_s(
    header: str | None, body: str = "", *, now: datetime | None = None
) -> float | None:
    """Seconds that a server asks to wait, None if it does not say.

    Args:
        header: `Retry-After`, seconds or an HTTP date (RFC 9110, 10.2.3); a date in the past is 0.
        body: Searched for a `retryDelay` if the header says nothing.
        now: For dates; the clock's time without it.
    """
    if header is not None and (seconds := _header_s(header.strip(), now)) is not None:
        return seconds
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
