"""A picture of a page of a running MLflow, taken by a real Chromium once its charts are drawn.

    make ui &
    python docs/screenshot.py http://127.0.0.1:5000/#/experiments/1/runs/<run id>/model-metrics out.png --wait-for-charts 6
    python docs/screenshot.py "http://127.0.0.1:5000/#/experiments/1/runs?compareRunsMode=CHART" out.png --wait-for-charts 6

    npm install axe-core
    python docs/screenshot.py file:///…/tokens.html out.png --width 375 --axe node_modules/axe-core/axe.min.js

With --axe the page is checked for accessibility too, and for being no wider than the screen: what is found ends it with 2.

It speaks Chromium's DevTools protocol in real time: with a virtual clock MLflow's charts stay spinners. MLflow draws the charts
that are in view: a taller picture (--height) holds more of them. Needs aiohttp.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

# The charts that are drawn, and the placeholders of what is not: MLflow's spinners and skeletons.
COUNT_CHARTS = "document.querySelectorAll('.js-plotly-plot svg.main-svg:first-of-type').length"
COUNT_PENDING = """[...document.querySelectorAll(
    '[class*="spinner" i], [class*="skeleton" i], [role="progressbar"], [aria-busy="true"]'
)].filter(e => e.getClientRects().length).length"""

# MLflow opens in its view for generative AI, beside a chat: before its scripts run, choose its view for training, without the chat.
TRAINING_VIEW = """
localStorage.setItem('mlflow.workflowType_v1', '"machine_learning"');
localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
"""
# axe's findings, a line each; and whether a reader must scroll sideways.
FAULTS = """axe.run().then(found => [
    ...found.violations.map(v => `${v.id}: ${v.help} (${v.nodes.length} places, ${v.nodes[0].target})`),
    ...(document.documentElement.scrollWidth > innerWidth ? [`${document.documentElement.scrollWidth} pixels wide`] : [])
])"""
# A browser without a mouse shows the charts' tool bars over their lines.
HIDE_TOOL_BARS = "document.head.insertAdjacentHTML('beforeend', '<style>.modebar { display: none }</style>')"

# The middle of the innermost visible element that is called so, or of the first that `css:…` selects.
FIND = """(text => {
    const found = text.startsWith('css:') ? document.querySelector(text.slice(4)) : [...document.body.querySelectorAll('*')]
        .filter(e => [e.ariaLabel, e.innerText?.trim()].includes(text) && e.getClientRects().length).pop();
    if (!found) return null;
    found.scrollIntoViewIfNeeded();
    const box = found.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
})(%s)"""


class Page:
    """A tab of the browser, over its DevTools socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._sent = 0

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer. Raises RuntimeError with the browser's message when it fails."""
        self._sent += 1
        await self._socket.send_json({"id": self._sent, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json(timeout=60)
            if answer.get("id") == self._sent:  # everything else is an event
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]

    async def evaluate(self, script: str) -> Any:
        """The value of a piece of JavaScript."""
        sent = await self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return sent["result"].get("value")

    async def wait_for(self, script: str, what: str, seconds: float) -> Any:
        """Wait until the script's value is true in the sense of JavaScript. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not (value := await self.evaluate(script)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {seconds:.0f} seconds")
            await asyncio.sleep(0.25)
        return value

    async def click(self, text: str, seconds: float) -> None:
        """Press and release the mouse on the button, tab or link called so, as soon as there is one. Raises TimeoutError."""
        x, y = await self.wait_for(FIND % json.dumps(text), f"{text!r} to click", seconds)
        for kind in ("mousePressed", "mouseReleased"):
            await self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        await asyncio.sleep(0.5)


@contextmanager
def browser(program: str, width: int, height: int) -> Iterator[int]:
    """A headless browser with a profile of its own. Yields the port that it listens on."""
    profile = Path(tempfile.mkdtemp(prefix="screenshot-"))
    quiet = [
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
    ]
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *quiet]
    command += [
        f"--user-data-dir={profile}",
        "--remote-debugging-port=0",
        f"--window-size={width},{height}",
        "about:blank",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield _port(profile, process)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _port(profile: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that the browser chose, which it writes into its profile."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return int((profile / "DevToolsActivePort").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            time.sleep(0.1)
    raise TimeoutError("the browser did not start")


async def shoot(port: int, options: argparse.Namespace) -> str:
    """Open the page, click, wait, save. Returns a line on what is in the picture."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json") as answer:
            tab = next(tab for tab in await answer.json() if tab["type"] == "page")
        async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Page(socket)
            await page.command("Page.enable")
            size = {
                "width": options.width,
                "height": options.height,
                "deviceScaleFactor": options.scale,
                "mobile": False,
            }
            await page.command("Emulation.setDeviceMetricsOverride", **size)
            if not options.keep_view:
                await page.command("Page.addScriptToEvaluateOnNewDocument", source=TRAINING_VIEW)
            await page.command("Page.navigate", url=options.url)
            await page.wait_for(
                "document.body && document.body.innerText.trim().length > 50", "text on the page", options.timeout
            )
            for text in options.click:
                await page.click(text, options.timeout)
            drawn = f"{COUNT_CHARTS} >= {options.wait_for_charts} && {COUNT_PENDING} === 0"
            calm = 0
            deadline = time.monotonic() + options.timeout
            while calm < 4:  # a second without a placeholder: charts come in one by one
                calm = calm + 1 if await page.evaluate(drawn) else 0
                if time.monotonic() > deadline:
                    charts = await page.evaluate(COUNT_CHARTS)
                    pending = await page.evaluate(COUNT_PENDING)
                    raise TimeoutError(
                        f"{options.url}: {charts} charts and {pending} spinners after {options.timeout:.0f} seconds"
                    )
                await asyncio.sleep(0.25)
            await page.evaluate(HIDE_TOOL_BARS)
            picture = await page.command("Page.captureScreenshot", format="png")
            options.output.write_bytes(base64.b64decode(picture["data"]))
            if options.axe:
                await page.evaluate(options.axe.read_text("utf-8"))
                faults = await page.evaluate(FAULTS)
                if faults is None or faults:
                    raise RuntimeError(f"{options.url}: {'; '.join(faults or ['axe did not run'])}")
            checked = ", no faults" if options.axe else ""
            return f"{options.output}: {await page.evaluate(COUNT_CHARTS)} charts{checked}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("url")
    parser.add_argument("output", type=Path, help="the PNG to write")
    parser.add_argument("--wait-for-charts", type=int, default=0, metavar="N", help="charts that must be drawn")
    parser.add_argument(
        "--click",
        action="append",
        default=[],
        metavar="TEXT",
        help="tab or button to click, by its text or label, or as css:SELECTOR; repeatable",
    )
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core, which the page is checked with")
    parser.add_argument("--keep-view", action="store_true", help="leave MLflow in the view that it opens in")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that each wait may take")
    parser.add_argument("--width", type=int, default=1600)
    parser.add_argument("--height", type=int, default=1000)
    parser.add_argument("--scale", type=float, default=1.0, help="pixels of the picture to one of the page")
    parser.add_argument(
        "--browser", default=next(filter(shutil.which, BROWSERS), ""), help="program; by default the Chromium in PATH"
    )
    options = parser.parse_args()
    if not options.browser:
        parser.error(
            f"no browser found (looked for {', '.join(BROWSERS)}): install Chromium, or name one with --browser"
        )
    try:
        with browser(options.browser, options.width, options.height) as port:
            print(asyncio.run(shoot(port, options)))
    except (OSError, RuntimeError, aiohttp.ClientError) as error:  # TimeoutError is an OSError
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
