"""The picture of the report in the README.

    python docs/screenshot.py runs/compare-demo-*/report.html docs/report.png

Needs the package playwright and a Chromium on the path.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def main(report: Path, picture: Path) -> None:
    """The summary, and the curves below it, as one picture."""
    from playwright.sync_api import sync_playwright

    chromium = next(p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.get_by_role("tab", name="Curves", exact=True).click()
        page.evaluate("""() => {
            const [from, to] = [document.getElementById("view-curves"), document.getElementById("view-summary")];
            document.getElementById("tab-summary").click();
            document.getElementById("panel-tests")?.remove();
            to.append(from.querySelector("section"));
            document.querySelector("footer").remove();
        }""")
        page.mouse.move(0, 0)
        page.screenshot(path=picture, full_page=True)
        browser.close()
    print(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
