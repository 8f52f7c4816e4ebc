"use strict";
// Asks for news every second, keeps what came, and shows all runs or one.
(function () {
  const token = new URLSearchParams(location.search).get("token") ?? "";
  const main = document.getElementById("main");
  const trouble = document.getElementById("trouble");
  const store = { look: 0, time: 0, runs: [], point: [], scores: {}, columns: [], curves: new Map(), whole: {}, folder: "", changed: false, close: null };
  const open = (id) => { location.hash = `run=${id}`; };
  const list = quilt.list(open);
  let [view, heard] = [list, false];
  const chosen = () => location.hash.match(/^#run=([0-9a-f]+)$/)?.[1] ?? (store.runs.length === 1 ? store.runs[0].id : null);

  const take = (found) => {
    const went = new Set(store.curves.keys());
    store.changed = false;
    for (const [id, { anew, rows }] of Object.entries(found.curves)) {
      store.changed ||= anew || rows.length > 0;
      store.curves.set(id, anew ? rows : [...(store.curves.get(id) ?? []), ...rows]);
    }
    for (const run of found.runs) went.delete(run.id);
    for (const id of went) { store.curves.delete(id); store.changed = true; }
    Object.assign(store, { look: found.look, time: found.time, runs: found.runs, point: found.point, scores: found.scores, columns: found.columns, whole: found.whole, folder: found.folder });
    if (found.run) closely(found.run);
  };

  const closely = (one) => {
    const { close } = store;
    if (close === null || close.id !== one.id) return; // an answer about a run that nobody looks at any more
    const fresh = (name) => one[name].anew || one[name].rows.length > 0;
    close.fresh = { clients: fresh("clients"), dropped: fresh("dropped"), messages: fresh("messages") };
    if (one.clients.anew) close.clients.clear();
    for (const row of one.clients.rows) close.clients.set(row.client, row);
    for (const name of ["dropped", "messages"]) close[name] = one[name].anew ? one[name].rows : [...close[name], ...one[name].rows];
    Object.assign(close, { folder: one.folder, last: one.last, have: store.look });
  };

  const show = () => {
    const id = chosen();
    const wanted = id === null ? list : view.id === id ? view : quilt.close(id, store.runs.length === 1, store.columns);
    if (id === null) store.close = null;
    else if (store.close?.id !== id) store.close = { id, have: 0, clients: new Map(), dropped: [], messages: [], last: {}, folder: "", fresh: {} };
    if (wanted === view && view.node.isConnected) return;
    view.node.remove();
    view = wanted;
    store.changed = true;
    main.append(view.node);
  };

  const headline = () => {
    const counts = Object.entries(store.whole.states ?? {}).map(([state, n]) => `${n} ${state}`).join(", ");
    const many = store.runs.length;
    quilt.put(document.getElementById("subtitle"), many ? `${many} run${many === 1 ? "" : "s"}: ${counts}` : "waiting for the first run");
    const one = store.runs.find((r) => r.id === view.id);
    const far = one ? `${quilt.far(one)} ${quilt.title(one)}` : many ? `${store.whole.done}/${store.whole.planned} ${store.folder}` : store.folder;
    document.title = `${far} \u00b7 fedquilt watch`;
    quilt.put(document.getElementById("when"), `as of ${quilt.clock(store.time)}`);
    if (view.id && one === undefined && heard) tell("This run is not there any more. ", quilt.el("a", { href: "#" }, "All runs"));
  };

  const tell = (...parts) => {
    const text = parts.map((p) => p.textContent ?? p).join("");
    trouble.hidden = text === "";
    if (trouble.textContent !== text) trouble.replaceChildren(...parts);
  };

  const ask = async () => {
    const run = store.close;
    const query = `data?since=${store.look}` + (run ? `&run=${run.id}&have=${run.have}` : "");
    const answer = await fetch(query, { headers: { "X-Fedquilt-Token": token }, cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    take(await answer.json());
    heard = true;
  };

  let turn = null;
  const go = async () => {
    clearTimeout(turn);
    turn = null;
    const before = store.close;
    try {
      await ask();
      tell("");
      show();
      view.update(store);
      headline();
      if (store.close !== before) return go(); // a run was opened: its numbers at once
    } catch (error) {
      console.info(error);
      const since = heard ? ` What is shown is of ${quilt.clock(store.time)}.` : "";
      tell(`No answer: 'fedquilt watch' has ended, or cannot read the folder.${since}`);
    }
    clearTimeout(turn);
    turn = setTimeout(go, document.hidden ? 5000 : 1000);
    document.documentElement.dataset.ready = "yes";
  };
  let place = location.hash;
  window.addEventListener("hashchange", () => {
    if (location.hash === "#main") { // the link to the content leads to what is shown
      history.replaceState(null, "", location.pathname + location.search + place);
      main.focus();
      return;
    }
    place = location.hash;
    show();
    if (turn !== null) go();
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && turn !== null) go(); });
  main.append(list.node);
  go();
})();
