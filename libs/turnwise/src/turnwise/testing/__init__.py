"""What tests of methods, engines and backends are written with, for us and for users.

engine = ScriptedEngine([say("The answer is 4.")])
episode = await play(method, rollout(task), byte_policy(engine))
"""

from turnwise.engine.scripted import ScriptedEngine, fail, reply
from turnwise.testing.tokens import (
    byte_policy,
    byte_profile,
    byte_tokenizer,
    call,
    decode,
    encode,
    say,
)

__all__ = [
    "ScriptedEngine",
    "byte_policy",
    "byte_profile",
    "byte_tokenizer",
    "call",
    "decode",
    "encode",
    "fail",
    "reply",
    "say",
]
