"""One question to a judge model, and the verdict that its reply holds."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, crossing
from turnwise.judge.prompt import read_verdict
from turnwise.models import FrozenModel, Message

_EXCERPT = 200


def check_greedy(model: FrozenModel) -> None:
    """Raises ConfigError where the model draws: it would grade the same thing differently."""
    temperature = getattr(getattr(model, "config", None), "temperature", 0)
    if temperature != 0:
        raise ConfigError(f"temperature: a judge needs 0, found {temperature}")


def identity(model: FrozenModel) -> str:
    """By what its verdicts are kept: the model at its endpoint, else its role."""
    settings = getattr(model, "config", None)
    names = (getattr(settings, "model", ""), getattr(settings, "sglang", ""))
    return next((name for name in names if name), model.name)


async def ask_verdict(model: FrozenModel, messages: Sequence[Message]) -> tuple[bool, str]:
    """The verdict and the reply that holds it.

    Raises:
        BoundaryError: at `Boundary.JUDGE`: no answer, one that was cut, or one without a verdict.
    """
    async with crossing(Boundary.JUDGE):
        reply = await model.ask(messages)
    verdict = None if reply.finish == "length" else read_verdict(reply.text)
    if verdict is None:
        end = " ".join(reply.text.split())[-_EXCERPT:]
        raise BoundaryError(
            Boundary.JUDGE,
            f"{model.name}: no verdict (finish {reply.finish!r}, {reply.written_tokens} "
            f"tokens), it ends with: {end!r}",
        )
    return verdict, reply.text
