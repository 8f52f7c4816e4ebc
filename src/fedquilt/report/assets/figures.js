"use strict";
// A chart with its menus, its keyboard and its numbers. Drawers are functions (choice, width) -> { svg, points, numbers }.
quilt.looksOf = {
  background: "transparent", color: "var(--ink)", fontFamily: "inherit", fontSize: "12.5px", overflow: "visible", "--plot-background": "var(--card)",
};

quilt.frame = function (block, controls, draw) {
  const canvas = quilt.el("div", { class: "canvas", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": `${block.title}. Arrow keys step through its values; the numbers are below.` });
  const numbers = quilt.el("details", {}, quilt.el("summary", {}, "Numbers"));
  const state = { made: null, place: -1, drawn: 0 };
  const redraw = (stay) => {
    const width = Math.max(320, Math.min(1150, canvas.clientWidth || 780));
    state.made = draw(width);
    state.drawn = width;
    if (!stay) state.place = -1;
    canvas.replaceChildren(...[state.made.svg, state.made.below].flat().filter(Boolean));
    if (numbers.open && !stay) fill();
    if (numbers.open && stay) numbers.querySelector(".block")?.refresh(state.made.numbers().rows);
    if (stay && state.pointer) quilt.point(state.made.svg, state.pointer);
  };
  const fill = () => {
    numbers.querySelector(".block")?.remove();
    const sheet = state.made.numbers();
    numbers.append(quilt.draws.table({ kind: "table", key: `${block.key}-numbers`, ...sheet }));
  };
  numbers.addEventListener("toggle", () => { if (numbers.open) { if (!state.made) redraw(); fill(); } });
  canvas.addEventListener("keydown", (event) => quilt.step(event, canvas, state));
  canvas.addEventListener("pointermove", ({ clientX, clientY, isTrusted }) => { if (isTrusted) state.pointer = { clientX, clientY }; });
  canvas.addEventListener("pointerleave", () => { state.pointer = null; });
  new ResizeObserver(() => {
    if (canvas.clientWidth && state.made && Math.abs(Math.max(320, Math.min(1150, canvas.clientWidth)) - state.drawn) > 2) redraw();
  }).observe(canvas);
  const node = quilt.el("figure", { class: "block", id: `chart-${block.key}` }, quilt.el("h3", {}, block.title), controls(() => redraw()), canvas, numbers);
  quilt.pending.add({ node, redraw: () => { if (!state.made) redraw(); } });
  node.refresh = () => redraw(true); // with other data: what the reader points at stays pointed at
  return node;
};

quilt.point = function (svg, spot) {
  for (const name of ["pointerenter", "pointermove"]) svg.dispatchEvent(new PointerEvent(name, { ...spot, bubbles: true, pointerType: "mouse" }));
};

// Arrow keys: go to the next value, show its tip as the pointer would, and say it.
quilt.step = function (event, canvas, state) {
  const ways = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  const points = state.made?.points ?? [];
  if (!(event.key in ways) || !points.length || event.target !== canvas) return;
  event.preventDefault();
  const way = ways[event.key];
  state.place = way === -Infinity ? 0 : way === Infinity ? points.length - 1 : Math.max(0, Math.min(points.length - 1, state.place + way));
  const point = points[state.place];
  const svg = state.made.svg;
  const box = svg.getBoundingClientRect();
  const zoom = box.width / Number(svg.getAttribute("width"));
  const at = (name, value) => {
    const scale = svg.scale(name);
    return scale.apply(value) + (scale.bandwidth ?? 0) / 2;
  };
  quilt.point(svg, { clientX: box.left + zoom * at("x", point.x), clientY: box.top + zoom * at("y", point.y) });
  quilt.say(point.text.replaceAll("\n", ", "));
};

// Menus from the keys of variants; a choice that does not exist moves to the nearest that does.
quilt.variants = function (block, draw, extra) {
  const names = [...new Set(block.variants.flatMap((v) => Object.keys(v.keys)))];
  const chosen = { ...block.variants[0].keys };
  const options = (name) => [...new Set(block.variants.map((v) => v.keys[name]))];
  const find = (changed) => {
    const fits = (v) => names.filter((n) => v.keys[n] === chosen[n]).length;
    const able = block.variants.filter((v) => changed === undefined || v.keys[changed] === chosen[changed]);
    return able.reduce((best, v) => (fits(v) > fits(best) ? v : best), able[0]);
  };
  const controls = (redraw) => {
    const lists = names.filter((n) => options(n).length > 1).map((name) => quilt.menu(name, options(name).map((o) => [o, o]), chosen[name], (value) => {
      chosen[name] = value;
      Object.assign(chosen, find(name).keys);
      for (const list of lists) list.querySelector("select").value = chosen[list.dataset.name];
      redraw();
    }));
    lists.forEach((list, i) => { list.dataset.name = names.filter((n) => options(n).length > 1)[i]; });
    const more = extra ? extra(redraw) : [];
    return quilt.el("div", { class: "bar" }, lists, more);
  };
  return quilt.frame(block, controls, (width) => draw(find(), width));
};

quilt.margin = (labels) => Math.min(220, 22 + 7.2 * Math.max(4, ...labels.map((l) => String(l).length)));
quilt.cut = (label) => (label.length > 28 ? `${label.slice(0, 27)}\u2026` : label);
quilt.tip = (points, more) => Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: "text", fill: "var(--card)", stroke: "var(--soft)", ...more }));
