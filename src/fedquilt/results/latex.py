"""The table of a comparison as LaTeX, ready for a paper: booktabs, the best in bold, a caption and a label."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

from fedquilt.core.plain import JSON
from fedquilt.results.paper import PaperRow, caption_of, paper_table

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
    explain: bool = True,
) -> str:
    """The table of a comparison as a LaTeX float; it needs ``\\usepackage{booktabs}``.

    Args:
        summary: What :func:`fedquilt.results.tables.summary_of` gives, which is also in ``summary.json``.
        columns: As :func:`fedquilt.results.paper.paper_table` takes them.
        caption: In LaTeX; in front of what the numbers are.
        label: What ``\\ref`` calls the table.
        explain: Whether the caption says what the numbers are: unit, ±, bold.
    """
    heads, rows = paper_table(summary, columns)
    captions = [caption] if caption else []
    if explain:
        captions = [c if c.rstrip().endswith((".", "!", "?")) else f"{c}." for c in captions]
        captions.append(escaped(caption_of(summary)))
    methods, frame = ([_line(row) for row in rows if row.frame == framed] for framed in (False, True))
    lines = [
        "\\toprule",
        " & ".join(map(escaped, heads)) + " \\\\",
        "\\midrule",
        *methods,
        *(["\\midrule"] if methods and frame else []),
        *frame,
        "\\bottomrule",
    ]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table}[t]",
            "  \\centering",
            f"  \\caption{{{' '.join(captions)}}}",
            f"  \\label{{{label}}}",
            f"  \\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            *(f"    {line}" for line in lines),
            "  \\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def _line(row: PaperRow) -> str:
    cells = (f"\\textbf{{{escaped(c)}}}" if i in row.bold else escaped(c) for i, c in enumerate(row.cells))
    return " & ".join(cells) + " \\\\"
