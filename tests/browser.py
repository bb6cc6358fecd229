"""A browser for the tests of pages, and pictures of what it shows."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
SCREENSHOTS = Path(__file__).parent.parent / "out" / "screenshots"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def watched(browser: Any, address: str, width: int, **options: Any) -> tuple[Any, SimpleNamespace]:
    """A page at an address, and what it did: its errors and the addresses that it asked for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    seen = SimpleNamespace(context=context, url=address, errors=[], requests=[])
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(address)
    return page, seen


def keep(page: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
