"""How a model plays tau-bench's user: its texts and their reading, as a `UserRole`."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.users import UserMessage

from taubench.task import STOP
from taubench.users import prompts, reading


class TauRole:
    """Implements `turnwise.users.UserRole`."""

    version = prompts.VERSION
    stop = STOP
    greeting = prompts.GREETING

    def rules(self, instruction: str, *, thinks: bool) -> str:
        """See `UserRole`."""
        form = prompts.THOUGHT.format(stop=STOP) if thinks else prompts.PLAIN
        return prompts.RULES.format(instruction=instruction, stop=STOP) + form

    def reminder(self) -> str:
        """See `UserRole`."""
        return prompts.REMINDER

    def check(self, instruction: str, dialogue: Sequence[tuple[str, str]], draft: str) -> str:
        """See `UserRole`."""
        names = {"user": "customer"}
        lines = "\n".join(f"{names.get(who, who)}: {words}" for who, words in dialogue)
        return prompts.CHECK.format(instruction=instruction, dialogue=lines, draft=draft, stop=STOP)

    def reflect(self, draft: str, reason: str) -> str:
        """See `UserRole`."""
        return prompts.REFLECT.format(draft=draft, reason=reason, stop=STOP)

    def read(self, answer: str) -> UserMessage:
        """See `UserRole`."""
        return reading.read_message(answer)

    def read_labelled(self, answer: str) -> UserMessage:
        """See `UserRole`."""
        return reading.read_labelled(answer)

    def read_verdict(self, answer: str) -> tuple[bool, str] | None:
        """See `UserRole`."""
        return reading.read_verdict(answer)

    def heard(self, agent_text: object) -> str:
        """What the agent said, without markers: it cannot put them into the user's mouth."""
        text = reading.without_markers(agent_text) if isinstance(agent_text, str) else ""
        return text if text.strip() else prompts.SILENCE

    def puts_stop_off(self, heard: str, message: UserMessage) -> bool:
        """See `UserRole`."""
        return reading.puts_stop_off(heard, message)
