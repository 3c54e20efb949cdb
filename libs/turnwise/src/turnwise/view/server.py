"""Serves the page and what it asks for; reads runs alone and writes nothing.

A page of another site can't read from here: answers go to the names that the server knows itself
by (DNS rebinding) and carry no permission for other origins; the page loads nothing from elsewhere.

With a token the page may ask something of a run (`turnwise.view.control`): a line in its folder is
then written, and the token goes along in a header.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.report.page import part
from turnwise.run.jsonl import dump
from turnwise.view import answers, control
from turnwise.view.comparison import compare
from turnwise.view.episodes import Entry, Filter
from turnwise.view.run import ViewedRun, find_runs

BUDGET_S = 0.25
"""Seconds that one answer may spend on reading; what is left is read by the next."""
MAX_BODY = 65536
"""Bytes of a request."""
MAX_COMPARED = 8
"""Runs beside each other."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
OWN = (
    "index.html", "page.css", "app.js", "parts.js", "runs.js", "status.js", "episodes.js",
    "episode.js",
)  # fmt: skip
SHARED = {
    "uplot.js": ("vendor", "uplot.js"),
    "uplot.css": ("vendor", "uplot.css"),
    "charts.js": ("templates", "charts.js"),
    "tokens.js": ("templates", "tokens.js"),
    "style.css": ("templates", "style.css"),
}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ViewServer:
    """The runs in a folder, as an application."""

    def __init__(self, root: Path, names: Collection[str], token: str | None = None) -> None:
        """
        Args:
            names: Host names without port that a browser may reach the server by.
            token: Whoever has it may ask something of runs; None allows it to nobody.
        """
        self._root = root
        self._token = token
        self._names = frozenset(names)
        self._runs: dict[str, ViewedRun] = {}
        self._busy = asyncio.Lock()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        app.router.add_get("/", self._page)
        app.router.add_get("/assets/{name}", self._asset)
        app.router.add_get("/api/runs", self._list)
        app.router.add_get("/api/run", self._run)
        app.router.add_get("/api/compare", self._compare)
        app.router.add_get("/api/episodes", self._episodes)
        app.router.add_get("/api/episode", self._episode)
        app.router.add_get("/api/tokens", self._tokens)
        app.router.add_get("/api/group", self._group)
        app.router.add_get("/api/raw", self._raw)
        app.router.add_get("/api/status", self._status)
        app.router.add_post("/api/control", self._control)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = _without_port(request.headers.get("Host", ""))
        if host not in self._names:
            text = f"{host!r} is no name of this server; start it with --names to add one\n"
            return web.Response(status=421, text=text, headers=HEADERS)
        try:
            response = await handler(request)
        except ConfigError as error:
            response = _json({"error": str(error)}, status=404)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        response.headers.update(HEADERS)
        return response

    async def _page(self, request: web.Request) -> web.Response:
        return _file("index.html")

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in OWN and name not in SHARED:
            raise web.HTTPNotFound
        return _file(name)

    async def _read(self, work: Callable[[], Any]) -> web.Response:
        """Answers with what `work` returns; it reads files, one at a time, beside the loop."""
        async with self._busy:
            return _json(await asyncio.to_thread(work))

    def _look(self) -> None:
        found = dict(find_runs(self._root))
        for name in self._runs.keys() - found.keys():
            del self._runs[name]
        for name, path in found.items():
            if name not in self._runs:
                self._runs[name] = ViewedRun(name, path)

    def _named(self, name: str) -> ViewedRun:
        if name not in self._runs:
            self._look()
        if name not in self._runs:
            raise ConfigError(f"{name}: no such run in {self._root}")
        return self._runs[name]

    async def _list(self, request: web.Request) -> web.Response:
        def work() -> Any:
            self._look()
            return {"root": str(self._root), "runs": [r.listed() for r in self._runs.values()]}

        return await self._read(work)

    async def _run(self, request: web.Request) -> web.Response:
        return await self._read(lambda: self._named(request.query.get("run", "")).shown())

    async def _compare(self, request: web.Request) -> web.Response:
        names = list(dict.fromkeys(request.query.getall("run", [])))[:MAX_COMPARED]
        by = request.query.get("by")

        def work() -> Any:
            if len(names) < 2:
                raise ConfigError(f"{len(names)} runs were named; two or more can be compared")
            runs = [self._named(name) for name in names]
            for run in runs:
                run.refresh()
            return compare(
                [run.data() for run in runs], "seconds" if by == "seconds" else "training step"
            )

        return await self._read(work)

    async def _episodes(self, request: web.Request) -> web.Response:
        query = request.query

        def work() -> Any:
            asked = {name: value for name, value in query.items() if value}
            try:
                wanted = msgspec.convert(asked, Filter, strict=False)
                start = max(0, int(query.get("start", "0")))
            except (msgspec.ValidationError, ValueError) as error:
                raise ConfigError(f"the search can't be read: {error}") from None
            run = self._indexed(query.get("run", ""))
            return answers.episode_list(
                run, wanted, query.get("order", ""), start, time.monotonic() + BUDGET_S
            )

        return await self._read(work)

    def _indexed(self, name: str) -> ViewedRun:
        run = self._named(name)
        run.index_for(BUDGET_S)
        return run

    def _entry(self, request: web.Request) -> tuple[ViewedRun, Entry]:
        """The run and the episode on the line that is asked for; reads on until it is reached."""
        run = self._named(request.query.get("run", ""))
        line = _number(request, "line")
        run.index_for(0.0)
        while run.index.at_line(line) is None and not run.index.file.complete:
            run.index_for(BUDGET_S)
        entry = run.index.at_line(line)
        if entry is None:
            raise ConfigError(f"{run.folder.episodes}:{line + 1}: no episode on this line")
        return run, entry

    async def _episode(self, request: web.Request) -> web.Response:
        return await self._read(lambda: answers.episode(*self._entry(request)))

    async def _tokens(self, request: web.Request) -> web.Response:
        def work() -> Any:
            run, entry = self._entry(request)
            segments = run.open(entry).segments
            number = _number(request, "segment")
            if number >= len(segments):
                raise ConfigError(f"segment {number}: the episode has {len(segments)}")
            window = segments[number].window(_number(request, "start"), _number(request, "stop"))
            return {"chunks": window}

        return await self._read(work)

    async def _group(self, request: web.Request) -> web.Response:
        return await self._read(lambda: answers.group(*self._entry(request)))

    async def _status(self, request: web.Request) -> web.Response:
        def work() -> Any:
            run = self._named(request.query.get("run", ""))
            return control.status_shown(run.folder.path, allowed=self._token is not None)

        return await self._read(work)

    async def _control(self, request: web.Request) -> web.Response:
        if not control.is_allowed(request.headers, self._token):
            text = "this page may ask nothing of runs: start the server with --control"
            if self._token is not None:
                text = "this page may ask nothing of runs: open the address with its token"
            return _json({"error": text}, status=403)
        body = await request.read()
        run = self._named(request.query.get("run", ""))
        by = f"the page at {request.remote}"
        try:
            done = await asyncio.to_thread(control.take, run.folder.path, body, by)
        except (ConfigError, PreflightError, RunError) as error:
            return _json({"error": str(error)}, status=409)
        return _json(done)

    async def _raw(self, request: web.Request) -> web.Response:
        def work() -> bytes:
            run, entry = self._entry(request)
            return run.index.read(entry)

        async with self._busy:
            body = await asyncio.to_thread(work)
        return web.Response(body=body, content_type="application/json")


def _number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise ConfigError(f"{name}: expected a number, found {text!r}")
    return int(text)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).strip("[]").lower()


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(text=dump(value), content_type="application/json", status=status)


def _file(name: str) -> web.Response:
    if name in SHARED:
        text = part(*SHARED[name])
    else:
        assets = importlib.resources.files("turnwise.view").joinpath("assets", name)
        text = assets.read_text(encoding="utf-8")
    kind = TYPES[name.rpartition(".")[2]]
    return web.Response(text=text, content_type=kind, charset="utf-8")
