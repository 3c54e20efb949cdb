"""Every rollout is accounted for, exactly once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit
from turnwise.ledger import Ledger, LedgerImbalance

ENDINGS = [
    Ending.finished(),
    *(Ending.stopped(limit) for limit in Limit),
    *(Ending.lost(BoundaryError(boundary, "gone")) for boundary in Boundary),
    Ending.cancelled(),
]


def episode(rollout: str, ending: Ending) -> Episode:
    return Episode(rollout, "g", "t", (), ending, 0.0 if ending.by_policy else None, [])


@given(st.lists(st.sampled_from(ENDINGS), max_size=40))
def test_the_equation_holds_for_any_mix_of_endings(endings: list[Ending]) -> None:
    ledger = Ledger()
    for index in range(len(endings)):
        ledger.start(str(index))
    for index, ending in enumerate(endings):
        ledger.settle(episode(str(index), ending))
    ledger.check()
    row = ledger.as_dict()
    assert (
        row["started"]
        == len(endings)
        == (row["finished"] + sum(row["stopped"].values()) + sum(row["lost"].values()))
        + row["cancelled"]
    )
    assert ledger.scored == sum(ending.by_policy for ending in endings)


def test_a_rollout_without_an_ending_is_named() -> None:
    ledger = Ledger()
    ledger.start("r1")
    with pytest.raises(LedgerImbalance, match="r1"):
        ledger.check()


def test_a_rollout_can_neither_start_nor_end_twice() -> None:
    ledger = Ledger()
    ledger.start("r")
    with pytest.raises(LedgerImbalance, match="started twice"):
        ledger.start("r")
    ledger.settle(episode("r", Ending.finished()))
    with pytest.raises(LedgerImbalance, match="ended twice"):
        ledger.settle(episode("r", Ending.finished()))
    with pytest.raises(LedgerImbalance, match="never started"):
        ledger.settle(episode("other", Ending.finished()))


def test_coverage_counts_policy_stops_as_scored() -> None:
    ledger = Ledger()
    assert math.isnan(ledger.coverage)
    for name, ending in [
        ("a", Ending.finished()),
        ("b", Ending.stopped(Limit.TURNS)),
        ("c", Ending.lost(BoundaryError(Boundary.USER, "429"))),
        ("d", Ending.cancelled()),
    ]:
        ledger.start(name)
        ledger.settle(episode(name, ending))
    assert ledger.coverage == 0.5
    assert ledger.equation() == "4 started = 1 finished + 1 stopped + 1 lost (user 1) + 1 cancelled"
