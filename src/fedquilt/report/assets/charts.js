"use strict";
// Curves, boxes with dots, and bars.
quilt.marks = function (state, points, width) {
  const count = width < 600 ? 5 : 10;
  if (state.x !== "round") return { ticks: count, tickFormat: state.log ? "~s" : undefined };
  const [low, high] = d3.extent(points, (p) => p.x);
  return { ticks: d3.ticks(low ?? 0, high ?? 1, count).filter(Number.isInteger), tickFormat: "d" };
};

quilt.draws.lines = function (block) {
  const several = block.series.some((s) => s.seeds.length > 1);
  const state = (block.state ??= { x: block.x, y: block.y, band: several ? "range" : "none", log: false, off: new Set() });
  const share = (name) => block.shares.includes(name);
  const word = (name) => block.names[name] + (share(name) ? ", %" : "");
  const scaled = (name, v) => (share(name) ? 100 * v : v);

  // Means over seeds at the rounds that every seed has, with the band that was asked for.
  const points = (one) => {
    const value = (seed, name, i) => (name === "round" ? seed.round[i] : seed.values[name]?.[i]);
    const rounds = one.seeds[0].round.filter((r) => one.seeds.every((s) => s.round.includes(r)));
    return rounds.map((round) => {
      const at = (name) => one.seeds.map((s) => value(s, name, s.round.indexOf(round))).filter((v) => v !== null && v !== undefined);
      const [xs, ys] = [at(state.x), at(state.y)];
      if (xs.length < one.seeds.length || ys.length < one.seeds.length) return null;
      const mean = d3.mean(ys);
      let half = [mean, mean];
      if (state.band === "range") half = d3.extent(ys);
      if (state.band === "t" && ys.length > 1) {
        const wide = (block.t[ys.length] * d3.deviation(ys)) / Math.sqrt(ys.length);
        half = [mean - wide, mean + wide];
      }
      if (state.band === "clients" && state.y === "test_accuracy") {
        const wide = d3.mean(at(block.spread));
        half = [mean - wide, mean + wide];
      }
      return { name: one.name, round, x: scaled(state.x, d3.mean(xs)), y: scaled(state.y, mean), low: scaled(state.y, half[0]), high: scaled(state.y, half[1]) };
    }).filter(Boolean);
  };

  const draw = (width) => {
    const shown = block.series.filter((s) => !state.off.has(s.legend ?? s.name)).map((s) => ({ ...s, points: points(s) })).filter((s) => s.points.length);
    const all = shown.flatMap((s) => s.points);
    for (const p of all) {
      const spread = p.high > p.low ? ` (${quilt.short(p.low)} to ${quilt.short(p.high)})` : "";
      p.text = `${p.name}\nround ${p.round}\n${word(state.y)}: ${quilt.short(p.y)}${spread}` + (state.x === "round" ? "" : `\n${word(state.x)}: ${quilt.short(p.x)}`);
    }
    const level = block.level[state.y];
    const ends = shown.map((s) => ({ ...s.points[s.points.length - 1], place: s.place }));
    const svg = Plot.plot({
      width, height: Math.min(460, 180 + width * 0.3), marginLeft: 56, marginBottom: 42, marginRight: 24, style: quilt.looksOf,
      x: { label: word(state.x), labelAnchor: "center", labelArrow: "none", type: state.log && state.x !== "round" ? "log" : "linear", ...quilt.marks(state, all, width) },
      y: { label: block.bare ? null : word(state.y), grid: true, labelArrow: "none", nice: true, zero: block.zero },
      marks: [
        level === undefined ? null : Plot.ruleY([scaled(state.y, level)], { stroke: "var(--soft)", strokeDasharray: "2 3" }),
        level === undefined || !all.length ? null : Plot.text([block.level_name], { frameAnchor: "right", y: scaled(state.y, level), dy: -7, text: (d) => d, fill: "var(--soft)", textAnchor: "end" }),
        ...shown.map((s) => Plot.areaY(s.points, { x: "x", y1: "low", y2: "high", fill: quilt.colour(s.place), fillOpacity: Math.max(0.07, 0.2 - 0.02 * shown.length), clip: "frame" })),
        ...shown.map((s) => Plot.lineY(s.points, { x: "x", y: "y", stroke: quilt.colour(s.place), strokeWidth: 2, strokeDasharray: quilt.dash(s.place) ?? undefined, marker: s.points.length < 3 ? "dot" : undefined })),
        Plot.dot(ends, { x: "x", y: "y", r: 3.5, fill: (d) => d.place, symbol: "circle" }),
        Plot.dot(all, Plot.pointer({ x: "x", y: "y", r: 4.5, stroke: "var(--ink)", fill: "var(--card)" })),
        quilt.tip(all),
      ].filter(Boolean),
      color: { type: "ordinal", domain: d3.range(64), range: d3.range(64).map(quilt.colour) },
    });
    const columns = [
      { key: "name", label: "method", kind: "text" }, { key: "round", label: "round", kind: "number", digits: 0 },
      ...(state.x === "round" ? [] : [{ key: "x", label: word(state.x), kind: "number", digits: 3 }]),
      { key: "y", label: word(state.y), kind: "number", digits: 4 }, { key: "low", label: "band low", kind: "number", digits: 4 }, { key: "high", label: "band high", kind: "number", digits: 4 },
    ];
    return { svg, points: all, numbers: () => ({ columns, rows: all }) };
  };

  const controls = (redraw) => {
    const set = (name) => (value) => { state[name] = value; redraw(); };
    const entries = Object.entries(block.names);
    const bands = [["range", "range over seeds"], ["t", "95 % t-interval over seeds"], ["clients", "deviation over clients"], ["none", "none"]].filter(([n]) => !block.bands || block.bands.includes(n));
    const log = quilt.el("input", { type: "checkbox", checked: state.log, onchange: () => { state.log = log.checked; redraw(); } });
    const legend = quilt.el("div", { class: "legend", role: "group", "aria-label": "Methods shown" }, [...new Map(block.series.map((s) => [s.legend ?? s.name, s]))].map(([name, s]) => {
      const line = quilt.el("span", { class: "stroke", style: { background: quilt.dash(s.place) ? `repeating-linear-gradient(90deg, ${quilt.colour(s.place)} 0 6px, transparent 6px 9px)` : quilt.colour(s.place) } });
      const chip = quilt.el("button", { type: "button", class: "chip", "aria-pressed": String(!state.off.has(name)), onclick: () => {
        if (state.off.has(name)) state.off.delete(name); else state.off.add(name);
        chip.setAttribute("aria-pressed", String(!state.off.has(name)));
        redraw();
      } }, line, name);
      return chip;
    }));
    const bar = quilt.el("div", { class: "bar" }, quilt.menu("vertical", entries.filter(([n]) => n !== "round"), state.y, set("y")), quilt.menu("horizontal", entries, state.x, set("x")),
      bands.length < 2 ? null : quilt.menu("band", bands, state.band, set("band")), quilt.el("label", {}, log, "logarithmic horizontal"));
    return quilt.el("div", {}, block.bare ? null : bar, block.series.length > 1 ? legend : null);
  };
  return quilt.frame(block, controls, draw);
};

