"""Who the agent talks to.

    users = UserMaker(UserConfig(strategy="llm", model=MODEL, base_url=URL, key_env=NAME))
    user = users()                            # one per episode
    opening = await user.reset(task)          # the customer's first words
    reply = await user.reply(agent_text)      # UserReply(text, done)

`User` is the protocol. `OfflineUser` is deterministic and without a model; `LlmUser`, `ReactUser`,
`VerifyUser` and `ReflectionUser` ask one; `HumanUser` asks a person. A reported score names the
user that made it: `user.name`.
"""

from turnwise.users.cache import CachedUser, CacheMiss, ReplyCache
from turnwise.users.config import UserConfig, UserMaker, UserStrategy
from turnwise.users.human import HumanUser, Terminal
from turnwise.users.model import LlmUser, ReactUser, ReflectionUser, VerifyUser
from turnwise.users.offline import OfflineUser, compact_user
from turnwise.users.protocol import User, UserReply
from turnwise.users.replayed import ReplayedUser

__all__ = [
    "CacheMiss",
    "CachedUser",
    "HumanUser",
    "LlmUser",
    "OfflineUser",
    "ReactUser",
    "ReflectionUser",
    "ReplayedUser",
    "ReplyCache",
    "Terminal",
    "User",
    "UserConfig",
    "UserMaker",
    "UserReply",
    "UserStrategy",
    "VerifyUser",
    "compact_user",
]
