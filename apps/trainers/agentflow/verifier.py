"""Whether a question can be answered from what was found: the word of a frozen model."""

from __future__ import annotations

from collections.abc import Callable

from apps.trainers.agentflow.parse import read_verdict


def is_enough(answer: str, *, on_malformed: Callable[[], None]) -> bool:
    """Whether the verifier's last conclusion is STOP; an answer without one means CONTINUE.

    Going on costs a step; stopping on a word misread would cost the answer.

    Args:
        on_malformed: Told of an answer without a conclusion.
    """
    verdict = read_verdict(answer)
    if verdict is None:
        on_malformed()
        return False
    return verdict
