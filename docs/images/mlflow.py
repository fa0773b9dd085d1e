"""Records docs/images/mlflow.png: runs and a comparison in MLflow's own pages. Needs chromium.

``python docs/images/mlflow.py http://127.0.0.1:5000`` with the address of ``mlflow server --backend-store-uri
sqlite:///mlflow.db``, on a database with runs of ``slicepilot train`` and ``slicepilot evaluate``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

PICTURE, PATIENCE_S, QUIET_S = "docs/images/mlflow.png", 120.0, 15.0
BROWSER = ("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1500,900")
PORT = 9333
VIEW = "workflowType=machine_learning"  # else the pages open as they were left, at first for language models
CLICKS = (
    """document.querySelector('[data-component-id="mlflow.assistant.chat_panel.close"]')?.click()""",
    "[...document.querySelectorAll('label, button')].find(e => e.innerText === 'Expand rows')?.click()",
)


async def ask(socket: WebSocketClientConnection, method: str, **params: Any) -> dict[str, Any]:
    """The result of a command of the DevTools protocol."""
    await socket.write_message(json.dumps({"id": 1, "method": method, "params": params}))
    while True:
        answer = json.loads(await socket.read_message() or "{}")
        if answer.get("id") == 1:
            return dict(answer["result"])


async def record(address: str) -> None:
    """Open the experiment and save what is seen."""
    name = urllib.parse.urlencode({"experiment_name": "slicepilot"})
    with urllib.request.urlopen(f"{address}/api/2.0/mlflow/experiments/get-by-name?{name}") as answer:
        experiment = json.load(answer)["experiment"]["experiment_id"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            [*BROWSER, f"--remote-debugging-port={PORT}", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            socket = await websocket_connect(await page_of(PORT), max_message_size=1 << 28)
            page = f"{address}/#/experiments/{experiment}/runs?{VIEW}"
            await ask(socket, "Page.navigate", url=page)
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                seen = await ask(socket, "Runtime.evaluate", expression="document.body.innerText.includes('matching')")
                if seen["result"].get("value"):
                    break
                await asyncio.sleep(1)
            for click in CLICKS:
                await asyncio.sleep(QUIET_S)
                await ask(socket, "Runtime.evaluate", expression=click)
            await asyncio.sleep(QUIET_S)
            taken = await ask(socket, "Page.captureScreenshot", format="png")
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
    Path(PICTURE).write_bytes(base64.b64decode(taken["data"]))


async def page_of(port: int) -> str:
    """Address of the browser's page, once it is there."""
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                return next(tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page")
        except (OSError, StopIteration):
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
