"use strict";
// Heat maps, dots on a grid, and trees.
quilt.ticks = (labels, room) => {
  const every = Math.max(1, Math.ceil(labels.length / room));
  return d3.range(labels.length).filter((i) => i % every === 0);
};

quilt.ordered = function (variant, order) {
  const places = d3.range(variant.y.length);
  const last = (i) => variant.values[i].findLast((v) => v !== null) ?? -Infinity;
  if (order === "score") places.sort((a, b) => last(b) - last(a));
  if (order === "group") places.sort((a, b) => (variant.groups[a] ?? -1) - (variant.groups[b] ?? -1) || a - b);
  return { ...variant, y: places.map((i) => variant.y[i]), values: places.map((i) => variant.values[i]), groups: variant.groups && places.map((i) => variant.groups[i]) };
};

quilt.group = (variant, i) => (variant.groups && variant.groups[i] !== null && variant.groups[i] !== undefined ? `, group ${variant.groups[i]}` : "");

quilt.draws.matrix = function (block) {
  const state = { order: "given" };
  const grouped = block.variants.some((v) => v.groups);
  const orders = [["given", "as given"], ["score", "by last value"], ...(grouped ? [["group", "by planted group"]] : [])];
  const extra = (redraw) => (block.order ? [quilt.menu("clients", orders, state.order, (value) => { state.order = value; redraw(); })] : []);
  return quilt.variants(block, (given, width) => {
    const variant = quilt.ordered(given, state.order);
    const [across, down] = [variant.x.length, variant.y.length];
    const height = Math.round(Math.max(150, Math.min(640, down * (block.written ? 30 : down > 60 ? 9 : 14))));
    const share = variant.share;
    const show = (v) => (share ? quilt.percent(v) : quilt.short(v));
    const cells = [];
    variant.values.forEach((row, j) => row.forEach((v, i) => {
      if (v === null) return;
      cells.push({ x: i + 0.5, y: j + 0.5, v, column: variant.x[i], row: variant.y[j], text: `${block.y_name} ${variant.y[j]}${quilt.group(variant, j)}\n${block.x_name} ${variant.x[i]}\n${variant.name}: ${show(v)}` });
    }));
    const kinds = [...new Set(cells.map((c) => c.v))].sort(d3.ascending);
    const extent = share && !block.written ? [0, 1] : d3.extent(cells, (c) => c.v);
    const colour = block.categories ? { type: "ordinal", domain: kinds, range: kinds.map((k) => quilt.palette[k % 8]) } : { type: "linear", domain: extent, scheme: "viridis", label: variant.name, percent: false };
    const svg = Plot.plot({
      width, height: height + 70, marginLeft: quilt.margin(variant.y.map(quilt.cut)), marginBottom: 44, marginRight: 20, style: quilt.looksOf,
      x: { domain: [0, across], ticks: quilt.ticks(variant.x, width / 34).map((i) => i + 0.5), tickFormat: (t) => variant.x[Math.floor(t)], tickSize: 0, label: block.x_name, labelAnchor: "center", labelArrow: "none" },
      y: { domain: [down, 0], ticks: quilt.ticks(variant.y, height / 13).map((i) => i + 0.5), tickFormat: (t) => quilt.cut(variant.y[Math.floor(t)]), tickSize: 0, label: block.y_name, labelArrow: "none" },
      color: colour,
      marks: [
        Plot.raster(variant.values.flat(), { width: across, height: down, x1: 0, x2: across, y1: 0, y2: down, imageRendering: "pixelated", fill: (v) => v }),
        block.written ? Plot.text(cells, { x: "x", y: "y", text: (c) => (share ? (100 * c.v).toFixed(1) : quilt.short(c.v)), fill: "white", stroke: "black", strokeWidth: 3, strokeOpacity: 0.55 }) : null,
        quilt.tip(cells),
      ],
    });
    const below = block.categories
      ? quilt.el("div", { class: "legend" }, kinds.map((k) => quilt.el("span", { class: "item" }, quilt.el("span", { class: "swatch", style: { background: quilt.palette[k % 8] } }), `${variant.name} ${k}`)))
      : Plot.legend({ color: { ...colour, tickFormat: share ? (t) => `${Math.round(100 * t)} %` : undefined }, width: 280, marginLeft: 14, marginRight: 22, style: quilt.looksOf });
    const columns = [{ key: "row", label: block.y_name, kind: "text" }, ...variant.x.map((name, i) => ({ key: `c${i}`, label: name, kind: "number", digits: block.categories || Number.isInteger(extent[1]) && !share ? 0 : 3 }))];
    const rows = () => variant.values.map((row, j) => ({ row: variant.y[j], ...Object.fromEntries(row.map((v, i) => [`c${i}`, v])) }));
    return { svg, below, points: cells, numbers: () => ({ columns, rows: rows(), filter: true }) };
  }, extra);
};

