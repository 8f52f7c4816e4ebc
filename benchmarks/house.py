"""The state of the house: what its code is like, in numbers: ``make house``. A report, never a gate.

Everything is read from the source (``ast``), but for the complexity, which radon counts where it is installed.

- A module is a file ``.py`` below ``src``, the ``__init__`` of packages included.
- An importer of a module is another module of ``src`` with an ``import`` of it or of a name in it, at the top, inside a
  function or under ``TYPE_CHECKING``. ``from package import name`` is an import of ``package.name`` where that is a
  module, and of ``package`` otherwise. The ``__init__`` that hands names on counts; names in strings do not.
- Annotations are those of parameters, of what functions return, and of fields; an ``Any`` is each mention of the word
  in one of them, so ``dict[str, Any]`` is one annotation and one ``Any``.
- The depth of inheritance counts own classes with methods of their own: 1 stands on none, 2 on one that stands on none.
  ``OnBase`` has none of the logic of a method: it makes a method around another and hands questions on to that. It is
  left out; the depth with it stands beside.
- A module behind a door has names that the ``__init__`` of its own package hands on: whoever uses them comes that way.
- Blocks are radon's: functions, methods and classes; C begins at 11 ways through a block.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FORWARDS = "fedquilt.methods.on_base:OnBase"


class House:
    """The modules of a source folder, parsed."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.paths = {module_of(path.relative_to(top)): path for path in sorted(top.rglob("*.py"))}
        self.text = {name: path.read_text(encoding="utf-8") for name, path in self.paths.items()}
        self.trees = {name: ast.parse(text) for name, text in self.text.items()}

    @cached_property
    def imported(self) -> dict[str, dict[str, str]]:
        """For each module, its imported words, and ``module`` or ``module:name`` that each stands for."""
        return {name: dict(self.imports(name)) for name in self.trees}

    def imports(self, name: str) -> Iterator[tuple[str, str]]:
        """The imports of one module from this house, wherever in it they stand."""
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.Import):
                yield from ((one.asname or one.name, one.name) for one in node.names if one.name in self.trees)
            elif isinstance(node, ast.ImportFrom):
                source = self.source(name, node)
                for one in node.names if source in self.trees else ():
                    inner = f"{source}.{one.name}"
                    yield one.asname or one.name, inner if inner in self.trees else f"{source}:{one.name}"

    def source(self, name: str, node: ast.ImportFrom) -> str:
        """The module that a ``from`` names, relative ones made whole."""
        parts = name.split(".")
        keep = len(parts) - node.level + (self.paths[name].name == "__init__.py")
        start = parts[:keep] if node.level else []
        return ".".join([*start, *([node.module] if node.module else [])])

    def importers(self) -> dict[str, list[str]]:
        """The modules that import each module."""
        found: dict[str, list[str]] = {name: [] for name in self.trees}
        for name, words in self.imported.items():
            for target in {target.split(":")[0] for target in words.values()} - {name}:
                found[target].append(name)
        return found

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Every class as ``module:Name``."""
        return {
            f"{name}:{node.name}": node
            for name, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }

    def annotations(self) -> Iterator[ast.expr]:
        """Every annotation of a parameter, of what a function returns, and of a field."""
        for node in (node for tree in self.trees.values() for node in ast.walk(tree)):
            if isinstance(node, FUNCTIONS) and node.returns:
                yield node.returns
            elif isinstance(node, ast.arg) and node.annotation:
                yield node.annotation
            elif isinstance(node, ast.ClassDef):
                yield from (line.annotation for line in node.body if isinstance(line, ast.AnnAssign))

    def bases(self, key: str) -> Iterator[str]:
        """The own classes that a class names as its bases."""
        module = key.split(":")[0]
        for base in self.classes[key].bases:
            word = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            first, _, rest = word.partition(".")
            target = self.imported[module].get(first, f"{module}:{first}")
            found = self.followed(f"{target}:{rest}" if rest else target)
            if found in self.classes and found != key:
                yield found

    def followed(self, target: str) -> str:
        """Where a name is defined that another module hands on."""
        for _ in self.trees:
            module, _, name = target.partition(":")
            onward = self.imported.get(module, {}).get(name)
            if target in self.classes or onward is None:
                break
            target = onward
        return target

    def depth(self, key: str, without: str = "") -> int:
        """How many own classes with methods are stacked in a class; one may be left out."""
        counts = key != without and any(isinstance(node, FUNCTIONS) for node in self.classes[key].body)
        return counts + max((self.depth(base, without) for base in self.bases(key)), default=0)


def module_of(path: Path) -> str:
    """The module's name of a file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def mentions(annotation: ast.expr, word: str) -> int:
    """How often an annotation has this word; one that is written as a string counts, too."""
    return len(re.findall(rf"\b{word}\b", ast.unparse(annotation)))


def complexity(house: House) -> tuple[object, str]:
    """The share of blocks of C or worse, and how many they are."""
    try:
        from radon.complexity import cc_rank, cc_visit
    except ImportError:
        return "-", "radon is not installed"
    ranks = [cc_rank(block.complexity) for text in house.text.values() for block in cc_visit(text)]
    worse = sum(rank >= "C" for rank in ranks)
    return percent(worse, len(ranks)), f"{worse} of {len(ranks)}"


def measured(house: House) -> Iterator[tuple[str, object, str]]:
    """The rows: what, how many, and more about it."""
    folder, files = Counter(path.parent for path in house.paths.values()).most_common(1)[0]
    yield "files in the largest flat folder", files, str(folder.relative_to(house.top))
    yield "modules", len(house.paths), ""
    alone = {name: by[0] for name, by in house.importers().items() if len(by) == 1}
    doors = sum(name.rpartition(".")[0] == by for name, by in alone.items())
    yield "modules with exactly one importer", len(alone), f"{doors} of them behind the door of their package"
    yield (
        "source lines",
        sum(len(text.splitlines()) for text in house.text.values()),
        "with blank ones and docstrings",
    )
    annotations = list(house.annotations())
    untyped = sum(mentions(annotation, "Any") for annotation in annotations)
    yield "`Any` per 100 annotations", percent(untyped, len(annotations)), f"{untyped} of {len(annotations)}"
    yield "`# fmt: skip`", sum(text.count("# fmt: skip") for text in house.text.values()), ""
    names = Counter(node.name for node in house.classes.values())
    twice = sorted(name for name, count in names.items() if count > 1)
    yield "class names defined more than once", len(twice), ", ".join(twice)
    yield "% of blocks of complexity C or worse", *complexity(house)
    deepest = max(house.classes, key=lambda key: house.depth(key, FORWARDS))
    with_it = max(map(house.depth, house.classes))
    yield "depth of inheritance", house.depth(deepest, FORWARDS), f"{deepest}; {with_it} with OnBase"
    methods = getattr(importlib.import_module("fedquilt.methods"), "__all__", [])
    yield "names of `from fedquilt.methods import`", len(methods), ""


def percent(part: int, whole: int) -> float:
    """A share in percent, with one decimal."""
    return round(100 * part / max(whole, 1), 1)


def main() -> None:
    """Print the table, or the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sys.path.insert(0, str(SRC))
    rows = list(measured(House(SRC)))
    if given.json:
        print(json.dumps({what: {"value": value, "about": about} for what, value, about in rows}, indent=1))
        return
    print("| what | value | about |\n|---|---|---|")
    for what, value, about in rows:
        print(f"| {what} | {value} | {about} |")


if __name__ == "__main__":
    main()
