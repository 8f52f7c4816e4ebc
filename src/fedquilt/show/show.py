"""What a person sees in the terminal: tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt.core.plain import JSON, Ints, Row
from fedquilt.errors import FedquiltError
from fedquilt.metrics.energy import in_words
from fedquilt.metrics.table import ROWS_HALF, Metric, main, metrics, trivial
from fedquilt.results.clusters import clusters_in
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.runs.progress import span
from fedquilt.storage.finished import UNCHOSEN, chosen_mode, in_messages, modes_of, validated
from fedquilt.storage.mending import missing_of
from fedquilt.storage.mending import told as lost_in_words
from fedquilt.terminal import console as console
from fedquilt.terminal import say, show_table

if TYPE_CHECKING:
    from fedquilt.data import Federation, Stream

MAJORITY = (
    ("test", "majority_class", "majority_half_95", "mean over clients"),
    ("common_test", "majority_common", "majority_common_half_95", "common test set"),
)


def result_table(folder: Path, result: Mapping[str, JSON]) -> None:
    """The end of a run."""
    _numbers(folder, result)
    up, down = result["bytes_up"] / MEGABYTE, result["bytes_down"] / MEGABYTE
    stopped = " (stopped early)" if result["stopped_early"] else ""
    rounds = f"{result['rounds']} round{'s' * (result['rounds'] != 1)}{stopped}"
    say(f"{rounds}, {result['seconds']:.1f} s, {up:.2f} MB up, {down:.2f} MB down")
    if result.get("energy"):
        say(in_words(result["energy"]))
    if in_messages(result):
        say(in_messages(result))
    if result["quarantined"]:
        say(f"{result['quarantined']} replies were dropped; {folder}/dropped.jsonl says why.")
    for name, lost in missing_of(result).items():
        say(f"{name}: {lost_in_words(lost)}")
    _told(folder)
    _notes(result)
    say(f"state {result['digest']}")
    if (folder / "report.html").exists():
        say(f"report {folder}/report.html")
    say(f"folder {folder}")


def _numbers(folder: Path, result: Mapping[str, JSON]) -> None:
    """The scores at the chosen round and at the last, above those of the majority class."""
    best, last = result.get("best") or {}, result.get("last") or {}
    how = "best on validation" if validated(result) else "no validation samples"
    table = Table(title=f"{folder.name}", title_justify="left")
    table.add_column("", no_wrap=True)
    for title in (f"round {result['best_round']} ({how})", f"round {result['rounds']} (last)"):
        table.add_column(title, justify="right")
    for m, name, label in _labels(f"test_{main().id}" in last):
        if name in last:
            table.add_row(label + ", %" * m.share, *(m.told(row, name) or "-" for row in (best, last)))
    if majority := _majority(result, last):
        table.add_row(*majority, style="dim")
    show_table(table)
    if any(name.endswith(ROWS_HALF) for name in last):
        say("± is the 95 % interval due to the number of test samples.")


def _majority(result: Mapping[str, JSON], last: Mapping[str, JSON]) -> tuple[str, ...]:
    """The accuracy of the majority class as a line; nothing where it is not known."""
    for name, share, half, where in MAJORITY:
        if f"{name}_{main().id}" in last and result.get(share) is not None:
            least = main().written(result[share], result.get(half))
            return f"{trivial()}, {where}" + ", %" * main().share, least, least
    return ()


_NAMED = 20  # malicious clients


def _notes(result: Mapping[str, JSON]) -> None:
    """Who attacked, modes, how tables were prepared, and doubts."""
    if "malicious" in result:
        who, of = result["malicious"]["clients"], result["malicious"]["of"]
        named = ", ".join(map(str, who[:_NAMED])) + ", ..." * (len(who) > _NAMED)
        say(f"{len(who)} of {of} clients malicious ({named}){', not evaluated' * (len(who) < of)}")
    if modes := modes_of(result.get("best") or result.get("last") or {}):
        modes_table({"": modes})
    if "preparation" in result:
        told, up, down = (result["preparation"][name] for name in ("told", "bytes_up", "bytes_down"))
        say(f"table {told}" + (f" ({up:,} bytes up and {down:,} down to agree on it)" if up else ""))
    if "doubt" in result:
        say(f"note: {result['doubt']}")


MODES = {"common_valid": "server valid", "global_valid": "valid", "common_test": "common test", "global_test": "test"}


def modes_table(told: Mapping[str, Mapping[str, JSON]]) -> None:
    """The accuracies of global models in all modes that they have, by the name of their method."""
    there = [rows for rows in MODES if any(rows in modes["accuracy"] for modes in told.values())]
    table = narrow("global model in all modes, accuracy in %", "mode", map(MODES.__getitem__, there))
    for name, modes in told.items():
        scores = modes["accuracy"]
        for mode in dict.fromkeys(mode for rows in scores.values() for mode in rows):
            shown = [main().written(scores.get(rows, {}).get(mode)) for rows in there]
            style = "bold" if mode in modes["served"].split(" or ") else ""
            table.add_row(f"{name}, {mode}" if name else mode, *shown, style=style)
    show_table(table)
    for name, modes in told.items():
        start = f"{name}, global model" if name else "global model"
        say(f"{start}: {modes['served']}{'' if chosen_mode(modes) else UNCHOSEN}")


def _labels(tested: bool) -> Iterator[tuple[Metric, str, str]]:
    """The numbers at the end of a run, and what they are called; the validation accuracy only where tests are not."""
    for m in metrics():
        yield m, f"test_{m.id}", f"test {m.name}" + (", mean over clients" if m.id == main().id else "")
        if "worst10" in m.summaries:
            yield m, f"test_{m.id}_worst10", "worst 10 % of clients"
    first = main()
    yield first, f"global_test_{main().id}", "global model, mean over clients"
    yield first, f"common_test_{main().id}", "global model, common test set"
    if not tested:
        yield first, f"valid_{first.id}", f"validation {first.name}, mean over clients"


def _told(folder: Path) -> None:
    """The clusters of a run that made any, and what should be known of them."""
    if not (folder / "clusters.json").exists():
        return
    try:
        found, text = clusters_in(folder)
    except FedquiltError as error:
        say(f"note: {error}")
        return
    used = len(set(found.labels.values()))
    placed = f", {len(found.labels)} of {text['of']} clients placed" if text.get("of") else ""
    say(f"{used} clusters ({found.criterion}){placed}; show them with: fedquilt clusters {folder}")
    for warning in found.warnings:
        say(f"warning: {warning}")


def newcomers_table(found: Mapping[str, JSON]) -> None:
    """Accuracy by client that never took part."""
    table = Table(title=f"{found['newcomers']} newcomers; accuracy in %", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("mode")
    for name in ("mean", "std", "worst", "majority class", "epochs"):
        table.add_column(name, justify="right")
    for mode, row in found["modes"].items():
        if "refused" not in row:
            numbers = (f"{100 * row[name]:.1f}" for name in ("mean", "std", "worst", "majority"))
            table.add_row(mode, *numbers, str(row["epochs"]))
    show_table(table)
    for mode, row in found["modes"].items():
        if "refused" in row:
            say(f"{mode}: {row['refused']}")
    starts = {row["start"] for row in found["modes"].values() if "start" in row}
    if "fresh client" in starts:
        say("There is no global model: new clients start from the initial client model.")


def stream_tables(stream: Stream, found: Mapping[str, JSON]) -> None:
    """When each task is on, and its split."""
    for stage in found["stages"]:
        task = stage["task"]
        say(f"rounds {stage['rounds']}: task {task} (classes {_ranges(found['tasks'][task]['classes'])})")
    if found["recurring"]:
        say("and then from the beginning again")
    if found["delays"]:
        late = ", ".join(f"client {client} by {rounds}" for client, rounds in list(found["delays"].items())[:10])
        more = f" and {len(found['delays']) - 10} more" if len(found["delays"]) > 10 else ""
        say(f"behind by so many rounds: {late}{more}")
    for number, task in enumerate(stream.tasks):
        say(f"\ntask {number}")
        partition_table(task, Path(found["tasks"][number]["plot"]))


def _ranges(numbers: Sequence[int]) -> str:
    """0-2, 5 for 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def _fitting(counts: Ints, name: int) -> int:
    """How many label columns fit beside the client, all and bits; at most 20, and at least one."""
    widths = [3 + max(len(str(label)), len(str(n))) for label, n in enumerate(counts.max(0))]
    room = console.width - 1 - (3 + max(name, 6)) - (3 + max(len(str(counts.sum(1).max())), 3)) - (3 + 4)
    return max(1, int(np.searchsorted(np.cumsum(widths[:20]), room, side="right")))


