"""The stand-in slime on the path, a tokenizer on disk, and hooks with nothing on their accounts."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[5] / "libs/turnwise/tests"))
sys.path.insert(0, str(Path(__file__).parents[5] / "libs/turnwise/tests/slime_standin"))

import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.utils.misc import SingletonMeta  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import make_args
from slime_standin.desk import Desk, make_tokenizer, save_tokenizer
from turnwise.slime import accounts, shared
from turnwise.slime import close as close_connections
from turnwise.testing.servers import FakeSGLang

OPTIONS = {"method": "tau", "user": {"strategy": "offline"}, "prompt": "compact", "max_turns": 8}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tokenizer(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def desk(tokenizer: Any) -> Desk:
    return Desk(tokenizer)


@pytest.fixture
async def server(desk: Desk) -> AsyncIterator[FakeSGLang]:
    async with FakeSGLang(desk.answer) as found:
        yield found
        await close_connections()


@pytest.fixture
def args(checkpoint: str, server: FakeSGLang) -> Callable[..., Any]:
    """slime's arguments for `server`; `turnwise` adds to the method's options."""

    def make(turnwise: dict[str, Any] | None = None, **changes: Any) -> Any:
        return make_args(
            hf_checkpoint=checkpoint,
            turnwise={**OPTIONS, **(turnwise or {})},
            sglang_router_port=server.port,
            **changes,
        )

    return make


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(accounts, "TRAIN", accounts.Accounts())
    shared._loops.clear()
    yield
    logging_utils.logged.clear()
    SingletonMeta._instances.clear()
