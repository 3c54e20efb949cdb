"""The offline user of mock, airline and retail: that of tau-bench with a τ² scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from taubench.tau2.source import data_domain
from taubench.tau2.tables import snapshot
from taubench.tau2.task import Tau2Task
from taubench.users import OfflineUser
from taubench.users.script import Script, split_sentences, write_script

VERSION = "tau2-offline-1"

_NAME = re.compile(r"\b(?:you are|your name is|you're) ([A-Z][\w'-]+) ([A-Z][\w'-]+)")
_DIRECTION = re.compile(r"(?:don't|do not|never|if|first|try to get)\b", re.IGNORECASE)
_NOBODY: Mapping[str, Any] = {
    "name": {"first_name": "", "last_name": ""},
    "email": "",
    "address": {"zip": ""},
}


def _account(task: Tau2Task, text: str) -> tuple[str, Mapping[str, Any]]:
    """User id and record of the one whom the scenario describes; only to recognise facts in it."""
    if data_domain(task.domain) not in ("airline", "retail"):
        return "", _NOBODY
    lowered = text.lower()
    named: tuple[str, Mapping[str, Any]] | None = None
    for user_id, user in snapshot(task.domain).tables["users"].items():
        if user_id in lowered or user.email.lower() in lowered:
            return user_id, user.model_dump()
        full_name = f"{user.name.first_name} {user.name.last_name}".lower()
        if full_name in lowered and (named is None or user.address.zip in text):
            named = user_id, user.model_dump()
    if named is not None:
        return named
    found = _NAME.search(text)
    first, last = found.groups() if found else ("", "")
    return "", {**_NOBODY, "name": {"first_name": first, "last_name": last}}


def script_of(task: Tau2Task) -> Script:
    """What the user of a task knows and wants: first why it calls. What it does not know is left
    out, and so is most of what the scenario says about how to act.
    """
    scenario = task.scenario
    acting = scenario.task_instructions
    if scenario.reason_for_call is not None:
        acting = " ".join(one for one in split_sentences(acting) if not _DIRECTION.match(one))
    parts = (scenario.reason_for_call, acting, scenario.known_info)
    text = "\n".join(part for part in parts if part and part.strip(" ."))
    user_id, profile = _account(task, text)
    return write_script(user_id, text, profile)


class ScriptedUser(OfflineUser):
    """See `taubench.users.OfflineUser`; its limits are this one's too.

    Its first message answers the agent's greeting. It makes no calls.
    """

    version: ClassVar[str] = VERSION

    async def reset(self, task: Any) -> str:
        """See `User`."""
        return self.start(script_of(task))
