"use strict";
// A federation beside its runs: sites, the queue, what went wrong last; an operator's words to runs. The key stays with
// whoever serves this page, who signs: a browser only says what to which run.
const federation = document.getElementById("federation");
const said_last = make("p", { className: "quiet", role: "status" });
const SURE = { stop: "Stop it before its next round? It can be resumed.", refuse: "Refuse it? It will not begin." };

async function order_run(action, run) {
  if (SURE[action] && !confirm(`Run ${run}: ${SURE[action]}`)) return;
  const how = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ action, run }) };
  const answer = await fetch("orders", how).catch(() => null);
  said_last.textContent = (await answer?.text()) ?? "Not done: the board is away.";
}

function buttons_of(run, may) {
  if (!may) return "";
  const buttons = run.actions.map((action) => {
    const button = make("button", { type: "button", ariaLabel: `${action} run ${run.number}` }, action);
    button.dataset.order = `${action} ${run.number}`;
    button.addEventListener("click", () => order_run(action, run.number));
    return button;
  });
  return make("span", { className: "orders" }, ...buttons);
}

function columns_table(titles, lines, caption) { // all of it text
  const shown = table(titles, lines, caption);
  for (const cell of shown.querySelectorAll("th, td")) cell.className = "text";
  return shown;
}

function take_federation({ server, operator, may, sites, runs, faults, warnings }) {
  const focus = document.activeElement?.dataset?.order;
  const site_lines = sites.map((s) => [s.site, s.state, s.since, s.heard, s.rounds, s.last_round, s.refused, s.about]);
  const run_lines = runs.map((r) => [r.number, r.state, buttons_of(r, may), r.method, r.who, r.at, r.folder]);
  const who = may ? `Orders are signed by ${operator}.` : "To look at; start it with --operator to give orders.";
  const queue = columns_table(
    ["run", "state", "", "method", "asked for by", "at", "folder"],
    run_lines,
    runs.length ? "Runs that go on or wait, in their order." : "No run goes on or waits.",
  );
  const titles = ["site", "state", "since", "last heard", "rounds", "last round", "refused", "about"];
  federation.replaceChildren(
    make("h2", {}, `Federation at ${server}`),
    ...warnings.map((line) => make("p", { className: "warning" }, line)),
    columns_table(titles, site_lines, "Sites, and what each gave to the latest run."),
    queue,
    make("p", { className: "quiet" }, who),
    said_last,
    ...(faults.length ? [make("ul", { ariaLabel: "What went wrong last" }, ...faults.map((line) => make("li", {}, line)))] : []),
  );
  federation.hidden = false;
  if (focus) federation.querySelector(`[data-order="${focus}"]`)?.focus();
}
