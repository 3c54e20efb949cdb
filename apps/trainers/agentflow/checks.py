"""AgentFlow's lines of `check`: data, frozen models, sandbox, documents, chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tokendelta
from turnwise.answers import MathVerifier
from turnwise.config import ConfigError
from turnwise.launch.method_checks import (
    check_turn_room,
    check_walls,
    data_files,
    plan_rows,
    policy_profile,
)
from turnwise.models.checks import check_model
from turnwise.preflight import Check, Line, fail, note, ok
from turnwise.retrieval import read_documents

from apps.trainers.agentflow.config import AgentFlowOptions
from apps.trainers.agentflow.helpers import first_prompt
from apps.trainers.agentflow.question import Question, to_question
from apps.trainers.agentflow.tools.python_coder import PythonCoder
from apps.trainers.agentflow.tools.search import Search

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan

GRADED = 200
"""Rows of a data file, evenly spread, whose answer the rule is tried on."""
WRONG = "0"
"""What is held against them; where it is right, that is told as well."""


def make_checks(options: AgentFlowOptions, plan: Plan) -> dict[str, Check]:
    """The lines' checks by name."""
    return {
        "data": lambda: check_data(options, plan),
        "models": lambda: check_models(options, plan),
        "sandbox": lambda: check_sandbox(options),
        "documents": lambda: check_documents(options),
        "template": lambda: check_template(options, plan),
    }


def check_data(options: AgentFlowOptions, plan: Plan) -> Iterator[Line]:
    """A line a data file: its rows are questions whose answers can be graded."""
    files = data_files(plan)
    if "data" not in files:
        yield fail("data", "there is no prompt-data", "set [rollout] prompt-data")
    for name, path in files.items():
        try:
            questions = read_questions(path, plan)
        except ConfigError as error:
            remedy = "write it with: agentflow/data:prepare -- --train FILE --eval FILE"
            yield fail(name, str(error), remedy)
            continue
        yield asyncio.run(_gradable(name, path, questions, has_judge=bool(options.models.judge)))


def read_questions(path: str, plan: Plan) -> list[Question]:
    """The rows of a data file, under the keys that slime's flags name.

    Raises:
        ConfigError: naming the file and row.
    """
    found = [to_question(row) for row in plan_rows(path, plan)]
    if not found:
        raise ConfigError(f"{path}: no rows")
    return found


async def _gradable(name: str, path: str, questions: Sequence[Question], has_judge: bool) -> Line:
    """Whether the rule can tell a wrong answer from each question's own."""
    shown = questions[:: -(-len(questions) // GRADED)]
    verifier = MathVerifier()
    try:
        found = await asyncio.gather(*(verifier.check(WRONG, one.answer) for one in shown))
    finally:
        await verifier.close()
    unclear = [one for one, check in zip(shown, found, strict=True) if check.equal is None]
    said = f"{path}: {len(questions)} questions; the rule grades"
    said += f" {len(shown) - len(unclear)} of {len(shown)} answers"
    if not unclear:
        return ok(name, said)
    said += f", not {unclear[0].answer[:80]!r}"
    if has_judge:
        return ok(name, f"{said}; the judge model decides on the others")
    remedy = "set [agentflow.models.judge]: else such an answer is right in the same words alone"
    return note(name, said, remedy)


def check_models(options: AgentFlowOptions, plan: Plan) -> Iterator[Line]:
    """A line for each frozen model: slime serves it, or its endpoint answers."""
    models = options.models
    given = {**models.by_name(), **({} if models.judge is None else {"judge": models.judge})}
    if options.helpers == "rules":
        yield ok("models", "rules play the helpers")
    for name, model in given.items():
        yield check_model(f"model {name}", f"[agentflow.models.{name}]", name, model, plan)


def check_sandbox(options: AgentFlowOptions) -> Line:
    """Which walls hold on this machine."""
    if PythonCoder.name not in options.tools and not any(":" in name for name in options.tools):
        return ok("sandbox", "no tool runs code")
    isolation = "type [agentflow.sandbox] isolation"
    return check_walls("agentflow.sandbox", options.sandbox, isolation)


def check_documents(options: AgentFlowOptions) -> Line:
    """The file of the tool search."""
    if options.documents is None:
        if Search.name in options.tools:
            return fail("documents", "the tool search has none", "set [agentflow] documents")
        return ok("documents", "no tool needs any")
    return ok("documents", f"{options.documents}: {len(read_documents(options.documents))}")


def check_template(options: AgentFlowOptions, plan: Plan) -> Line:
    """Whether the policy's chat template takes the planner's prompt, and a turn fits after it."""
    profile = policy_profile("template", plan)
    if isinstance(profile, Line):
        return profile
    prompt = first_prompt(_longest(plan), options)
    ids = tokendelta.Session(profile).start([{"role": "user", "content": prompt}])
    assert not isinstance(ids, tokendelta.Overflow), "no limit was given"
    prompt = "the first prompt of the longest question"
    return check_turn_room("template", "the planner's messages", prompt, len(ids), plan)


def _longest(plan: Plan) -> str:
    """The question with the most characters, of files that can be read."""
    texts = [""]
    for path in data_files(plan).values():
        try:
            texts += [question.text for question in read_questions(path, plan)]
        except ConfigError:
            continue
    return max(texts, key=len)
