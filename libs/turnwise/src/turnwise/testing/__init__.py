"""What tests of methods, engines and backends are written with, for us and for users.

engine = ScriptedEngine([say("The answer is 4.")])
episode = await play(method, rollout(task), byte_policy(engine))

| module          | holds                                                                        |
|-----------------|------------------------------------------------------------------------------|
| `tokens`        | a tokenizer of bytes with a chat template, and short ways to script a policy |
| `servers`       | an SGLang server, an OpenAI-compatible endpoint and a search that misbehave  |
| `policy_server` | SGLang's routes before a policy on the CPU whose weights really change       |
| `faults`        | what an engine or an endpoint can do to an episode, and how it must end then |
| `conformance`   | what every engine keeps of `turnwise.engine.Engine`                          |
"""

from turnwise.engine.scripted import ScriptedEngine, fail, reply
from turnwise.method import play
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
    "play",
    "reply",
    "say",
]
