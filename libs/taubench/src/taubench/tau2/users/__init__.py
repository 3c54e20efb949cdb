"""τ²-bench's users.

    users = UserMaker(UserConfig(strategy="llm", model=MODEL, base_url=URL, key_env=NAME), domain=D)
    user = users()                            # one per episode
    text = await user.reset(task)             # answers the greeting
    words = await play_user(environment, ask) # until it is the agent's turn

A user's text is its words or, in telecom, calls of its own tools (`read_turn`); what they return is
the next thing it hears (`tool_results`). `offline_user(domain)` is deterministic and without a
model: `PhoneUser` for telecom, `ScriptedUser` for the others. The models' users are those of
`turnwise.users`, told and read as `Tau2Role` says.
"""

from taubench.tau2.users.config import UserConfig, UserMaker, UserStrategy, offline_user
from taubench.tau2.users.role import Tau2Role
from taubench.tau2.users.scripted import ScriptedUser
from taubench.tau2.users.telecom import PhoneUser
from taubench.tau2.users.wire import (
    UserTurn,
    heard_by_user,
    play_user,
    read_results,
    read_turn,
    tool_results,
    words_of_agent,
    write_call,
)

__all__ = [
    "PhoneUser",
    "ScriptedUser",
    "Tau2Role",
    "UserConfig",
    "UserMaker",
    "UserStrategy",
    "UserTurn",
    "heard_by_user",
    "offline_user",
    "play_user",
    "read_results",
    "read_turn",
    "tool_results",
    "words_of_agent",
    "write_call",
]
