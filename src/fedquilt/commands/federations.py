"""The commands of real federations. Heavy libraries are imported by those that need them."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedquilt.commands.options import AsJson, Energy, Overrides, Recipe, stops_on_sigterm, with_energy
from fedquilt.errors import InputError

if TYPE_CHECKING:
    from fedquilt.core.plain import Row

KeyFolder = Annotated[Path | None, typer.Option("--keys", help="Key folder, made by 'fedquilt keys'.", metavar="DIR")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No encryption and no keys; only on this machine.")]


def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for the keys.", metavar="DIR")],
    host: Annotated[list[str] | None, typer.Option(help="A host name or address of the server. Repeatable.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="A node that needs a key pair. Repeatable.")] = None,
    days: Annotated[int, typer.Option(help="Validity of the server certificate, in days.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Create a new server certificate.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a CA, a server certificate and key pairs for nodes. Existing files are kept.

    Example: [bold]fedquilt keys keys --host server.example.org --node oslo --node bergen[/bold]
    """
    from fedquilt.deploy.keys import Keys, make

    if renew and not host:
        raise InputError("--renew needs the names of the server again: --host server.example.org.")
    if not host and not Keys(folder).server[0].exists():
        raise InputError("Name the server as the nodes will call it: --host server.example.org.")
    made = [str(path) for path in make(folder, host or [], node or [], days, renew)]
    if as_json:
        typer.echo(json.dumps({"made": made}))
    else:
        typer.echo("\n".join(made) or "Everything is there already.")


def serve(
    recipe: Recipe,
    overrides: Overrides = None,
    key_folder: KeyFolder = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port that nodes connect to.")] = 8000,
    superlink: Annotated[
        str | None, typer.Option(help="Use a running SuperLink instead of starting one.", metavar="HOST:PORT")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes to wait for (default: the recipe's flower.nodes).")
    ] = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
    energy: Energy = None,
) -> None:
    """Run a recipe as the server of a real federation. Run the command again to resume.

    Sites that connect and disconnect are logged here and in nodes.log of the run folder. SIGTERM stops it with exit
    code 143.

    Example: [bold]fedquilt serve recipe.toml --keys keys --host 0.0.0.0 --nodes 3[/bold]
    """
    from fedquilt.config.config import load
    from fedquilt.deploy.flower_command import Address
    from fedquilt.deploy.keys import Keys
    from fedquilt.deploy.serve import FederationServer
    from fedquilt.runs.progress import Progress
    from fedquilt.show.show import result_table
    from fedquilt.storage.finished import result_of

    _here()
    _keys_or_plain(key_folder, insecure)
    config = load(recipe, [*with_energy(overrides, energy), *([] if nodes is None else [f"flower.nodes={nodes}"])])
    folder = (Path(config.output.folder) / config.folder_name).absolute()
    result = result_of(folder)
    if result is None:
        address = Address(host, port) if superlink is None else Address.of(superlink)
        server = FederationServer(
            folder, address, None if key_folder is None else Keys(key_folder.absolute()), bool(superlink)
        )
        with stops_on_sigterm(), Progress(quiet=as_json) as progress:  # so that the SuperLink ends too
            bar = progress.bar(folder.name, config.rounds)
            progress.note(f"waiting for {config.flower.nodes} nodes at {address}")

            totals = dict.fromkeys(("bytes_up", "bytes_down", "quarantined"), 0)

            def hear(round: int, metrics: Row) -> None:
                totals.update({name: total + metrics[name] for name, total in totals.items()})
                bar.round(round, metrics, totals)

            result = server.follow(config, hear, progress.note)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **result}))
    else:
        result_table(folder, result)


def _here() -> None:
    """Refuse a system whose processes cannot be started and ended as those of a federation are."""
    if not hasattr(signal, "SIGKILL"):
        raise InputError("Real federations need Linux or macOS. On Windows, use WSL.")


def _keys_or_plain(folder: Path | None, insecure: bool) -> None:
    if folder is None and not insecure:
        raise InputError(
            "A federation needs keys: make them with 'fedquilt keys' and give --keys DIR. To try it on this machine "
            "alone, without any protection, give --insecure."
        )
    if folder is not None and insecure:
        raise InputError("--keys and --insecure are mutually exclusive.")


