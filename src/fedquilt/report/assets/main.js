"use strict";
// Tabs and printing: the page is put together here. Charts are drawn when their tab is first seen.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main");
  const list = document.getElementById("tabs");
  const names = [...new Set(data.panels.map((p) => p.tab))];
  const slug = (name) => name.toLowerCase().replace(/[^a-z]+/g, "-");
  main.replaceChildren();

  const section = (panel) => {
    const id = `panel-${panel.key}`;
    const draw = (block) => {
      try {
        return quilt.draws[block.kind](block);
      } catch (error) {
        console.error(error);
        return quilt.draws.text({ tone: "warning", paragraphs: [`This part cannot be shown: ${error.message}`] });
      }
    };
    const [blocks, beside] = [false, true].map((aside) => panel.blocks.filter((b) => Boolean(b.beside) === aside).map(draw));
    const body = beside.length ? quilt.el("div", { class: "split" }, quilt.el("div", {}, blocks), quilt.el("div", {}, beside)) : blocks;
    return quilt.el("section", { class: "panel", id, "aria-labelledby": `${id}-title` }, quilt.el("h2", { id: `${id}-title` }, panel.title), quilt.el("p", { class: "note" }, panel.note), body);
  };

  const tabs = names.map((name) => {
    const tab = quilt.el("button", { type: "button", role: "tab", id: `tab-${slug(name)}`, "aria-controls": `view-${slug(name)}`, onclick: () => open(name, true) }, name);
    const view = quilt.el("div", { role: "tabpanel", id: `view-${slug(name)}`, "aria-labelledby": `tab-${slug(name)}` });
    list.append(tab);
    main.append(view);
    return { name, tab, view, made: false };
  });

  const make = (one) => {
    if (!one.made) one.view.append(...data.panels.filter((p) => p.tab === one.name).map(section));
    one.made = true;
  };
  const drawIn = (view) => {
    for (const chart of quilt.pending) if (view.contains(chart.node)) { chart.redraw(); quilt.pending.delete(chart); }
  };
  const open = (name, told) => {
    for (const one of tabs) {
      const here = one.name === name;
      one.tab.setAttribute("aria-selected", String(here));
      one.tab.tabIndex = here ? 0 : -1;
      one.view.hidden = !here;
      if (here) { make(one); drawIn(one.view); }
    }
    if (told) history.replaceState(null, "", `#${slug(name)}`);
  };
  list.addEventListener("keydown", (event) => {
    const ways = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in ways)) return;
    event.preventDefault();
    const now = tabs.findIndex((t) => t.tab.getAttribute("aria-selected") === "true");
    const next = { [Infinity]: tabs.length - 1, [-Infinity]: 0 }[ways[event.key]] ?? (now + ways[event.key] + tabs.length) % tabs.length;
    open(tabs[next].name, true);
    tabs[next].tab.focus();
  });
  const wanted = () => tabs.find((t) => `#${slug(t.name)}` === location.hash)?.name ?? names[0];
  window.addEventListener("hashchange", () => open(wanted(), false));

  const everything = () => {
    for (const one of tabs) { make(one); drawIn(one.view); }
    for (const fold of main.querySelectorAll("details.block")) fold.open = true;
  };
  window.addEventListener("beforeprint", everything);
  matchMedia("print").addEventListener("change", (event) => { if (event.matches) everything(); });
  document.getElementById("print").addEventListener("click", () => { everything(); window.print(); });
  open(wanted(), false);
  document.documentElement.dataset.ready = "yes";
})();
