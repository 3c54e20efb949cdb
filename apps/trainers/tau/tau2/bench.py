"""What the method tau does where its tasks are τ²-bench's.

A data row's prompt is the task's index in its split; `env`, `task_split` and `task_set` of its
metadata go before those of the options, so that one run may train on several domains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tokendelta
from taubench.tau2 import (
    Tau2Task,
    flags,
    noop_baseline,
    supports_solo,
    system_prompt,
    transfer_baseline,
)
from taubench.tau2.users import UserConfig, UserMaker
from turnwise.command import PreflightError, StopRun
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError, Episode
from turnwise.judge import AssertionJudge
from turnwise.method import Method, Services
from turnwise.models import Models, make_models
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row

from apps.trainers.tau.options import TauOptions
from apps.trainers.tau.tau2.claims import claims
from apps.trainers.tau.tau2.episode import MakeUser, run_episode
from apps.trainers.tau.tau2.jobs import (
    Job,
    make_rows,
    place,
    read_job,
    split_names,
    task_set_of,
    tasks_of,
    tools_of,
)
from apps.trainers.tau.users import ask_users, made_here

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan
    from turnwise.preflight import Check

ASK_DEADLINE_S = 60.0
JUDGE = "judge"


class Tau2Bench(Method[TauOptions, Job]):
    """An agent that serves the users of τ²-bench; see `apps.trainers.tau.tau2.episode`."""

    name = "tau"

    def __init__(self, options: TauOptions, *, make_user: MakeUser | None = None) -> None:
        """
        Args:
            options: The run's.
            make_user: Makes the user of an episode in place of that of the options.

        Raises:
            ConfigError: the data is missing, or options that τ²-bench does not go with.
        """
        if options.agent_strategy != "tool-calling":
            raise ConfigError(
                "agent-strategy: τ²-bench is played with tool-calling, not "
                f"{options.agent_strategy}"
            )
        if options.prompt != "full":
            raise ConfigError("prompt: compact shows retail of τ-bench alone; τ²-bench has full")
        super().__init__(options)
        self._given = make_user
        self._services = Services()
        self._users: dict[str, UserMaker] = {}
        self._models: Models | None = None
        self._judge: AssertionJudge | None = None
        self._user_name = ""
        names = split_names(options.env)
        if options.task_split is not None and options.task_split not in names:
            raise ConfigError(
                f"task-split: {options.env} has {', '.join(names)}, found {options.task_split!r}"
            )
        # mock is not split.
        self._split: str = options.task_split or ("train" if "train" in names else names[0])
        # Reads the tasks now, in the thread that builds the method.
        tasks_of(options.env, self._split, self.task_set)

    @property
    def task_set(self) -> str:
        """The version of the tasks of the run's `env`."""
        return task_set_of(self.options.env, self.options.task_set)

    def task(self, row: Row) -> Job:
        """See `Method`."""
        options = self.options
        job = read_job(row, options.env, self._split, options.task_set)
        where = row.where or row.id
        if job.solo and not supports_solo(job.task):
            raise ConfigError(f"{where}: {job.task.key} can't be done without a user")
        if options.nl_assertions == "judge" and options.judge is None and needs_judge(job):
            raise ConfigError(
                f"{where}: the reward of {job.task.key} hangs on sentences that a judge must find"
                " true; give [tau.judge] (--judge.base-url URL --judge.model NAME), or"
                " --nl-assertions met, which takes them as met"
            )
        return job

    def rows(self, split: str) -> Sequence[Row]:
        """See `Method`: upstream's splits; `rest`; `held-out`, which is upstream's `test`.

        Trained on is `train`, or what `task-split` names; tasks whose own solution does not pass
        are left out of it.
        """
        options = self.options
        if split != "train":
            return make_rows(options.env, split, self.task_set)
        if options.user.strategy == "human":
            raise ConfigError(
                "user.strategy: nobody could answer for the users of many episodes at once; use "
                "llm or offline"
            )
        rows = make_rows(options.env, self._split, self.task_set)
        if options.include_failing_ground_truth:
            return rows
        return [row for row in rows if not flags(self.task(row).task).gold_fails]

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """See `Method`."""
        domain, solo = place(self.options.env)
        return tools_of(domain, self.task_set, solo)

    def tasks(self) -> Sequence[Tau2Task]:
        """The tasks of the split that rows without a split are of."""
        return tasks_of(self.options.env, self._split, self.task_set)

    def about(self) -> str:
        """See `Method`."""
        return f"{self.options.env} tasks ({self.task_set})"

    def prompt_tokens(self, tasks: Sequence[Job], profile: tokendelta.Profile) -> int:
        """See `Method`: instructions, policy, tools and ticket."""
        longest = 0
        # Of one domain only the ticket differs.
        ordered = sorted(tasks, key=lambda job: len(job.task.ticket or ""))
        kinds = {(job.task.domain, job.solo): job for job in ordered}
        for (domain, solo_mode), job in kinds.items():
            tools = tools_of(domain, job.task.task_set, solo_mode)
            session = tokendelta.Session(profile, tools=tools)
            system = {"role": "system", "content": system_prompt(job.task, solo=solo_mode)}
            prompt = session.start([system, {"role": "user", "content": ""}])
            assert not isinstance(prompt, tokendelta.Overflow)
            longest = max(longest, len(prompt))
        return longest

    async def baselines(
        self, tasks: Mapping[str, Job], tokenizer: Any, profile: tokendelta.Profile
    ) -> Mapping[str, float]:
        """See `Method`; the same with a user and solo."""
        known = [job.task for job in tasks.values()]
        return {
            "doing nothing": noop_baseline(known),
            "transferring at once": transfer_baseline(known),
        }

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        """See `Method`."""
        return claims(self.options, self.task_set, split, self.players())

    def players(self) -> Mapping[str, str]:
        """See `Method`."""
        options = self.options
        found = {"tasks": f"{options.env}, version {self.task_set}"}
        if self._user_name and not place(options.env)[1]:
            found["user"] = self._user_name
        if options.nl_assertions == "met":
            found["judge"] = "none: NL assertions are taken as met"
        elif options.judge is not None:
            found["judge"] = options.judge.model or options.judge.sglang
        return found

    async def open(self, services: Services) -> None:
        """See `Method`: asks the users' endpoint and the judge's."""
        self._services, options = services, self.options
        if self._given is not None:
            self._user_name = self._given().name
        elif not place(options.env)[1]:
            maker = self._maker(place(options.env)[0])
            await ask_users(maker, ASK_DEADLINE_S)
            self._user_name = maker.name
        if options.judge is not None and options.nl_assertions == "judge":
            self._models = models = make_models(
                {JUDGE: options.judge},
                sglang=services.server,
                policy=services.policy,
                environ=services.environ,
            )
            self._judge = AssertionJudge(models[JUDGE], cache=options.judge_cache)
            try:
                await models.check(ASK_DEADLINE_S)
            except BoundaryError as error:
                raise PreflightError(f"judge: no answer: {error}") from None

    async def run(self, rollout: Rollout[Job], policy: AnyPolicy) -> Episode:
        """See `Method`.

        Raises:
            StopRun: the users have reached the spend cap; all later episodes would be lost.
        """
        domain = rollout.task.task.domain
        make = self._given or self._maker(domain)
        episode = await run_episode(
            rollout, policy, self.options, make_user=make, judge=self._judge
        )
        users = self._users.get(domain)
        refusal = users.spend.refusal if users is not None else ""
        if refusal and episode.score is None:
            raise StopRun(f"user.spend-cap-usd: {refusal}")
        return episode

    def checks(self, plan: Plan) -> Mapping[str, Check]:
        """See `Method`."""
        from apps.trainers.tau.tau2.checks import make_checks

        return make_checks(self, plan)

    def metrics(self) -> Mapping[str, float]:
        """Requests, tokens, US dollars, repeats and cache hits of users and judge."""
        found: dict[str, float] = {}
        for users in self._users.values():
            for name, value in users.metrics().items():
                found[name] = found.get(name, 0.0) + value
        if self._models is not None:
            found |= self._models.metrics()
        if self._judge is not None:
            found |= self._judge.metrics()
        return found

    async def close(self) -> None:
        """Closes the connections of users and judge."""
        users, self._users = list(self._users.values()), {}
        models, self._models, self._judge = self._models, None, None
        await asyncio.gather(*(one.close() for one in users))
        if models is not None:
            await models.close()

    def _maker(self, domain: str) -> UserMaker:
        if domain not in self._users:
            given = self.options.user
            config = UserConfig(**{name: getattr(given, name) for name in given.model_fields_set})
            self._users[domain] = made_here(
                config,
                self._services,
                lambda served: UserMaker(served, domain=domain, environ=self._services.environ),
            )
        return self._users[domain]


def needs_judge(job: Job) -> bool:
    """Whether the reward hangs on NL assertions."""
    criteria = job.task.criteria
    return (
        criteria is not None and "NL_ASSERTION" in criteria.basis and bool(criteria.nl_assertions)
    )
