"""What the reference pages need of docstrings and classes that griffe, which only reads sources, does not know.

- Roles such as ``:class:`fedquilt.core.train.Train``` become links or code, and signs that Markdown would take for
  its own (``<``, ``_``, ``*``) are escaped in prose, so that equations stay as they were written.
- ``alpha, beta: text`` under ``Args:`` is one entry for each name; options that a parent explains are listed too.
- Classes that leave their constructor to ``OnBase`` get the signature that they really have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import (
    Attribute,
    Class,
    Docstring,
    Extension,
    Function,
    Module,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([\w.]+)`")
CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
ENTRY = re.compile(r"^(    )((?:\w+, )*\w+): (.*)$")
COMMON = ("fedquilt.methods.fedavg.FedAvg", "fedquilt.methods.on_base.OnBase")


class Docstrings(Extension):
    """Loaded by mkdocs.yml before the signatures of dataclasses are made."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Once, when all modules have been read."""
        classes = [found for found in everything(pkg) if isinstance(found, Class)]
        for found in classes:
            if "__init__" not in found.members and (on_base(found) or averages(found)):
                found.set_member("__init__", constructor(found))
        inherited = {found.path: options_of_parents(found) for found in classes}
        for found in everything(pkg):
            if found.docstring is not None:
                text = with_options(found.docstring.value, inherited.get(found.path, {}))
                found.docstring = Docstring(readable(text), parent=found, parser="google")


def everything(top: Object) -> Iterator[Object]:
    """The object and all that it holds, but for what it imports."""
    yield top
    for member in top.members.values():
        if not member.is_alias:
            yield from everything(member)


def decorated(found: Class, text: str = "") -> bool:
    """Whether it is a dataclass, and its decorator has this text."""
    return any("dataclass" in str(d.value) and text in str(d.value) for d in found.decorators)


def parents(found: Class) -> list[Class]:
    """Nearest first."""
    try:
        return list(found.mro())
    except ValueError:
        return []


def on_base(found: Class) -> bool:
    """Whether the constructor is that of OnBase."""
    return decorated(found, "init=False") and any(parent.path == COMMON[1] for parent in parents(found))


def averages(found: Class) -> bool:
    """Whether it is FedAvg, or a dataclass that extends it."""
    return decorated(found) and any(kind.path == COMMON[0] for kind in (found, *parents(found)))


def constructor(found: Class) -> Function:
    """A network (or a base) that needs no name, then the options; FedAvg's are ``settings`` where they are not its."""
    named, key = ParameterKind.positional_or_keyword, ParameterKind.keyword_only
    given = {"self": Parameter("self", kind=named), "objective": Parameter("objective", kind=named)}
    around = on_base(found)
    for holder in (*reversed(parents(found)), found):
        if decorated(holder) and not (around and holder.path in COMMON):
            for option in options(holder):
                kind = named if option.name == "objective" else key
                given[option.name] = Parameter(
                    option.name, annotation=option.annotation, kind=kind, default=default_of(option)
                )
    if around:
        given["objective"] = Parameter("objective", annotation="Objective | Net | None", kind=named, default="None")
        base = given.setdefault("base", Parameter("base", kind=key))
        base.default = "None" if base.default is None else base.default
        given["settings"] = Parameter("settings", kind=ParameterKind.var_keyword)
    return Function("__init__", parameters=Parameters(*given.values()), parent=found, returns="None")


def default_of(option: Attribute) -> Any:
    """None for what must be given."""
    text = str(option.value) if option.value is not None else ""
    if not text.startswith("field("):
        return option.value
    found = re.search(r"default(_factory)?=([^,)]+)", text)
    return f"{found[2]}()" if found and found[1] else found and found[2]


def options(found: Class) -> list[Attribute]:
    """The fields of a dataclass that are given when it is made."""
    return [
        member
        for member in found.members.values()
        if isinstance(member, Attribute)
        and member.annotation is not None
        and "property" not in member.labels
        and not ("class-attribute" in member.labels and "instance-attribute" not in member.labels)
        and "init=False" not in str(member.value)
    ]


def options_of_parents(found: Class) -> dict[str, str]:
    """Name to meaning, for what parents say and the class does not; FedAvg's own are on its own entry."""
    told: dict[str, str] = {}
    for parent in parents(found):
        if parent.path not in COMMON and decorated(parent) and parent.docstring is not None:
            told = {**entries(parent.docstring.value), **told}
    own = entries(found.docstring.value) if found.docstring is not None else {}
    return {name: text for name, text in told.items() if name not in own and name not in ("base", "objective")}


def entries(text: str) -> dict[str, str]:
    """What stands under ``Args:``."""
    found: dict[str, str] = {}
    now: list[str] = []
    for line in args_of(text):
        start = ENTRY.match(line)
        if start:
            now = start[2].split(", ")
            found.update(dict.fromkeys(now, start[3]))
        else:
            found.update({name: f"{found[name]} {line.strip()}" for name in now})
    return found


def args_of(text: str) -> list[str]:
    """The lines of the section."""
    lines = text.splitlines()
    if "Args:" not in lines:
        return []
    start = lines.index("Args:") + 1
    end = next((n for n in range(start, len(lines)) if not lines[n].startswith("    ")), len(lines))
    return lines[start:end]


def with_options(text: str, more: dict[str, str]) -> str:
    """The docstring with one entry for each name, and those of parents."""
    own = args_of(text)
    if not own and not more:
        return text
    made = "\n".join(f"    {name}: {about}" for name, about in {**entries(text), **more}.items())
    if own:
        return text.replace("\n".join(["Args:", *own]), f"Args:\n{made}")
    first, rest = re.split(r"\n\n(?=Reference|Example|$)|$", text, maxsplit=1)[0], ""
    rest = text[len(first) :]
    return f"{first}\n\nArgs:\n{made}{rest}"


def readable(text: str) -> str:
    """Roles and signs of prose as Markdown; examples under the title that griffe knows."""
    made, fence = [], False
    for line in re.sub(r"^Example:$", "Examples:", text, flags=re.M).splitlines():
        fence = line.lstrip().startswith(">>>") or (fence and bool(line.strip()))
        made.append(line if fence else prose(line))
    return "\n".join(made)


def prose(line: str) -> str:
    """One line that is no code. The names of options, up to their colon, stay as they are."""
    if line.endswith("::") or line.startswith("        "):
        line = line.replace("<", "&lt;") if line.startswith("        ") and not ENTRY.match(line) else line
    name = ENTRY.match(line)
    head, rest = (f"{name[1]}{name[2]}: ", name[3]) if name else ("", line)
    rest = ROLE.sub(lambda m: f"`{m[1].rsplit('.', 1)[-1]}`", rest)
    parts = CODE.split(rest)
    return head + "".join(
        p if n % 2 else re.sub(r"([*_])", r"\\\1", p.replace("<", "&lt;")) for n, p in enumerate(parts)
    )
