"""Runs Debian's chromium with playwright and checks that pages do nothing forbidden."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

# A separate process answers the requests that a page sends later. It starts slowly on a busy machine.
expect.set_options(timeout=60_000)

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Yields a browser with a new, empty profile."""
    assert CHROMIUM.exists(), f"tests of the viewer need {CHROMIUM}, which is missing: apt-get install -y chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def watched_page(browser: Browser, **settings: Any) -> Iterator[Page]:
    """Yields a page, and checks that it sent requests only to its own server and had no errors."""
    context = browser.new_context(**settings)
    # Violations of the content security policy go to the console too.
    context.add_init_script(
        "addEventListener('securitypolicyviolation', (event) => console.error('policy: ' + event.violatedDirective))"
    )
    page = context.new_page()
    page.set_default_timeout(20_000)
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    yield page
    assert not wrong, wrong
    assert {urlsplit(url).hostname for url in asked if not url.startswith(("file:", "data:"))} <= {"127.0.0.1"}
    context.close()


def place_of(page: Page, row: str, share: float) -> tuple[float, float]:
    """Returns the place on the screen at a share of the width of a row of a chart, after scrolling to it."""
    drawn = page.locator(f"[data-row='{row}']")
    drawn.scroll_into_view_if_needed()
    box = drawn.bounding_box()
    assert box is not None
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2
