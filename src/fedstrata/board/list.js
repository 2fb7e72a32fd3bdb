"use strict";
// The list: runs, and comparisons as one entry each with a mean and an interval for every method.
const body = document.querySelector("#runs tbody");
const head = document.querySelector("#runs thead tr");
const filter = document.getElementById("filter");
const all = document.getElementById("all");
const rows = new Map(); // path -> what the server last said of a run
const lines = new Map(); // key of an entry -> its line in the table
const unfolded = new Set(); // comparisons whose methods are shown
const MOST_COLUMNS = () => Math.max(1, Math.min(6, Math.floor((innerWidth - 860) / 150))); // of settings that differ
let groups = []; // comparisons
let columns = []; // keys of settings that differ among the runs that are listed
let order = { key: "changed", down: true };

function make(tag, attributes = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...inside);
  return element;
}

function ago(seconds) {
  const past = Date.now() / 1000 - seconds;
  if (past < 90) return "now";
  if (past < 5400) return `${Math.round(past / 60)} min ago`;
  if (past < 129600) return `${Math.round(past / 3600)} h ago`;
  return new Date(1000 * seconds).toISOString().slice(0, 10);
}

function left(row) { // how long a run will take yet, at its pace of late
  if (row.state !== "running" || !row.pace || !row.planned) return "";
  const seconds = row.pace * Math.max(0, row.planned - row.rounds);
  if (seconds < 90) return `${Math.ceil(seconds)} s left`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min left` : `${(seconds / 3600).toFixed(1)} h left`;
}

const percent = (share) => (share === null ? "-" : `${(100 * share).toFixed(1)} %`);
const shown_value = (value) => // with room after commas and colons, where a line may end
  value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 1).replace(/\n\s*/g, " ");

// ---- what stands in the list ----------------------------------------------------------------------------------------

function entries() { // every line that could be shown, as plain objects; those of a comparison follow it
  const inside = new Set();
  const found = [];
  for (const group of groups) {
    const members = group.methods.flatMap((method) => method.runs);
    members.forEach((path) => inside.add(path));
    const best = group.methods[0];
    const done = group.methods.reduce((sum, method) => sum + method.finished, 0);
    const entry = {
      key: `group ${group.path}`,
      kind: "group",
      path: group.path,
      runs: members,
      state: group.running ? "running" : done === members.length ? "finished" : "stopped",
      method: best ? `${best.name}, best of ${group.methods.length}` : "",
      data: rows.get(members[0])?.data ?? "",
      rounds: done,
      planned: members.length,
      unit: "runs",
      accuracy: best?.mean ?? null,
      interval: best?.interval,
      changed: group.changed,
      methods: group.methods,
      settings: {},
      tags: [],
      note: "",
    };
    found.push(entry);
  }
  for (const row of rows.values()) {
    if (!inside.has(row.path)) found.push({ ...row, key: `run ${row.path}`, kind: "run", runs: [row.path] });
  }
  return found;
}

function under(group) { // the methods of a comparison, each with its runs
  return group.methods.flatMap((method) => [
    {
      ...group,
      key: `method ${group.path} ${method.name}`,
      kind: "method",
      path: method.name,
      runs: method.runs,
      state: "",
      method: "",
      data: "",
      rounds: method.finished,
      planned: method.runs.length,
      accuracy: method.mean,
      interval: method.interval,
    },
    ...method.runs
      .map((path) => rows.get(path))
      .filter(Boolean)
      .map((row) => ({ ...row, key: `run ${row.path}`, kind: "seed", runs: [row.path] })),
  ]);
}

function text_of(entry) {
  const own = entry.kind === "group" ? entry.methods.map((method) => method.name) : [];
  const settings = Object.entries(entry.settings).map(([key, value]) => `${key}=${shown_value(value)}`);
  const words = [entry.path, entry.state, entry.method, entry.data, entry.note, ...entry.tags, ...own, ...settings];
  return words.join(" ").toLowerCase();
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === undefined || a === null) return -1;
  if (b === undefined || b === null) return 1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return shown_value(a).localeCompare(shown_value(b), undefined, { numeric: true });
}

const setting_of = (entry, key) => entry.settings[key] ?? held.defaults[key];
const value_of = (entry, key) => (key.startsWith("settings.") ? setting_of(entry, key.slice(9)) : entry[key]);

// ---- lines ----------------------------------------------------------------------------------------------------------

function line_of(entry) {
  const box = make("input", { type: "checkbox" });
  const fold = make("button", { type: "button", className: "fold" });
  const open = make("a");
  const line = make("tr", { className: `of-${entry.kind}` });
  for (const className of ["pick", "text run", "text", "text method", "text data", "", "", "when"]) {
    line.append(make("td", { className }));
  }
  line.cells[0].append(box);
  line.cells[1].append(fold, open, make("span", { className: "tags" }));
  line.cells[2].append(make("span"));
  box.addEventListener("change", () => {
    const { runs } = line.entry;
    const others = chosen_runs().filter((run) => !runs.includes(run));
    choose(box.checked ? [...others, ...runs] : others);
  });
  fold.addEventListener("click", () => {
    const { path } = line.entry;
    if (!unfolded.delete(path)) unfolded.add(path);
    show();
  });
  open.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a new tab or window
    event.preventDefault();
    choose(line.entry.runs);
  });
  return line;
}

function fill(line, entry) {
  line.entry = entry;
  const [pick, run, state, method, data, rounds, accuracy, when] = line.cells;
  const [fold, open, tags] = run.children;
  const name = entry.path === "." ? "this folder" : entry.path;
  pick.firstChild.ariaLabel = `Show ${name} with others`;
  fold.hidden = entry.kind !== "group";
  fold.textContent = unfolded.has(entry.path) ? "\u25BE" : "\u25B8";
  fold.ariaExpanded = unfolded.has(entry.path);
  fold.ariaLabel = `Methods of ${name}`;
  open.textContent = entry.kind === "seed" ? name.split("/").at(-1) : name;
  open.href = address(entry.runs);
  open.title = entry.note;
  tags.replaceChildren(...entry.tags.map((tag) => make("span", { className: "tag" }, tag)));
  state.firstChild.textContent = entry.state;
  state.firstChild.className = entry.state && `state ${entry.state}`;
  state.firstChild.title = entry.why ?? "";
  method.textContent = entry.method;
  data.textContent = entry.data;
  const planned = entry.planned ? ` / ${entry.planned}${entry.unit ? ` ${entry.unit}` : ""}` : "";
  const remaining = left(entry);
  rounds.replaceChildren(
    `${entry.rounds}`,
    make("span", { className: "planned" }, planned),
    ...(remaining ? [make("small", { className: "left" }, remaining)] : []),
  );
  const ends = entry.interval?.map((end) => (100 * end).toFixed(1)).join(", ");
  accuracy.replaceChildren(percent(entry.accuracy), ...(ends ? [make("small", {}, ` [${ends}]`)] : []));
  when.textContent = entry.changed ? ago(entry.changed) : "-";
  while (line.cells.length > 8) line.lastChild.remove();
  for (const key of columns) {
    const usual = !(key in entry.settings); // faint, as most are
    const value = ["group", "method"].includes(entry.kind) ? common(entry.runs, key) : shown_value(setting_of(entry, key));
    line.append(make("td", { className: `text setting ${usual ? "usual" : ""}` }, value));
  }
}

function common(runs, key) { // what all runs of a comparison have in common
  const values = new Set(runs.map((path) => rows.get(path)).filter(Boolean).map((row) => shown_value(setting_of(row, key))));
  return values.size === 1 ? [...values][0] : "several";
}

function find_columns(listed) { // settings in which the listed runs differ; runs inside a comparison count too
  const runs = listed.flatMap((entry) => entry.runs).map((path) => rows.get(path)).filter(Boolean);
  const keys = [...new Set(runs.flatMap((row) => Object.keys(row.settings)))].sort();
  const several = (key) => new Set(runs.map((row) => shown_value(row.settings[key]))).size > 1;
  return keys.filter(several).slice(0, MOST_COLUMNS());
}

function show() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = entries();
  const listed = found.filter((entry) => words.every((word) => text_of(entry).includes(word)));
  columns = find_columns(listed);
  heads();
  listed.sort((a, b) => compare(a.path, b.path));
  listed.sort((a, b) => (order.down ? -1 : 1) * compare(value_of(a, order.key), value_of(b, order.key)));
  const visible = listed.flatMap((entry) =>
    entry.kind === "group" && unfolded.has(entry.path) ? [entry, ...under(entry)] : [entry],
  );
  const keys = new Set(visible.map((entry) => entry.key));
  for (const [key, line] of lines) {
    if (keys.has(key)) continue;
    line.remove();
    lines.delete(key);
  }
  const focused = document.activeElement;
  visible.forEach((entry, at) => {
    if (!lines.has(entry.key)) lines.set(entry.key, line_of(entry));
    const line = lines.get(entry.key);
    fill(line, entry);
    if (body.rows[at] !== line) body.insertBefore(line, body.rows[at] ?? null);
  });
  if (document.activeElement !== focused) focused.focus({ preventScroll: true }); // moving a line takes the focus away
  const shown = new Set(listed.flatMap((entry) => entry.runs)).size;
  document.getElementById("count").textContent =
    shown === rows.size ? `${rows.size} runs` : `${shown} of ${rows.size} runs`;
  mark();
}

function mark() { // what is chosen
  const chosen = new Set(chosen_runs());
  for (const line of lines.values()) {
    const { runs } = line.entry;
    const many = runs.filter((run) => chosen.has(run)).length;
    const box = line.querySelector("input");
    box.checked = many > 0 && many === runs.length;
    box.indeterminate = many > 0 && many < runs.length;
    line.classList.toggle("chosen", box.checked);
  }
  const listed = [...lines.values()].flatMap((line) => line.entry.runs);
  all.checked = listed.length > 0 && listed.every((run) => chosen.has(run));
}

// ---- headings -------------------------------------------------------------------------------------------------------

function heads() {
  const there = [...head.querySelectorAll(".setting")];
  if (there.map((one) => one.dataset.key.slice(9)).join() !== columns.join()) {
    there.forEach((one) => one.remove());
    for (const key of columns) {
      const one = make("th", { className: "text setting", title: key });
      one.dataset.key = `settings.${key}`;
      one.append(make("button", { type: "button" }, key.split(".").slice(-2).join(".")));
      head.append(one);
    }
  }
  for (const one of head.querySelectorAll("[data-key]")) {
    if (one.dataset.key === order.key) one.ariaSort = order.down ? "descending" : "ascending";
    else one.removeAttribute("aria-sort");
  }
}

head.addEventListener("click", ({ target }) => {
  const key = target.closest("button") && target.closest("[data-key]")?.dataset.key;
  if (!key) return;
  order = { key, down: order.key === key ? !order.down : ["changed", "accuracy", "rounds"].includes(key) };
  show();
});
filter.addEventListener("input", show);
all.addEventListener("change", () => {
  const paths = [...new Set([...lines.values()].flatMap((line) => line.entry.runs))];
  const others = chosen_runs().filter((run) => !paths.includes(run));
  choose(all.checked ? [...others, ...paths] : others);
});

function take_runs({ changed, gone, all: anew, groups: told }) {
  const kept = new Set(changed.map((row) => row.path));
  for (const path of anew ? [...rows.keys()].filter((path) => !kept.has(path)) : gone) rows.delete(path);
  for (const row of changed) rows.set(row.path, row);
  groups = told;
  show();
}
