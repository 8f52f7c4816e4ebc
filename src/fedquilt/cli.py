"""The command ``fedquilt``."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedquilt import __version__
from fedquilt.commands import catalogues, federations, looking, models, projects, running
from fedquilt.commands.options import STOPPED
from fedquilt.commands.running import demo
from fedquilt.errors import FedquiltError


def _plainly(error: Any, setting: str) -> None:
    """A wrong command line in better words: settings are no options, and a suggestion is made once."""
    if type(error).__name__ == "NoSuchOption" and setting:
        error.message += f" Settings are written KEY=VALUE: {setting}=VALUE."
    if "Did you mean" in str(getattr(error, "message", "")):
        error.possibilities = None  # of which click would make the same suggestion


class _Commands(TyperGroup):
    """All commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            _plainly(error, "")
            raise


class _Command(TyperCommand):
    """One command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Its words."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            takes_settings = any(parameter.name == "overrides" for parameter in self.params)
            _plainly(error, str(getattr(error, "option_name", "")).lstrip("-") if takes_settings else "")
            raise


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning on heterogeneous clients, in PyTorch. Get started: [bold]fedquilt run quick[/bold]",
    epilog="[bold]fedquilt COMMAND -h[/bold] shows the options of a command and an example. Exit codes: 0 success, "
    "2 invalid input, 3 a method or a round failed, 4 the run folder cannot be used, 5 worker processes or Flower "
    "failed, 6 a download failed, 130 interrupted, 143 stopped by SIGTERM.",
)


def _paragraphs(command: Callable[..., None]) -> str:
    """The text of a command, each paragraph in one line, which breaks where the terminal ends."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(command.__doc__ or "").split("\n\n"))


PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Common commands": (
        demo,
        projects.new,
        running.run,
        running.compare,
        running.resume,
        looking.report,
        looking.watch,
        catalogues.recipes,
        catalogues.methods,
        federations.serve,
        federations.join,
    ),
    "More experiments": (running.sweep, running.robustness, running.newcomers),
    "Inspect data": (catalogues.datasets, catalogues.partitions, looking.partition),
    "Analyse runs": (looking.clusters, looking.assign, looking.traffic, looking.clock, looking.csv, looking.audit),
    "Models": (catalogues.models, models.predict, models.export_model, models.merge, models.pretrain_mae),
    "Long tails and streams": (models.realign, models.tails, models.continual),
    "Deployment": (federations.keys, federations.states, federations.export),
    "Codecs and this machine": (catalogues.codecs, catalogues.doctor, catalogues.bench),
}
START = """\
fedquilt: federated learning on heterogeneous clients, in PyTorch.

  fedquilt demo                    five problems, each with a method that addresses it
  fedquilt run quick               train FedAvg on ten clients (a few seconds)
  fedquilt compare stitch/digits   compare methods and write a report
  fedquilt new my-project          start a project with your own model and method
  fedquilt recipes                 list the included recipes
  fedquilt --help                  list all commands"""
for _panel, _commands in PANELS.items():
    for _command in _commands:
        app.command(cls=_Command, rich_help_panel=_panel, help=_paragraphs(_command))(_command)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedquilt {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Options that stand before a command; without one, how to begin."""
    if context.invoked_subcommand is None:
        print(START)


@contextmanager
def _told(as_json: bool) -> Iterator[None]:
    """Turn errors into one message on standard error and an exit code."""
    try:
        yield
    except FedquiltError as error:
        _say(as_json, str(error), error.exit_code, type(error).__name__)
    except KeyboardInterrupt:
        _interrupted(as_json)
    except SystemExit as end:
        if end.code == 130:  # typer makes this of a KeyboardInterrupt
            _interrupted(as_json)
        if end.code == STOPPED:
            _say(
                as_json, "Stopped. Finished work is saved; run the same command again to continue.", STOPPED, "Stopped"
            )
        raise
    except BrokenPipeError:
        sys.exit(141)


def _interrupted(as_json: bool) -> None:
    _say(as_json, "Interrupted. Snapshots are saved; continue with 'fedquilt resume RUN'.", 130, "Interrupted")


def _say(as_json: bool, text: str, code: int, kind: str) -> None:
    if as_json:
        print(json.dumps({"error": kind, "message": text, "exit_code": code}))
    else:
        from fedquilt.terminal import say

        say(f"fedquilt: {text}", file=sys.stderr)
    sys.exit(code)


def main(run_app: Callable[..., Any] = app) -> None:
    """The entry point."""
    as_json = "--json" in sys.argv
    with _told(as_json):
        if not as_json:
            run_app()
            return
        try:
            sys.exit(run_app(standalone_mode=False) or 0)
        except Exception as error:
            message = getattr(error, "format_message", None)  # a wrong command line, in click's words
            if message is None:
                raise
            _say(True, message(), 2, "UsageError")


if __name__ == "__main__":
    main()
