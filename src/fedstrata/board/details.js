"use strict";
// What is told of the chosen runs beside their figures: costs side by side, settings, notes, the end of the log.
const NAMES = {
  accuracy: "accuracy",
  balanced_accuracy: "balanced accuracy",
  worst10: "worst tenth of clients",
  loss_test: "test loss",
  bytes_up: "bytes up",
  bytes_down: "bytes down",
  client_updates: "client updates",
  time: "virtual seconds",
};
const SHARES = ["accuracy", "balanced_accuracy", "worst10"];
const SIDE_BY_SIDE = 6; // runs whose columns can be read beside each other
const details_of = document.getElementById("details");
let told_details = [];
let all_settings = false;

const number = (key, value) =>
  value === undefined ? "-" : SHARES.includes(key) ? `${(100 * value).toFixed(1)} %` : value.toLocaleString("en", { maximumSignificantDigits: 4 });

function table(titles, lines, caption, className = "") {
  const cells = (tag, row) => row.map((cell, at) => make(tag, { className: at ? "" : "text" }, cell));
  const inside = [
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...cells("th", titles))),
    make("tbody", {}, ...lines.map((row) => make("tr", {}, ...cells("td", row)))),
  ];
  return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption }, make("table", { className }, ...inside));
}

function side_by_side(runs) {
  const two = runs.length === 2;
  const lines = Object.keys(NAMES)
    .filter((key) => runs.some((run) => key in run.figures))
    .map((key) => {
      const values = runs.map((run) => run.figures[key]);
      const known = two && values.every((value) => value !== undefined);
      const gap = known ? values[1] - values[0] : undefined;
      const shown = SHARES.includes(key) && known ? `${(100 * gap).toFixed(1)} points` : number(key, gap);
      return [NAMES[key], ...values.map((value) => number(key, value)), ...(two ? [shown] : [])];
    });
  const titles = ["", ...runs.map((run) => run.path), ...(two ? ["second less first"] : [])];
  return table(titles, lines, "At the last evaluation.");
}

function settings_of(runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort();
  const value = (run, key) => shown_value(run.settings[key]);
  const differ = keys.filter((key) => new Set(runs.map((run) => value(run, key))).size > 1);
  const whole = all_settings || runs.length === 1;
  const lines = (whole ? keys : differ).map((key) => [key, ...runs.map((run) => value(run, key))]);
  const said = runs.length === 1 ? "All settings." : `Settings: ${differ.length} of ${keys.length} differ.`;
  const shown = table(["key", ...runs.map((run) => run.path)], lines, said, "words");
  const more = make("button", { type: "button" }, all_settings ? "Only what differs" : "All settings");
  more.addEventListener("click", () => {
    all_settings = !all_settings;
    show_details();
  });
  return make("div", {}, shown, ...(runs.length > 1 ? [more] : []));
}

function notes_of(run) {
  const note = make("textarea", { value: run.note, rows: 3, maxLength: 10000 });
  const tags = make("input", { type: "text", value: run.tags.join(", "), placeholder: "baseline, for the paper" });
  const said = make("span", { className: "quiet", role: "status" });
  const form = make(
    "form",
    { className: "notes" },
    make("label", {}, `Note on ${run.path}`, note),
    make("label", {}, "Tags, with commas between them", tags),
    make("button", { type: "submit" }, "Keep"),
    said,
  );
  form.dataset.run = run.path;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const content = { note: note.value, tags: tags.value.split(",") };
    const how = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) };
    const answer = await fetch(`notes?${new URLSearchParams({ run: run.path })}`, how).catch(() => null);
    said.textContent = answer?.ok ? "Kept beside the run." : ((await answer?.text()) ?? "Not kept: the board is away.");
  });
  return form;
}

function hidden_run(path) { // seeds of a method are hidden together; the folder that all have in common goes unsaid
  const method = path.replace(/\/seed-[^/]*$/, "");
  return [...off].some((name) => method === name || method.endsWith(`/${name}`));
}

function fold(title, open, ...inside) {
  return make("details", { open }, make("summary", {}, title), ...inside);
}

function show_details() {
  const open = new Map([...details_of.querySelectorAll("details")].map((one) => [one.firstChild.textContent, one.open]));
  const typing = details_of.querySelector("form")?.contains(document.activeElement);
  const form = details_of.querySelector("form"); // what somebody is writing stays
  const runs = told_details.filter((run) => !hidden_run(run.path));
  const parts = [];
  if (runs.length && runs.length <= SIDE_BY_SIDE) {
    parts.push(fold("Figures", open.get("Figures") ?? runs.length > 1, side_by_side(runs)));
    parts.push(fold("Settings", open.get("Settings") ?? runs.length > 1, settings_of(runs)));
    const logs = runs.map((run) => make("pre", { tabIndex: 0, ariaLabel: `Log of ${run.path}` }, run.log.join("\n")));
    parts.push(fold("Log", open.get("Log") ?? false, ...logs));
    const same = form && runs.length === 1 && form.dataset.run === runs[0].path && typing;
    const noted = runs.length === 1 ? [same ? form : notes_of(runs[0])] : runs.filter((run) => run.note).map((run) => make("p", {}, `${run.path}: ${run.note}`));
    if (noted.length) parts.push(fold("Notes and tags", open.get("Notes and tags") ?? false, ...noted));
  }
  details_of.replaceChildren(...parts);
  for (const log of details_of.querySelectorAll("pre")) log.scrollTop = log.scrollHeight;
}

addEventListener("methods", show_details);

function take_details(runs) {
  told_details = runs;
  show_details();
}
