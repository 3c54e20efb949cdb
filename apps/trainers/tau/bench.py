"""What the method tau does where its tasks are tau-bench's.

A data row's prompt is the task's index in its split; `env` and `task_split` of its metadata go
before those of the options, so that one run trains on one split and evaluates on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import tokendelta
from taubench import SPLITS, SourceError, Task, load_tasks, noop_baseline, training_tasks
from taubench.fewshot import demonstrated
from taubench.splits import family_splits
from taubench.users import UserMaker, compact_user
from turnwise.command import StopRun
from turnwise.config import ConfigError
from turnwise.episode import Episode
from turnwise.method import Method, Services
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row

from apps.trainers.tau.claims import FAMILY, claims
from apps.trainers.tau.episode import MakeUser, run_episode
from apps.trainers.tau.options import TauOptions
from apps.trainers.tau.users import ask_users, make_users

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan
    from turnwise.preflight import Check

ASK_DEADLINE_S = 60.0


class TauBench(Method[TauOptions, Task]):
    """A tool-calling agent that serves the users of tau-bench; see `apps.trainers.tau.episode`."""

    name = "tau"

    def __init__(self, options: TauOptions, *, make_user: MakeUser | None = None) -> None:
        """
        Args:
            options: The run's.
            make_user: Makes the user of an episode in place of that of the options.

        Raises:
            ConfigError: tau-bench's data is missing, or the strategy does not go with the domain.
        """
        super().__init__(options)
        self._view = options.view
        self._given = self._make_user = make_user
        self._users: UserMaker | None = None
        self._user_name = ""
        # Reads the tasks and makes the prompt now, in the thread that builds the method.
        self._check_shown(options.env)
        _tasks(options.env, options.row_split)

    def task(self, row: Row) -> Task:
        """See `Method`. The row's instruction, where it has one, must be the task's."""
        domain = row.metadata.get("env", self.options.env)
        split = row.metadata.get("task_split", self.options.row_split)
        if not isinstance(domain, str) or split not in tuple(SPLITS.get(domain, ())):
            raise ConfigError(f"{_place(row)}: there is no {domain} {split}")
        if domain != self.options.env:
            self._check_shown(domain)
        tasks, text = _tasks(domain, split), str(row.prompt)
        index = int(text) if text.isdecimal() and len(text) < 10 else -1
        if not 0 <= index < len(tasks):
            raise ConfigError(
                f"{_place(row)}: {domain} {split} has tasks 0 to {len(tasks) - 1}, found "
                f"{text[:80]!r}; is --input-key index?"
            )
        task = tasks[index]
        if row.metadata.get("instruction", task.instruction) != task.instruction:
            raise ConfigError(
                f"{_place(row)}: the instruction is not that of {task.id}; write the rows anew: "
                "tau:prepare"
            )
        if task.id in self._shown(domain):
            raise ConfigError(
                f"{_place(row)}: {task.id} is a demonstration of agent-strategy few-shot, so its "
                "answer stands in the prompt; write the rows anew: tau:prepare -- --exclude "
                "demonstrated"
            )
        return task

    def rows(self, split: str) -> Sequence[Row]:
        """See `Method`: `train`; `held-out` and `tune`, parts of the compact prompt's family of
        tasks; upstream's `dev` and `test`.

        What is trained on leaves out demonstrations and, with the full prompt, tasks whose
        annotated write fails.
        """
        return [
            Row(
                prompt=str(task.index),
                metadata={"env": task.domain, "task_split": task.split},
                id=task.id,
            )
            for task in self._split(split)
        ]

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """See `Method`."""
        return self._view.tools(self.options.env)

    def about(self) -> str:
        """See `Method`."""
        options = self.options
        return f"{options.env} tasks with the {options.prompt} prompt ({options.agent_strategy})"

    def prompt_tokens(self, tasks: Sequence[Task], profile: tokendelta.Profile) -> int:
        """See `Method`: the system prompt with its tools; what the user says comes on top."""
        longest = 0
        for domain in {task.domain for task in tasks}:
            session = tokendelta.Session(profile, tools=self._view.tools(domain))
            system = {"role": "system", "content": self._view.system(domain)}
            prompt = session.start([system, {"role": "user", "content": ""}])
            assert not isinstance(prompt, tokendelta.Overflow)
            longest = max(longest, len(prompt))
        return longest

    async def baselines(
        self, tasks: Mapping[str, Task], tokenizer: Any, profile: tokendelta.Profile
    ) -> Mapping[str, float]:
        """See `Method`."""
        return {"doing nothing": noop_baseline(list(tasks.values()))}

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        """See `Method`."""
        left_out = len(self._shown(self.options.env))
        return claims(self.options, split, self._user_name, left_out=left_out, shipped=shipped)

    def players(self) -> Mapping[str, str]:
        """See `Method`; known after `open`."""
        return {"user": self._user_name} if self._user_name else {}

    def checks(self, plan: Plan) -> Mapping[str, Check]:
        """See `Method`."""
        from apps.trainers.tau.checks import make_checks

        return make_checks(self, plan)

    def metrics(self) -> Mapping[str, float]:
        """Requests, tokens, US dollars, repeats and cache hits of the users."""
        return self._users.metrics() if self._users is not None else {}

    async def open(self, services: Services) -> None:
        """See `Method`. One short request finds out whether the user's endpoint answers."""
        make = self._given
        if make is None and self.options.user.strategy == "offline":
            # The compact prompt goes with an offline user of its own.
            make = compact_user if self.options.prompt == "compact" else None
        if make is None:
            self._users = make = make_users(self.options.user, services)
            await ask_users(self._users, ASK_DEADLINE_S)
        self._make_user = make
        self._user_name = make().name

    async def run(self, rollout: Rollout[Task], policy: AnyPolicy) -> Episode:
        """See `Method`.

        Raises:
            StopRun: the users have reached the spend cap; all later episodes would be lost.
        """
        assert self._make_user is not None, "open comes first"
        episode = await run_episode(rollout, policy, self.options, make_user=self._make_user)
        refusal = self._users.spend.refusal if self._users is not None else ""
        if refusal and episode.score is None:
            raise StopRun(f"user.spend-cap-usd: {refusal}")
        return episode

    async def close(self) -> None:
        """Closes the connections to the users' endpoint."""
        users, self._users, self._make_user = self._users, None, self._given
        if users is not None:
            await users.close()

    def _split(self, split: str) -> Sequence[Task]:
        options = self.options
        if split in FAMILY:
            if options.prompt != "compact":
                raise ConfigError(
                    f"split {split}: is a part of retail's train split, on which the full prompt "
                    "trains; use dev or test, or --prompt compact"
                )
            parts = family_splits()
            return parts.held_out if split == "held-out" else parts.tune
        if split == "train":
            return [task for task in self._train() if task.id not in self._shown(options.env)]
        if split not in SPLITS[options.env]:
            known = ", ".join((*SPLITS[options.env], *FAMILY))
            raise ConfigError(f"split {split}: {options.env} has {known}")
        return _tasks(options.env, split)

    def _train(self) -> Sequence[Task]:
        options = self.options
        if options.user.strategy == "human":
            raise ConfigError(
                "user.strategy: nobody could answer for the users of many episodes at once; use "
                "llm or offline"
            )
        if "train" not in SPLITS[options.env]:
            raise ConfigError(
                f"env: {options.env} has no training tasks; it can be evaluated, not trained on"
            )
        if options.prompt == "compact":
            return family_splits().train
        tasks = _tasks(options.env, "train")
        return training_tasks(tasks, include_gt_write_fails=options.include_failing_ground_truth)

    def _shown(self, domain: str) -> frozenset[str]:
        """The ids of the tasks whose answers stand in the prompt."""
        few_shot = self.options.agent_strategy == "few-shot"
        return frozenset(task.id for task in demonstrated(domain)) if few_shot else frozenset()

    def _check_shown(self, domain: str) -> None:
        """Raises ConfigError if there is no prompt for the domain."""
        try:
            self._view.system(domain)
        except (SourceError, ValueError) as error:
            raise ConfigError(f"agent-strategy {self.options.agent_strategy}: {error}") from None


@cache
def _tasks(domain: str, split: str) -> tuple[Task, ...]:
    try:
        return load_tasks(domain, split)
    except (SourceError, ValueError) as error:
        raise ConfigError(f"tasks of {domain} {split}: {error}") from error


def _place(row: Row) -> str:
    return row.where or "--prompt-data"
