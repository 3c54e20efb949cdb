"""ToolOrchestra's lines of `check`: data, experts, search, sandbox, chat template."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from turnwise.config import ConfigError
from turnwise.episode import BoundaryError
from turnwise.launch.method_checks import (
    check_turn_room,
    check_walls,
    data_files,
    plan_rows,
    policy_profile,
)
from turnwise.method import Services
from turnwise.models import ModelConfig
from turnwise.models.checks import ANSWER_S, check_model
from turnwise.preflight import Check, Line, fail, note, ok, skip
from turnwise.retrieval import SearchClient, read_documents

from apps.trainers.toolorchestra.customer_task import CustomerTask
from apps.trainers.toolorchestra.customers import Customers
from apps.trainers.toolorchestra.options import JUDGE, ToolOrchestraOptions
from apps.trainers.toolorchestra.rows import AnyTask

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan

    from apps.trainers.toolorchestra.method import ToolOrchestraMethod


def make_checks(method: ToolOrchestraMethod, plan: Plan) -> dict[str, Check]:
    """The lines' checks by name."""
    options = method.options
    return {
        "data": lambda: check_data(method, plan),
        "experts": lambda: check_experts(options, plan),
        "search": lambda: check_search(options),
        "customer": lambda: check_customer(options),
        "sandbox": lambda: check_sandbox(options),
        "template": lambda: check_template(method, plan),
    }


def check_data(method: ToolOrchestraMethod, plan: Plan) -> Iterator[Line]:
    """A line a data file: its rows are questions with experts that this run has."""
    files = data_files(plan)
    if "data" not in files:
        yield fail("data", "there is no prompt-data", "set [rollout] prompt-data")
    for name, path in files.items():
        try:
            tasks = read_tasks(method, path, plan)
        except ConfigError as error:
            yield fail(
                name, str(error), "write it with: toolorchestra/data:prepare -- --train FILE"
            )
            continue
        models = Counter(expert.model for task in tasks for expert in task.experts)
        named = ", ".join(f"{model} in {count}" for model, count in models.most_common())
        customers = sum(isinstance(task, CustomerTask) for task in tasks)
        kinds = f"{len(tasks) - customers} questions and {customers} customers"
        yield ok(name, f"{path}: {kinds}; lines of their tables: {named}")


def read_tasks(method: ToolOrchestraMethod, path: str, plan: Plan) -> list[AnyTask]:
    """The rows of a data file, under the keys that slime's flags name.

    Raises:
        ConfigError: naming the file and row.
    """
    found = [method.task(row) for row in plan_rows(path, plan)]
    if not found:
        raise ConfigError(f"{path}: no rows")
    return found


def check_experts(options: ToolOrchestraOptions, plan: Plan) -> Iterator[Line]:
    """A line for each expert and the judge: slime serves it, or its endpoint answers."""
    given: dict[str, ModelConfig] = dict(options.models)
    if options.judge_model is not None:
        given[JUDGE] = options.judge_model
    if options.experts == "rules":
        yield ok("experts", "rules play the experts")
    for name, model in given.items():
        line = f"expert {name}" if name != JUDGE else JUDGE
        section = (
            f"[toolorchestra.models.{name}]" if name != JUDGE else "[toolorchestra.judge-model]"
        )
        yield check_model(line, section, name, model, plan)


def check_search(options: ToolOrchestraOptions) -> Line:
    """Whether the search finds anything to look in."""
    retrieval = options.retrieval
    if retrieval.documents is not None:
        return ok("search", f"{retrieval.documents}: {len(read_documents(retrieval.documents))}")
    if not retrieval.url:
        return note(
            "search",
            "there is neither url nor documents, so no row may offer search",
            "set [toolorchestra.retrieval] url, where apps/services/retrieval:serve listens",
        )
    return asyncio.run(_searches(retrieval.url))


async def _searches(url: str) -> Line:
    client = SearchClient(url, deadline_s=ANSWER_S)
    try:
        await client.check()
    except BoundaryError as error:
        remedy = "start it: apps/services/retrieval:serve -- --corpus FILE"
        return fail("search", str(error), remedy)
    finally:
        await client.close()
    return ok("search", f"{url} answers")


def check_customer(options: ToolOrchestraOptions) -> Line:
    """Whether the customers' model answers, where they have one."""
    strategy = options.customer.strategy
    if strategy == "offline":
        return ok("customer", "needs no model")
    if options.customer.sglang:
        return ok("customer", f"slime serves {options.customer.sglang}; it is asked at the start")
    return asyncio.run(_customer_answers(options))


async def _customer_answers(options: ToolOrchestraOptions) -> Line:
    customers = Customers(options.customer, Services())
    try:
        await customers.check()
    except BoundaryError as error:
        return fail("customer", str(error), "look at [toolorchestra.customer] and at its server")
    finally:
        await customers.close()
    return ok("customer", f"{options.customer.model} answers")


def check_sandbox(options: ToolOrchestraOptions) -> Line:
    """Which walls hold on this machine."""
    if not options.run_code:
        return ok("sandbox", "no expert's program is run")
    words = "set [toolorchestra] run-code = false"
    return check_walls("toolorchestra.sandbox", options.sandbox, words)


def check_template(method: ToolOrchestraMethod, plan: Plan) -> Line:
    """Whether the policy's chat template takes the longest first prompt, and a turn fits after."""
    profile = policy_profile("template", plan, method.tools())
    if isinstance(profile, Line):
        return profile
    tasks = _readable(method, plan)
    if not tasks:
        return skip("template", "there is no row that could be read")
    tokens = method.prompt_tokens(tasks, profile)
    prompt = "the longest first prompt"
    return check_turn_room("template", "the policy's messages", prompt, tokens, plan)


def _readable(method: ToolOrchestraMethod, plan: Plan) -> Sequence[AnyTask]:
    tasks: list[AnyTask] = []
    for path in data_files(plan).values():
        try:
            tasks += read_tasks(method, path, plan)
        except ConfigError:
            continue
    return tasks
