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
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("partition.png"),
) -> None:
    """Look at how a recipe divides its data: who has which labels, and how much.

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
    to: Annotated[Path | None, typer.Option(help="Where pictures go; by default RUN/clusters.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at the clusters that a run found: table, tree with its cut, likeness, moves over rounds (PNG, SVG, CSV).

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
    """Tell which cluster of a run a new client belongs to, from the run's folder and the client's samples.

    Example: [bold]fedquilt assign runs/groups-1a2b3c4d --data new.npz[/bold]
    """
    from dataclasses import asdict

    from fedquilt.analysis.assign import assign as place

    found = asdict(place(folder, data))
    short = {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}
    echo(found) if as_json else listing([short], False, f"{data}")


def csv(
    folder: Folder, to: Annotated[Path, typer.Option(help="The folder that the files go to.")], as_json: AsJson = False
) -> None:
    """Write a run's numbers as server_metrics.csv, cluster_metrics.csv and, per client, metrics.csv, deployed.csv.

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
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.", metavar="FOLDER")],
    to: Annotated[Path | None, typer.Option(help="Where it goes; by default FOLDER/report.html.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the table as LaTeX (booktabs) too.", metavar="FILE")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Write table and pictures as a PDF too.", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run, a comparison or a sweep as one HTML file without network: tables, tests, curves, clients, traffic.

    Runs that are not finished are shown as such.

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
    plot: Annotated[Path | None, typer.Option(help="Where accuracy by megabytes is drawn (PNG, CSV).")] = None,
    as_json: AsJson = False,
) -> None:
    """What a run sent: by exchange, direction and tensor, as it is and as it travelled; beside plain FedAvg.

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
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.", metavar="FOLDER")],
    links: Annotated[
        list[str] | None,
        typer.Argument(help="Links and devices, for example uplink_mbps=2 latency_ms=50.", metavar="KEY=VALUE"),
    ] = None,
    target: Annotated[float, typer.Option(help="The mean test accuracy to reach.", min=0, max=1)] = 0.8,
    as_json: AsJson = False,
) -> None:
    """How long runs would have taken on other links and devices: virtual seconds in all, and to a target accuracy.

    Without KEY=VALUE the links are those of \\[network] in the recipe.

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
    folder: Annotated[Path, typer.Argument(help="The folder of a run, of a comparison, or of many.", metavar="FOLDER")],
    port: Annotated[int, typer.Option(help="The port of the page; 0 for any that is free.", min=0)] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print how the runs are doing, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Follow runs while they go on, on a page of this machine: progress, curves, clients, messages, dropped replies.

    Whatever engine they run on, and whoever started them. Ctrl-C ends the page, not the runs.

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
    methods: Annotated[str | None, typer.Option(help="Methods, with commas; by default the recipe's.")] = None,
    codecs: Annotated[
        str, typer.Option(help="own (the method's), plain, hgc, hgc=64, sign, half, top_k=0.05, ..., with commas.")
    ] = "own",
    attacks: Annotated[str, typer.Option(help="dlg, idlg, peer, labels, features.")] = "dlg,idlg,peer,labels,features",
    defences: Annotated[
        str, typer.Option(help="none, batch, noise, no_bias, round; combined with '+': batch+noise.")
    ] = "none,batch,noise,no_bias,round",
    images: Annotated[int, typer.Option(help="How many clients are attacked.", min=1)] = 4,
    batch: Annotated[int, typer.Option(help="Rows of the larger batch.", min=2)] = 8,
    clip: Annotated[float, typer.Option(help="noise: largest norm of an upload, in steps of gradient norm 1.")] = 1.0,
    noise: Annotated[float, typer.Option(help="noise: standard deviation, relative to --clip.")] = 0.03,
    rounds: Annotated[int, typer.Option(help="Rounds of the recipe played first.", min=0)] = 0,
    iterations: Annotated[int, typer.Option(help="Of each search; one is 20 steps of L-BFGS.", min=1)] = 30,
    restarts: Annotated[int, typer.Option(help="Random starts of each search; the best counts.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Of the rows, the noise and the searches.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Where the table and the pictures go.", metavar="DIR")] = Path("audit"),
    as_json: AsJson = False,
) -> None:
    """Attack what the clients of a recipe really send, and tell how much of their data comes back.

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
