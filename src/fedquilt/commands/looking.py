"""Commands that look at runs, divisions and what uploads leak.

Heavy libraries are imported by those that need them, never for --help.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedquilt.commands.options import AsJson, Folder, Overrides, Recipe, echo, listing

if TYPE_CHECKING:
    from fedquilt.core.plain import Row


def partition(
    recipe: Recipe,
    overrides: Overrides = None,
    as_json: AsJson = False,
    plot: Annotated[Path, typer.Option(help="Output file for the figure.")] = Path("partition.png"),
) -> None:
    """Show how a recipe partitions its data: each client's labels and number of samples.

    Example: [bold]fedquilt partition recipes/quick.toml data.partition.alpha=0.1 --plot split.png[/bold]
    """
    from fedquilt.config.config import load
    from fedquilt.config.data import called
    from fedquilt.data import Stream
    from fedquilt.results.plots import looked_at, stream_looked_at
    from fedquilt.runs.build import federation_of
    from fedquilt.show.show import partition_table, stream_tables

    config = load(recipe, overrides or [])
    federation = federation_of(config)
    how = "by user" if config.data.by_user else config.data.partition.kind
    title = f"{called(config.data)}, {how}"
    if isinstance(federation, Stream):
        found = stream_looked_at(federation, title, plot)
        echo(found) if as_json else stream_tables(federation, found)
    else:
        found = looked_at(federation, title, plot)
        echo(found) if as_json else partition_table(federation, Path(found["plot"]))


def clusters(
    folder: Folder,
    to: Annotated[Path | None, typer.Option(help="Output folder; default: RUN/clusters.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the clusters a run found: table, dendrogram, similarity, changes over rounds (PNG, SVG, CSV).

    Example: [bold]fedquilt clusters runs/groups-1a2b3c4d[/bold]
    """
    from fedquilt.show.cluster_view import clusters_table, viewed

    found = viewed(folder, to)
    echo(found) if as_json else clusters_table(found)


def assign(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="The client's samples: an .npz with x and y, or a .csv or .parquet.")],
    as_json: AsJson = False,
) -> None:
    """Assign a new client to one of a run's clusters, from its samples.

    Example: [bold]fedquilt assign runs/groups-1a2b3c4d --data new.npz[/bold]
    """
    from dataclasses import asdict

    from fedquilt.analysis.assign import assign as place

    found = asdict(place(folder, data))
    short = {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}
    echo(found) if as_json else listing([short], False, f"{data}")


