"""The table of a comparison as LaTeX, ready for a paper: booktabs, the best in bold, a caption and a label."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence

from fedquilt.core.plain import JSON, Row
from fedquilt.errors import InputError, did_you_mean
from fedquilt.results.tables import score_columns
from fedquilt.storage.finished import chosen

_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "\N{EN DASH}": "--",
    "\N{EM DASH}": "---",
    "…": r"\dots{}",
    "µ": r"$\mu$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_LATIN = {  # capital letters without a command, by their Greek names
    **{"ALPHA": "A", "BETA": "B", "EPSILON": "E", "ZETA": "Z", "ETA": "H", "IOTA": "I", "KAPPA": "K", "MU": "M"},
    **{"NU": "N", "OMICRON": "O", "RHO": "P", "TAU": "T", "CHI": "X"},
}
COSTS = {"megabytes": "MB", "seconds": "Seconds"}


def escaped(text: str) -> str:
    """A text that LaTeX prints as it is.

    Example:
        >>> print(escaped("FedX_2 (α 50%)"))
        FedX\\_2 ($\\alpha$ 50\\%)
    """
    return "".join(_sign(sign) for sign in re.sub(r"\s+", " ", text))


def _sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    letter = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", unicodedata.name(sign, ""))
    if letter is None:
        return sign
    size, name = letter.groups()
    if name == "OMICRON" or (size == "CAPITAL" and name in _LATIN):
        return _LATIN[name].lower() if size == "SMALL" else _LATIN[name]
    name = name.replace("LAMDA", "LAMBDA")
    return f"$\\{name.lower() if size == 'SMALL' else name.capitalize()}$"


def latex_table(
    summary: Mapping[str, JSON],
    columns: Sequence[str] | None = None,
    caption: str | None = None,
    label: str = "tab:comparison",
) -> str:
    """The table of a comparison as a LaTeX float; it needs ``\\usepackage{booktabs}``.

    Methods stand by score, the best first; the best and all that cannot be told apart from it are bold. Below a rule
    come the frame: every client alone, all data in one place, and the majority class.

    Args:
        summary: What :func:`fedquilt.results.tables.summary_of` gives, which is also in ``summary.json``.
        columns: Keys of scores (``accuracy``, ``worst10``, ...), ``megabytes`` or ``seconds``; by default all scores
            that there are, and megabytes.
        caption: In LaTeX; by default it says what the numbers are.
        label: What ``\\ref`` calls the table.
    """
    rows = sorted(summary["rows"], key=lambda row: (row["frame"], -_score(row, summary)))
    shown = _columns(rows, columns)
    won = summary["winner"] or {"method": None, "tied": []}
    best = {won["method"], *won["tied"]} if len(rows) > 1 else set()
    methods, frame = (
        [_line(row, shown, row["method"] in best, summary["measure"]) for row in rows if row["frame"] == framed]
        for framed in (False, True)
    )
    frame += _majority(summary, shown)
    body = [*methods, *(["\\midrule"] if methods and frame else []), *frame]
    heads = " & ".join(["Method", *(name for _, name in shown)])
    lines = ["\\toprule", f"{heads} \\\\", "\\midrule", *body, "\\bottomrule"]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table}[t]",
            "  \\centering",
            f"  \\caption{{{caption_of(summary) if caption is None else caption}}}",
            f"  \\label{{{label}}}",
            f"  \\begin{{tabular}}{{l{'r' * len(shown)}}}",
            *(f"    {line}" for line in lines),
            "  \\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def _score(row: Row, summary: Mapping[str, JSON]) -> float:
    value: float | None = row.get(summary["measure"])
    return -math.inf if value is None else value


def _columns(rows: Sequence[Row], asked: Sequence[str] | None) -> list[tuple[str, str]]:
    """The keys of columns, and what stands above them."""
    scores = {c.key: f"{c.label[0].upper()}{c.label[1:]}" for c in score_columns()}
    known = scores | COSTS
    if asked is None:
        keys = [key for key in scores if any(row.get(key) is not None for row in rows)] + ["megabytes"]
    elif odd := [key for key in asked if key not in known]:
        raise InputError(
            f"A comparison has no column {odd[0]!r}{did_you_mean(odd[0], known)} (known: {', '.join(known)})."
        )
    else:
        keys = list(asked)
    return [(key, escaped(known[key])) for key in keys]


def _line(row: Row, shown: Sequence[tuple[str, str]], best: bool, measure: str) -> str:
    """One method; of the best its name and the score that it is best by are bold."""
    name = escaped(row["display"])
    cells = [_bold(name, best), *(_bold(_cell(row, key), best and key == measure) for key, _ in shown)]
    return " & ".join(cells) + " \\\\"


def _bold(text: str, bold: bool) -> str:
    return f"\\textbf{{{text}}}" if bold and text else text


def _cell(row: Row, key: str) -> str:
    """A number of a row, with its ±."""
    if key in COSTS:
        value = row["megabytes_up"] + row["megabytes_down"] if key == "megabytes" else row["seconds"]
        return f"{value:.1f}"
    column = next(c for c in score_columns() if c.key == key)
    return escaped(column.metric.written(row.get(key), row.get(key + column.half)))


def _majority(summary: Mapping[str, JSON], shown: Sequence[tuple[str, str]]) -> list[str]:
    """The line of the majority class, where it is known."""
    known = {summary["measure"]: summary["majority_class"], "common_accuracy": summary["majority_class_common"]}
    cells = ["" if known.get(key) is None or math.isnan(known[key]) else f"{100 * known[key]:.1f}" for key, _ in shown]
    return [" & ".join(["Majority class", *cells]) + " \\\\"] if any(cells) else []


def caption_of(summary: Mapping[str, JSON]) -> str:
    """What the numbers are, in LaTeX."""
    seeds, clients = len(summary["seeds"]), summary["measure"] == "accuracy"
    where = "mean over clients" if clients else "global model on the common test set"
    sure = (
        f"over {seeds} seeds; $\\pm$ is the 95\\,\\% $t$-interval, of other columns than accuracy joined with that of "
        "the number of test samples"
        if seeds > 1
        else "one seed; $\\pm$: 95\\,\\% interval of the number of test samples"
    )
    told = f"Test scores in \\%, {where}, at the {chosen(summary['chosen_on'] == 'validation')}, {sure}."
    if len(summary["rows"]) == 1:
        return told
    return f"{told} Bold: the highest accuracy, and all that cannot be told apart from it. MB: sent per run."
