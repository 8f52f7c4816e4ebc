"use strict";
// Tables that sort, filter, hide groups of columns, and copy as Markdown, LaTeX or CSV.
quilt.cell = function (row, column) {
  if (column.kind === "range") {
    if (row[column.low] === null || row[column.low] === undefined) return "";
    return `${(100 * row[column.low]).toFixed(1)} \u2013 ${(100 * row[column.high]).toFixed(1)}`;
  }
  const text = quilt.figure(row[column.key], column);
  const half = column.half ? row[column.half] : null;
  if (text === "" || half === null || half === undefined) return text;
  return `${text} \u00b1 ${quilt.figure(half, { ...column, signed: false })}`;
};

quilt.figures = (column) => ["number", "percent", "p", "range"].includes(column.kind);

quilt.formats = {
  Markdown(columns, rows) {
    const safe = (text) => text.replaceAll("\\", "\\\\").replaceAll("|", "\\|").replaceAll("\n", " ");
    const line = (cells) => `| ${cells.map(safe).join(" | ")} |`;
    const rule = `|${columns.map((c) => (quilt.figures(c) ? "---:" : "---")).join("|")}|`;
    return [line(columns.map((c) => c.label)), rule, ...rows.map((r) => line(columns.map((c) => quilt.cell(r, c))))].join("\n") + "\n";
  },
  LaTeX(columns, rows, block) {
    const signs = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\u00b1": "$\\pm$", "\u2212": "$-$", "\u2013": "--" };
    const safe = (text) => text.replace(/[\\~^\u00b1\u2212\u2013]|[&%$#_{}]/g, (s) => signs[s] ?? `\\${s}`);
    const line = (cells) => `  ${cells.join(" & ")} \\\\`;
    const bold = (text, yes) => (yes && text ? `\\textbf{${text}}` : text);
    const body = rows.map((r) => line(columns.map((c, i) => bold(safe(quilt.cell(r, c)), r.best && (i === 0 || c.key === block.sort)))));
    const head = line(columns.map((c) => safe(c.label)));
    const kinds = columns.map((c) => (quilt.figures(c) ? "r" : "l")).join("");
    return [`\\begin{tabular}{${kinds}}`, "  \\toprule", head, "  \\midrule", ...body, "  \\bottomrule", "\\end{tabular}"].join("\n") + "\n";
  },
  CSV(columns, rows) {
    const guard = (text) => (/^[=+@\t\r-]/.test(text) && isNaN(Number(text)) ? `'${text}` : text); // no formulas
    const safe = (value) => {
      const text = guard(value === null || value === undefined ? "" : String(value));
      return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const keys = columns.flatMap((c) => (c.kind === "range" ? [c.low, c.high] : c.half ? [c.key, c.half] : [c.key]));
    const names = columns.flatMap((c) => (c.kind === "range" ? [c.low, c.high] : c.half ? [c.label, `${c.label} half 95`] : [c.label]));
    return [names.map(safe).join(","), ...rows.map((r) => keys.map((k) => safe(r[k])).join(","))].join("\n") + "\n";
  },
};

quilt.draws.table = function (block) {
  const state = { sort: block.sort ?? null, down: true, words: "", groups: new Set(block.groups || []) };
  const groups = [...new Set(block.columns.map((c) => c.group).filter(Boolean))];
  const columns = () => block.columns.filter((c) => !c.group || state.groups.has(c.group));
  const rows = () => {
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = block.rows.filter((row) => {
      const text = block.columns.map((c) => quilt.cell(row, c)).join(" ").toLowerCase();
      return words.every((w) => text.includes(w));
    });
    if (state.sort === null) return found;
    const order = (a, b) => {
      const [x, y] = [a[state.sort], b[state.sort]];
      if (x === y) return 0;
      if (x === null || x === undefined) return 1; // what is missing stays below
      if (y === null || y === undefined) return -1;
      const way = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
      return state.down ? -way : way;
    };
    return [...found].sort(order);
  };
  const head = quilt.el("thead");
  const body = quilt.el("tbody");
  const draw = () => {
    const shown = columns();
    head.replaceChildren(quilt.el("tr", {}, shown.map((c) => {
      const active = state.sort === c.key;
      const sort = () => {
        state.down = active ? !state.down : quilt.figures(c);
        state.sort = c.key;
        draw();
        quilt.say(`Sorted by ${c.label}, ${state.down ? "descending" : "ascending"}.`);
        head.querySelector(`button[data-key="${CSS.escape(c.key)}"]`).focus();
      };
      const button = quilt.el("button", { type: "button", title: c.help, "data-key": c.key, onclick: sort }, c.label, quilt.el("span", { class: "way", "aria-hidden": "true" }));
      return quilt.el("th", { scope: "col", class: quilt.figures(c) ? "figure" : null, "aria-sort": active ? (state.down ? "descending" : "ascending") : null }, button);
    })));
    fill();
  };
  const fill = () => {
    const [found, shown] = [rows(), columns()];
    body.replaceChildren(...found.map((row, i) => quilt.el("tr", { class: quilt.looks(row, i) }, shown.map((c, j) => quilt.td(row, c, j === 0)))));
    if (!found.length) body.append(quilt.el("tr", {}, quilt.el("td", { class: "empty", colspan: shown.length }, state.words ? "No row has these words." : "Nothing yet.")));
  };
  draw();
  const search = quilt.el("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", oninput: () => { state.words = search.value; draw(); } });
  const chips = groups.length > 1 ? groups.map((g) => {
    const chip = quilt.el("button", { type: "button", class: "chip", "aria-pressed": String(state.groups.has(g)), onclick: () => {
      if (state.groups.has(g)) state.groups.delete(g); else state.groups.add(g);
      chip.setAttribute("aria-pressed", String(state.groups.has(g)));
      draw();
    } }, g);
    return chip;
  }) : [];
  const copies = Object.keys(quilt.formats).map((name) => quilt.el("button", { type: "button", class: "copy", onclick: () => quilt.copy(quilt.formats[name](columns(), rows(), block), name) }, name));
  const bar = quilt.el("div", { class: "bar" }, block.filter ? search : null, chips.length ? "Columns:" : null, chips, quilt.el("span", { class: "push" }, "Copy as", copies));
  const sheet = quilt.el("div", { class: `scroll${block.rows.length > 20 ? " tall" : ""}`, tabindex: block.rows.length > 20 ? 0 : null, role: "region", "aria-label": block.key }, quilt.el("table", { id: `table-${block.key}` }, head, body));
  const hint = quilt.el("p", { class: "small sideways", hidden: true }, "The table is wider than the screen: swipe or scroll it sideways \u2192");
  new ResizeObserver(() => { hint.hidden = sheet.scrollWidth <= sheet.clientWidth + 1; }).observe(sheet);
  const node = block.fold ? quilt.el("details", { class: "block" }, quilt.el("summary", {}, block.fold), bar, hint, sheet) : quilt.el("div", { class: "block" }, bar, hint, sheet);
  node.refresh = (found) => { // other rows: the reader's order and words stay
    block.rows = found;
    sheet.classList.toggle("tall", found.length > 20);
    fill();
  };
  return node;
};

quilt.looks = (row, place) =>
  [row.frame && "frame", row.best && "best", row.absent && "absent", place >= 60 && "beyond"].filter(Boolean).join(" ") || null;

quilt.td = function (row, column, first) {
  const text = quilt.cell(row, column);
  const mark = first && row.place !== undefined ? quilt.el("span", { class: "swatch", style: { background: quilt.colour(row.place) } }) : null;
  if (first) return quilt.el("th", { scope: "row" }, mark, text);
  const [value, half] = text.split(" \u00b1 ");
  const inside = half === undefined ? text : [value, quilt.el("span", { class: "half" }, ` \u00b1 ${half}`)];
  return quilt.el("td", { class: column.kind === "code" ? "code" : quilt.figures(column) ? "figure" : null }, inside);
};