def csv(folder: Folder, to: Annotated[Path, typer.Option(help="Output folder.")], as_json: AsJson = False) -> None:
    """Export the metrics of a run as CSV: per round, per cluster and per client.

    Example: [bold]fedquilt csv runs/groups-1a2b3c4d --to tables[/bold]
    """
    from fedquilt.analysis.csv_export import export_csv

    found = export_csv(folder, to)
    found["missing"] = _missing(folder, as_json)
    if as_json:
        echo(found)
    else:
        typer.echo(f"{found['rounds']} rounds, {found['clients']} clients: {found['folder']}")
        typer.echo(f"energy: {found['energy']}")


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, comparison or sweep.", metavar="FOLDER")],
    to: Annotated[Path | None, typer.Option(help="Output file; default: FOLDER/report.html.")] = None,
    latex: Annotated[
        Path | None, typer.Option(help="Also write the table as LaTeX (booktabs).", metavar="FILE")
    ] = None,
    pdf: Annotated[Path | None, typer.Option(help="Also write table and figures as PDF.", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report on a run, comparison or sweep: one self-contained HTML file, optionally LaTeX and PDF.

    Tables, significance tests, learning curves, clients, communication. Unfinished runs are marked.

    Example: [bold]fedquilt report runs/quick-1a2b3c4d --to quick.html[/bold]

    Example: [bold]fedquilt report runs/compare-demo-* --latex table.tex --pdf report.pdf[/bold]
    """
    from fedquilt.report import write_report

    path = write_report(folder, to)
    written: Row = {}
    if latex is not None or pdf is not None:
        from fedquilt.report.pdf import write_latex, write_pdf

        written |= {} if latex is None else {"latex": str(write_latex(folder, latex))}
        written |= {} if pdf is None else {"pdf": str(write_pdf(folder, pdf))}
    size, missing = path.stat().st_size, _missing(folder, as_json)
    if as_json:
        echo({"report": str(path), "bytes": size, "missing": missing, **written})
        return
    typer.echo(f"report {path} ({size / 1e6:.1f} MB)")
    for kind, place in written.items():
        typer.echo(f"{kind:6} {place}")


def traffic(
    folder: Folder,
    plot: Annotated[
        Path | None, typer.Option(help="Output file for a plot of accuracy against megabytes (PNG, CSV).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the traffic of a run by exchange, direction and tensor, before and after compression.

    Example: [bold]fedquilt traffic runs/quick-1a2b3c4d --plot traffic.png[/bold]
    """
    from fedquilt.results.traffic import drawn, summary, table

    found = summary(folder)
    if plot is not None:
        found["plot"] = str(drawn(folder, plot))
    found["missing"] = _missing(folder, as_json)
    if as_json:
        echo(found)
        return
    typer.echo(table(found))
    if plot is not None:
        typer.echo(f"picture {found['plot']}")


def clock(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, comparison or sweep.", metavar="FOLDER")],
    links: Annotated[
        list[str] | None,
        typer.Argument(
            help="Network and device settings, for example uplink_mbps=2 latency_ms=50.", metavar="KEY=VALUE"
        ),
    ] = None,
    target: Annotated[float, typer.Option(help="Target mean test accuracy.", min=0, max=1)] = 0.8,
    as_json: AsJson = False,
) -> None:
    """Estimate how long runs would take on other networks and devices, in total and to a target accuracy.

    Without KEY=VALUE, \\[network] of the recipe applies.

    Example: [bold]fedquilt clock runs/quick-1a2b3c4d uplink_mbps=2 downlink_mbps=10 --target 0.7[/bold]
    """
    from fedquilt.runs.virtual_clock import timed

    found = timed(folder, links or [], target)
    _missing(folder, as_json)
    short = [
        {k: round(v, 1) if isinstance(v, float) else "never" if v is None else v for k, v in row.items()}
        for row in found
    ]
    echo(found) if as_json else listing(short, False, f"virtual seconds; target {100 * target:g} %")


def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a comparison, or many.", metavar="FOLDER")],
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any free port.", min=0)] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the state of the runs and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Monitor runs live in the browser: progress, learning curves, clients, messages, dropped replies.

    Works for any engine, and for runs of other processes. Ctrl-C ends the page, not the runs.

    Example: [bold]fedquilt watch runs --open[/bold]
    """
    from fedquilt.show.show import watched
    from fedquilt.watch.board import Board
    from fedquilt.watch.find import check_folder
    from fedquilt.watch.server import follow

    begun = check_folder(folder)
    if once:
        lines = Board(folder).lines()
        echo(lines) if as_json else watched(lines, str(folder))
    else:
        follow(folder, port, open_page, begun, as_json)


def audit(
    recipe: Recipe,
    overrides: Overrides = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated methods; default: the recipe's.")] = None,
    codecs: Annotated[
        str, typer.Option(help="Comma-separated: own (the method's), plain, hgc, hgc=64, sign, half, top_k=0.05, ...")
    ] = "own",
    attacks: Annotated[
        str, typer.Option(help="Comma-separated: Comma-separated: dlg, idlg, peer, labels, features.")
    ] = "dlg,idlg,peer,labels,features",
    defences: Annotated[
        str, typer.Option(help="Comma-separated: none, batch, noise, no_bias, round; combine with '+': batch+noise.")
    ] = "none,batch,noise,no_bias,round",
    images: Annotated[int, typer.Option(help="Number of clients to attack.", min=1)] = 4,
    batch: Annotated[int, typer.Option(help="Samples in the larger batch.", min=2)] = 8,
    clip: Annotated[float, typer.Option(help="noise: clipping norm of an upload, in steps of gradient norm 1.")] = 1.0,
    noise: Annotated[float, typer.Option(help="noise: standard deviation relative to --clip.")] = 0.03,
    rounds: Annotated[int, typer.Option(help="Training rounds before the attack.", min=0)] = 0,
    iterations: Annotated[int, typer.Option(help="Iterations per attack, each 20 steps of L-BFGS.", min=1)] = 30,
    restarts: Annotated[int, typer.Option(help="Random restarts per attack; the best counts.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Seed of samples, noise and attacks.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Output folder.", metavar="DIR")] = Path("audit"),
    as_json: AsJson = False,
) -> None:
    """Audit privacy leakage: attack the messages clients really send, and measure what can be recovered.

    Example: [bold]fedquilt audit recipes/quick.toml --images 2 --out audit[/bold]

    Example: [bold]fedquilt audit recipes/quick.toml --methods fedavg,fedper --attacks dlg --defences none,noise[/bold]
    """
    from fedquilt.audit.cells import Plan, audited, cells
    from fedquilt.audit.report import show, write
    from fedquilt.config.config import load
    from fedquilt.runs.build import federation_of
    from fedquilt.runs.progress import Progress

    plan = Plan(
        methods=_listed(methods),
        codecs=_listed(codecs),
        attacks=_listed(attacks),
        defences=_listed(defences),
        images=images,
        batch=batch,
        clip=clip,
        noise=noise,
        rounds=rounds,
        iterations=iterations,
        restarts=restarts,
        seed=seed,
    )
    config = load(recipe, overrides or [])
    federation = federation_of(config)
    todo, findings = cells(config, plan), []
    with Progress(quiet=as_json) as progress:
        bar = progress.bar("audit", len(todo))
        for done, cell in enumerate(todo, 1):
            findings += audited(cell, federation, plan)
            bar.title = f"audit {cell.config.method.kind}, {cell.codec}, {cell.defence}"
            bar.round(done, {})
    found = write(findings, plan, out)
    echo(found) if as_json else show(found)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _missing(folder: Path, as_json: bool) -> list[str]:
    """What is missing in the logs of a folder's runs, which people are told."""
    from fedquilt.results.views import missing_in
    from fedquilt.terminal import say

    missing = missing_in(folder)
    for line in missing if not as_json else ():
        say(f"note: {line}", file=sys.stderr)
    return missing
