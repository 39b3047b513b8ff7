"""Updates the screenshots in docs/: PYTHONPATH=tests python -m viewer.pictures

Trains the demo with and without its bug into one logdir and takes screenshots in the light and the dark theme.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from tfdbg_arrow.query import open_logdir

from .browser import chromium, watched_page
from .serving import TOKEN, serving

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1280, "height": 860}
_SETTLE_MS = 1200


def record(logdir: Path) -> tuple[str, str]:
    """Trains the demo twice and returns the IDs of the runs with and without the bug."""
    program = logdir.with_name("demo.py")  # its path is in the pictures
    shutil.copy(ROOT / "examples" / "demo.py", program)
    for options in ([], ["--fix"]):
        command = [sys.executable, str(program), "--logdir", str(logdir), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open_logdir(logdir) as opened:
        bug, fixed = (run.run_id for run in opened.runs())
    return bug, fixed


def targets(logdir: Path, bug: str, fixed: str) -> dict[str, str]:
    """Returns the address of the page that each screenshot shows, by the name of the screenshot."""
    with open_logdir(logdir) as opened:
        first = opened.first_nonfinite(run_id=bug)
    assert first is not None
    tensor = {"run": bug, "event": first.event_index}
    return {
        "overview": "/?" + urlencode({"run": bug, "wait": 1}),
        "model": "/model?" + urlencode({"run": bug}),
        "graph": "/graph?" + urlencode(tensor),
        "executions": "/executions?" + urlencode({"run": bug, "bad": 1}),
        "history": "/history?" + urlencode(tensor),
        "diff": "/diff?" + urlencode({"run": bug, "other": fixed, "wait": 1}),
    }


def main() -> None:
    """Takes the screenshots."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="digits-") as scratch:
        logdir = Path(scratch) / "digits"
        addresses = targets(logdir, *record(logdir))
        with serving(logdir, timeout_s=120) as server, chromium() as browser:
            for theme in ("light", "dark"):
                with watched_page(browser, viewport=SIZE, color_scheme=theme) as page:
                    page.goto(f"{server.url}/?token={TOKEN}", timeout=120_000)
                    for name, address in addresses.items():
                        page.goto(f"{server.url}{address}", timeout=120_000)
                        page.wait_for_timeout(_SETTLE_MS)
                        page.screenshot(path=IMAGES / f"{name}-{theme}.png")


if __name__ == "__main__":
    main()
