"""Who the agent talks to. No benchmark is named here.

    users = UserMaker(UserConfig(strategy="llm", ...), role=ROLE)   # `taubench.users` has tau's
    user = users()                            # one per episode
    opening = await user.reset(task)          # the user's first words
    reply = await user.reply(agent_text)      # UserReply(text, done)

`User` is the protocol, `ResumableUser` that of one who can go on with a conversation. `LlmUser`,
`ReactUser`, `VerifyUser` and `ReflectionUser` ask a frozen model what a `UserRole` tells it;
`HumanUser` asks a person. A reported score names the user that made it: `user.name`.
"""

from turnwise.users.cache import CachedUser, CacheMiss, ReplyCache
from turnwise.users.config import UserConfig, UserMaker
from turnwise.users.human import HumanUser, Terminal
from turnwise.users.model import LlmUser, ReactUser, ReflectionUser, VerifyUser
from turnwise.users.protocol import (
    MAX_MESSAGE_CHARACTERS,
    Exchange,
    ResumableUser,
    Scenario,
    User,
    UserReply,
    check_message,
)
from turnwise.users.replayed import ReplayedUser
from turnwise.users.role import UserMessage, UserRole

__all__ = [
    "MAX_MESSAGE_CHARACTERS",
    "CacheMiss",
    "CachedUser",
    "Exchange",
    "HumanUser",
    "LlmUser",
    "ReactUser",
    "ReflectionUser",
    "ReplayedUser",
    "ReplyCache",
    "ResumableUser",
    "Scenario",
    "Terminal",
    "User",
    "UserConfig",
    "UserMaker",
    "UserMessage",
    "UserReply",
    "UserRole",
    "VerifyUser",
    "check_message",
]