def join(
    data: Annotated[str, typer.Option(help="A .npz, .csv or .parquet file, an image folder, or file.py:function.")],
    superlink: Annotated[str | None, typer.Option(help="Address of the server.", metavar="HOST:PORT")] = None,
    label: Annotated[str | None, typer.Option(help="Label column of a table (label).")] = None,
    user: Annotated[str | None, typer.Option(help="Column that identifies the clients of this site.")] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Feature column of a table (default: all but label and user). Repeatable.")
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="Numeric column to treat as categorical. Repeatable.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Image size in pixels, for image folders (64).")] = None,
    name: Annotated[
        str | None, typer.Option(help="Client id of this site; omit it if --user identifies the clients.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="The server's CA certificate, ca.crt.")] = None,
    key: Annotated[Path | None, typer.Option(help="This node's private key.")] = None,
    state: Annotated[Path | None, typer.Option(help="Folder for client states.", metavar="DIR")] = None,
    trust: Annotated[list[str] | None, typer.Option(help="A package whose methods may run here. Repeatable.")] = None,
    trust_code: Annotated[
        list[str] | None,
        typer.Option(help="SHA-256 of a code file of the recipe that may run here. Repeatable.", metavar="SHA256"),
    ] = None,
    test: Annotated[float, typer.Option(help="Fraction of test samples.")] = 0.2,
    valid: Annotated[float, typer.Option(help="Fraction of validation samples.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the train, validation and test split.")] = 0,
    classes: Annotated[int | None, typer.Option(help="Number of classes in the whole federation.")] = None,
    mean: Annotated[float, typer.Option(help="Normalisation: (byte / 255 - mean) / std.")] = 0.0,
    std: Annotated[float, typer.Option(help="See --mean; use the same values at every site.")] = 1.0,
    max_steps: Annotated[int, typer.Option(help="Reject tasks with more training steps.")] = 100_000,
    max_epochs: Annotated[int, typer.Option(help="Reject tasks with more epochs.")] = 1_000,
    max_jobs: Annotated[int, typer.Option(help="Reject messages with more jobs.")] = 10_000,
    max_seconds: Annotated[float, typer.Option(help="Stop tasks that take longer, in seconds.")] = 3600.0,
    dry_run: Annotated[
        Path | None, typer.Option("--dry-run", help="Only show what this site would send.", metavar="RECIPE")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Local port for this node's own processes, on 127.0.0.1.")] = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Join a federation as a site, with local data. The data never leave the site.

    Progress is logged here and in node.log of the state folder; Flower's own messages are in flower.log there. SIGTERM
    stops it with exit code 0.

    Example: [bold]fedquilt join --superlink server:8000 --ca ca.crt --key oslo --data oslo.npz --name oslo[/bold]
    """
    _here()
    from fedquilt.deploy.flower_command import Address
    from fedquilt.deploy.join import Membership
    from fedquilt.deploy.site import is_function, settings_of
    from fedquilt.terminal import say

    place = (state or Path.home() / ".local" / "state" / "fedquilt" / (name or "site")).absolute()
    own = is_function(data)
    given = {
        "data": data if own and ".py:" not in data else str(Path(data).absolute()),
        "label": label,
        "user": user,
        "size": size,
        "name": name,
        "features": feature or None,
        "categories": category or [],
        "state": str(place),
        "trusted": trust or [],
        "trusted_code": trust_code or [],
        "test": test,
        "valid": valid,
        "seed": seed,
        "classes": classes,
        "mean": mean,
        "std": std,
        "path": [str(Path.cwd())] if own else [],
        "max_steps": max_steps,
        "max_epochs": max_epochs,
        "max_jobs": max_jobs,
        "max_seconds": max_seconds,
    }
    settings = settings_of(given, "join", "--")
    if dry_run is not None:
        from fedquilt.deploy.dry_run import leaving, table

        shown = leaving(settings, dry_run)
        typer.echo(json.dumps(shown) if as_json else table(shown))
        return
    address = _server_of(superlink, ca, key, insecure)
    Membership(Address.of(address), settings, ca, key, port).run(lambda text: say(text, file=sys.stderr))


def _server_of(superlink: str | None, ca: Path | None, key: Path | None, insecure: bool) -> str:
    """Where the server is, once it is clear how it and this node know each other."""
    if superlink is None:
        raise InputError("Give the address of the server: --superlink server.example.org:8000.")
    if insecure == (ca is not None):
        raise InputError("Give --ca (the server's CA certificate), or --insecure for a server on this machine.")
    if ca is not None and key is None:
        raise InputError("Give this node's private key: --key oslo. The server only accepts nodes whose keys it knows.")
    return superlink


def states(
    folder: Annotated[Path, typer.Argument(help="The --state folder.", metavar="DIR")],
    forget: Annotated[list[str] | None, typer.Option(help="Delete the states of this run.", metavar="RUN")] = None,
    older: Annotated[
        float | None, typer.Option(help="Delete states unchanged for this many days.", metavar="DAYS")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List or delete the client states stored at a site.

    Example: [bold]fedquilt states state --older 90[/bold]
    """
    from fedquilt.deploy.states import forget as delete
    from fedquilt.deploy.states import kept, rows, table

    gone = delete(folder, forget or [], older) if forget or older is not None else []
    there = kept(folder)
    if as_json:
        typer.echo(json.dumps({"forgotten": rows(gone), "kept": rows(there)}))
        return
    if gone:
        typer.echo(f"Forgotten:\n{table(gone)}\n\nKept:")
    typer.echo(table(there))


def export(
    recipe: Recipe,
    overrides: Overrides = None,
    flower: Annotated[Path | None, typer.Option(help="Folder for the Flower app.", metavar="DIR")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a standard Flower app for 'flwr run', for existing Flower deployments.

    Example: [bold]fedquilt export recipe.toml --flower my-app[/bold]
    """
    from fedquilt.config.config import load
    from fedquilt.deploy.app_folder import export as write

    if flower is None:
        raise InputError("Give the output folder: --flower DIR.")
    made = [str(path) for path in write(load(recipe, overrides or []), flower)]
    typer.echo(json.dumps({"made": made}) if as_json else "\n".join(made))
