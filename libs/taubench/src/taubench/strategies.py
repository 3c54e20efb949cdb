"""How a policy is prompted and its text read: `tool-calling`, `few-shot`, `act`, `react`.

| strategy       | system prompt             | tools of template | a turn is                    |
|----------------|---------------------------|-------------------|------------------------------|
| `tool-calling` | the view's                | the view's        | calls in the policy's format |
| `few-shot`     | and demonstrations        | the view's        | the same                     |
| `act`          | and the tools, and a form | none              | `Action:` and a JSON object  |
| `react`        | the same                  | none              | `Thought:`, then the same    |

A strategy is a prompt view around another: warm start, training and evaluation take it by name,
and each is trainable, since a turn's ids are kept whatever its text means. The text strategies need
neither a chat template with tools nor a tool parser. They read a turn like this:

| the turn holds                             | it becomes                                         |
|--------------------------------------------|----------------------------------------------------|
| a scratchpad (`<think>` ...)               | nothing; it is part of the thought                 |
| `Action:` with {"name", "arguments"}       | that call; `respond` is a message to the customer  |
| several of them                            | by the rule for several calls                      |
| `Action:` with anything else, or none      | an error, which the policy gets as its observation |

Text outside of an action reaches nobody. Results come back as messages of the user's role that
begin with `Observation:`, because a template without tools need not know another.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from turnwise.models import without_scratchpad

from taubench.fewshot import demonstrations
from taubench.prompts import PromptView
from taubench.task import RESPOND

Strategy = Literal["tool-calling", "act", "react", "few-shot"]
STRATEGIES: tuple[Strategy, ...] = ("tool-calling", "act", "react", "few-shot")

_TOOL_RULE = (
    "Do one thing in a turn. After a call, wait for its result and read it before you go on, and "
    "say that something is done only once its result says so."
)

_TEXT_FORM = """\
# Actions
These are the actions there are, one JSON description a line:
{tools}

# Form of your turns
{form}
The action is a JSON object with the name of one of the actions above and its arguments. To write \
to the customer, take the action respond, as here:
{example}
{rule} A result comes as a message that begins with Observation: and any other message is the \
customer's. Only what stands in respond reaches the customer."""

_ACT_FORM = "Each turn is one line that begins with Action: and then holds the action."
_ACT_EXAMPLE = 'Action: {"name": "respond", "arguments": {"content": "Which order is it?"}}'
_REACT_FORM = (
    "Each turn has two parts. The first begins with Thought: and says in a sentence or two what "
    "you know and what comes next. The second is one line that begins with Action: and then holds "
    "the action."
)
_REACT_EXAMPLE = f"Thought: I do not know yet which order is meant, so I ask.\n{_ACT_EXAMPLE}"

_RESPOND = {
    "name": RESPOND,
    "description": "Writes a message to the customer and waits for the answer.",
    "parameters": {
        "type": "object",
        "properties": {"content": {"type": "string", "description": "The message."}},
        "required": ["content"],
    },
}

_FEW_SHOT = """\
# Examples
Conversations that went well. They show calls as lines and results shortened; make your calls in \
the form that your tools ask for. Names, numbers and orders are of other customers.

{examples}

# Turns
{rule}"""

