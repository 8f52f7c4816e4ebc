"""Draw docs/house.svg from the rules of pyproject.toml: ``python docs/house.py``."""

from __future__ import annotations

import tomllib
from pathlib import Path

HOME = Path(__file__).parents[1]
ABOUT = {
    "commands": "what each command takes and prints",
    "testing": "every promise as a check",
    "deploy": "real federations",
    "compat": "other libraries' words",
    "audit": "what clients' messages give away",
    "show": "what people see in the terminal",
    "watch": "a page that follows live runs",
    "demo": "five scenes, one page",
    "studies": "comparisons and sweeps",
    "report": "a run or a study as one page",
    "analysis": "what one asks of a run after it",
    "runs": "one run: the loop, its callbacks, its engine",
    "results": "tables, statistics and pictures of finished runs",
    "storage": "folders, logs, snapshots",
    "config": "recipes and the choices they name",
    "engines": "where work is done: local, workers, lanes, Flower",
    "rounds": "a round: the server's half, and the client's",
    "methods": "what is learned, one file each",
    "tasks": "what targets are, and by what models are judged",
    "pieces": "choices",
    "data": "federations",
    "models": "networks",
    "metrics": "scores",
    "core": "params, exchanges, training, tables, seeds",
    "records": "frames",
    "kernels": "the same, faster",
    "own_code": "names of the user's own: found, read, imported, trusted",
}
COLOURS = {
    "#dbe7f6": (
        "commands",
        "testing",
        "deploy",
        "compat",
        "audit",
        "show",
        "watch",
        "demo",
        "studies",
        "report",
        "analysis",
    ),
    "#dff0dc": ("runs", "results", "storage", "config", "engines", "rounds"),
    "#fbe8c8": ("methods", "tasks", "pieces", "data", "models", "metrics"),
    "#eee2f3": ("core", "records", "kernels", "own_code"),
}
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {high}" role="img"
  aria-labelledby="title about">
  <title id="title">The rooms of fedquilt</title>
  <desc id="about">A room may import only from those below it; rooms side by side do not see each other.</desc>
  <style>
    text {{ fill: #1c2530; font-family: system-ui, sans-serif; text-anchor: middle; }}
    .room {{ font-size: 15px; font-weight: 600; }}
    .about {{ font-size: 11px; }}
  </style>
"""
ROOM = """  <rect x="{x:g}" y="{y}" width="{wide:g}" height="44" rx="6" fill="{colour}" stroke="#8a8f98"/>
  <text class="room" x="{middle:g}" y="{first}">{name}</text>
  <text class="about" x="{middle:g}" y="{second}">{about}</text>
"""


def layers() -> list[list[str]]:
    """The folders among the layers that import-linter checks, from the top down."""
    rules = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    stacked = next(rule["layers"] for rule in rules if rule["type"] == "layers")
    found = [[name.strip().removeprefix("fedquilt.") for name in layer.split("|")] for layer in stacked]
    return [rooms for layer in found if (rooms := [name for name in layer if name in ABOUT])]


def drawn() -> str:
    """The drawing."""
    stacked = layers()
    parts = [HEAD.format(high=52 * len(stacked) + 20)]
    for row, rooms in enumerate(stacked):
        wide = (720 - 12 * (len(rooms) - 1)) / len(rooms)
        for place, name in enumerate(rooms):
            x, y = 20 + place * (wide + 12), 14 + 52 * row
            colour = next(c for c, names in COLOURS.items() if name in names)
            parts.append(
                ROOM.format(
                    x=x,
                    y=y,
                    wide=wide,
                    colour=colour,
                    name=name,
                    about=ABOUT[name],
                    middle=x + wide / 2,
                    first=y + 19,
                    second=y + 35,
                )
            )
    return "".join(parts) + "</svg>\n"


if __name__ == "__main__":
    (HOME / "docs/house.svg").write_text(drawn())