def partition_table(federation: Federation, picture: Path) -> None:
    """A split in the terminal."""
    from fedquilt.data.partitions.measures import label_entropy

    counts = np.asarray(federation.label_counts("train"))
    shown = min(len(counts), 30)
    table = Table(title=f"training samples of {len(counts)} clients by label", title_justify="left")
    table.add_column("client")
    labels = _fitting(counts[:shown], max(len(str(c)) for c in federation.ids[:shown]))
    for label in range(labels):
        table.add_column(str(label), justify="right")
    table.add_column("all", justify="right")
    table.add_column("bits", justify="right")
    for client, row, bits in list(zip(federation.ids, counts, label_entropy(counts), strict=True))[:shown]:
        table.add_row(str(client), *(str(n) if n else "·" for n in row[:labels]), str(row.sum()), f"{bits:.2f}")
    show_table(table)
    left_out = [(len(counts) - shown, "clients"), (counts.shape[1] - labels, "labels")]
    if more := " and ".join(f"{n} more {what}" for n, what in left_out if n):
        say(f"... and {more}; all are in {picture.with_suffix('.csv')}")
    if federation.reading is not None and federation.reading.names:
        say("labels: " + ", ".join(f"{c} {name}" for c, name in enumerate(federation.reading.names[:labels])))
    _measured(counts, federation)
    say(f"picture {picture}")


