"""Frozen models by name: executors, verifiers, coders, judges. Asked, never trained.

    models = make_models({"executor": ModelConfig(base_url=URL, model=NAME)})
    await models.check()
    answer = await models["executor"].ask([{"role": "user", "content": "What is 6 * 7?"}])
    answer.text                                     # spells no special token
    await models.close()

A method takes any object with a `name` and an `ask`, so rules and scripts stand in for a model.
"""

from turnwise.models.chat import ChatModel
from turnwise.models.config import JudgeModelConfig, ModelConfig
from turnwise.models.engine import EngineModel
from turnwise.models.protocol import Answer, FrozenModel, Message
from turnwise.models.recorded import recorded
from turnwise.models.registry import Models, make_models
from turnwise.models.text import KNOWN_MARKERS, Markers, plain_text

__all__ = [
    "KNOWN_MARKERS",
    "Answer",
    "ChatModel",
    "EngineModel",
    "FrozenModel",
    "JudgeModelConfig",
    "Markers",
    "Message",
    "ModelConfig",
    "Models",
    "make_models",
    "plain_text",
    "recorded",
]
