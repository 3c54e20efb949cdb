"""What an episode is worth: right first, then cheap, quick, and by the experts that are preferred.

| reward        | of a right episode                                                             |
|---------------|--------------------------------------------------------------------------------|
| `preference`  | (a + sum of w_f (1 - x_f)) / (a + sum of w_f), x_f from 0 to 1 within the group |
| `utility`     | the same with x_f = min(1, found / budget): its own, whatever others did       |
| `original`    | sum of w_f y_f as published, see below                                         |
| `correctness` | 1                                                                              |

A wrong episode is worth 0 in all four, and one without a score keeps none. `a` is the weight of
accuracy, f goes over cost, latency and roles:

1. w of cost and latency are the row's. w of a role is the best weight among the roles of its tool
   less its own: calling a role is a deviation from the one that the asker likes best, so that no
   call is ever rewarded and nothing is gained by one more.
2. x_f = (found - least) / max(most - least, 0.1 most) over the right members of the group. The
   second term of the maximum keeps a difference of a hundredth from being worth as much as one of
   half: a min-max over costs that are nearly alike is noise.
3. The worth of a right episode is in [a / (a + sum), 1]: the dearest right one is worth more than
   any wrong one, the worth never rises with what was paid, and it falls or stays with each call.
4. Where all are wrong, all are worth 0; where all are right, those who paid alike are worth alike.
   Either group has no spread and is dropped like any other.

The original (Su et al. 2025, arXiv:2511.21689, as its public code trains): features are the calls
of each role, accuracy, minus cost, minus latency; each is scaled from 0 to 1 over all members,
wrong ones too, or is 0 where all are alike; a right member gets the sum of weight times feature.
It pays for calls: with a weight on a role, calling it more often than the others of the group is
worth as much as anything that the weight outweighs, though nothing is asked of it. It is here to
be compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.trainers.toolorchestra.options import RewardName
from apps.trainers.toolorchestra.tables import ACCURACY, COST, LATENCY, Budget, Expert, Preferences

MIN_SPREAD = 0.1
"""Of the most that was found: smaller differences count in proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a scored episode comes to.

    Attributes:
        correct: Whether its answer is right.
        cost: US dollars, of the policy, experts and searches.
        latency: Tokens or seconds, as the run counts it.
        calls: By role.
    """

    correct: bool
    cost: float
    latency: float
    calls: Mapping[str, int]

    def found(self, feature: str) -> float:
        """The amount of a feature."""
        if feature == COST:
            return self.cost
        return self.latency if feature == LATENCY else float(self.calls.get(feature, 0))

    def row(self) -> dict[str, Any]:
        """For the trace, from which `read_outcome` makes it again."""
        return {
            "correct": self.correct,
            "cost_usd": self.cost,
            "latency": self.latency,
            "calls": dict(self.calls),
        }


def read_outcome(row: Mapping[str, Any]) -> Outcome:
    """The outcome that `Outcome.row` wrote."""
    return Outcome(
        correct=row["correct"], cost=row["cost_usd"], latency=row["latency"], calls=row["calls"]
    )


def penalties(preferences: Preferences, experts: Sequence[Expert]) -> dict[str, float]:
    """The weights of what is better left alone, by feature; each at least 0."""
    found = {COST: preferences.get(COST, 0.0), LATENCY: preferences.get(LATENCY, 0.0)}
    best: dict[str, float] = {}
    for expert in experts:
        weight = preferences.get(expert.role, 0.0)
        best[expert.tool] = max(best.get(expert.tool, weight), weight)
    for expert in experts:
        found[expert.role] = best[expert.tool] - preferences.get(expert.role, 0.0)
    return {feature: weight for feature, weight in found.items() if weight > 0}


def utility(
    outcome: Outcome, preferences: Preferences, experts: Sequence[Expert], budget: Budget | None
) -> float:
    """The worth of an episode by itself, in [0, 1]; cost and latency count where they have a
    budget, a role where it was called at all."""
    limits: dict[str, float | None] = {COST: None, LATENCY: None}
    if budget is not None:
        limits = {COST: budget.cost, LATENCY: budget.latency}
    shares, weights = {}, {}
    for feature, weight in penalties(preferences, experts).items():
        limit = limits.get(feature, 1.0)
        if limit is not None:
            weights[feature] = weight
            shares[feature] = min(1.0, outcome.found(feature) / limit)
    return _worth(outcome, preferences[ACCURACY], weights, shares)


def group_worths(
    outcomes: Sequence[Outcome], preferences: Preferences, experts: Sequence[Expert]
) -> list[float]:
    """The worth of each scored member of a group: `preference`."""
    weights = penalties(preferences, experts)
    right = [outcome for outcome in outcomes if outcome.correct]
    bounds = {}
    for feature in weights:
        amounts = [outcome.found(feature) for outcome in right] or [0.0]
        bounds[feature] = (min(amounts), max(amounts))
    return [
        _worth(
            outcome,
            preferences[ACCURACY],
            weights,
            {feature: _share(outcome.found(feature), *bound) for feature, bound in bounds.items()},
        )
        for outcome in outcomes
    ]


def original_worths(
    outcomes: Sequence[Outcome], preferences: Preferences, experts: Sequence[Expert]
) -> list[float]:
    """The worth of each scored member of a group by the published formula: `original`."""
    rows = [_original_features(outcome, experts) for outcome in outcomes]
    totals = [0.0] * len(rows)
    for feature, weight in preferences.items():
        column = [row[feature] for row in rows]
        least, spread = min(column), max(column) - min(column)
        for place, amount in enumerate(column):
            totals[place] += weight * (amount - least) / spread if spread else 0.0
    return [
        total if outcome.correct else 0.0 for total, outcome in zip(totals, outcomes, strict=True)
    ]


def worths(
    reward: RewardName,
    outcomes: Sequence[Outcome],
    preferences: Preferences,
    experts: Sequence[Expert],
) -> list[float]:
    """The rewards of a group's scored members that depend on each other; see the module.

    Raises:
        ValueError: `utility` is each episode's own.
    """
    if reward == "preference":
        return group_worths(outcomes, preferences, experts)
    if reward == "original":
        return original_worths(outcomes, preferences, experts)
    if reward == "correctness":
        return [float(outcome.correct) for outcome in outcomes]
    raise ValueError(f"the reward {reward} does not depend on the group")


def _worth(
    outcome: Outcome, accuracy: float, weights: Mapping[str, float], shares: Mapping[str, float]
) -> float:
    if not outcome.correct:
        return 0.0
    saved = sum(weight * (1.0 - shares[feature]) for feature, weight in weights.items())
    return (accuracy + saved) / (accuracy + sum(weights.values()))


def _share(amount: float, least: float, most: float) -> float:
    spread = max(most - least, MIN_SPREAD * most)
    # Of a wrong member, which may lie outside; it is worth 0 anyway.
    return min(1.0, max(0.0, (amount - least) / spread)) if spread > 0 else 0.0


def _original_features(outcome: Outcome, experts: Sequence[Expert]) -> dict[str, float]:
    calls = {expert.role: float(outcome.calls.get(expert.role, 0)) for expert in experts}
    return {
        ACCURACY: float(outcome.correct),
        COST: -outcome.cost,
        LATENCY: -outcome.latency,
        **calls,
    }
