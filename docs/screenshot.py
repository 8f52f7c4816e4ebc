"""The pictures of the report in the README, and of the demo and the page that follows runs in the docs.

    python docs/screenshot.py runs/compare-demo-*/report.html docs/report.png
    python docs/screenshot.py runs/demo/index.html docs/demo.png
    python docs/screenshot.py runs/compare-quick-* docs/watch.png

Needs the package playwright and a Chromium on the path.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Any


def main(shown: Path, picture: Path) -> None:
    """A report, or the runs in a folder as they are now."""
    from playwright.sync_api import sync_playwright

    chromium = next(p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme="light")
        with watched(shown) if shown.is_dir() else nullcontext(shown.resolve().as_uri()) as address:
            page.goto(address)
            if shown.name != "index.html":
                page.wait_for_selector("html[data-ready]", state="attached")
                page.wait_for_timeout(2000) if shown.is_dir() else arrange(page)
            page.mouse.move(0, 0)
            page.screenshot(path=picture, full_page=True)
        browser.close()
    print(picture)


def arrange(page: Any) -> None:
    """The summary of a report, and the curves below it."""
    page.get_by_role("tab", name="Curves", exact=True).click()
    page.evaluate("""() => {
        const [from, to] = [document.getElementById("view-curves"), document.getElementById("view-summary")];
        document.getElementById("tab-summary").click();
        document.getElementById("panel-tests")?.remove();
        to.append(from.querySelector("section"));
        document.querySelector("footer").remove();
    }""")


@contextmanager
def watched(folder: Path) -> Iterator[str]:
    """The address of the page that follows the runs in a folder."""
    from fedquilt.watch.server import WatchServer

    with WatchServer(folder) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