def _measured(counts: Ints, federation: Federation) -> None:
    """Sizes and skews of a split, in words."""
    from fedquilt.data.partitions.measures import imbalance_told, measures

    sizes = counts.sum(1)
    say(f"rows per client: least {sizes.min()}, median {int(np.median(sizes))}, most {sizes.max()}")
    if federation.preparation is not None:
        say(f"table: {federation.preparation.describe()}")
    found = measures(counts)
    distance = found["label_distance"]
    say("bits of label entropy: " + ", ".join(f"{name} {bits:.2f}" for name, bits in found["label_entropy"].items()))
    if distance is not None:
        say(f"label distance {distance:.3f} (Jensen-Shannon, mean over pairs of clients; 0 identical, 1 disjoint)")
    say(f"size Gini {found['size_gini']:.3f}; {imbalance_told(found['imbalance_factor'])}")


def narrow(title: str | None, first: str, others: Iterable[str]) -> Table:
    """A table of little width: names on the left, which may be folded, and numbers on the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def listing(rows: Sequence[Mapping[str, JSON]], title: str) -> None:
    """Rows as a table."""
    table = Table(title=title, title_justify="left")
    names = list(rows[0]) if rows else []
    for place, name in enumerate(names):
        table.add_column(name, no_wrap=place == 0, overflow="fold")  # a name that is cut off is no use to anyone
    for row in rows:
        table.add_row(*(_text(row[n]) for n in names))
    show_table(table)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return "x".join(str(v) for v in value)
    return "" if value is None else str(value)


def watched(lines: Sequence[Row], title: str) -> None:
    """The runs as a table, and what is missing of them."""
    listing(_watched_rows(lines), title)
    for line in lines:
        if line["missing"]:
            say(f"note: {line['display']}: {line['missing']}")


def _watched_rows(lines: Sequence[Row]) -> list[Row]:
    """The runs as rows of a table."""
    return [
        {
            "run": line["display"] + (f", seed {line['seed']}" if line["group"] else ""),
            "state": line["state"],
            "rounds": f"{line['round']}/{line['rounds'] or '?'}",
            "left": "" if line["left"] is None else span(line["left"]),
            "accuracy, %": main().written(line["accuracy"], line["accuracy_half"])
            + (" (validation)" if line["accuracy_on"] == "validation" else ""),
            "loss": "" if line["loss"] is None else f"{line['loss']:.4f}",
            "MB": f"{line['up'] + line['down']:.2f}",
            "dropped replies": line["dropped"] or "",
        }
        for line in lines
    ]
