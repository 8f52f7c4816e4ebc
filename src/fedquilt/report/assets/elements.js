"use strict";
// Elements, words and colours. Everything from data becomes a text node or an attribute, never markup.
const quilt = { draws: {}, pending: new Set() };

quilt.el = function (tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return node;
};

quilt.colour = (place) => `var(--c${place % 8})`;
quilt.dash = (place) => [null, "7 4", "2 3", "9 3 2 3"][Math.floor(place / 8) % 4];
quilt.palette = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#f0e442"];

quilt.figure = function (value, column) {
  if (value === null || value === undefined) return "";
  const digits = column.digits;
  const sign = column.signed && value > 0 ? "+" : "";
  if (column.kind === "percent") return (sign + (100 * value).toFixed(digits ?? 1)).replace("-", "\u2212");
  if (column.kind === "p") return value < 0.001 ? value.toExponential(1).replace("-", "\u2212") : value.toPrecision(2);
  if (column.kind === "number") return value.toFixed(digits ?? 2).replace("-", "\u2212");
  return String(value);
};

quilt.percent = (value) => `${(100 * value).toFixed(1)} %`;
quilt.short = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(4)).toString());

quilt.say = function (text) {
  document.getElementById("live").textContent = text;
};

quilt.copy = async function (text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = quilt.el("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  quilt.say(`Copied as ${what}.`);
};

quilt.menu = function (label, options, chosen, change) {
  const list = quilt.el("select", { "aria-label": label, onchange: () => change(list.value) });
  for (const [value, text] of options) list.append(quilt.el("option", { value, selected: value === chosen }, text));
  return quilt.el("label", {}, label, list);
};

quilt.draws.text = (block) =>
  quilt.el("div", { class: `block ${block.tone}` }, block.paragraphs.map((p) => quilt.el("p", {}, p)));

quilt.draws.facts = (block) =>
  quilt.el("dl", { class: "block facts" }, block.items.map(([label, value, note]) =>
    quilt.el("div", { class: value.length > 16 ? "wide" : null }, quilt.el("dt", {}, label), quilt.el("dd", {}, value, quilt.el("div", { class: "small" }, note)))));

quilt.draws.picture = (block) =>
  quilt.el("figure", { class: "block picture", id: `picture-${block.key}` }, quilt.el("h3", {}, block.title), quilt.el("img", { src: block.source, alt: block.title, loading: "lazy" }));
