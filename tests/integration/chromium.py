"""A real Chromium for tests, driven over its debugging protocol: no driver, no further package."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


class Page:
    """One tab.

    Attributes:
        problems: Exceptions and errors of the page, violations of its policy, and what it tried to load.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self._own: tuple[str, ...] = ("file:", "data:image/")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = json.loads((await self._socket.receive()).data)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(message["error"])
                return message["result"]
            self._note(message)

    async def open(self, path: Path | str, width: int = 1280) -> None:
        """Open a file, or an address that may load from below itself."""
        address = path if isinstance(path, str) else path.as_uri()
        self._own = (*self._own, address) if isinstance(path, str) else self._own
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Page.navigate", url=address)
        await self.until("document.querySelector('.page') !== null")

    async def text(self, selector: str) -> str:
        return str(await self.run(f"document.querySelector({selector!r}).textContent"))

    async def texts(self, selector: str) -> str:
        return str(await self.run(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent).join('|')"))

    async def count(self, selector: str) -> int:
        return int(await self.run(f"document.querySelectorAll({selector!r}).length"))

    async def click(self, selector: str) -> None:
        await self.run(f"document.querySelector({selector!r}).click()")

    async def open_sample(self) -> None:
        """Open the active row, and wait for its messages."""
        await self.press("Enter")
        await self.until("document.querySelectorAll('.message').length > 0")

    async def run(self, script: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        while not await self.run(condition):
            await asyncio.sleep(0.05)

    async def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def _note(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "Runtime.exceptionThrown", "params": params}:
                self.problems.append(json.dumps(params["exceptionDetails"]))
            case {"method": "Log.entryAdded", "params": {"entry": {"level": "error", "text": text}}}:
                self.problems.append(text)
            case {"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}} if not url.startswith(
                self._own
            ):
                self.problems.append(f"loads {url}")


@asynccontextmanager
async def chromium(profile: Path, path: Path | str) -> AsyncIterator[Page]:
    """A page in a browser of its own, without problems to its end; `profile` is its folder."""
    assert CHROMIUM is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--remote-debugging-port=0", f"--user-data-dir={profile / 'profile'}"]
    process = subprocess.Popen(
        [CHROMIUM, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port = await _port(profile / "profile" / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                tabs = await answer.json()
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.call(f"{domain}.enable")
                await page.open(path)
                yield page
                assert page.problems == []
    finally:
        process.kill()
        process.wait()


async def _port(file: Path) -> int:
    while not (file.exists() and (lines := file.read_text().split())):
        await asyncio.sleep(0.05)
    return int(lines[0])
