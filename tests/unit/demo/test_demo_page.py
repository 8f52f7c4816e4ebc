"""The page of the demo: text is escaped, pictures are well-formed, nothing is fetched."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedquilt.demo.play import PlayedScene, page, scenes
from fedquilt.demo.scenes import SCENES, Told
from fedquilt.demo.telling import bars, grouped, lines, patches
from fedquilt.errors import InputError

EVIL = "<script>alert('x')</script> & \"quoted\""
PICTURES = {
    "bars": bars([(EVIL, 0.5, 0.1), ("ours", 0.9, float("nan"))], "ours"),
    "bytes": bars([("raw", 26.0, 0), ("sent", 0.0, 0)], "sent", "MB"),
    "no bytes": bars([("raw", 0.0, 0)], "raw", "MB"),
    "grouped": grouped({EVIL: {"frequent": 0.9, EVIL: 0.1}, "FedLoGe": {"frequent": 1.0, EVIL: 0.0}}, "FedLoGe"),
    "lines": lines({EVIL: [(0, 0.5), (1, 0.6)], "ours": [(0, 0.5), (1, 0.5)]}, "ours", EVIL, "%"),
    "by bytes": lines({"a": [(0.3, 0.1), (130.0, 0.9)]}, "a", "MB", "%", log=True),
    "one point": lines({"a": [(1.0, 0.5)]}, "a", "MB", "%", log=True),
    "patches": patches({EVIL: [0, 1, None], "group 2": [30]}),
}


def shown(told: Told, top: Path) -> PlayedScene:
    return PlayedScene(
        replace(SCENES["groups"], title=EVIL, problem=EVIL, system=EVIL), told, top / 'a "b"' / "report.html", 3, 1.0
    )


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_well_formed_and_their_texts_escaped(name: str) -> None:
    found = ElementTree.fromstring(PICTURES[name])
    assert found.tag == "svg"
    assert {element.tag for element in found.iter()} <= {"svg", "text", "rect", "polyline", "circle"}
    assert "nan" not in PICTURES[name]
    wide, high = map(float, found.attrib["viewBox"].split()[2:])
    for element in found.iter("rect"):
        assert 0 <= float(element.attrib["x"]) <= wide
        assert float(element.attrib["x"]) + float(element.attrib["width"]) <= wide + 0.1
        assert float(element.attrib["y"]) <= high


def test_longer_bars_are_more() -> None:
    found = [float(e.attrib["width"]) for e in ElementTree.fromstring(PICTURES["bars"]).iter("rect")]
    assert found[1] / found[0] == pytest.approx(0.9 / 0.5, rel=0.01)


def test_the_page_escapes_text_and_fetches_nothing(tmp_path: Path) -> None:
    told = Told(EVIL, EVIL, True, "accuracy", [(EVIL, 0.5, 0.1)], {}, [(EVIL, PICTURES["bars"])])
    text = page([shown(told, tmp_path)], tmp_path)
    assert "alert('x')" not in text
    assert text.count("<script>") == 1  # the switch of themes
    assert not re.search(r"(src|href)=\"(?!data:|#|a &quot;b&quot;/report.html)", text)
    assert 'href="a &quot;b&quot;/report.html"' in text
    assert "default-src 'none'" in text
    assert 'class="badge good"' in text


def test_unknown_scenes_are_told_all_at_once() -> None:
    assert [scene.name for scene in scenes([])] == list(SCENES)
    assert [scene.name for scene in scenes(["tasks", "rare", "tasks"])] == ["tasks", "rare"]
    with pytest.raises(InputError, match=r"'group'; did you mean 'groups'\?; nor 'nothing'.*heads, rare"):
        scenes(["group", "nothing"])
