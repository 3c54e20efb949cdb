"""AgentFlow's lines of `check`: data, frozen models, sandbox, documents, chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tokendelta
from sandbox import Sandbox, SandboxUnavailable
from turnwise.answers import MathVerifier
from turnwise.config import ConfigError
from turnwise.models.checks import check_model
from turnwise.preflight import Check, Line, fail, note, ok, skip
from turnwise.retrieval import read_documents
from turnwise.rows.reader import read_rows

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
    files = _data_files(plan)
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
    rows = read_rows(
        path,
        input_key=plan.value("--input-key") or "input",
        label_key=plan.value("--label-key"),
        metadata_key=plan.value("--metadata-key") or "metadata",
        tool_key=plan.value("--tool-key"),
    )
    found = [to_question(row) for row in rows]
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
    return asyncio.run(_walls(options))


async def _walls(options: AgentFlowOptions) -> Line:
    sandbox = Sandbox(options.sandbox)
    try:
        tier = await sandbox.start()
    except SandboxUnavailable as error:
        remedy = "each node needs one: see docs/sandbox.md, or type [agentflow.sandbox] isolation"
        return fail("sandbox", str(error), remedy)
    finally:
        await sandbox.close()
    if sandbox.missing:
        names = ", ".join(sandbox.missing)
        return note(
            "sandbox",
            f"{tier} holds on this machine, without {names}",
            "install them, or leave them out of [agentflow.sandbox] packages",
        )
    return ok("sandbox", f"{tier} holds on this machine")


def check_documents(options: AgentFlowOptions) -> Line:
    """The file of the tool search."""
    if options.documents is None:
        if Search.name in options.tools:
            return fail("documents", "the tool search has none", "set [agentflow] documents")
        return ok("documents", "no tool needs any")
    return ok("documents", f"{options.documents}: {len(read_documents(options.documents))}")


def check_template(options: AgentFlowOptions, plan: Plan) -> Line:
    """Whether the policy's chat template takes the planner's prompt, and a turn fits after it."""
    folder = Path(plan.value("--hf-checkpoint") or "")
    if not folder.is_dir():
        return skip("template", f"{folder} is no folder")
    # Slow to import, and needed for this line alone.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        profile = tokendelta.Profile.from_tokenizer(tokenizer)
    except (OSError, ValueError, tokendelta.TokenDeltaError) as error:
        said = " ".join(str(error).split())[:200]
        remedy = "use the instruction-tuned model, whose tokenizer has a chat template"
        return fail("template", said, remedy)
    prompt = first_prompt(_longest(plan), options)
    ids = tokendelta.Session(profile).start([{"role": "user", "content": prompt}])
    assert not isinstance(ids, tokendelta.Overflow), "no limit was given"
    found = f"the first prompt of the longest question has {len(ids)} tokens"
    turn, limit = (
        int(plan.value(flag) or 0)
        for flag in ("--rollout-max-response-len", "--rollout-max-context-len")
    )
    if limit and len(ids) + turn > limit:
        remedy = f"set [rollout] rollout-max-context-len to {len(ids) + turn} or more"
        return fail("template", f"{found}, and with a turn of {turn} more than {limit}", remedy)
    return ok("template", f"it takes the planner's messages; {found}")


def _longest(plan: Plan) -> str:
    """The question with the most characters, of files that can be read."""
    texts = [""]
    for path in _data_files(plan).values():
        try:
            texts += [question.text for question in read_questions(path, plan)]
        except ConfigError:
            continue
    return max(texts, key=len)


def _data_files(plan: Plan) -> dict[str, str]:
    """By the names of their lines."""
    train = plan.value("--prompt-data")
    pairs = plan.options.get("--eval-prompt-data", [])
    evaluated = {f"data {name}": file for name, file in zip(pairs[::2], pairs[1::2], strict=True)}
    return {**({} if train is None else {"data": train}), **evaluated}
