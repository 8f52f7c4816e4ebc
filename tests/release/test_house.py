"""The numbers of ``make house``, on a package whose numbers are known."""

from __future__ import annotations

from pathlib import Path

from helpers.scripts import loaded

FILES = {
    "own/__init__.py": "from own.low import Low as Low",
    "own/low.py": """
from typing import Any
class Low:
    x: dict[str, Any]
    def f(self, a: int, *b: "Any") -> None: ...
""",
    "own/mid.py": "from own import Low\nclass Mark(Low): ...\nclass Mid(Mark):\n    def f(self) -> None: ...",
    "own/top/__init__.py": "",
    "own/top/high.py": """
def f():
    from ..mid import Mid
    class High(Mid):
        def g(self): ...
    y: Any = 1
""",
    "own/top/other.py": "import own.mid\nfrom . import high\nclass High: ...",
}


def test_importers_annotations_and_depth(tmp_path: Path) -> None:
    house_script = loaded("benchmarks/house.py")
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    house = house_script.House(tmp_path)
    assert {name: len(by) for name, by in house.importers().items()} == {
        "own": 1,
        "own.low": 1,
        "own.mid": 2,
        "own.top": 0,
        "own.top.high": 1,
        "own.top.other": 0,
    }
    assert house.importers()["own.top.high"] == ["own.top.other"]
    annotations = list(house.annotations())
    assert len(annotations) == 5  # a field, two parameters, two returned; not the variable y
    assert sum(house_script.mentions(one, "Any") for one in annotations) == 2
    assert house.depth("own.top.high:High") == 3  # High on Mid on Low; Mark has no methods
    assert house.depth("own.top.high:High", without="own.mid:Mid") == 2
    assert house.depth("own.mid:Mark") == 1
    assert house.depth("own.top.other:High") == 0
