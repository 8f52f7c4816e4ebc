"use strict";
// Times and states in words, and curves from what the server tells.
quilt.span = function (seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.round((minutes % 1440) / 60)} h`;
};

quilt.share = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`);
quilt.size = (megabytes) => (megabytes >= 1000 ? `${(megabytes / 1000).toFixed(2)} GB` : megabytes >= 0.1 || !megabytes ? `${megabytes.toFixed(1)} MB` : `${(1000 * megabytes).toFixed(1)} kB`);
quilt.clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
quilt.chip = (state) => quilt.el("span", { class: `state ${state}` }, state);
quilt.title = (run) => run.display + (run.group && run.seed !== null ? `, seed ${run.seed}` : "");
quilt.far = (run) => `${run.round}/${run.rounds ?? "?"}`;
quilt.fixed = (value, digits = 3) => (value === null || value === undefined ? "" : value.toFixed(digits));

// Change what is shown only if it is other: what a reader has marked, or points at, stays.
quilt.put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

quilt.bar = (large) => quilt.el("progress", { max: 1, value: 0, class: large ? "large" : null, "aria-label": "Rounds done" });
quilt.move = function (bar, done, of, state) {
  bar.max = of || 1;
  bar.value = Math.min(done, bar.max);
  bar.className = [bar.classList.contains("large") && "large", state].filter(Boolean).join(" ");
};

// At most so many points of a long curve are drawn; the last one always is.
quilt.thin = function (points, most = 300) {
  if (points.length <= most) return points;
  const step = Math.ceil(points.length / most);
  return points.filter((_, i) => (points.length - 1 - i) % step === 0);
};

quilt.columns = function (points, names) {
  const found = Object.fromEntries(names.map((n, i) => [n, points.map((p) => p[i])]));
  found.minutes = found.time.map((t) => t / 60);
  found.megabytes = found.up.map((u, i) => u + found.down[i]);
  return found;
};

quilt.series = function (name, place, points, names, pick, legend) {
  const values = quilt.columns(quilt.thin(points.filter((p) => pick === undefined || p[names.indexOf(pick)] !== null)), names);
  return { name, legend, place, seeds: [{ round: values.round, values: pick === undefined ? values : { value: values[pick] } }] };
};