quilt.draws.dots = (block) => quilt.variants(block, (variant, width) => {
  const order = quilt.ordered(variant, variant.groups ? "group" : "given");
  const most = d3.max(order.values.flat());
  const step = 17;
  const points = order.values.flatMap((row, j) => row.map((n, i) => (n ? { x: i, y: j, n, group: order.groups?.[j] ?? 0, text: `client ${order.y[j]}${quilt.group(order, j)}\nlabel ${order.x[i]}: ${n} ${variant.name}` } : null)).filter(Boolean));
  const sums = order.values.map((row, j) => ({ y: j, n: d3.sum(row) }));
  const groups = [...new Set(points.map((p) => p.group))].sort(d3.ascending);
  const svg = Plot.plot({
    width, height: 64 + step * order.y.length, marginLeft: quilt.margin(order.y.map(quilt.cut)), marginBottom: 42, marginRight: 64, style: quilt.looksOf,
    x: { domain: [-0.6, order.x.length - 0.4], ticks: quilt.ticks(order.x, width / 30), tickFormat: (i) => order.x[i], label: block.x_name, labelAnchor: "center", labelArrow: "none", tickSize: 0 },
    y: { domain: [order.y.length - 0.4, -0.6], ticks: d3.range(order.y.length), tickFormat: (j) => quilt.cut(order.y[j]), label: block.y_name, labelArrow: "none", tickSize: 0 },
    r: { domain: [0, most], range: [0, Math.min(9.5, (0.42 * (width - 200)) / order.x.length)] },
    color: { type: "ordinal", domain: groups, range: groups.map((_, i) => quilt.colour(i)) },
    marks: [
      Plot.gridY(d3.range(order.y.length), { strokeOpacity: 0.08 }),
      Plot.dot(points, { x: "x", y: "y", r: "n", fill: "group", fillOpacity: 0.82 }),
      Plot.text(sums, { y: "y", frameAnchor: "right", dx: 46, text: "n", textAnchor: "end", fill: "var(--soft)" }),
      quilt.tip(points),
    ],
  });
  const below = order.groups ? quilt.el("div", { class: "legend" }, groups.map((g, i) => quilt.el("span", { class: "item" }, quilt.el("span", { class: "swatch", style: { background: quilt.colour(i) } }), `planted group ${g}`))) : null;
  const columns = [{ key: "row", label: "client", kind: "text" }, ...order.x.map((name, i) => ({ key: `c${i}`, label: name, kind: "number", digits: 0 })), { key: "sum", label: "all", kind: "number", digits: 0 }];
  const rows = () => order.values.map((row, j) => ({ row: order.y[j], sum: d3.sum(row), ...Object.fromEntries(row.map((v, i) => [`c${i}`, v])) }));
  return { svg, below, points, numbers: () => ({ columns, rows: rows(), filter: true }) };
});

quilt.draws.tree = (block) => quilt.variants(block, (variant, width) => {
  const links = variant.links.flatMap((link, k) => link.x.map((x, i) => ({ x, y: link.y[i], k, cluster: link.cluster })));
  const leaves = variant.leaves.map((name, i) => ({ x: i, y: 0, name, cluster: variant.labels[i], text: `client ${name}\ncluster ${variant.labels[i] ?? "none"}` }));
  const kinds = [...new Set(leaves.map((l) => l.cluster))].filter((k) => k !== null).sort(d3.ascending);
  const paint = (d) => (d.cluster === null ? -1 : d.cluster);
  const svg = Plot.plot({
    width, height: 320, marginLeft: 60, marginBottom: 62, marginRight: 20, style: quilt.looksOf,
    x: { domain: [-0.7, leaves.length - 0.3], ticks: quilt.ticks(variant.leaves, width / 22), tickFormat: (i) => quilt.cut(variant.leaves[i]), tickRotate: variant.leaves.some((l) => l.length > 2) ? -60 : 0, label: block.x_name, labelAnchor: "center", labelArrow: "none", tickSize: 0 },
    y: { label: block.y_name, labelArrow: "none", grid: true },
    color: { type: "ordinal", domain: [-1, ...kinds], range: ["var(--soft)", ...kinds.map(quilt.colour)] },
    marks: [
      Plot.line(links, { x: "x", y: "y", z: "k", stroke: paint, strokeWidth: 1.6 }),
      Plot.ruleY([variant.cut], { stroke: "var(--c1)", strokeDasharray: "5 4" }),
      Plot.text([`cut: ${kinds.length} clusters (${variant.criterion})`], { y: variant.cut, frameAnchor: "right", text: (d) => d, dy: -8, fill: "var(--c1)", textAnchor: "end" }),
      Plot.dot(leaves, { x: "x", y: "y", r: 3.5, fill: paint }),
      quilt.tip(leaves),
    ],
  });
  const columns = [{ key: "name", label: "client", kind: "text" }, { key: "cluster", label: "cluster", kind: "number", digits: 0 }];
  return { svg, points: leaves, numbers: () => ({ columns, rows: leaves }) };
});
