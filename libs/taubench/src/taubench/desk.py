"""A tau-bench episode's surroundings from a person's options, for what runs on this machine.

desk = open_desk("full", "react", UserConfig(strategy="llm", ...), domain="retail")
episode = await desk.play(rollout, policy)
await desk.close()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from turnwise.command import StopRun
from turnwise.config import ConfigError
from turnwise.episode import Episode
from turnwise.models.client import ChatClient
from turnwise.policy import Policy
from turnwise.rollout import Rollout
from turnwise.users import UserConfig, UserMaker

from taubench.chat_episode import run_chat_episode
from taubench.episode import Services, default_services, run_episode
from taubench.fewshot import demonstrated
from taubench.method import USER_SHARE
from taubench.source import SourceError
from taubench.strategies import Strategy, strategy_view
from taubench.task import Task

USER_MAY_CHANGE = frozenset(
    f"user.{name}"
    for name in (
        "key_env", "deadline_s", "attempt_s", "backoff_s", "concurrency", "requests_per_minute",
        "tokens_per_minute", "read_price", "write_price", "spend_cap_usd",
    )
)  # fmt: skip
"""Options that say nothing about what the customer says: a run that goes on may change them."""


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything of an episode but the policy.

    Attributes:
        services: What the episode loop takes.
        users: Makes the customers; None for the offline one that goes with the compact prompt.
        user: The customer's name, for reports.
    """

    services: Services
    users: UserMaker | None
    user: str

    async def play(self, rollout: Rollout[Task], policy: Policy) -> Episode:
        """One episode of a policy that samples tokens. Raises StopRun at the spend cap."""
        episode = await run_episode(
            rollout.task,
            policy,
            self.services,
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            seed=rollout.seed,
        )
        return self._within_budget(episode)

    async def play_chat(self, rollout: Rollout[Task], client: ChatClient) -> Episode:
        """One episode of a model behind an endpoint. Raises StopRun at the spend cap."""
        episode = await run_chat_episode(
            rollout.task,
            client,
            self.services,
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
        )
        return self._within_budget(episode)

    def totals(self) -> Mapping[str, float]:
        """Requests, tokens, US dollars, repeats and cache hits of the customers so far."""
        return self.users.metrics() if self.users is not None else {}

    async def close(self) -> None:
        """Closes the connections to the customers' endpoint."""
        if self.users is not None:
            await self.users.close()

    def _within_budget(self, episode: Episode) -> Episode:
        """The episode, unless it was lost to the cap: then every other one would be as well."""
        refusal = self.users.spend.refusal if self.users is not None else ""
        if refusal and episode.score is None:
            raise StopRun(f"user.spend-cap-usd: {refusal}")
        return episode


def open_desk(
    prompt: str,
    strategy: Strategy,
    user: UserConfig,
    *,
    domain: str,
    max_turns: int | None = None,
) -> Desk:
    """
    Args:
        prompt: `compact` or `full`, what the policy is shown.
        strategy: How it is prompted and its text read.
        user: Who plays the customer. The offline one says everything at once with the compact
            prompt, because a small policy does not ask questions.
        domain: Of the tasks.
        max_turns: Sampled turns of an episode; those that go with the prompt where None.

    Raises:
        ConfigError: tau-bench's data is missing, the strategy does not go with the domain, the
            customer is one that slime serves, or its key or its recorded replies are missing.
    """
    services = default_services(prompt)
    try:
        view = strategy_view(strategy, services.view)
        view.system(domain)
    except (SourceError, ValueError) as error:
        raise ConfigError(f"agent-strategy {strategy}: {error}") from None
    services = replace(
        services,
        view=view,
        max_turns=services.max_turns if max_turns is None else max_turns,
        user_deadline_s=max(services.user_deadline_s, user.deadline_s / USER_SHARE),
    )
    if user.sglang:
        raise ConfigError("user.sglang: is for runs through slime, which serves it")
    if user.strategy == "offline" and prompt == "compact":
        return Desk(services, None, services.user().name)
    try:
        users = UserMaker(user)
    except ConfigError as error:
        raise ConfigError(f"user.{error}") from None
    return Desk(replace(services, user=users), users, users.name)


def without_demonstrated(
    tasks: Sequence[Task], strategy: Strategy, domain: str
) -> tuple[Sequence[Task], int]:
    """The tasks whose answer does not stand in the strategy's prompt, and how many were left out.

    Raises ConfigError where the domain has no tasks to demonstrate.
    """
    if strategy != "few-shot":
        return tasks, 0
    try:
        shown = {task.id for task in demonstrated(domain)}
    except (SourceError, ValueError) as error:
        raise ConfigError(f"agent-strategy {strategy}: {error}") from None
    kept = [task for task in tasks if task.id not in shown]
    return kept, len(tasks) - len(kept)