quilt.draws.strip = (block) => quilt.variants(block, (variant, width) => {
  const { groups } = variant;
  const { share } = variant;
  const scaled = (v) => (share ? 100 * v : v);
  const what = variant.keys.measure + (share ? ", %" : "");
  const dots = groups.flatMap((g, row) => g.values.map((v, i) => v === null ? null : {
    name: g.name, client: block.clients[i], value: v, x: scaled(v), y: row + ((i * 0.618034) % 1 - 0.5) * 0.42, place: g.place,
    text: `client ${block.clients[i]}\n${g.name}\n${what}: ${quilt.short(scaled(v))}`,
  }).filter(Boolean));
  const boxes = groups.map((g, row) => {
    const sorted = g.values.filter((v) => v !== null).map(scaled).sort(d3.ascending);
    const [low, mid, high] = [0.25, 0.5, 0.75].map((q) => d3.quantileSorted(sorted, q));
    const reach = 1.5 * (high - low);
    return { row, low, mid, high, mean: d3.mean(sorted), from: d3.min(sorted.filter((v) => v >= low - reach)), to: d3.max(sorted.filter((v) => v <= high + reach)), place: g.place, name: g.name };
  }).filter((b) => b.mid !== undefined);
  const level = block.level[variant.keys.measure];
  const svg = Plot.plot({
    width, height: 62 + 54 * groups.length, marginLeft: quilt.margin(groups.map((g) => quilt.cut(g.name))), marginBottom: 40, marginRight: 24, style: quilt.looksOf,
    x: { label: what, labelAnchor: "center", labelArrow: "none", grid: true, nice: true },
    y: { domain: [groups.length - 0.5, -0.5], ticks: d3.range(groups.length), tickFormat: (i) => quilt.cut(groups[i]?.name ?? ""), tickSize: 0, label: null },
    color: { type: "ordinal", domain: d3.range(64), range: d3.range(64).map(quilt.colour) },
    marks: [
      level === undefined ? null : Plot.ruleX([scaled(level)], { stroke: "var(--soft)", strokeDasharray: "2 3" }),
      level === undefined ? null : Plot.text([block.level_name], { x: scaled(level), frameAnchor: "top", dy: -10, text: (d) => d, fill: "var(--soft)" }),
      Plot.ruleY(boxes, { y: "row", x1: "from", x2: "low", stroke: "place", strokeWidth: 1.5 }),
      Plot.ruleY(boxes, { y: "row", x1: "high", x2: "to", stroke: "place", strokeWidth: 1.5 }),
      Plot.rect(boxes, { x1: "low", x2: "high", y1: (b) => b.row - 0.3, y2: (b) => b.row + 0.3, fill: "place", fillOpacity: 0.13, stroke: "place", strokeWidth: 1.5, rx: 2 }),
      Plot.dot(dots, { x: "x", y: "y", r: dots.length > 1500 ? 1.6 : 2.8, fill: "place", fillOpacity: 0.6 }),
      Plot.ruleX(boxes, { x: "mid", y1: (b) => b.row - 0.3, y2: (b) => b.row + 0.3, stroke: "place", strokeWidth: 3 }),
      Plot.dot(boxes, { x: "mean", y: "row", symbol: "diamond", r: 5, fill: "var(--card)", stroke: "place", strokeWidth: 2 }),
      Plot.dot(dots, Plot.pointer({ x: "x", y: "y", r: 5, stroke: "var(--ink)", fill: "place" })),
      quilt.tip(dots),
    ].filter(Boolean),
  });
  const below = quilt.el("p", { class: "small note" }, "Line: median; diamond: mean; whiskers reach 1.5 box lengths.");
  const columns = [{ key: "name", label: "method", kind: "text" }, { key: "client", label: "client", kind: "text" }, { key: "value", label: variant.keys.measure, kind: "number", digits: 4 }];
  return { svg, below, points: dots, numbers: () => ({ columns, rows: dots, filter: true }) };
});

