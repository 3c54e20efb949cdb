"""What the methods' lines of `check` have in common: data files, walls, the policy's template."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokendelta
from sandbox import Sandbox, SandboxConfig, SandboxUnavailable

from turnwise.launch.rules import whole
from turnwise.preflight import Line, fail, note, ok, skip
from turnwise.rows import Row
from turnwise.rows.reader import read_rows

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan


def data_files(plan: Plan) -> dict[str, str]:
    """The files of training and evaluation rows, by the names of their lines."""
    train = plan.value("--prompt-data")
    pairs = plan.options.get("--eval-prompt-data", [])
    evaluated = {f"data {name}": file for name, file in zip(pairs[::2], pairs[1::2], strict=True)}
    return {**({} if train is None else {"data": train}), **evaluated}


def plan_rows(path: str, plan: Plan) -> Iterator[Row]:
    """The rows of a data file, under the keys that slime's flags name.

    Raises:
        ConfigError: naming the file and row.
    """
    return read_rows(
        path,
        input_key=plan.value("--input-key") or "input",
        label_key=plan.value("--label-key"),
        metadata_key=plan.value("--metadata-key") or "metadata",
        tool_key=plan.value("--tool-key"),
    )


def check_walls(section: str, config: SandboxConfig, otherwise: str) -> Line:
    """Which walls hold on this machine around the programs of a run.

    Args:
        section: Of the sandbox, without brackets: `agentflow.sandbox`.
        config: Of the sandbox.
        otherwise: What to do where none holds, after `or`.
    """
    return asyncio.run(_walls(section, config, otherwise))


async def _walls(section: str, config: SandboxConfig, otherwise: str) -> Line:
    sandbox = Sandbox(config)
    try:
        tier = await sandbox.start()
    except SandboxUnavailable as error:
        remedy = f"each node needs one: see docs/sandbox.md, or {otherwise}"
        return fail("sandbox", str(error), remedy)
    finally:
        await sandbox.close()
    found = f"{tier} holds on this machine"
    if sandbox.missing:
        names = ", ".join(sandbox.missing)
        remedy = f"install them, or leave them out of [{section}] packages"
        return note("sandbox", f"{found}, without {names}", remedy)
    return ok("sandbox", found)


def policy_profile(
    line: str, plan: Plan, tools: Sequence[Mapping[str, Any]] = ()
) -> tokendelta.Profile | Line:
    """The profile of the policy's tokenizer; the line that says so where there is none.

    Args:
        line: The line's name.
        plan: Of the run, with the policy's folder under `--hf-checkpoint`.
        tools: That its chat template has to take.
    """
    folder = Path(plan.value("--hf-checkpoint") or "")
    if not folder.is_dir():
        return skip(line, f"{folder} is no folder")
    # Slow to import, and needed for such a line alone.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        return tokendelta.Profile.from_tokenizer(tokenizer, tools=list(tools))
    except (OSError, ValueError, tokendelta.TokenDeltaError) as error:
        said = " ".join(str(error).split())[:200]
        remedy = "use the instruction-tuned model, whose tokenizer has a chat template"
        return fail(line, said, remedy)


def check_turn_room(line: str, takes: str, prompt: str, tokens: int, plan: Plan) -> Line:
    """Whether a turn fits after a first prompt.

    Args:
        line: The line's name.
        takes: What the template takes, said where it fits.
        prompt: Which prompt it is.
        tokens: Of the prompt.
    """
    found = f"{prompt} has {tokens} tokens"
    turn = whole(plan.options, "--rollout-max-response-len", 0)
    limit = whole(plan.options, "--rollout-max-context-len", 0)
    if limit and tokens + turn > limit:
        remedy = f"set [rollout] rollout-max-context-len to {tokens + turn} or more"
        return fail(line, f"{found}, and with a turn of {turn} more than {limit}", remedy)
    return ok(line, f"it takes {takes}; {found}")
