"""A headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
DEADLINE_S = 60.0
"""For a page to show what it shall; far away."""


class Page:
    """One page of the browser.

    Attributes:
        requests: Addresses that the page asked for.
        faults: Exceptions of its scripts, and what its policy refused.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None
        self._context = ""
        self.requests: list[str] = []
        self.faults: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
                continue
            parameters = told.get("params", {})
            if told["method"] == "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            elif told["method"] == "Runtime.exceptionThrown":
                self.faults.append(json.dumps(parameters["exceptionDetails"]))
            elif told["method"] == "Log.entryAdded" and parameters["entry"]["source"] == "security":
                self.faults.append(parameters["entry"]["text"])

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        answer = asyncio.get_running_loop().create_future()
        self._answers[self._number] = answer
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        told = await asyncio.wait_for(answer, DEADLINE_S)
        assert "error" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    async def attach(self) -> None:
        context = await self.send("Target.createBrowserContext", disposeOnDetach=True)
        self._context = context["browserContextId"]
        target = await self.send(
            "Target.createTarget", url="about:blank", browserContextId=self._context
        )
        found = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.send(f"{domain}.enable")

    async def close(self) -> None:
        self._session = None
        await self.send("Target.disposeBrowserContext", browserContextId=self._context)

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """What an expression of the page's JavaScript is, awaited."""
        found = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Waits until the expression is true; one that fails is not."""
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            if await self.value(f"(() => {{ try {{ return !!({script}) }} catch {{ }} }})()"):
                return
            if asyncio.get_running_loop().time() > deadline:
                shown = await self.value("document.body.innerText")
                raise AssertionError(f"never true: {script}; the page shows {shown[:2000]!r}")
            await asyncio.sleep(0.05)

    async def text(self, selector: str = "main") -> str:
        found: str = await self.value(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    async def click(self, selector: str) -> None:
        await self.value(f"document.querySelector({json.dumps(selector)}).click()")

    async def fill(self, selector: str, text: str) -> None:
        """Types into a field as a person does, over what it held."""
        await self.value(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)});"
            f" field.focus(); field.value = ''; }})()"
        )
        await self.send("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, " ": 32}
        key_text = {"Enter": "\r", " ": " "}.get(key)
        more = {"text": key_text} if key_text else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **common, **more)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, path: Path) -> None:
        found = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def launched(folder: Path) -> Iterator[str]:
    """The DevTools address of a browser whose profile lies in `folder`."""
    assert CHROMIUM is not None
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / "stderr"
    with said.open("wb") as stream:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
    try:
        deadline = time.monotonic() + DEADLINE_S
        address = ""
        while not address:
            assert process.poll() is None, "the browser ended before it listened"
            assert time.monotonic() < deadline, said.read_text(errors="replace")
            time.sleep(0.02)
            _, _, rest = said.read_text(errors="replace").partition("DevTools listening on ")
            address = rest.partition("\n")[0].strip() if "\n" in rest else ""
        yield address
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[Page]:
    """A page of its own, without what others have stored, in a browser that runs."""
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            await page.attach()
            try:
                yield page
            finally:
                await page.close()
                listening.cancel()


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """A page in a browser of its own, whose profile lies in `folder`."""
    with launched(folder) as address:
        async with opened(address) as page:
            yield page
