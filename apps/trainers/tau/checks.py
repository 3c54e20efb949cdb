"""tau's lines of `check`: chat template, tool calls, tasks, grader, user, price."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokendelta
import toolparse
from taubench import Environment, Task, load_tasks, noop_baseline
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.launch.rules import whole
from turnwise.method import Services
from turnwise.models.checks import check_served
from turnwise.preflight import Check, Line, fail, note, ok, skip
from turnwise.rows import Row
from turnwise.rows.files import records
from turnwise.users import Scenario

from apps.trainers.tau.options import TauOptions
from apps.trainers.tau.users import ask_users, make_users

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan

    from apps.trainers.tau.bench import TauBench

ASK_DEADLINE_S = 20.0
# List prices in US dollars per million tokens read and written. Gemini's as its pricing page said
# on 2026-10-07, OpenAI's on several pages of 2026; [tau.user] read-price and write-price go first.
PRICES = {
    "gemini-3.5-flash-lite": (0.30, 2.50),
    "gemini-3.5-flash": (1.50, 9.00),
    "gpt-4o-mini": (0.15, 0.60),
    "gpt-4o": (2.50, 10.00),
}
# What the estimate assumes of a conversation: the offline user takes 5.6 to 7 turns a task.
TURNS, TOKENS_A_TURN, RULES_TOKENS, REPLY_TOKENS = 7, 100, 250, 40
CHARS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Shown:
    """What a policy is shown of a benchmark.

    Attributes:
        system, tools: Of the first prompt.
        strategy: How it is prompted.
        example: Name and arguments of a call that a task needs; None where there are no tools.
    """

    system: str
    tools: Sequence[Mapping[str, Any]]
    strategy: str
    example: tuple[str, Mapping[str, Any]] | None


def make_checks(method: TauBench, plan: Plan) -> dict[str, Check]:
    """The checks by the names of their lines."""
    return {
        "template": lambda: template(method.options, shown(method.options), plan),
        "data": lambda: data(method, plan),
        "user": lambda: check_user(method.options, plan),
    }


def shown(tau: TauOptions) -> Shown:
    """What tau-bench shows."""
    tools = tau.view.tools(tau.env)
    names = {tool["function"]["name"] for tool in tools}
    example = next(
        (
            (action.name, action.kwargs)
            for task in load_tasks(tau.env, tau.row_split)
            for action in task.actions
            if action.kwargs and action.name in names
        ),
        None,
    )
    return Shown(tau.view.system(tau.env), tools, tau.agent_strategy, example)


def template(tau: TauOptions, shown: Shown, plan: Plan) -> Iterator[Line]:
    """The chat template and how tool calls look in it."""
    folder = Path(plan.value("--hf-checkpoint") or "")
    if not folder.is_dir():
        yield skip("template", f"{folder} is no folder")
        return
    try:
        tokenizer = load_tokenizer(folder)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        yield fail("template", f"no tokenizer from {folder}: {said}", "download the model again")
        return
    yield from check_template(tokenizer, shown)
    if tokenizer.chat_template:
        yield check_tool_format(tokenizer, tau.tool_format, shown, plan)


def data(method: TauBench, plan: Plan) -> Iterator[Line]:
    """The data files, the grader on their tasks, and what the user will cost."""
    path = plan.value("--prompt-data")
    if path is None:
        yield fail("data", "there is no prompt-data", "set [rollout] prompt-data")
        return
    line, tasks = check_rows("data", path, method, plan)
    yield line
    pairs = plan.options.get("--eval-prompt-data", [])
    graded = list(tasks)
    for name, file in zip(pairs[::2], pairs[1::2], strict=True):
        line, more = check_rows(f"data {name}", file, method, plan)
        yield line
        graded += more
    if graded:
        yield check_grader(graded)
    if tasks:
        yield check_price(method.options, plan, tasks)


def read_rows(path: str, plan: Plan) -> Iterator[Row]:
    """The rows of a data file, by whole numbers too, as slime hands them on.

    Raises:
        ConfigError: naming the place of what is no row.
    """
    prompt = plan.value("--input-key") or "input"
    metadata = plan.value("--metadata-key") or "metadata"
    for one in records(path):
        if prompt not in one.fields:
            raise ConfigError(f"{one.where}: no {prompt!r}")
        more = one.fields.get(metadata) or {}
        if not isinstance(more, Mapping):
            raise ConfigError(f"{one.where}: {metadata}: expected an object")
        yield Row(one.fields[prompt], metadata=more, where=one.where)


def check_rows(name: str, path: str, method: TauBench, plan: Plan) -> tuple[Line, list[Task]]:
    """The line on a data file, and the tasks that its rows name."""
    remedy = 'write it with: tau:prepare -- --local-dir DIR, and set [rollout] input-key = "index"'
    tasks = []
    try:
        tasks = [method.task(row) for row in read_rows(path, plan)]
    except ConfigError as error:
        return fail(name, str(error), remedy), []
    if not tasks:
        return fail(name, f"{path}: no rows", remedy), []
    flagged = sum(task.flags.gt_write_fails for task in tasks)
    place = ", ".join(sorted({f"{task.domain} {task.split}" for task in tasks}))
    found = f"{path}: {len(tasks)} tasks of {place}"
    if flagged and name == "data":
        return (
            note(
                name,
                f"{found}; the ground truth of {flagged} has a write that fails",
                "train without them: tau:prepare -- --exclude gt-write-fails",
            ),
            tasks,
        )
    return ok(name, found), tasks


def check_grader(tasks: Sequence[Task]) -> Line:
    """Every task's own ground truth must score 1.0, and doing nothing what its flag says."""
    wrong = []
    for task in tasks:
        told = Environment(task)
        for action in task.actions:
            if told.done:
                break
            told.step(action)
        reward = told.score()
        if not reward.r_actions:
            wrong.append(f"{task.id} gives its ground truth {reward.reward}")
        idle = Environment(task).score().reward
        if idle != task.flags.noop_reward:
            wrong.append(f"{task.id} gives nothing {idle}, its flag says {task.flags.noop_reward}")
    if wrong:
        return fail("grader", "; ".join(wrong[:3]), "install tau-trait 0.1.1 unchanged")
    baseline = f"{noop_baseline(tasks):.3f} on average for doing nothing"
    return ok("grader", f"{len(tasks)} tasks: 1.0 for the ground truth, {baseline}")


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a Hugging Face folder; nothing is downloaded and no code of it runs.

    Raises:
        OSError, ValueError: it can't be loaded so.
    """
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )


def check_template(tokenizer: Any, shown: Shown) -> Iterator[Line]:
    """Lines on the chat template: what its audit finds and how it shows a tool call."""
    tools = shown.tools
    try:
        profile = tokendelta.Profile.from_tokenizer(tokenizer, tools=tools)
    except tokendelta.TokenDeltaError as error:
        remedy = "use the instruction-tuned model, whose tokenizer has a chat template"
        yield fail("template", str(error), remedy)
        return
    findings = profile.findings
    if tools and not (findings.takes_tools and findings.shows_calls):
        lacks = "takes no tools" if not findings.takes_tools else "shows no tool calls"
        yield fail("template", f"the chat template {lacks}", "use a model made for tool calls")
    stops = ", ".join(findings.stops) or "none"
    changed = [change for change in findings.changes.values() if change.effect != "append"]
    said = f"a turn ends with {stops}; "
    if changed:
        yield note(
            "template",
            f"{said}{len(changed)} of {len(findings.changes)} transitions change what was shown "
            "before; sampled ids are kept as they are",
            "[tau] on-rewrite = fork makes a new sample there instead",
        )
    else:
        yield ok("template", f"{said}it only appends")


def check_tool_format(tokenizer: Any, given: str | None, shown: Shown, plan: Plan) -> Line:
    """Whether a call that the template shows is read back as it was, and the prompt fits."""
    tools = list(shown.tools)

    def render(messages: list[dict[str, Any]], generation: bool) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=generation
            )
        )

    before = [{"role": "system", "content": shown.system}, {"role": "user", "content": "Hello."}]
    prompt = render(before, True)
    if shown.example is None:
        return _check_room(tokenizer, prompt, f"{shown.strategy} needs none", plan)
    server = plan.value("--sglang-tool-call-parser")
    template = tokenizer.chat_template
    likely = toolparse.detect(template) if isinstance(template, str) else None
    # As the hooks choose it.
    used = given or server or likely
    if used is None:
        found = "the chat template writes no tool calls that are known here"
        return fail("tool format", found, "set [tau] tool-format")
    remedy = f"set [tau] tool-format = {likely!r}" if likely else "set [tau] tool-format"
    name, arguments = shown.example
    call = {"name": name, "arguments": dict(arguments)}
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": call}],
    }
    rendered = render([*before, turn], False)
    start = len(os.path.commonprefix([prompt, rendered]))
    parsed = toolparse.parse(rendered[start:], format=used, tools=tools)
    read = [(one.name, one.arguments) for one in parsed.calls]
    if read != [(name, dict(arguments))]:
        why = parsed.errors[0].message if parsed.errors else f"read {read or 'no call'}"
        return fail("tool format", f"{used} does not read the template's own call: {why}", remedy)
    return _check_room(tokenizer, prompt, f"{used} reads the template's call back", plan)


def _check_room(tokenizer: Any, prompt: str, said: str, plan: Plan) -> Line:
    tokens = len(tokenizer.encode(prompt, add_special_tokens=False))
    limit = whole(plan.options, "--rollout-max-context-len", 0)
    found = f"{said}; the first prompt has {tokens} tokens"
    if limit and tokens + whole(plan.options, "--rollout-max-response-len", 0) > limit:
        remedy = "raise rollout-max-context-len"
        return fail("tool format", f"{found}, more than {limit} with one turn", remedy)
    return ok("tool format", found)


def check_user(tau: TauOptions, plan: Plan) -> Line:
    """One short request to the endpoint of the simulated user."""
    user = tau.user
    if user.strategy == "offline":
        return ok("user", "the offline customer needs no endpoint")
    if user.sglang:
        return check_served("user", user.sglang, plan)
    try:
        took = asyncio.run(_ask(tau))
    except ConfigError as error:
        remedy = "set it here and on the nodes, or change [tau.user]"
        return fail("user", f"[tau.user] {error}", remedy)
    except PreflightError as error:
        remedy = "look at [tau.user] base-url, model and key-env, at the quota and at the network"
        return fail("user", str(error), remedy)
    if user.user_replay:
        return ok("user", f"replies come from {user.user_cache} alone")
    return ok("user", f"{user.model} at {user.base_url} answers in {took:.1f} s")


async def _ask(tau: TauOptions) -> float:
    """Seconds until the user answered."""
    # The run is slime's, which serves models by name; none is asked for here.
    users = make_users(tau.user, Services(server=lambda name: ""))
    started = time.monotonic()
    try:
        await ask_users(users, ASK_DEADLINE_S)
    finally:
        await users.close()
    return time.monotonic() - started


def check_price(tau: TauOptions, plan: Plan, tasks: Sequence[Scenario]) -> Line:
    """What the simulated customer of the whole run may cost, by list prices."""
    if tau.user.strategy == "offline" or tau.user.sglang or tau.user.user_replay:
        return ok("price", "the customer costs nothing")
    rollouts = whole(plan.options, "--num-rollout", 0)
    batch = whole(plan.options, "--rollout-batch-size", 0)
    episodes = rollouts * batch * whole(plan.options, "--n-samples-per-prompt", 1)
    characters = sum(len(task.instruction) for task in tasks) / max(1, len(tasks))
    system = characters / CHARS_A_TOKEN + RULES_TOKENS
    read = TURNS * system + TOKENS_A_TURN * TURNS * (TURNS - 1) / 2
    written = TURNS * REPLY_TOKENS
    volume = f"{episodes:,} training episodes x {TURNS} replies: "
    volume += (
        f"{episodes * read / 1e6:,.0f} M tokens read, {episodes * written / 1e6:,.0f} M written"
    )
    given = (tau.user.read_price, tau.user.write_price)
    price = given if any(given) else PRICES.get(tau.user.model)
    if price is None:
        remedy = "give its prices: [tau.user] read-price and write-price, US dollars per million"
        return note("price", f"{volume}; no list price of {tau.user.model} is known here", remedy)
    dollars = episodes * (read * price[0] + written * price[1]) / 1e6
    whose = "these prices" if any(given) else "list price"
    said = f"{volume}, about ${dollars:,.0f} at {whose}; evaluation comes on top"
    cap = tau.user.spend_cap_usd
    if cap is not None and cap < dollars:
        # An estimate: conversations may be shorter than it takes them to be.
        remedy = "raise the cap, or let it end there"
        return note("price", f"{said}; the run ends at spend-cap-usd ${cap:g}", remedy)
    return note("price", said)
