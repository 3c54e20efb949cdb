"""How long to wait before the next request."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.retry import Backoff, is_transient, retry_after_s

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
    assert retry_after_s({"Retry-After": header}, now=NOW) == seconds


def test_milliseconds_count_where_seconds_are_not_given() -> None:
    assert retry_after_s({"retry-after-ms": "250"}) == 0.25
    assert retry_after_s({"Retry-After": "2", "retry-after-ms": "250"}) == 2.0
    assert retry_after_s({"Retry-After": "soon", "retry-after-ms": "-1"}) is None


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529, 599])
def test_a_server_that_did_not_do_the_work_is_asked_again(status: int) -> None:
    assert is_transient(status)


@pytest.mark.parametrize("status", [100, 200, 201, 302, 400, 401, 403, 404, 409, 413, 422, 600])
def test_any_other_status_is_not_sent_again(status: int) -> None:
    assert not is_transient(status)


def test_the_delay_in_a_body_counts_where_the_header_says_nothing() -> None:
    body = '[{"error": {"code": 429, "details": [{"retryDelay": "37.5s"}]}}]'
    assert retry_after_s({}, body) == 37.5
    assert retry_after_s({"Retry-After": "soon"}, body) == 37.5
    assert retry_after_s({"Retry-After": "2"}, body) == 2.0
    assert retry_after_s({}, "slow down") is None


@given(header=st.text(), body=st.text())
def test_no_header_or_body_raises(header: str, body: str) -> None:
    found = retry_after_s({"Retry-After": header, "retry-after-ms": header}, body)
    assert found is None or found >= 0


@given(failures=st.integers(1, 10_000))
def test_pauses_double_up_to_the_bound_with_jitter(failures: int) -> None:
    pause = Backoff(first_s=0.5, max_s=20.0).pause_s(failures)
    mean = min(20.0, 0.5 * 2 ** min(failures - 1, 20))
    assert 0.5 * mean <= pause <= 1.5 * mean


def test_episodes_that_failed_together_do_not_return_together() -> None:
    assert len({Backoff().pause_s(3) for _ in range(20)}) == 20