quilt.draws.bars = (block) => quilt.variants(block, (variant, width) => {
  const parts = [...new Set(variant.bars.map((b) => b.part))];
  const names = [...new Set(variant.bars.map((b) => b.name))];
  const shown = names.map(quilt.cut);
  const bars = [];
  const sofar = {};
  for (const b of variant.bars) {
    const from = block.grouped ? 0 : sofar[b.name] ?? 0;
    sofar[b.name] = from + b.value;
    bars.push({ ...b, y: quilt.cut(b.name), from, to: from + b.value, x: block.grouped ? b.value : from + b.value / 2, text: `${b.name}\n${b.part}: ${quilt.short(b.value)} ${block.x_name}` });
  }
  const totals = names.map((n) => ({ y: quilt.cut(n), x: sofar[n] }));
  const svg = Plot.plot({
    width, height: 60 + (block.grouped ? 22 : 34) * names.length, marginLeft: quilt.margin(shown), marginBottom: 40, marginRight: 70, style: quilt.looksOf,
    x: { label: block.x_name, labelAnchor: "center", labelArrow: "none", grid: true },
    y: { domain: shown, label: null, tickSize: 0, padding: 0.3 },
    color: { type: "ordinal", domain: parts, range: parts.map((_, i) => quilt.colour(i)) },
    marks: block.grouped ? [
      Plot.ruleY(shown, { stroke: "var(--line)" }),
      Plot.dot(bars, { x: "x", y: "y", fill: "part", r: 4.5 }),
      quilt.tip(bars),
    ] : [
      Plot.barX(bars, { y: "y", x1: "from", x2: "to", fill: "part", rx: 2, insetLeft: 0.5 }),
      Plot.text(totals, { y: "y", x: "x", text: (t) => quilt.short(t.x), textAnchor: "start", dx: 6, fill: "var(--soft)" }),
      quilt.tip(bars),
    ],
  });
  const below = quilt.el("div", { class: "legend" }, parts.map((p, i) => quilt.el("span", { class: "item" }, quilt.el("span", { class: "swatch", style: { background: quilt.colour(i) } }), p)));
  const columns = [{ key: "name", label: "name", kind: "text" }, { key: "part", label: "part", kind: "text" }, { key: "value", label: block.x_name, kind: "number", digits: 4 }];
  return { svg, below, points: bars, numbers: () => ({ columns, rows: bars }) };
});
