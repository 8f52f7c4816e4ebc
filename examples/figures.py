"""A figure and a LaTeX table of a comparison: python figures.py FOLDER, the folder that fedquilt compare printed."""

import sys
from pathlib import Path

from fedquilt import Results

folder = Path(sys.argv[1])
results = Results.load(folder)
results.plot().savefig(folder / "curves.pdf")
(folder / "table.tex").write_text(results.to_latex(caption="Own method beside others.", label="tab:own"))
