"""Frozen models by name: executors, verifiers, coders, judges. Asked, never trained.

    models = make_models({"executor": ModelConfig(base_url=URL, model=NAME)})
    await models.check()
    answer = await models["executor"].ask([{"role": "user", "content": "What is 6 * 7?"}])
    answer.text                                     # spells no special token
    await models.close()

A method takes any object with a `name` and an `ask`, so rules and scripts stand in for a model.

Whose doing it is, what an endpoint gives. A policy is a model that is evaluated behind an endpoint;
a helper is everybody else who is asked: users, judges, experts.

| what comes                                        | doing of | what becomes of it             |
|---------------------------------------------------|----------|--------------------------------|
| a status 408, 425, 429 or 5xx whatever its words, | endpoint | sent again while there is      |
| a broken or late connection                       |          | time, then lost                |
| no connection                                     | endpoint | sent again for `patience_s`,   |
|                                                   |          | then lost                      |
| an answer that is no chat completion: no JSON,    | endpoint | asked again                    |
| `choices` missing, null or empty, a legacy or     |          | `max_empty_replies` times,     |
| streamed one, over 4 MiB, an `error` beside or in |          | then lost (an `error` with a   |
| a choice, finish `error`, `abort`, ..., or none   |          | status counts as that)         |
| finish `content_filter`, `safety`, ...: a filter  | endpoint | the same                       |
| stands between the model and us                   |          |                                |
| a refusal in a field of its own                   | model    | a policy's is its text, and    |
|                                                   |          | scored; a helper's can't be    |
|                                                   |          | used: asked again, then lost   |
| no words, or thoughts alone                       | model    | the same                       |
| finish `length`                                   | model    | a policy's: stopped(tokens); a |
|                                                   |          | judge's is no verdict          |
| 400, 413 or 422 for the conversation's length     | sender   | a policy's: stopped(context);  |
|                                                   |          | a helper's: lost               |
| a user's message too long for a person            | user     | asked again, then lost: it     |
| (`turnwise.users`)                                |          | never fills a policy's context |
| another status, a quota used up                   | run      | lost at once; `check` finds it |
"""

from turnwise.models.chat import ChatModel
from turnwise.models.config import JudgeModelConfig, ModelConfig, UserModelConfig
from turnwise.models.engine import EngineModel
from turnwise.models.protocol import Act, ActingModel, Answer, FrozenModel, Message
from turnwise.models.recorded import recorded
from turnwise.models.registry import Models, make_models
from turnwise.models.text import KNOWN_MARKERS, Markers, plain_text, without_scratchpad

__all__ = [
    "KNOWN_MARKERS",
    "Act",
    "ActingModel",
    "Answer",
    "ChatModel",
    "EngineModel",
    "FrozenModel",
    "JudgeModelConfig",
    "Markers",
    "Message",
    "ModelConfig",
    "Models",
    "UserModelConfig",
    "make_models",
    "plain_text",
    "recorded",
    "without_scratchpad",
]
