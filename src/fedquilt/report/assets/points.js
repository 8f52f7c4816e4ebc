"use strict";
// Points of a sweep by one of its settings.
quilt.draws.points = (block) => quilt.variants(block, (variant, width) => {
  const dots = variant.points.map((p) => ({ ...p, y: 100 * p.y, text: `${p.name}\nvalidation accuracy: ${quilt.short(100 * p.y)} %${p.best ? "\nbest" : ""}` }));
  const words = [...new Set(dots.map((d) => d.x))];
  const across = variant.numeric ? { type: variant.log ? "log" : "linear", ...(variant.log ? { ticks: 5, tickFormat: "~g" } : {}) } : { type: "point", domain: words, tickFormat: quilt.cut };
  const svg = Plot.plot({
    width, height: Math.min(400, 180 + width * 0.25), marginLeft: 56, marginBottom: 42, marginRight: 24, style: quilt.looksOf,
    x: { ...across, label: variant.name, labelAnchor: "center", labelArrow: "none" },
    y: { label: "validation accuracy, %", grid: true, labelArrow: "none", nice: true },
    marks: [
      Plot.dot(dots.filter((d) => !d.best), { x: "x", y: "y", r: 4.5, fill: quilt.colour(0), fillOpacity: 0.75 }),
      Plot.dot(dots.filter((d) => d.best), { x: "x", y: "y", r: 9, symbol: "star", fill: quilt.colour(1), stroke: "var(--ink)" }),
      Plot.dot(dots, Plot.pointer({ x: "x", y: "y", r: 6, stroke: "var(--ink)", fill: "var(--card)" })),
      quilt.tip(dots),
    ],
  });
  const columns = [{ key: "name", label: "point", kind: "text" }, { key: "x", label: variant.name, kind: variant.numeric ? "number" : "text", digits: 5 }, { key: "y", label: "validation accuracy, %", kind: "number", digits: 2 }];
  const below = quilt.el("p", { class: "small note" }, "The star is the point that validation chose.");
  return { svg, below, points: dots, numbers: () => ({ columns, rows: dots, filter: true }) };
});
