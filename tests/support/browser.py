"""Chromium, signed in to Airflow as a person signs in."""

import base64
import difflib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    FloatRect,
    Locator,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from scripts.airflow_services import USER
from tests.support.places import ROOT

# It asks its maker's servers for nothing.
_QUIET = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


SECONDS = 1000  # of the browser's milliseconds
MARGIN = 8  # pixels around what a picture is cropped to
WINDOW: ViewportSize = {"width": 1440, "height": 1000}


class Served(Protocol):
    """An Airflow with the one user ``admin``."""

    base: str

    @property
    def password(self) -> str: ...


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium, which the tests fail without."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("the tests of the pages need Chromium: run scripts/browser, or install it")
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        # Five seconds, the default, are not enough for Airflow's pages beside another test's Spark.
        expect.set_options(timeout=60 * SECONDS)
        browser = playwright.chromium.launch(executable_path=program, args=[*_QUIET, *sandbox])
        yield browser
        browser.close()


@contextmanager
def signed_in(
    browser: Browser, airflow: Served, token: str | None = None
) -> Iterator[BrowserContext]:
    """The windows of the user of a token, or of the user who has filled in the form of Airflow's
    login; they share what a browser keeps, scripts among it.
    """
    with browser.new_context(base_url=airflow.base, viewport=WINDOW) as context:
        if token is not None:
            context.add_cookies([{"name": "_token", "value": token, "url": airflow.base}])
        else:
            page = context.new_page()
            page.goto("/")
            page.get_by_label("Username").fill(USER)
            page.get_by_label("Password").fill(airflow.password)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("link", name="Ledger", exact=True).first.wait_for()
            page.close()
        yield context


@contextmanager
def window(context: BrowserContext, airflow: Served) -> Iterator[Page]:
    """A new page, which must not log an error, nor ask another host."""
    wrong: list[str] = []
    with context.new_page() as page:
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: _check_line(line, wrong))
        page.on("request", lambda asked: _check_host(asked.url, airflow.base, wrong))
        yield page
    if wrong:
        pytest.fail("\n".join(wrong))


def _check_line(line: ConsoleMessage, wrong: list[str]) -> None:
    # What the server refuses is shown by the page, which is what tests look at.
    if line.type == "error" and not line.text.startswith("Failed to load resource"):
        wrong.append(line.text)


def _check_host(url: str, base: str, wrong: list[str]) -> None:
    if not url.startswith((base, "data:", "blob:")):
        wrong.append(f"asked {url}")


def go(page: Page, **query: object) -> None:
    """Open a page of the ledger by its address."""
    page.goto("/plugin/ledger?" + "&".join(f"{name}={value}" for name, value in query.items()))


def open_ledger(page: Page, address: str) -> None:
    """Open the tab Ledger of a DAG or a run: one click."""
    page.goto(address)
    ours = page.get_by_role("link", name="Ledger", exact=True)
    ours.nth(1).click()  # after that of the navigation


def open_record(page: Page) -> None:
    """Open the first failed record of a batch's page: one click."""
    page.get_by_role("table", name="Failed records").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"Record \d+ of flights"))


def replay_this_record(page: Page, preview: str, button: str = "Replay this record") -> None:
    """Replay the record whose page is open, after a look at the preview; wait until it is acked."""
    page.get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(preview)
    expect(dialog).to_contain_text('"replay_of"')
    dialog.get_by_role("button", name="Replay 1 record").click()
    expect(page.get_by_role("status")).to_contain_text("of flights")
    expect(page.get_by_title("a replay has processed it to every sink").first).to_have_text(
        "recovered", timeout=180 * SECONDS
    )
    expect(page.get_by_role("table", name="Attempts")).to_contain_text("acked")


def check_accessible(page: Page, part: str = "[data-ledger]") -> None:
    """Fail if a part of the page has faults that axe finds: names, roles, contrast, order. By
    default what is the ledger's: Airflow's own parts around it are not ours to judge. Waits until
    no color is in between: of what is animated only what has no end goes on.
    """
    endless = "it => it.effect.getComputedTiming().endTime === Infinity"
    page.wait_for_function(f"document.getAnimations().every({endless})")
    report = Axe().run(page, context={"include": [[part]]})
    faults = [
        f"{fault['id']}: {fault['help']}: {node['html'][:200]}"
        for fault in report.response["violations"]
        for node in fault["nodes"]
    ]
    if faults:
        pytest.fail("\n".join(faults))


def keep(page: Page, name: str, *parts: Sequence[Locator]) -> None:
    """Fail if the picture ``docs/images/NAME.png`` is not of what the page shows now; take it if
    ``IMAGES`` is set. ``parts``: what to crop it to, one below the other; by default the window.

    A picture is compared by its words: ``tests/acceptance/pictures/NAME.txt`` has those that were
    on the page when it was taken, without times and folders. Its first line is a checksum of the
    picture.
    """
    expect(page.get_by_text("Loading")).to_have_count(0)
    shown = [part for parts_ in parts for part in parts_] or [page.locator("[data-ledger]")]
    path, noted = picture(name)
    if "IMAGES" in os.environ:
        path.write_bytes(_stacked(page, parts) if parts else page.screenshot(animations="disabled"))
        noted.write_text("\n".join([checksum(path), *_words(shown)]) + "\n")
    expected = noted.read_text().splitlines()[1:]
    waited = 0
    while (words := _words(shown)) != expected and waited < 10 * SECONDS:
        page.wait_for_timeout(500)
        waited += 500
    if words != expected:
        changed = "\n".join(difflib.unified_diff(expected, words, noted.name, "the page"))
        pytest.fail(f"{path} is old: set IMAGES=1\n{changed}")


def picture(name: str) -> tuple[Path, Path]:
    """A picture of the pages, and the file with the words on it."""
    pictures = ROOT / "tests" / "acceptance" / "pictures"
    return ROOT / "docs" / "images" / f"{name}.png", pictures / f"{name}.txt"


def checksum(path: Path) -> str:
    """The checksum that the words of a picture begin with."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


_TEXTS = """(it) => {
    const walker = document.createTreeWalker(it, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) {
        if (walker.currentNode.parentElement.checkVisibility()) {
            texts.push(walker.currentNode.textContent.trim());
        }
    }
    return texts.filter((text) => text);
}"""
_TIMES = re.compile(
    r"[a-z]+__\S+|\d{4}-\d\d-\d\dT\S+|2\d{3}-\d\d-\d\d \d\d:\d\d(:\d\d)?|[\d.]+ (s|min)\b"
    r"|^\d+\.\d+$|/\S+(?=/data/)"  # seconds in a chart, and the folder of the test
)


def _words(parts: Sequence[Locator]) -> list[str]:
    texts = ("\n".join(part.evaluate(_TEXTS)) for part in parts)
    return [_TIMES.sub("...", line) for text in texts for line in text.split("\n")]


def _stacked(page: Page, parts: Sequence[Sequence[Locator]]) -> bytes:
    shots = (
        base64.b64encode(page.screenshot(animations="disabled", clip=_around(part))).decode()
        for part in parts
    )
    images = "".join(
        f'<img style="display: block" src="data:image/png;base64,{shot}">' for shot in shots
    )
    with page.context.new_page() as stack:
        stack.set_content(f'<div style="width: max-content">{images}</div>')
        return stack.locator("div").screenshot()


def _around(part: Sequence[Locator]) -> FloatRect:
    boxes = [box for it in part if (box := it.bounding_box())]
    left, top = (min(box[side] for box in boxes) - MARGIN for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in boxes) + MARGIN
    bottom = max(box["y"] + box["height"] for box in boxes) + MARGIN
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}
