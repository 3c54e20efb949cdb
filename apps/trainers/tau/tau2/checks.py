"""tau's lines of `check` where its tasks are τ²-bench's: template, tasks, grader, user, judge."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from taubench.tau2 import flags, noop_baseline, system_prompt, transfer_baseline
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError
from turnwise.models import make_models
from turnwise.preflight import Check, Line, fail, note, ok

from apps.trainers.tau.checks import (
    ASK_DEADLINE_S,
    Shown,
    check_price,
    check_user,
    read_rows,
    template,
)
from apps.trainers.tau.tau2.jobs import Job, place

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan

    from apps.trainers.tau.tau2.bench import Tau2Bench

MEND = 'write it with: tau:prepare -- --env ENV, and set [rollout] input-key = "index"'


def make_checks(method: Tau2Bench, plan: Plan) -> dict[str, Check]:
    """The checks by the names of their lines."""
    return {
        "template": lambda: template(method.options, shown(method), plan),
        "data": lambda: data(method, plan),
        "user": lambda: user(method, plan),
        "judge": lambda: judge(method, plan),
    }


def shown(method: Tau2Bench) -> Shown:
    """What the policy is shown: of solo tasks with the longest ticket."""
    solo = place(method.options.env)[1]
    tasks = method.tasks()
    task = max(tasks, key=lambda one: len(one.ticket or "") if solo else 0)
    names = {tool["function"]["name"] for tool in method.tools()}
    example = next(
        (action.name, action.arguments)
        for one in tasks
        for action in (one.criteria.actions if one.criteria else None) or ()
        if action.name in names
    )
    strategy = method.options.agent_strategy
    return Shown(system_prompt(task, solo=solo), method.tools(), strategy, example)


def data(method: Tau2Bench, plan: Plan) -> Iterator[Line]:
    """The data files, the grader on their tasks, and what the user will cost."""
    path = plan.value("--prompt-data")
    if path is None:
        yield fail("data", "there is no prompt-data", "set [rollout] prompt-data")
        return
    pairs = plan.options.get("--eval-prompt-data", [])
    files = {"data": path}
    files |= {f"data {name}": file for name, file in zip(pairs[::2], pairs[1::2], strict=True)}
    trained: list[Job] = []
    graded: list[Job] = []
    for name, file in files.items():
        try:
            jobs = [method.task(row) for row in read_rows(file, plan)]
        except ConfigError as error:
            yield fail(name, str(error), MEND)
            continue
        if not jobs:
            yield fail(name, f"{file}: no rows", MEND)
            continue
        graded += jobs
        trained = jobs if name == "data" else trained
        kinds = sorted({f"{job.task.domain} {job.task.task_set}" for job in jobs})
        yield ok(name, f"{file}: {len(jobs)} tasks of {', '.join(kinds)}")
    if graded:
        yield check_grader(graded)
    overlap = {job.task.key for job in trained} & {job.task.key for job in graded[len(trained) :]}
    if overlap:
        found = f"{len(overlap)} tasks are trained on and evaluated on, {min(overlap)} among them"
        yield note("data", found, "evaluate on test where you train on train, on base with rest")
    if trained and all(job.solo for job in trained):
        yield ok("price", "solo: there is no user to pay")
    elif trained:
        yield check_price(method.options, plan, [job.task for job in trained])


def check_grader(jobs: Sequence[Job]) -> Line:
    """Every task's own solution must score 1.0."""
    tasks = [job.task for job in jobs]
    wrong = [task.key for task in tasks if flags(task).gold_fails]
    if wrong:
        found = f"the solution of {len(wrong)} tasks does not pass: {', '.join(wrong[:3])}"
        return note("grader", found, "train without them: tau:prepare leaves them out")
    fixed = f"{noop_baseline(tasks):.3f} for doing nothing, {transfer_baseline(tasks):.3f} for"
    return ok("grader", f"{len(tasks)} tasks: 1.0 for the solution, {fixed} transferring at once")


def user(method: Tau2Bench, plan: Plan) -> Line:
    """One short request to the endpoint of the simulated user, if there is one."""
    if place(method.options.env)[1]:
        return ok("user", "solo: there is none")
    return check_user(method.options, plan)


def judge(method: Tau2Bench, plan: Plan) -> Line:
    """One short request to the judge of NL assertions, if there is one."""
    options = method.options
    if options.nl_assertions == "met":
        return note("judge", "NL assertions are taken as met; a score is an upper bound")
    if options.judge is None:
        return ok("judge", "none; only tasks of retail v1.0 need one, and say so")
    if options.judge.sglang:
        return ok("judge", f"slime serves {options.judge.sglang}; it is asked in the run")
    remedy = "look at [tau.judge] base-url, model and key-env, at the quota and at the network"

    async def ask() -> float:
        assert options.judge is not None
        models = make_models({"judge": options.judge})
        started = time.monotonic()
        try:
            await models.check(ASK_DEADLINE_S)
        finally:
            await models.close()
        return time.monotonic() - started

    try:
        return ok("judge", f"{options.judge.model} answers in {asyncio.run(ask()):.1f} s")
    except (BoundaryError, ConfigError) as error:
        return fail("judge", str(error), remedy)
