"""A server with SGLang's routes that says one token and dies when it is told to.

python mortal.py PORT FOLDER N,M,...    the first start dies at its Nth turn, the second at M
python mortal.py PORT FOLDER weights    the first start dies of new weights
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from aiohttp import web

VERSION = {"weight": "0"}
CALLS = []
_, port, folder, plan = sys.argv
starts = Path(folder) / "starts"
with starts.open("a") as file:
    file.write("started\n")
number = len(starts.read_text().splitlines()) - 1


def die() -> None:
    print("I die", flush=True)
    os._exit(3)


async def generate(request: web.Request) -> web.Response:
    CALLS.append(request)
    lives = plan.split(",") if plan != "weights" else []
    if number < len(lives) and len(CALLS) == int(lives[number]):
        die()
    body = await request.json()
    return web.json_response(
        {
            "meta_info": {
                "finish_reason": {"type": "length"},
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": 12,
                "weight_version": VERSION["weight"],
                "output_token_logprobs": [[-1.0, 9, None]] * 12,
            }
        }
    )


async def take(request: web.Request) -> web.Response:
    if plan == "weights" and number == 0:
        die()
    VERSION["weight"] = (await request.json())["weight_version"]
    return web.json_response({"success": True})


async def answer(request: web.Request) -> web.Response:
    return web.json_response({"version": "0.5.15.post1"})


app = web.Application(client_max_size=2**30)
app.router.add_post("/generate", generate)
app.router.add_post("/update_weights_from_tensor", take)
app.router.add_post("/update_weights_from_disk", take)
app.router.add_post("/flush_cache", answer)
app.router.add_get("/health", answer)
app.router.add_get("/server_info", answer)
web.run_app(app, host="127.0.0.1", port=int(port), print=None)
