"""Who the agent talks to.

    user = OfflineUser()                      # one per episode
    opening = await user.reset(task)          # the customer's first words
    reply = await user.reply(agent_text)      # UserReply(text, done)

`User` is the protocol; `OfflineUser` the deterministic one without a model. A reported score
names the user that made it: `user.name`.
"""

from turnwise.users.offline import OfflineUser
from turnwise.users.protocol import User, UserReply

__all__ = ["OfflineUser", "User", "UserReply"]
