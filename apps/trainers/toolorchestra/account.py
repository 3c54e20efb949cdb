"""What an episode's calls cost: tokens, US dollars and seconds, exactly, call by call.

An expert's tokens are priced by the row's table and never by the policy's counts. An answer that
came from a cache costs what it cost when it was made: the reward does not depend on who asked
first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from apps.trainers.toolorchestra.options import ToolOrchestraOptions
from apps.trainers.toolorchestra.reward import Outcome
from apps.trainers.toolorchestra.tables import PER_MILLION, Expert

Latency = Literal["tokens", "seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """One call of an expert that was answered.

    Attributes:
        usd: Its tokens and its call by the row's prices, and the search's own price.
        seconds: From the question to what came of it, the search or the program included.
        cached: Whether the answer was one that had been given before.
        failed: Why it brought nothing, a short word; None if it did.
    """

    tool: str
    role: str
    model: str
    read_tokens: int
    written_tokens: int
    usd: float
    seconds: float
    cached: bool = False
    failed: str | None = None


class Account:
    """The calls of one episode, in order."""

    def __init__(self, experts: Sequence[Expert], options: ToolOrchestraOptions) -> None:
        self.calls: list[Called] = []
        self._experts = experts
        self._latency: Latency = options.latency
        self._read_price, self._write_price = policy_prices(experts, options)

    def policy_usd(self, counts: Mapping[str, int]) -> float:
        """US dollars for the tokens that the policy read and wrote, by a conversation's counts."""
        read, written = counts["prompt_tokens"], counts["sampled_tokens"]
        return PER_MILLION * (read * self._read_price + written * self._write_price)

    @property
    def expert_usd(self) -> float:
        """US dollars of all calls."""
        return sum(call.usd for call in self.calls)

    @property
    def latency(self) -> float:
        """Tokens that experts wrote, one after the other, or seconds of their calls."""
        if self._latency == "tokens":
            return float(sum(call.written_tokens for call in self.calls))
        return sum(call.seconds for call in self.calls)

    def outcome(self, correct: bool, counts: Mapping[str, int]) -> Outcome:
        """What the episode comes to."""
        return Outcome(
            correct=correct,
            cost=self.policy_usd(counts) + self.expert_usd,
            latency=self.latency,
            calls=Counter(call.role for call in self.calls),
        )

    def rows(self) -> list[dict[str, Any]]:
        """For the trace."""
        return [asdict(call) for call in self.calls]

    def metrics(self, counts: Mapping[str, int]) -> dict[str, float]:
        """`cost_usd`, `policy_usd`, `expert_usd`, `latency`, `expert_s`, `cached_answers`, the
        calls by tool, and of each expert of the row calls, tokens, US dollars and seconds."""
        policy = self.policy_usd(counts)
        found = {
            "cost_usd": policy + self.expert_usd,
            "policy_usd": policy,
            "expert_usd": self.expert_usd,
            "latency": self.latency,
            "expert_s": sum(call.seconds for call in self.calls),
            "cached_answers": float(sum(call.cached for call in self.calls)),
        }
        for tool in dict.fromkeys(expert.tool for expert in self._experts):
            found[f"calls/{tool}"] = float(sum(call.tool == tool for call in self.calls))
        for model in dict.fromkeys(expert.model for expert in self._experts):
            calls = [call for call in self.calls if call.model == model]
            found |= {
                f"expert/{model}/calls": float(len(calls)),
                f"expert/{model}/read_tokens": float(sum(call.read_tokens for call in calls)),
                f"expert/{model}/written_tokens": float(sum(call.written_tokens for call in calls)),
                f"expert/{model}/usd": sum(call.usd for call in calls),
                f"expert/{model}/s": sum(call.seconds for call in calls),
            }
        return found


def policy_prices(experts: Sequence[Expert], options: ToolOrchestraOptions) -> tuple[float, float]:
    """US dollars per million tokens that the policy reads and writes."""
    cheapest = min(experts, key=lambda one: one.read_price + one.write_price)
    read, write = options.policy_read_price, options.policy_write_price
    return (
        cheapest.read_price if read is None else read,
        cheapest.write_price if write is None else write,
    )
