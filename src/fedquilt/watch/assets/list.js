"use strict";
// All runs: how far they are together; then each comparison with its curves and a line for every run.
quilt.list = function (open) {
  const bar = quilt.bar(true);
  const words = { done: quilt.el("b"), left: quilt.el("span") };
  const groups = new Map(); // name of a comparison -> its panel
  const order = () => { for (const group of groups.values()) group.order(search.value, sort.querySelector("select").value); };
  const search = quilt.el("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", oninput: order });
  const sort = quilt.menu("order", [["found", "as found"], ["state", "running first"], ["accuracy", "accuracy"]], "found", order);
  const none = quilt.el("p", { class: "quiet", id: "none", hidden: true });
  const holder = quilt.el("div", { id: "runs" });
  const node = quilt.el("div", { id: "all" },
    quilt.el("section", { class: "panel", "aria-label": "Progress" }, bar, quilt.el("div", { class: "progress" }, words.done, words.left), none, quilt.el("div", { class: "bar" }, search, sort)), holder);

  const update = (store) => {
    const names = [...new Set(store.runs.map((r) => r.group))];
    for (const [name, group] of groups) if (!names.includes(name)) { group.node.remove(); groups.delete(name); }
    for (const name of names) {
      if (!groups.has(name)) groups.set(name, quilt.together(name, groups.size, open));
      const group = groups.get(name);
      if (!group.node.isConnected) holder.append(group.node);
      group.update(store, store.runs.filter((r) => r.group === name), names.length > 1);
    }
    order();
    none.hidden = store.runs.length > 0;
    quilt.put(none, `There are no runs below ${store.folder} yet. They appear here when they begin.`);
    const { done, planned, left } = store.whole;
    quilt.move(bar, done, planned);
    bar.hidden = !store.runs.length;
    quilt.put(words.done, store.runs.length ? `${done} of ${planned} rounds` : "");
    quilt.put(words.left, left === null ? "" : `about ${quilt.span(left)} left`);
  };
  return { node, update };
};

