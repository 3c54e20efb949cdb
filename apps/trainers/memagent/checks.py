"""MemAgent's lines of `check`: data, prompts, and what the longest row takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.config import ConfigError
from turnwise.launch.method_checks import data_files, plan_rows, policy_profile
from turnwise.preflight import Check, Line, fail, note, ok, skip

from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.prompts import make_prompts
from apps.trainers.memagent.task import Task, to_task
from apps.trainers.memagent.template import Template

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan

BYTES_A_NUMBER = 2
"""Of a key or value in bf16."""
BYTES_A_ROW_TOKEN = 12
"""On the host, a token of a training row: id, mask and log-prob."""
ENCODED = 32
"""Texts with the most characters whose tokens are counted; the others are shorter."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the longest text takes.

    Attributes:
        tokens: Of the text.
        sections: Of these.
        context: Tokens of the longest turn with its prompt.
        rows: Training rows of one episode at most.
        row_tokens: Of all these, with memories at their limit.
    """

    tokens: int
    sections: int
    context: int
    rows: int
    row_tokens: int


def make_checks(options: MemAgentOptions, plan: Plan) -> dict[str, Check]:
    """The lines' checks by name."""
    return {"data": lambda: check_data(options, plan), "room": lambda: check_room(options, plan)}


def check_data(options: MemAgentOptions, plan: Plan) -> Iterator[Line]:
    """A line a data file: its rows are problems with a text and answers."""
    files = data_files(plan)
    if "data" not in files:
        yield fail("data", "there is no prompt-data", "set [rollout] prompt-data")
    for name, path in files.items():
        try:
            tasks = read_tasks(path, plan)
        except ConfigError as error:
            yield fail(name, str(error), "write it with: memagent/data:prepare -- --train FILE")
            continue
        longest = max(len(task.context) for task in tasks if isinstance(task.context, str))
        said = f"{path}: {len(tasks)} problems, texts of up to {longest} characters"
        yield ok(name, said)


def check_room(options: MemAgentOptions, plan: Plan) -> Iterator[Line]:
    """Sections, context, KV cache and host memory of the longest row."""
    profile = policy_profile("room", plan)
    if isinstance(profile, Line):
        yield profile
        return
    template = Template(profile, make_prompts(options.prompt, options.order))
    tasks: list[Task] = []
    for path in data_files(plan).values():
        try:
            tasks += read_tasks(path, plan)
        except ConfigError:
            continue
    if not tasks:
        yield skip("room", "there is no row that could be read")
        return
    need = longest_need(tasks, template, options)
    yield check_sections(need, options)
    yield check_context(need, plan)
    yield from check_memory(need, plan, Path(plan.value("--hf-checkpoint") or ""))


def longest_need(tasks: Sequence[Task], template: Template, options: MemAgentOptions) -> Need:
    """What the longest of these texts takes, and the longest problem."""
    longest = sorted(tasks, key=lambda task: len(str(task.context)))[-ENCODED:]
    tokens = max(len(template.encode(str(task.context))) for task in longest)
    problem = template.encode(max((task.problem for task in tasks), key=len))
    most = None if options.max_chunks is None else options.max_chunks * options.chunk_tokens
    read = tokens if most is None or options.on_overlong == "refuse" else min(tokens, most)
    sections = -(-read // options.chunk_tokens)
    empty = template.nothing[:0]
    memory = options.max_memory_tokens
    update = len(template.update(problem, empty, empty)) + memory
    final = len(template.final(problem, empty)) + memory + options.max_final_tokens
    again = min(options.callbacks, sections)
    updates = sections + again
    return Need(
        tokens=tokens,
        sections=sections,
        context=max(update + min(read, options.chunk_tokens) + memory, final),
        rows=updates + 1,
        row_tokens=updates * (update + memory) + read + again * options.chunk_tokens + final,
    )


def check_sections(need: Need, options: MemAgentOptions) -> Line:
    """Whether the longest text has no more sections than it may."""
    said = f"the longest text has {need.tokens} tokens, {need.sections} sections"
    most = options.max_chunks
    if most is None or -(-need.tokens // options.chunk_tokens) <= most:
        return ok("sections", said)
    if options.on_overlong == "refuse":
        remedy = "raise [memagent] max-chunks, or set on-overlong, which cuts"
        return fail("sections", f"{said}; {most} are allowed, so the run would stop there", remedy)
    lost = need.tokens - most * options.chunk_tokens
    return note("sections", f"{said} of which on-overlong {options.on_overlong} cuts {lost} tokens")


def check_context(need: Need, plan: Plan) -> Line:
    """Whether the longest turn fits with its prompt."""
    turn, limit = (
        int(plan.value(flag) or 0)
        for flag in ("--rollout-max-response-len", "--rollout-max-context-len")
    )
    said = f"the longest turn takes {need.context} tokens with its prompt"
    if limit and need.context > limit:
        remedy = f"set [rollout] rollout-max-context-len to {need.context} or more"
        return fail("context", f"{said}, more than rollout-max-context-len {limit}", remedy)
    if not turn:
        return fail("context", "there is no rollout-max-response-len", "set it in [rollout]")
    return ok("context", said)


def check_memory(need: Need, plan: Plan, folder: Path) -> Iterator[Line]:
    """The KV cache of an episode, whatever its length, and the rows of a step on the host."""
    each = kv_bytes(folder)
    if each is None:
        yield skip("kv", f"{folder}/config.json does not say how large keys and values are")
    else:
        total = each * need.context / 2**30
        whole = each * need.tokens / 2**30
        yield ok(
            "kv",
            f"{total:.2f} GiB for an episode under way, of any length; the longest text at once"
            f" would take {whole:.2f} GiB",
        )
    batch, samples = (
        int(plan.value(flag) or 1) for flag in ("--rollout-batch-size", "--n-samples-per-prompt")
    )
    host = batch * samples * need.row_tokens * BYTES_A_ROW_TOKEN / 2**30
    yield ok(
        "host",
        f"{host:.2f} GiB for the rows of a step at most: {batch} x {samples} episodes of"
        f" {need.rows} rows, {need.row_tokens} tokens",
    )


def kv_bytes(folder: Path) -> int | None:
    """Bytes of keys and values that a token takes in all layers, in bf16; None where unknown."""
    try:
        config: Mapping[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        heads = int(config["num_attention_heads"])
        groups = int(config.get("num_key_value_heads") or heads)
        size = int(config.get("head_dim") or config["hidden_size"] // heads)
        return 2 * int(config["num_hidden_layers"]) * groups * size * BYTES_A_NUMBER
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


def read_tasks(path: str, plan: Plan) -> list[Task]:
    """The rows of a data file, under the keys that slime's flags name.

    Raises:
        ConfigError: naming the file and row.
    """
    return [to_task(row) for row in plan_rows(path, plan)]
