"""tau-bench's users.

    users = UserMaker(UserConfig(strategy="llm", model=MODEL, base_url=URL, key_env=NAME))
    user = users()                            # one per episode
    opening = await user.reset(task)          # the user's first words
    reply = await user.reply(agent_text)      # UserReply(text, done)

`OfflineUser` is deterministic and without a model. The others are those of `turnwise.users`, told
and read as `TauRole` says.
"""

from taubench.users.config import UserConfig, UserMaker, UserStrategy
from taubench.users.offline import OfflineUser, compact_user
from taubench.users.role import TauRole

__all__ = [
    "OfflineUser",
    "TauRole",
    "UserConfig",
    "UserMaker",
    "UserStrategy",
    "compact_user",
]
