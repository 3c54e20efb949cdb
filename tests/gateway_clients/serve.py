"""The examples' agents as a service, run by the interpreter that has their libraries.

    python serve.py < paths.json      # where else to look for modules; writes its port, then serves

POST /MODULE with what `turnwise.gateway.callback` sends: the agent of `examples.MODULE` on the task
with that number; the answer is its reward.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Agents(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        from taubench import load_tasks

        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        serve = importlib.import_module(f"examples.{self.path[1:]}").serve
        task = load_tasks("retail", "train")[asked["task"]]
        said = json.dumps(asyncio.run(serve(asked["base_url"], task))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


if __name__ == "__main__":
    # Behind its own packages, which are the agents'.
    sys.path += json.loads(sys.stdin.read())
    with ThreadingHTTPServer(("127.0.0.1", 0), Agents) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
