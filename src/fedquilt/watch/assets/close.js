"use strict";
// One run: progress, numbers, curves, clients, messages, dropped replies.
quilt.close = function (id, alone, scores) {
  const heading = quilt.el("h2");
  const state = quilt.el("span");
  const path = quilt.el("div", { class: "path" });
  const bar = quilt.bar(true);
  const [done, left] = [quilt.el("b"), quilt.el("span")];
  const notice = quilt.el("div", { class: "warning", hidden: true });
  const lost = quilt.el("p", { class: "warning", id: "missing", hidden: true });
  const facts = quilt.el("div");
  const top = quilt.el("section", { class: "panel", "aria-label": "Progress" }, quilt.el("div", { class: "heading" }, heading, state), bar, quilt.el("div", { class: "progress" }, done, left), notice, lost, facts, path);

  const themes = [
    { key: "accuracy", title: "Accuracy, %", share: true, lines: [["test", "test_accuracy"], ["validation", "valid_accuracy"], ["worst tenth, test", "test_accuracy_worst10"]] },
    { key: "loss", title: "Loss", lines: [["test", "test_loss"], ["training", "train_loss"]] },
    { key: "bytes", title: "Megabytes sent, in all", zero: true, lines: [["up", "up"], ["down", "down"]] },
    { key: "time", title: "Seconds of a round", zero: true, lines: [["seconds", "seconds"]] },
  ].map((theme) => ({ ...theme, holder: quilt.el("div"), shown: null, block: { kind: "lines", key: theme.key, title: theme.title, x: "round", y: "value", level: {}, level_name: "", t: {}, shares: theme.share ? ["value"] : [], names: { round: "round", value: theme.title.replace(", %", "") }, bare: true, zero: theme.zero, series: [] } }));
  const pictures = quilt.el("section", { class: "panel", "aria-label": "Curves" }, quilt.el("h2", {}, "Curves"), quilt.el("p", { class: "note" }), quilt.el("div", { class: "pictures" }, themes.map((t) => t.holder)));

  const sheets = {
    clients: { key: "clients", title: "Clients", note: "The last score of every client on its own test samples, and its last client update.", filter: true, columns: [
      { key: "client", label: "client", kind: "text" }, ...scores, { key: "rows", label: "test rows", kind: "number", digits: 0 }, { key: "scored", label: "scored after", kind: "number", digits: 0, help: "round" },
      { key: "asked", label: "last trained", kind: "number", digits: 0, help: "round" }, { key: "update_loss", label: "training loss", kind: "number", digits: 3 }, { key: "update_seconds", label: "seconds", kind: "number", digits: 3 }, { key: "update_bytes_down", label: "bytes down", kind: "number", digits: 0 }, { key: "update_bytes_up", label: "bytes up", kind: "number", digits: 0 },
    ] },
    dropped: { key: "dropped", title: "Dropped replies", note: "Replies that the server did not use, and why; newest first.", filter: true, columns: [
      { key: "round", label: "round", kind: "text" }, { key: "exchange", label: "exchange", kind: "text" }, { key: "client", label: "client", kind: "text" }, { key: "reason", label: "why", kind: "text" },
    ] },
  };
  const panels = {};
  for (const sheet of Object.values(sheets)) {
    sheet.node = quilt.draws.table({ kind: "table", rows: [], ...sheet });
    panels[sheet.key] = quilt.el("section", { class: "panel", id: `panel-${sheet.key}`, "aria-label": sheet.title }, quilt.el("h2", {}, sheet.title), quilt.el("p", { class: "note" }, sheet.note), sheet.node);
  }
  const said = quilt.el("ol", { class: "said-list", id: "messages", tabindex: 0, "aria-label": "Messages, newest first" });
  const talk = quilt.el("section", { class: "panel", "aria-label": "Messages" }, quilt.el("h2", {}, "Messages"), quilt.el("p", { class: "note" }, "What the run said, newest first."), said);
  const node = quilt.el("div", { id: "one", "data-run": id }, alone ? null : quilt.el("p", { class: "back" }, quilt.el("a", { href: "#" }, "\u2190 All runs")), top, pictures, talk, panels.clients, panels.dropped);

  const help = (run, folder) => {
    const about = {
      killed: "This run has ended without a word: it was killed, or the machine went down.",
      stopped: "This run was stopped.",
      failed: `This run failed: ${run.said?.text ?? ""}`,
    }[run.state];
    notice.hidden = about === undefined;
    if (about === undefined || notice.dataset.for === about) return;
    notice.dataset.for = about;
    const command = `fedquilt resume ${/^[\w./-]+$/.test(folder) ? folder : `'${folder.replaceAll("'", `'\\''`)}'`}`;
    notice.replaceChildren(quilt.el("p", {}, about), quilt.el("div", { class: "command" }, "It goes on from its last snapshot with", quilt.el("code", {}, command), quilt.el("button", { type: "button", onclick: () => quilt.copy(command, "a command") }, "Copy")));
  };

  const cards = (run, last) => {
    const items = [
      [`${run.accuracy_on} accuracy`, quilt.share(run.accuracy) || "–", run.scored ? `${run.accuracy_half === null ? "" : `\u00b1 ${(100 * run.accuracy_half).toFixed(1)}, `}mean over clients, after round ${run.scored}` : "not scored yet"],
      ...run.told.map(([name, text]) => [name, text, "± is 95 %, for the number of test rows"]),
      ["test loss", quilt.fixed(run.loss) || "–", run.train_loss === null || run.train_loss === undefined ? "" : `training ${quilt.fixed(run.train_loss)}`],
      ["sent", quilt.size(run.up + run.down), `${quilt.size(run.up)} up, ${quilt.size(run.down)} down`],
      ["clients", String(last.clients ?? "–"), last.clients ? "in the last round" : ""],
      ["dropped replies", String(run.dropped), "of clients, not used"],
      ["time", quilt.span(run.time) || "0 s", run.pace ? `${run.pace < 10 ? run.pace.toPrecision(2) : run.pace.toFixed(0)} s a round` : ""],
    ];
    const text = JSON.stringify(items);
    if (facts.dataset.shown === text) return;
    facts.dataset.shown = text;
    facts.replaceChildren(quilt.draws.facts({ items }));
  };

  const draw = (points, names) => {
    for (const theme of themes) {
      theme.block.series = theme.lines.map(([name, pick], place) => quilt.series(name, place, points, names, pick)).filter((s) => s.seeds[0].round.length);
      theme.holder.hidden = !theme.block.series.length;
      const shown = theme.block.series.map((s) => s.name).join("\n");
      if (theme.holder.hidden) continue;
      if (shown !== theme.shown) theme.holder.replaceChildren((theme.figure = quilt.draws.lines(theme.block)));
      theme.shown = shown;
      quilt.pending.clear();
      theme.figure.refresh();
    }
    pictures.hidden = themes.every((t) => t.holder.hidden);
  };

  let drawn = false;
  const update = (store) => {
    const run = store.runs.find((r) => r.id === id);
    if (run === undefined || !store.close?.folder) return;
    const { close } = store;
    quilt.put(heading, quilt.title(run) + (run.group ? ` \u00b7 ${run.group}` : ""));
    if (state.textContent !== run.state) state.replaceChildren(quilt.chip(run.state));
    quilt.move(bar, run.round, run.state === "done" ? run.round : run.rounds, run.state);
    const phase = run.state === "running" && run.phase.of ? ` \u00b7 round ${run.phase.round}: ${run.phase.phase}, ${run.phase.done} of ${run.phase.of} clients` : "";
    quilt.put(done, `${run.round} of ${run.rounds ?? "?"} rounds${run.stopped_early ? ", stopped early" : ""}${phase}`);
    quilt.put(left, run.left === null ? "" : `about ${quilt.span(run.left)} left`);
    quilt.put(path, [close.folder, run.method, run.engine, run.seed === null || run.seed === undefined ? null : `seed ${run.seed}`].filter(Boolean).join("  \u00b7  "));
    help(run, close.folder);
    lost.hidden = !run.missing;
    quilt.put(lost, run.missing ? `Parts of this run's logs are missing: ${run.missing}. The rest is shown.` : "");
    cards(run, close.last);
    if (store.changed || !drawn) draw(store.curves.get(id) ?? [], store.point);
    drawn = true;
    if (close.fresh.clients) sheets.clients.node.refresh([...close.clients.values()]);
    if (close.fresh.dropped) sheets.dropped.node.refresh(close.dropped.slice(-1000).reverse().map((r) => ({ ...r, client: typeof r.client === "string" ? r.client : JSON.stringify(r.client) })));
    if (close.fresh.messages) said.replaceChildren(...close.messages.slice(-300).reverse().map((m) => quilt.el("li", { class: m.kind }, quilt.el("time", { title: new Date(1000 * m.time).toString() }, quilt.clock(m.time)), quilt.el("span", { class: "kind" }, m.kind), quilt.el("span", { class: "at" }, `round ${m.round}`), quilt.el("span", { class: "what" }, m.text))));
    talk.hidden = !close.messages.length;
    panels.clients.hidden = !close.clients.size;
    panels.dropped.hidden = !close.dropped.length;
  };
  return { node, update, id };
};