# Runs of spaces are bounded, so that no turn takes more than linear time.
_LABEL = re.compile(r"(?<![\w\"'])action[ \t]{0,3}\*{0,3}:\*{0,3}", re.IGNORECASE)
_OPENING = re.compile(r"\s{0,16}(?:```(?:json)?\s{0,8})?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ReadError:
    """An action that cannot be read.

    Attributes:
        kind: `no_action`, `bad_json`, `not_an_object` or `no_name`.
        message: For the policy.
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class TextTurn:
    """What the text of a turn holds.

    Attributes:
        thought: The text before the first action.
        calls: (name, arguments) of each action in order, for `taubench.to_turn`.
        errors: Actions that cannot be read; one if there is no action at all.
    """

    thought: str
    calls: tuple[tuple[str, Any], ...] = ()
    errors: tuple[ReadError, ...] = ()


class TextView:
    """`act` and `react`: a view whose tools stand in the system prompt and whose turns are text."""

    def __init__(self, base: PromptView, strategy: Literal["act", "react"]) -> None:
        self.name = f"{strategy}:{base.name}"
        self._base = base
        self._thinks = strategy == "react"

    def system(self, domain: str) -> str:
        """See `PromptView`."""
        functions = [tool["function"] for tool in self._base.tools(domain)]
        form = _TEXT_FORM.format(
            tools="\n".join(json.dumps(one, ensure_ascii=False) for one in [*functions, _RESPOND]),
            form=_REACT_FORM if self._thinks else _ACT_FORM,
            example=_REACT_EXAMPLE if self._thinks else _ACT_EXAMPLE,
            rule=_TOOL_RULE,
        )
        return f"{self._base.system(domain)}\n\n{form}"

    def tools(self, domain: str) -> list[dict[str, Any]]:
        """None: they stand in the system prompt. Raises as `system` does."""
        self._base.tools(domain)
        return []

    def observation(self, tool: str, text: str) -> str:
        """See `PromptView`."""
        return f"Observation: {self._base.observation(tool, text)}"

    def read(self, text: str) -> TextTurn:
        """The actions of a turn. Never raises."""
        return read_actions(text)


class FewShotView:
    """`few-shot`: the base view with demonstrations in its system prompt."""

    def __init__(self, base: PromptView) -> None:
        self.name = f"few-shot:{base.name}"
        self._base = base

    def system(self, domain: str) -> str:
        """See `PromptView`. Raises ValueError for a domain without tasks to train on."""
        examples = "\n\n".join(demonstrations(domain, self._base))
        return f"{self._base.system(domain)}\n\n" + _FEW_SHOT.format(
            examples=examples, rule=_TOOL_RULE
        )

    def tools(self, domain: str) -> list[dict[str, Any]]:
        """See `PromptView`."""
        return self._base.tools(domain)

    def observation(self, tool: str, text: str) -> str:
        """See `PromptView`."""
        return self._base.observation(tool, text)


def strategy_view(strategy: str, view: PromptView) -> PromptView:
    """`view` as the strategy shows it; `tool-calling` is the view itself.

    Raises ValueError naming the strategies that exist.
    """
    if strategy == "tool-calling":
        return view
    if strategy == "act":
        return TextView(view, "act")
    if strategy == "react":
        return TextView(view, "react")
    if strategy == "few-shot":
        return FewShotView(view)
    raise ValueError(f"unknown agent strategy {strategy!r}: there are {', '.join(STRATEGIES)}")


def read_actions(text: str) -> TextTurn:
    """Reads a turn of a text strategy; see the module's table. Never raises."""
    spoken = without_scratchpad(text)
    calls: list[tuple[str, Any]] = []
    errors: list[ReadError] = []
    thought, place = "", 0
    while (label := _LABEL.search(spoken, place)) is not None:
        if not (calls or errors):
            thought = spoken[: label.start()].strip()
        opening = _OPENING.match(spoken, label.end())
        start = opening.end() if opening else label.end()
        found, place = _read_object(spoken, start)
        if isinstance(found, ReadError):
            errors.append(found)
        else:
            calls.append(found)
    if not (calls or errors):
        missing = 'no action in this turn: write Action: {"name": ..., "arguments": {...}}'
        return TextTurn(spoken, (), (ReadError("no_action", missing),))
    return TextTurn(thought, tuple(calls), tuple(errors))


def _read_object(text: str, start: int) -> tuple[tuple[str, Any] | ReadError, int]:
    """The action at `start`, and where to look for the next one."""
    if text[start : start + 1] != "{":
        return ReadError("not_an_object", "after Action: a JSON object must come"), start
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        return ReadError("bad_json", f"the action is not valid JSON: {error}"), start
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return ReadError("no_name", "the action needs a name, a string"), end
    return (name, value.get("arguments")), end