// The runs of a comparison, or those that belong to none: curves above, lines below.
quilt.together = function (name, number, open) {
  const heads = [["run"], ["state"], ["rounds"], ["time left"], ["accuracy", 1], ["test loss", 1], ["sent", 1], ["dropped replies", 1], ["last message"]];
  const body = quilt.el("tbody");
  const table = quilt.el("table", {}, quilt.el("thead", {}, quilt.el("tr", {}, heads.map(([h, figure]) => quilt.el("th", { scope: "col", class: figure ? "figure" : null }, h)))), body);
  const curves = {
    kind: "lines", key: number ? `all-${number}` : "all", title: "Curves", x: "round", y: "test_accuracy", series: [], level: {}, level_name: "", t: {}, shares: [], bands: ["none"], names: {},
  };
  const picture = quilt.el("div", { class: "block" });
  const heading = quilt.el("h2", {}, name || "Single runs");
  const count = quilt.el("p", { class: "note" });
  const node = quilt.el("section", { class: "panel", "aria-label": name || "Runs" }, heading, count, picture, quilt.el("div", { class: "block scroll" }, table));
  const lines = new Map(); // id -> { row, cells }
  let [runs, shown, figure] = [[], "", null];

  const line = (id) => {
    const link = quilt.el("a", { href: `#run=${id}` });
    const [far, pace] = [quilt.el("span"), quilt.el("span")];
    const cells = { link, state: quilt.el("td"), bar: quilt.bar(), far, pace, left: quilt.el("td"), accuracy: quilt.el("td", { class: "figure" }), loss: quilt.el("td", { class: "figure" }), sent: quilt.el("td", { class: "figure" }), out: quilt.el("td", { class: "figure" }), said: quilt.el("td", { class: "said" }) };
    const way = quilt.el("td", { class: "way" }, cells.bar, quilt.el("div", { class: "small" }, far, pace));
    const row = quilt.el("tr", { "data-run": id, onclick: (event) => { if (event.target !== link && !String(getSelection())) open(id); } },
      quilt.el("th", { scope: "row" }, link), cells.state, way, cells.left, cells.accuracy, cells.loss, cells.sent, cells.out, cells.said);
    return { row, cells };
  };

  const write = ({ row, cells }, run) => {
    quilt.put(cells.link, quilt.title(run));
    if (row.dataset.state !== run.state) cells.state.replaceChildren(quilt.chip(run.state));
    row.dataset.state = run.state;
    quilt.move(cells.bar, run.round, run.state === "done" ? run.round : run.rounds, run.state);
    quilt.put(cells.far, quilt.far(run) + (run.stopped_early ? ", early" : ""));
    quilt.put(cells.pace, run.state === "running" && run.phase.of ? `${run.phase.phase} ${run.phase.done}/${run.phase.of}` : "");
    quilt.put(cells.left, quilt.span(run.left));
    quilt.put(cells.accuracy, quilt.share(run.accuracy) + (run.accuracy_on === "validation" ? " (validation)" : ""));
    quilt.put(cells.loss, quilt.fixed(run.loss));
    quilt.put(cells.sent, run.round ? quilt.size(run.up + run.down) : "");
    quilt.put(cells.out, run.dropped ? String(run.dropped) : "");
    const words = [run.missing ? `missing: ${run.missing}` : "", run.said?.text ?? ""].filter(Boolean).join(" \u00b7 ");
    quilt.put(cells.said, words);
    cells.said.title = words;
  };

  const order = (words, way) => {
    const asked = words.toLowerCase().split(/\s+/).filter(Boolean);
    const rank = { running: 0, waiting: 1, failed: 2, killed: 2, unreadable: 2, stopped: 3, done: 4 };
    const by = { state: (r) => rank[r.state], accuracy: (r) => -(r.accuracy ?? -1) }[way];
    const sorted = by ? [...runs].sort((a, b) => by(a) - by(b)) : runs;
    const rows = sorted.filter((r) => asked.every((w) => [quilt.title(r), r.label, r.group, r.state, r.method, r.name].join(" ").toLowerCase().includes(w))).map((r) => lines.get(r.id).row);
    node.hidden = asked.length > 0 && !rows.length;
    if (rows.length === body.rows.length && rows.every((row, i) => body.rows[i] === row)) return;
    const held = document.activeElement;
    body.replaceChildren(...rows);
    if (body.contains(held)) held.focus();
  };

  const draw = (store) => {
    const places = new Map();
    for (const run of runs) if (!places.has(run.label)) places.set(run.label, places.size); // as in the report
    const series = (r) => quilt.series(quilt.title(r), places.get(r.label), store.curves.get(r.id), store.point, undefined, r.group ? r.display : undefined);
    curves.series = runs.filter((r) => store.curves.get(r.id)?.length).map(series);
    const names = curves.series.map((s) => s.name).join("\n");
    picture.hidden = !curves.series.length;
    if (!curves.state && runs.some((r) => r.accuracy_on === "validation")) curves.y = "valid_accuracy"; // test scores are withheld
    const scores = Object.entries(store.scores);
    curves.shares = scores.filter(([, s]) => s.share).map(([key]) => key);
    curves.names = { round: "round", ...Object.fromEntries(scores.map(([key, s]) => [key, s.name])), megabytes: "megabytes, both ways", up: "megabytes up", down: "megabytes down", minutes: "minutes", seconds: "seconds of a round" };
    if (names !== shown || figure === null) {
      figure = quilt.draws.lines(curves);
      picture.replaceChildren(figure);
      shown = names;
    }
    quilt.pending.clear();
    figure.refresh();
  };

  const update = (store, mine, several) => {
    runs = mine;
    heading.hidden = !name && !several;
    const states = d3.rollup(runs, (group) => group.length, (r) => r.state);
    quilt.put(count, several ? [...states].map(([state, n]) => `${n} ${state}`).join(", ") : "");
    for (const id of lines.keys()) if (!runs.some((r) => r.id === id)) lines.delete(id);
    for (const run of runs) {
      if (!lines.has(run.id)) lines.set(run.id, line(run.id));
      write(lines.get(run.id), run);
    }
    if (store.changed || figure === null) draw(store);
  };
  return { node, update, order };
};
