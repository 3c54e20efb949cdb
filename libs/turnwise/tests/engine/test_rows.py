"""Rows: who gets which, what is reused, and a model of the cache that must never be wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from turnwise.engine.rows import RowTable

CONTEXT = 40


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def finish(table: RowTable, row: int, length: int) -> None:
    table.computed(row, length)
    table.idle(row)


def test_a_session_keeps_its_row_and_what_it_holds() -> None:
    table = RowTable(2, CONTEXT)
    first = table.claim("a", ids(1, 2, 3, 4))
    assert first is not None and (first.kept, first.source, first.start) == (0, None, 0)
    finish(table, first.row, 4)
    again = table.claim("a", ids(1, 2, 3, 4, 5))
    assert again is not None
    assert (again.row, again.kept, again.source, again.start) == (first.row, 4, None, 4)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    table = RowTable(1, CONTEXT)
    for _ in range(2):
        claim = table.claim("a", ids(1, 2, 3, 4))
        assert claim is not None and claim.start in (0, 3)
        finish(table, claim.row, 4)


def test_the_session_that_is_idle_longest_loses_its_row() -> None:
    table = RowTable(2, CONTEXT)
    rows = {}
    for name in ("a", "b"):
        claim = table.claim(name, ids(ord(name), 1))
        assert claim is not None
        rows[name] = claim.row
    finish(table, rows["b"], 2)
    finish(table, rows["a"], 2)
    taken = table.claim("c", ids(7, 8))
    assert taken is not None and taken.row == rows["b"]
    kept = table.claim("a", ids(ord("a"), 1, 2))
    assert kept is not None and kept.start == 2
    assert table.claim("b", ids(1, 2)) is None


def test_a_released_row_goes_first_though_it_was_used_last() -> None:
    table = RowTable(2, CONTEXT)
    for name in ("a", "b"):
        claim = table.claim(name, ids(ord(name), 1))
        assert claim is not None
        finish(table, claim.row, 2)
    table.release("b")
    claim = table.claim("c", ids(9, 9))
    assert claim is not None
    kept = table.claim("a", ids(ord("a"), 1, 2))
    assert kept is not None and kept.start == 2


def test_a_row_that_is_being_filled_is_waited_for_where_it_pays() -> None:
    table = RowTable(3, CONTEXT)
    prompt = np.arange(20, dtype=np.int32)
    first = table.claim("a", prompt)
    second = table.claim("b", prompt)
    third = table.claim("c", np.concatenate([prompt[:10], prompt[:10]]))
    assert first is not None and second is not None and third is not None
    assert (first.wave, first.start) == (0, 0)
    assert (second.wave, second.source, second.start) == (1, first.row, 19)
    assert (third.wave, third.source, third.start) == (0, None, 0)


class Cache:
    """What the decoder's cache would hold: per row, the id whose keys are at each position."""

    def __init__(self, rows: int) -> None:
        self.held = np.full((rows, CONTEXT), -1)

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        self.held[target, begin:end] = self.held[source, begin:end]


turns = st.lists(
    st.tuples(
        st.integers(0, 5),  # session
        st.integers(0, 2),  # which of three shared starts
        st.integers(0, 30),  # how much of it
        st.lists(st.integers(0, 2), min_size=1, max_size=6),  # and what follows
        st.booleans(),  # release afterwards
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.lists(turns, min_size=1, max_size=4))
def test_what_a_claim_keeps_is_what_its_prompt_says(
    rows: int, rounds: list[list[tuple[int, int, int, list[int], bool]]]
) -> None:
    table, cache = RowTable(rows, CONTEXT), Cache(rows)
    for requests in rounds:
        claims, seen = [], set()
        for session, start, share, rest, release in requests:
            if session in seen:
                continue
            prompt = np.array([*([start] * share), *rest], np.int32)
            claim = table.claim(str(session), prompt)
            if claim is None:
                break
            seen.add(session)
            if claim.wave == 0 and claim.source is not None:
                cache.copy(claim.source, claim.row, claim.kept, claim.start)
                table.computed(claim.row, claim.start)
            claims.append((claim, prompt, session, release))
        for wave in sorted({claim.wave for claim, *_ in claims}):
            for claim, prompt, _, _ in claims:
                if claim.wave != wave:
                    continue
                if wave > 0:
                    assert claim.source is not None
                    cache.copy(claim.source, claim.row, claim.kept, claim.start)
                assert claim.start < len(prompt)
                np.testing.assert_array_equal(
                    cache.held[claim.row, : claim.start], prompt[: claim.start]
                )
            for claim, prompt, _, _ in claims:
                if claim.wave == wave:
                    cache.held[claim.row, claim.start : len(prompt)] = prompt[claim.start :]
                    table.computed(claim.row, len(prompt))
        for hole, stray, length in table.moves():
            kept = cache.held[hole, :length].copy()
            cache.held[hole, :length] = cache.held[stray, :length]
            cache.held[stray, :length] = kept
        count = int(table.active.sum())
        assert table.active[:count].all()
        shared = table.shared_prefix(count)
        assert (cache.held[:count, :shared] == cache.held[0, :shared]).all()
        for row in range(count):
            table.idle(row)
        for _, _, session, release in claims:
            if release:
                table.release(str(session))
