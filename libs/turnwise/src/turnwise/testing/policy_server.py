"""SGLang's HTTP contract in front of a policy on the CPU, whose weights really change.

    async with PolicyServer(folder, context=256) as server:       # server.url

    python -m turnwise.testing.policy_server --model-path FOLDER --port PORT    # and SGLang's flags

It samples with the embedded engine in float32, so that log-probs are a trainer's own where the
weights are. What it has beside `FakeSGLang`: `/update_weights_from_tensor` in buckets, unpickled
under SGLang's restrictions, and `_from_disk`; `/flush_cache`, refused while turns are under way;
`/release_memory_occupation`, after which the weights are gone, and `/resume_`; `/health`,
`/server_info`. It is as wrong on demand as `Faults` says.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import os
import pickle
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from aiohttp import web
from torch import Tensor
from transformers import AutoModelForCausalLM

from turnwise.engine import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.testing.servers import Call, FakeSGLang, Turn

FAULTS = "TURNWISE_FAKE_SGLANG"
"""Of the environment: the faults of a server in a process of its own, as JSON."""
VERSION = "0.5.15.post1"
ALLOWED = ("builtins", "collections", "copyreg", "functools", "operator", "torch", "types")
"""Of the modules that SGLang 0.5.15 unpickles classes of, those that need no SGLang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong.

    Attributes:
        folder: Counts the starts, for what happens to one of them alone; needed for `die_after`.
        die_after: Of the first start, the second, ...: it dies at so many turns; 0 never.
        refuse_memory: It takes no weights through memory.
        refuse_weights: It takes none at all.
        forget: Updates, counted from 1, that it only says it took.
        version: What it says it is.
    """

    folder: str = ""
    die_after: tuple[int, ...] = ()
    refuse_memory: bool = False
    refuse_weights: bool = False
    forget: tuple[int, ...] = ()
    version: str = VERSION

    def start(self) -> int:
        """How many turns this start lives; 0 for ever."""
        if not self.folder:
            return 0
        starts = Path(self.folder) / "starts"
        with starts.open("a") as file:
            file.write("started\n")
        count = len(starts.read_text().splitlines())
        return self.die_after[count - 1] if count <= len(self.die_after) else 0


class PolicyServer(FakeSGLang):
    """See the module.

    Attributes:
        updates: Bodies of the requests for new weights, without the weights.
        released: Whether the memory is given back.
        lives: Turns until the process dies; 0 for ever.
    """

    def __init__(
        self,
        folder: Path,
        *,
        context: int,
        rows: int = 32,
        port: int = 0,
        faults: Faults | None = None,
        weight_version: str = "default",
    ) -> None:
        super().__init__(self._turn, port=port)
        load: Any = AutoModelForCausalLM.from_pretrained
        self.model: Any = load(folder, dtype=torch.float32).eval()
        self._engine = TorchEngine(self.model, rows=rows, context=context, verify=False)
        self.faults = faults or Faults()
        self.lives = 0
        self.weight_version = weight_version
        self.updates: list[dict[str, Any]] = []
        self.released = False
        self.flushes = self.releases = 0

    def add_routes(self, router: web.UrlDispatcher) -> None:
        super().add_routes(router)
        router.add_post("/update_weights_from_tensor", self._from_tensor)
        router.add_post("/update_weights_from_disk", self._from_disk)
        router.add_post("/flush_cache", self._flush)
        router.add_post("/release_memory_occupation", self._release)
        router.add_post("/resume_memory_occupation", self._resume)
        router.add_get("/health", self._health)
        router.add_get("/server_info", self._info)

    async def stop(self) -> None:
        await super().stop()
        await self._engine.close()

    async def _turn(self, call: Call) -> Turn:
        if self.released or (self.lives and call.number + 1 >= self.lives):
            print("Scheduler hit an exception: the fake died", flush=True)
            os._exit(1)
        asked = call.body["sampling_params"]
        turn = await self._engine.generate(
            np.array(call.body["input_ids"], dtype=np.int32),
            SamplingParams(
                temperature=asked["temperature"],
                top_p=asked["top_p"],
                top_k=max(asked["top_k"], 0),
                max_new_tokens=asked["max_new_tokens"],
                stop_token_ids=tuple(asked["stop_token_ids"]),
                seed=asked.get("sampling_seed"),
            ),
            session_id=call.session or str(call.number),
        )
        return Turn(turn.ids.tolist(), turn.logprobs.tolist(), turn.finish)

    async def _from_tensor(self, request: web.Request) -> web.Response:
        body = await request.json()
        (handle,) = body.pop("serialized_named_tensors")
        if self.faults.refuse_memory:
            return _refused("CUDA error: invalid resource handle")
        if body.get("load_format") != "flattened_bucket":
            return _refused(f"Unknown load_format={body.get('load_format')}")
        return await self._take(body, unflattened(base64.b64decode(handle, validate=True)))

    async def _from_disk(self, request: web.Request) -> web.Response:
        body = await request.json()
        loaded: Any = AutoModelForCausalLM.from_pretrained(body["model_path"])
        return await self._take(body, loaded.named_parameters())

    async def _take(
        self, body: dict[str, Any], named: Iterable[tuple[str, Tensor]]
    ) -> web.Response:
        self.updates.append(body)
        version = body.get("weight_version")
        if self.faults.refuse_weights:
            return _refused("out of memory")
        if version is None or int(version) not in self.faults.forget:
            own = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, tensor in named:
                    if name not in own or own[name].shape != tensor.shape:
                        return _refused(f"no weight {name} of {tuple(tensor.shape)}")
                    own[name].copy_(tensor)
            await self._engine.update_weights(self.model)
        if version is not None:
            self.weight_version = version
        return web.json_response({"success": True, "message": "Success"})

    async def _flush(self, request: web.Request) -> web.Response:
        until = asyncio.get_running_loop().time() + float(request.query.get("timeout", 0))
        while self.running and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.01)
        if self.running:
            return web.Response(status=400, text="Flush cache failed.\n")
        self.flushes += 1
        await self._engine.clear()
        return web.Response(text="Cache flushed.\n")

    async def _release(self, request: web.Request) -> web.Response:
        if self.running:
            return web.Response(status=400, text="called only when server is idle")
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.zero_()
        await self._engine.update_weights(self.model)
        self.released = True
        self.releases += 1
        return web.json_response(None)

    async def _resume(self, request: web.Request) -> web.Response:
        if not self.released:
            return web.Response(status=400, text="nothing was released")
        self.released = False
        return web.json_response(None)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.faults.version, "served": True})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] not in ALLOWED:
            raise RuntimeError(f"Blocked unsafe class loading ({module}.{name})")
        return super().find_class(module, name)


def unflattened(pickled: bytes) -> list[tuple[str, Tensor]]:
    """The weights of a bucket, as SGLang makes them of it."""
    content = _Unpickler(io.BytesIO(pickled)).load()
    memory = content["flattened_tensor"]
    return [
        (one.name, memory[one.start_idx : one.end_idx].view(one.dtype).reshape(one.shape))
        for one in content["metadata"]
    ]


def _refused(message: str) -> web.Response:
    return web.json_response({"success": False, "message": message}, status=400)


async def serve(argv: Sequence[str]) -> None:
    """Serves until the process is ended."""
    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context-length", type=int, default=512)
    parser.add_argument("--weight-version", default="default")
    given, _ = parser.parse_known_args(list(argv))
    faults = msgspec.json.decode(os.environ.get(FAULTS, "{}"), type=Faults)
    server = PolicyServer(
        given.model_path,
        context=given.context_length,
        port=given.port,
        faults=faults,
        weight_version=given.weight_version,
    )
    server.lives = faults.start()
    async with server:
        await asyncio.Event().wait()


def fake_site(folder: Path) -> dict[str, str]:
    """Makes `python -m sglang.launch_server` this server: the environment that it needs.

    Args:
        folder: Gets a package of that name.
    """
    package = folder / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{VERSION}"\n')
    module = "turnwise.testing.policy_server"
    (package / "launch_server.py").write_text(
        f"import sys\nfrom {module} import main\nmain(sys.argv[1:])\n"
    )
    path = [folder, *map(Path, filter(None, sys.path))]
    return {"PYTHONPATH": os.pathsep.join(str(one.absolute()) for one in path)}


def main(argv: Sequence[str]) -> None:
    """The command."""
    torch.set_num_threads(1)
    asyncio.run(serve(argv))


if __name__ == "__main__":
    main(sys.argv[1:])
