"""What the judge of NL assertions is asked, and how its answer is read.

Upstream asks for one JSON object and takes each verdict by whatever the judge repeats of the
sentence; here the sentences are numbered, and an answer without a verdict for each is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from taubench.tau2.messages import Message
from taubench.tau2.task import Tau2Task

VERSION = 1

_RULES = """\
You grade a conversation between a customer service agent and a customer. Below it stand numbered \
statements about what the agent should have done. For each one decide, by itself, whether the \
conversation shows that it is so. What the conversation does not show is not so.

Give your reason for each statement in one sentence. Then write one line for each statement, in \
order, in the form
VERDICT 1: TRUE
or
VERDICT 1: FALSE"""

_VERDICT = re.compile(r"\bverdict\W{0,4}(\d{1,3})\W{1,8}(true|false)\b", re.IGNORECASE)
_SPEAKERS = {"assistant": "agent", "user": "customer", "tool": "tool"}


def _line(message: Message) -> str:
    words = [message.content] if message.content else []
    words += [f"[calls {call.name} with {dict(call.arguments)!r}]" for call in message.calls]
    return f"{_SPEAKERS[message.role]}: {' '.join(words)}"


def nl_prompt(task: Tau2Task, history: Sequence[Message]) -> list[dict[str, str]]:
    """Chat messages for the judge.

    Raises:
        ValueError: the task has no NL assertions.
    """
    assertions = task.criteria.nl_assertions if task.criteria else ()
    if not assertions:
        raise ValueError(f"{task.key} has no NL assertions to judge")
    numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(assertions, 1))
    dialogue = "\n".join(map(_line, history))
    return [
        {"role": "system", "content": _RULES},
        {
            "role": "user",
            "content": f"The conversation:\n{dialogue}\n\nThe statements:\n{numbered}",
        },
    ]


def nl_verdicts(text: str, count: int) -> list[bool]:
    """The judge's verdicts in order. Of two on the same statement the last counts.

    Raises:
        ValueError: there is not one for each of `count` statements.
    """
    found = {int(number): word.lower() == "true" for number, word in _VERDICT.findall(text)}
    if set(found) != set(range(1, count + 1)):
        raise ValueError(
            f"verdicts on the statements 1 to {count} were wanted, got "
            f"{sorted(found) or 'none'}: {text[-200:]!r}"
        )
    return [found[number] for number in range(1, count + 1)]
