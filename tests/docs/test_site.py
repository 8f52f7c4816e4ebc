"""The site: every public name has its entry; what is built is whole, asks nobody for anything, and has its formulas.

What is built is looked at where mkdocs is installed (``make docs`` installs it); formulas are read where there is node.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from helpers.scripts import loaded

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHOWN = set(re.findall(r"^::: (fedquilt[\w.]*)$", "\n".join(p.read_text() for p in DOCS.glob("reference/*.md")), re.M))
BUILT = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings")),
    reason="the extra docs is not installed",
)
FORMULAS = r"""# Formulas

Inside a line \(w_k \leftarrow w + \tfrac{1}{n} \sum_i \Delta_i\), and $5 is no formula.

$$
\min_w \; f(w) + \frac{\mu}{2} \lVert w - w_0 \rVert^2
$$
"""


@pytest.mark.parametrize("room", ["", ".data", ".models", ".methods", ".testing"])
def test_every_public_name_has_an_entry(room: str) -> None:
    module = importlib.import_module(f"fedquilt{room}")
    shown = {id(found) for found in map(target, SHOWN)}
    assert not [n for n in module.__all__ if n != "__version__" and id(getattr(module, n)) not in shown]


def test_every_entry_is_of_something_that_says_what_it_is() -> None:
    found = {name: target(name) for name in SHOWN}
    made = {name: it for name, it in found.items() if inspect.isclass(it) or inspect.isroutine(it)}
    assert not [name for name, it in made.items() if not it.__doc__]


@pytest.mark.parametrize("room", ["", ".data", ".models", ".methods", ".testing"])
def test_every_public_class_has_an_example(room: str) -> None:
    module = importlib.import_module(f"fedquilt{room}")
    assert not [
        name
        for name in module.__all__
        if isinstance(found := getattr(module, name), type) and ">>>" not in (found.__doc__ or "")
    ]


def test_the_home_page_counts_the_methods() -> None:
    from fedquilt.registry import METHODS

    assert f"{len(METHODS)} methods" in (DOCS / "index.md").read_text()


def test_the_gallery_has_every_method_and_its_pictures() -> None:
    from fedquilt.registry import METHODS

    page = (DOCS / "methods" / "index.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \| .* \| \[.*\]\(.*\) \|$", page, re.M)) == sorted(METHODS)
    for kept in (DOCS / "assets" / "gallery").glob("*.svg"):
        assert f"assets/gallery/{kept.name}" in page
    gallery = loaded("docs/gallery.py")
    for name in gallery.PICTURES:
        assert gallery.drawn(name) == (DOCS / "assets" / "gallery" / f"{name}.svg").read_text(), (
            "python docs/gallery.py"
        )


def target(name: str) -> object:
    """What is at a dotted path."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


class Page(HTMLParser):
    """What a page fetches, and the texts of its formulas."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.formulas = [html.unescape(m) for m in re.findall(r'class="arithmatex">(.*?)</(?:span|div)>', text, re.S)]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "src" in given:
            self.fetched.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(given["href"])


@cache
def built(to: Path) -> dict[Path, Page]:
    """The site, and a page of formulas in it."""
    source, site = to / "docs", to / "site"
    shutil.copytree(DOCS, source)
    (source / "quickstart.md").write_text((source / "quickstart.md").read_text() + FORMULAS[FORMULAS.index("Inside") :])
    settings = (ROOT / "mkdocs.yml").read_text().replace("[src]", json.dumps([str(ROOT / "src")]))
    (to / "mkdocs.yml").write_text(settings)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=to, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {page: Page(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    return built(tmp_path_factory.mktemp("site"))


@BUILT
def test_what_pages_fetch_is_part_of_the_site(pages: dict[Path, Page]) -> None:
    site = next(page for page in pages if page.name == "404.html").parent
    for page, found in pages.items():
        for address in found.fetched:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            assert not parts.scheme + parts.netloc, f"{page} asks {address}"
            path = unquote(parts.path)
            assert (site / path.lstrip("/") if path.startswith("/") else page.parent / path).exists(), (page, address)


@BUILT
def test_what_styles_fetch_is_part_of_the_site(pages: dict[Path, Page]) -> None:
    site = next(page for page in pages if page.name == "404.html").parent
    for sheet in site.rglob("*.css"):
        for address in re.findall(r"url\(\s*[\"']?([^)\"']+)", sheet.read_text(encoding="utf-8")):
            if address.startswith(("data:", "#")):
                continue
            assert not urlsplit(address).netloc, f"{sheet} asks {address}"
            assert (sheet.parent / address.partition("?")[0].partition("#")[0]).exists(), (sheet, address)


@BUILT
def test_formulas_are_marked_in_both_forms(pages: dict[Path, Page]) -> None:
    (found,) = (page.formulas for path, page in pages.items() if path.parent.name == "quickstart")
    assert found[-2].startswith(r"\(w_k")
    assert found[-1].strip().startswith(r"\[")
    assert not any("$5" in formula for formula in found)


@BUILT
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_every_formula_can_be_read(pages: dict[Path, Page], tmp_path: Path) -> None:
    """The renderer that the pages bring is asked; it is strict here, and lenient in a browser."""
    found = sorted({formula.strip() for page in pages.values() for formula in page.formulas})
    (tmp_path / "formulas.json").write_text(json.dumps(found))
    script = """
const katex = require(process.argv[1]);
for (const text of JSON.parse(require("fs").readFileSync(process.argv[2]))) {
  const body = /^\\\\[(\\[]/.test(text) ? text.slice(2, -2) : text;
  try { katex.renderToString(body, { throwOnError: true, strict: "error" }); }
  catch (error) { console.log(text + "\\n    " + error.message); }
}"""
    where = [str(DOCS / "assets" / "katex" / "katex.min.js"), str(tmp_path / "formulas.json")]
    done = subprocess.run(["node", "-e", script, *where], capture_output=True, text=True, check=True)
    assert not done.stdout, done.stdout


@BUILT
def test_the_search_knows_the_methods(pages: dict[Path, Page]) -> None:
    site = next(page for page in pages if page.name == "404.html").parent
    known = {entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert {"methods/hcfl/", "reference/methods/#fedquilt.methods.HCFL"} <= known
