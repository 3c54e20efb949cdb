"""The measuring command measures what it says."""

from __future__ import annotations

import pytest

from benchmarks.tau2 import measure
from benchmarks.tau2.plans import a_plan, plans, play


@pytest.mark.parametrize("package", [[], ["--package"]])
def test_every_conversation_is_led_and_graded(
    package: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "USER_S", 0.0)
    found = measure.main(["--conversations", "3", "--domain", "airline", *package])
    expected = [play(plan).evaluate().reward for plan in plans("airline")[:3]]
    assert found["rewards"] == sum(reward or 0.0 for reward in expected)
    assert found["conversations"] == 3 and found["cpu_s"] > 0


def test_a_plan_earns_what_the_reference_earns() -> None:
    for domain in ("retail", "airline"):
        assert play(a_plan(domain)).evaluate().reward == 1.0
