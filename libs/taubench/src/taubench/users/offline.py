"""A deterministic user that needs no model and no key.

It knows the task's instruction and, to recognise facts in it, the user's own profile. It
never speaks of the ground truth. The same task and the same agent texts give the same replies,
so all members of a group meet the same user.

What an agent's message makes it do; the first that applies, decided by patterns:
1. says that it transfers to a human, or the conversation has had 40 replies: stop;
2. silence (not a string, or blank): an idle turn; the third in a row stops;
3. asks for user id, name, email, zip code or date of birth: what is asked and known, otherwise
   "I don't remember that.";
4. asks for a confirmation: "Yes, please proceed.";
5. asks for an order or reservation number, or a reason: the instruction's, if it has one;
6. asks whether there is anything else: the next unsaid request; when all is said, as many
   closing questions as configured, then stop;
7. anything else: the next unsaid request; when all is said, an idle turn.

Limits. It always confirms, also what its instruction does not want. Conditional scenes ("if the
agent says so, then ...") are not acted: 76 of 115 retail test, 26 of 50 airline test, 6 of 20
retail dev and none of the 500 retail train instructions have them. It says its instruction almost
word for word. So it is for tests, throughput, smoke runs and training on the train split; a score
made with it is not comparable with one made with a model as user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from turnwise.episode import Boundary, BoundaryError
from turnwise.users import Exchange, UserReply

from taubench.task import STOP, Task
from taubench.tasks import user_profile
from taubench.users.script import FACTS, Script, write_script

MAX_REPLIES = 40
VERSION = "offline-1"

_TRANSFER = re.compile(
    r"\b(?:transferr?ed|transferring|transfer you|hand(?:ing)? you over)\b.*"
    r"\b(?:human|agent|representative)",
    re.IGNORECASE | re.DOTALL,
)
_ASKS = re.compile(
    r"\?|\b(?:please|could you|can you|may i|i need|i'll need|i will need|provide|share|"
    r"let me know|tell me)\b",
    re.IGNORECASE,
)
_FACT_PATTERNS = {
    "user id": re.compile(r"\buser[ _-]?id\b|\b(?:customer|account) id\b", re.IGNORECASE),
    "name": re.compile(r"\b(?:your|first|last|full)\b[^.?]{0,20}\bname\b", re.IGNORECASE),
    "email": re.compile(r"\be-?mail\b", re.IGNORECASE),
    "zip code": re.compile(r"\b(?:zip|postal) ?code\b|\bzip\b", re.IGNORECASE),
    "date of birth": re.compile(r"\bdate of birth\b|\bdob\b|\bbirth(?:day|date)\b", re.IGNORECASE),
}
_WANTS_FACT = re.compile(
    r"\b(?:provide|share|tell me|give me|what(?:'s| is| are)|may i have|could i (?:have|get)|"
    r"can i have|need|verify|confirm|enter|send|know|authenticate|identify|locate|by)\b",
    re.IGNORECASE,
)
_YES_OR_NO = re.compile(r"\byes ?/ ?no\b|\(yes\b|\byes['\"]? (?:or|to)\b", re.IGNORECASE)
_CONFIRM = re.compile(
    r"\bconfirm|\bshall i\b|\bshould i\b|"
    r"\bdo you (?:want|agree|accept|approve|authorize|wish)\b|\bwould you like (?:me )?to\b|"
    r"\bproceed\b|\bgo ahead\b|\bis (?:that|this|it) (?:correct|right|ok|okay|fine|acceptable)\b|"
    r"\bis everything correct\b|\bare you sure\b",
    re.IGNORECASE,
)
_OPEN = re.compile(r"\b(?:what|which|how|when|where|who)\b", re.IGNORECASE)
_ORDER = re.compile(
    r"\b(?:order|reservation|confirmation|booking)s?\b[^.?]{0,20}\b(?:ids?|numbers?|codes?)\b",
    re.IGNORECASE,
)
_REASON = re.compile(r"\breason\b|\bwhy\b", re.IGNORECASE)
_ANYTHING_ELSE = re.compile(
    r"\banything (?:else|more|further)\b|\bsomething else\b|\bany (?:other|further|more) "
    r"(?:questions?|requests?|issues?|help|assistance|concerns?)\b|\bfurther assist",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"[^.?!\n]+[.?!]*")
_CLOSING = "Did you complete everything I asked for and answer all my questions?"

Opening = Literal["request", "everything"]


def _tell(script: Script, facts: tuple[str, ...]) -> list[str]:
    return [f"My {fact} is {script.facts[fact]}." for fact in facts if fact in script.facts]


def _asks_for_a_yes(sentence: str) -> bool:
    """A confirmation, unless a word before it ("What would you like to ...") opens the answer."""
    found = _CONFIRM.search(sentence)
    return found is not None and not _OPEN.search(sentence, endpos=found.start())


def _answer_question(script: Script, asked: str) -> str | None:
    """What the user says to a question that has an answer of its own, else None."""
    yes_or_no = _YES_OR_NO.search(asked) is not None
    facts = tuple(fact for fact in FACTS if _FACT_PATTERNS[fact].search(asked))
    if facts and not yes_or_no and _WANTS_FACT.search(asked):
        return " ".join(_tell(script, facts)) or "I don't remember that."
    if _ANYTHING_ELSE.search(asked):
        return None
    if yes_or_no or any(map(_asks_for_a_yes, _SENTENCES.findall(asked))):
        return "Yes, please proceed."
    if _ORDER.search(asked):
        ids = script.order_ids
        return f"It is {' and '.join(ids)}." if ids else "I don't remember that."
    if _REASON.search(asked):
        return script.reason or "I have no particular reason."
    return None


@dataclass(slots=True)
class _Progress:
    said: int = 1
    replies: int = 0
    idle: int = 0
    closings: int = 0
    stopped: bool = False


class OfflineUser:
    """See the module's docstring. Implements `ResumableUser`; `reset` starts the next task.

    Attributes:
        version: Names the rules; a subclass with rules of its own has its own.
    """

    version: ClassVar[str] = VERSION

    def __init__(
        self, *, opening: Opening = "request", closing_turns: int = 1, patience: int = 3
    ) -> None:
        """
        Args:
            opening: What the first message holds: the first `request`, or `everything` the
                user knows and wants, for agents that cannot yet ask.
            closing_turns: How often the user answers "anything else?" by asking whether all
                is done, before it stops. Too few stop an agent that asks after every write before
                it has done all: it solves 98, 110 and 115 of the 115 retail test tasks with 0, 1
                and 3 closing turns, and every task if it hears all requests first.
            patience: Idle turns in a row at which the user stops; 1 stops at the first
                statement after all requests are said.

        Raises:
            ValueError: an option is out of range.
        """
        if opening not in ("request", "everything"):
            raise ValueError(f"opening must be 'request' or 'everything', got {opening!r}")
        if closing_turns < 0 or patience < 1:
            raise ValueError(
                f"closing_turns must be at least 0 and patience at least 1, "
                f"got {closing_turns} and {patience}"
            )
        self._opening = opening
        self._closing_turns = closing_turns
        self._patience = patience
        self._script: Script | None = None
        self._progress = _Progress()

    @property
    def name(self) -> str:
        """`offline-1`, with the options that are not the default ones."""
        options = {
            "opening": (self._opening, "request"),
            "closing_turns": (self._closing_turns, 1),
            "patience": (self._patience, 3),
        }
        chosen = [f"{key}={value}" for key, (value, default) in options.items() if value != default]
        return f"{self.version}({','.join(chosen)})" if chosen else self.version

    async def reset(self, task: Task) -> str:
        """See `User`.

        Raises:
            KeyError: the task's user is not in the domain's users table.
        """
        return self.start(write_script(task.user_id, task.instruction, user_profile(task)))

    async def reply(self, agent_text: object) -> UserReply:
        """See `User`.

        Raises:
            RuntimeError: `reset` was not called.
        """
        return self.answer(agent_text)

    async def resume(self, task: Task, opening: str, exchanges: Sequence[Exchange]) -> None:
        """See `ResumableUser`: has the conversation again, which costs nothing.

        Raises:
            BoundaryError: it says something else than it has said.
        """
        said = [await self.reset(task), *(self.answer(heard).text for heard, _ in exchanges)]
        if said != [opening, *(reply.text for _, reply in exchanges)]:
            raise BoundaryError(Boundary.USER, f"{self.name} says something else than it has said")

    def start(self, script: Script) -> str:
        """The same as `reset` for a script of one's own, without awaiting."""
        self._script = script
        self._progress = _Progress()
        if self._opening == "request":
            return script.requests[0]
        self._progress.said = len(script.requests)
        return " ".join([*_tell(script, tuple(script.facts)), *script.requests])

    def answer(self, agent_text: object) -> UserReply:
        """The same as `reply`, without awaiting."""
        if self._script is None:
            raise RuntimeError("reset() must come before reply()")
        self._progress.replies += 1
        text = None if self._progress.stopped else self._next_words(self._script, agent_text)
        self._progress.stopped = text is None
        return UserReply(STOP, done=True) if text is None else UserReply(text)

    def _next_words(self, script: Script, agent_text: object) -> str | None:
        """The rules of the module's docstring; None to stop."""
        text = agent_text if isinstance(agent_text, str) else ""
        asked = " ".join(s for s in _SENTENCES.findall(text) if _ASKS.search(s))
        transferred = _TRANSFER.search(text) is not None and "?" not in text
        if transferred or self._progress.replies >= MAX_REPLIES:
            return None
        if not text.strip():
            return self._idle("Hello? Are you still there?")
        known = _answer_question(script, asked) if asked else None
        if known is not None:
            self._progress.idle = 0
            return known
        if self._progress.said < len(script.requests):
            self._progress.idle = 0
            self._progress.said += 1
            return script.requests[self._progress.said - 1]
        if asked and _ANYTHING_ELSE.search(asked):
            self._progress.closings += 1
            return _CLOSING if self._progress.closings <= self._closing_turns else None
        return self._idle("That is everything I need.")

    def _idle(self, text: str) -> str | None:
        self._progress.idle += 1
        return text if self._progress.idle < self._patience else None


def compact_user() -> OfflineUser:
    """A user who says everything at once and leaves at the agent's first statement.

    It goes with the compact prompt, because a small policy does not ask questions.
    """
    return OfflineUser(opening="everything", patience=1)
