"use strict";
// Replays rounds: the model goes down to those who are asked, they work, reports go up, the server has a new model.
(() => {
  const runs = JSON.parse(document.getElementById("replays").textContent);
  const figure = document.querySelector(".replay");
  const svg = figure.querySelector("svg");
  const said = figure.querySelector(".said");
  const find = (name) => figure.querySelector(`[data-${name}]`);
  const slider = find("round");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const SERVER = { wide: 150, high: 40, top: 6 };
  const ASKED = { train: "to train", gradient: "for gradients", "probe-gradient": "for a gradient", reserve: "for samples" };
  let run, spots, nodes, gap, middle, server, dots; // what is drawn
  let at = { round: 0, frame: 0 };
  let timer = null;

  function make(tag, attributes, text, parent) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent?.append(element);
    return element;
  }

  // ---- where things are -------------------------------------------------------------------------------------------------

  function layOut() {
    run = runs[find("run")?.value ?? Object.keys(runs)[0]];
    const many = run.clients.length;
    const wide = Math.max(280, Math.floor(svg.parentNode.clientWidth));
    gap = many <= 60 ? 46 : many <= 150 ? 34 : 24;
    const columns = Math.min(many, Math.floor(wide / gap));
    const rows = Math.ceil(many / columns);
    const left = (wide - gap * Math.min(columns, many)) / 2 + gap / 2;
    const line = gap + 10;
    spots = run.clients.map((_, i) => ({ x: left + gap * (i % columns), y: 150 + line * Math.floor(i / columns) }));
    middle = wide / 2;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${wide} ${150 + line * rows}`);
    svg.setAttribute("height", 150 + line * rows);
    drawClusters(columns);
    dots = make("g", {}, undefined, svg);
    drawServer();
    nodes = run.clients.map(drawClient);
    slider.max = run.rounds.length - 1;
  }

  function drawClusters(columns) {
    for (let from = 0, to; from < spots.length; from = to) {
      const { cluster } = run.clients[from];
      for (to = from + 1; to < spots.length && run.clients[to].cluster === cluster && to % columns; to += 1);
      const box = { x: spots[from].x - gap / 2 + 2, y: spots[from].y - gap / 2 + 2, width: gap * (to - from) - 4, height: gap + 4 };
      make("rect", { ...box, rx: 8, class: "cluster" }, undefined, svg);
    }
  }

  function drawServer() {
    const { wide, high, top } = SERVER;
    const group = make("g", { class: "server" }, undefined, svg);
    make("rect", { x: middle - wide / 2, y: top, width: wide, height: high, rx: 8 }, undefined, group);
    server = make("text", { x: middle, y: top + 25, "text-anchor": "middle" }, "server", group);
  }

  function drawClient(client, i) {
    const { x, y } = spots[i];
    const radius = gap * 0.28;
    const node = make("g", { class: "node" }, undefined, svg);
    const hold = Object.entries(client.mix ?? {}).sort(([, a], [, b]) => b - a);
    const labels = hold.slice(0, 4).map(([label, share]) => `${run.labels[label]} ${Math.round(100 * share)} %`).join(", ");
    const size = client.samples === undefined ? "" : `: ${client.samples} samples`;
    make("title", {}, `client ${client.name}${size}${labels ? `; ${labels}` : ""}`, node);
    make("circle", { cx: x, cy: y, r: radius }, undefined, node);
    if (gap > 30 && client.name.length <= 4) make("text", { x, y: y + 4, "text-anchor": "middle" }, client.name, node);
    make("path", { d: `M${x - radius} ${y - radius}l${2 * radius} ${2 * radius}m0 ${-2 * radius}l${-2 * radius} ${2 * radius}` }, undefined, node);
    let from = x - radius;
    for (const [label, share] of hold.sort(([a], [b]) => a - b)) {
      const width = 2 * radius * share;
      const fill = `hsl(${(360 * label) / run.labels.length} 60% 50%)`;
      make("rect", { x: from, y: y + radius + 4, width, height: 5, fill }, undefined, node);
      from += width;
    }
    return node;
  }

  // ---- a moment: a round has down, work and up for each step, then the new model ----------------------------------------

  const framesOf = (round) => 3 * run.rounds[round].steps.length + 1;
  const amount = (bytes) => (bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
  const clients = (n) => (n === 1 ? "1 client" : `${n} clients`);

  function show(move) {
    const round = run.rounds[at.round];
    const ended = at.frame >= 3 * round.steps.length;
    const step = Math.min(Math.floor(at.frame / 3), round.steps.length - 1);
    const [kind, here, missing, times] = round.steps[step];
    const phase = ended ? "end" : ["down", "work", "up"][at.frame % 3];
    nodes.forEach((node, i) => {
      const asked = here.includes(i) || missing.includes(i);
      const after = phase === "up" || phase === "end";
      node.classList.toggle("asked", asked && !after);
      node.classList.toggle("working", asked && phase === "work");
      node.classList.toggle("here", after && here.includes(i));
      node.classList.toggle("late", after && missing.includes(i));
    });
    dots.replaceChildren();
    if (phase === "down") send([...here, ...missing], true, move);
    if (phase === "up") send(here, false, move);
    server.textContent = phase === "end" && round.accuracy !== null ? `${(100 * round.accuracy).toFixed(1)} % right` : "server";
    server.parentNode.classList.toggle("new", phase === "end");
    slider.value = at.round;
    slider.setAttribute("aria-valuetext", `round ${round.round}`);
    said.textContent = words(round, step, phase, { kind, here, missing, times });
  }

  function words(round, step, phase, { kind, here, missing, times }) {
    const asked = here.length + missing.length;
    const part = round.steps.length > 1 ? `, step ${step + 1} of ${round.steps.length}` : "";
    const often = times > 1 ? `, ${times} times` : "";
    const begin = `Round ${round.round} of ${run.of}${part}: `;
    const what = ASKED[kind] ?? `for “${kind}”`;
    if (phase === "down") return `${begin}${asked} of ${clients(run.clients.length)} are asked ${what}${often}. ${amount(round.down)} go down in this round.`;
    if (phase === "work") return `${begin}${clients(asked)} at work on their own samples.`;
    if (phase === "up") {
      const lost = missing.length ? `; ${clients(missing.length)} did not answer${round.why ? ` (${round.why})` : ""}` : "";
      return `${begin}reports of ${clients(here.length)} go up${lost}. ${amount(round.up)} go up in this round.`;
    }
    const right = round.accuracy === null ? "" : `, right on ${(100 * round.accuracy).toFixed(1)} % of the test samples`;
    return `Round ${round.round} of ${run.of}: the server has a new model${right}.`;
  }

  function send(to, down, move) {
    const start = { x: middle, y: SERVER.top + SERVER.high };
    for (const i of to) {
      const end = { x: spots[i].x, y: spots[i].y - gap * 0.28 };
      make("line", { x1: start.x, y1: start.y, x2: end.x, y2: end.y, class: down ? "down" : "up" }, undefined, dots);
      const [from, till] = down ? [start, end] : [end, start];
      const dot = make("circle", { r: 4, class: down ? "down" : "up", cx: till.x, cy: till.y }, undefined, dots);
      if (!move || still.matches) continue;
      const away = { transform: `translate(${from.x - till.x}px, ${from.y - till.y}px)` };
      dot.animate([away, { transform: "none" }], { duration: 0.8 * Number(find("speed").value), easing: "ease-in-out" });
    }
  }

  // ---- what the reader does -----------------------------------------------------------------------------------------------

  function go(by) {
    at.frame += by;
    if (at.frame < 0) {
      at.round = (at.round + run.rounds.length - 1) % run.rounds.length;
      at.frame = framesOf(at.round) - 1;
    } else if (at.frame >= framesOf(at.round)) {
      at = { round: (at.round + 1) % run.rounds.length, frame: 0 };
    }
    show(true);
  }

  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => go(1), Number(find("speed").value)) : null;
    find("play").textContent = on ? "Pause" : "Play";
    said.setAttribute("aria-live", on ? "off" : "polite"); // nobody wants to hear all of it
  }

  find("play").addEventListener("click", () => play(timer === null));
  for (const [name, by] of [["step", 1], ["back", -1]]) {
    find(name).addEventListener("click", () => {
      play(false);
      go(by);
    });
  }
  slider.addEventListener("input", () => {
    at = { round: Number(slider.value), frame: 0 };
    show(false);
  });
  find("speed").addEventListener("change", () => timer !== null && play(true));
  find("run")?.addEventListener("change", () => {
    layOut();
    at = { round: Math.min(at.round, run.rounds.length - 1), frame: 0 };
    show(false);
  });
  new IntersectionObserver(([entry]) => entry.isIntersecting || play(false)).observe(figure);
  new ResizeObserver(() => {
    layOut();
    show(false);
  }).observe(figure);
  find("speed").value = "800";
  layOut();
  show(false);
})();
