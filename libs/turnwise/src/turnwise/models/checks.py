"""A frozen model's line of `check`: slime serves it, or its endpoint answers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.episode import BoundaryError
from turnwise.models import ModelConfig, make_models
from turnwise.preflight import Line, fail, ok, skip

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan

ANSWER_S = 20.0
"""Seconds for a frozen model's answer."""
_NAME = re.compile(r"""(?:^|[-{,\s])name:\s*["']?([\w.-]+)""", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)


def check_model(line: str, section: str, name: str, model: ModelConfig, plan: Plan) -> Line:
    """Looks at a model that a method asks.

    Args:
        line: The line's name.
        section: Where the model is configured, for what to do: `[agentflow.models.coder]`.
        name: The model's in the method.
        model: Its configuration.
        plan: Of the run on a cluster.
    """
    if model.local:
        remedy = f"give {section} sglang or base-url"
        return fail(line, "local: slime's hooks hold no engine", remedy)
    if model.sglang:
        return check_served(line, model.sglang, plan)
    return asyncio.run(_answers(line, section, name, model))


async def _answers(line: str, section: str, name: str, model: ModelConfig) -> Line:
    models = make_models({name: model})
    try:
        await models.check(ANSWER_S)
    except BoundaryError as error:
        return fail(line, str(error), f"look at {section}, at its server and at the network")
    finally:
        await models.close()
    return ok(line, f"{model.model} at {model.base_url} answers")


def check_served(line: str, name: str, plan: Plan) -> Line:
    """Looks for a model that slime should serve in the file of its engines.

    Args:
        line: The line's name.
        name: The model's, as the file has to call it.
        plan: Of the run on a cluster.
    """
    value = plan.value("--sglang-config")
    if value is None:
        remedy = "name the file of the engines in [sglang] sglang-config"
        return fail(line, f"sglang {name}, but slime gets no sglang-config", remedy)
    path = Path(value)
    if not path.is_file():
        return skip(line, f"{path} is not here, so its models can't be looked at")
    served = list(models_of(path))
    if name not in served:
        there = ", ".join(served) or "none"
        return fail(line, f"{path} has no model {name!r}; there are {there}", "name one of them")
    return ok(line, f"slime serves {name}; it is asked once the run has started")


def models_of(path: Path) -> dict[str, str]:
    """What a file of engines says of each model, by its name; nothing if the file is not here.

    YAML; a file in which models are named otherwise is slime's to read.
    """
    if not path.is_file():
        return {}
    text = _COMMENT.sub("", path.read_text(encoding="utf-8", errors="replace"))
    places = list(_NAME.finditer(text))
    ends = [place.start() for place in places[1:]] + [len(text)] * bool(places)
    return {place[1]: text[place.start() : end] for place, end in zip(places, ends, strict=True)}
