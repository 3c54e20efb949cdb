"""How long to wait before the next request."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.retry import Backoff, retry_after_s

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        (" 1.5 ", 1.5),
        ("Sun, 29 Nov 2026 12:01:30 GMT", 90.0),
        ("Sunday, 29-Nov-26 12:00:05 GMT", 5.0),
        ("Sun Nov 29 12:00:05 2026", 5.0),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0.0),
        ("Sun, 29 Nov 2026 13:00:10 +0100", 10.0),
        ("-3", None),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Sun, 99 Nov 2026 12:00:00 GMT", None),
        ("1" * 400, None),
    ],
)
def test_retry_after_is_read_in_seconds_and_as_a_date(header: str, seconds: float | None) -> None:
    assert retry_after_s(header, now=NOW) == seconds


def test_the_delay_in_a_body_counts_where_the_header_says_nothing() -> None:
    body = '[{"error": {"code": 429, "details": [{"retryDelay": "37.5s"}]}}]'
    assert retry_after_s(None, body) == 37.5
    assert retry_after_s("soon", body) == 37.5
    assert retry_after_s("2", body) == 2.0
    assert retry_after_s(None, "slow down") is None


@given(header=st.text(), body=st.text())
def test_no_header_or_body_raises(header: str, body: str) -> None:
    found = retry_after_s(header, body)
    assert found is None or found >= 0


@given(failures=st.integers(1, 10_000))
def test_pauses_double_up_to_the_bound_with_jitter(failures: int) -> None:
    pause = Backoff(first_s=0.5, max_s=20.0).pause_s(failures)
    mean = min(20.0, 0.5 * 2 ** min(failures - 1, 20))
    assert 0.5 * mean <= pause <= 1.5 * mean


def test_episodes_that_failed_together_do_not_return_together() -> None:
    assert len({Backoff().pause_s(3) for _ in range(20)}) == 20
