"""The experts that a question may be put to, what they cost, and what its asker prefers.

A data row brings all of it, so that every row may have other experts: nothing here names a model.

    {"experts": [{"role": "answer-1", "tool": "answer", "model": "large", "ability": "good at ...",
                  "read-price": 0.8, "write-price": 3.2}, ...],
     "preferences": {"accuracy": 1, "cost": 0.5, "answer-1": 0.2},
     "budget": {"cost": 0.002, "latency": 800}}

`role` is what the policy is shown and writes; `model` is one of the run's frozen models, which the
policy never sees. Keys are written with dashes or underscores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator
from turnwise.config import Config, ConfigError

ToolName = Literal["search", "enhance_reasoning", "answer", "call_expert"]
QUESTION_TOOLS: tuple[ToolName, ...] = ("search", "enhance_reasoning", "answer")
"""What there is to do about a question; `call_expert` belongs to conversations with a customer."""
ACCURACY, COST, LATENCY = "accuracy", "cost", "latency"
PER_MILLION = 1e-6
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Expert(Config):
    """One line of the table: a role that the policy can name."""

    role: str
    """As the policy is shown it and writes it: letters, digits, `_`, `.` and `-`."""
    tool: ToolName
    """The tool that offers it."""
    model: str = Field(min_length=1)
    """The frozen model that plays it, by its name among the run's."""
    ability: str = ""
    """What the policy is told of its strengths."""
    read_price: float = Field(default=0.0, ge=0)
    """US dollars per million tokens that it reads."""
    write_price: float = Field(default=0.0, ge=0)
    """US dollars per million tokens that it writes."""
    call_price: float = Field(default=0.0, ge=0)
    """US dollars for each call, whatever its tokens."""

    @field_validator("role")
    @classmethod
    def _can_be_written(cls, role: str) -> str:
        if not _ROLE.fullmatch(role) or role in (ACCURACY, COST, LATENCY):
            raise ValueError(
                "must be letters, digits, `_`, `.` and `-`, and none of accuracy, cost and latency"
            )
        return role

    def price(self, read_tokens: int, written_tokens: int) -> float:
        """US dollars for one call with that many tokens."""
        tokens = read_tokens * self.read_price + written_tokens * self.write_price
        return self.call_price + PER_MILLION * tokens


class Budget(Config):
    """What counts as dear, for a utility that other episodes have no part in."""

    cost: float | None = Field(default=None, gt=0)
    """US dollars."""
    latency: float | None = Field(default=None, gt=0)
    """Tokens or seconds, as the run counts latency."""


Preferences = Mapping[str, float]
"""Weights of `accuracy`, `cost`, `latency` and roles."""


def read_experts(value: Any, where: str) -> tuple[Expert, ...]:
    """A table of experts.

    Raises:
        ConfigError: naming the place: it is no list of experts, or a role is there twice.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f"{where}: expected a list of experts, found {value!r:.60}")
    experts: dict[str, Expert] = {}
    for number, one in enumerate(value):
        if not isinstance(one, Mapping | Expert):
            raise ConfigError(f"{where}[{number}]: expected an expert, found {one!r:.60}")
        try:
            expert = one if isinstance(one, Expert) else Expert(**undashed(one))
        except ConfigError as error:
            raise ConfigError(f"{where}[{number}].{error}") from None
        if expert.role in experts:
            raise ConfigError(f"{where}[{number}].role: {expert.role!r} is there twice")
        experts[expert.role] = expert
    return tuple(experts.values())


def read_preferences(value: Any, experts: Sequence[Expert], where: str) -> dict[str, float]:
    """Weights by name; what is left out weighs nothing, and accuracy 1.

    Weights of cost and latency say how much a saving is worth, so they are not negative. A role's
    may be: the asker would rather not use it.

    Raises:
        ConfigError: naming the place and the weight.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected weights by name, found {value!r:.60}")
    known = [ACCURACY, COST, LATENCY, *(expert.role for expert in experts)]
    weights = {ACCURACY: 1.0}
    for name, weight in value.items():
        if name not in known:
            raise ConfigError(f"{where}.{name}: is no weight; there are {', '.join(known)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"{where}.{name}: expected a number, found {weight!r:.60}")
        if not abs(weight) < float("inf"):
            raise ConfigError(f"{where}.{name}: must be finite, found {weight}")
        if weight < 0 and name in (COST, LATENCY):
            raise ConfigError(
                f"{where}.{name}: found {weight}: what is saved is rewarded already, so a negative"
                f" weight would pay for waste; write {-weight}"
            )
        weights[name] = float(weight)
    if weights[ACCURACY] <= 0:
        raise ConfigError(f"{where}.accuracy: must be above 0, found {weights[ACCURACY]}")
    return weights


def undashed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Its keys as field names."""
    return {str(key).replace("-", "_"): value for key, value in table.items()}
