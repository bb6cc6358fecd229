// A running training: its losses and weights, the trade-offs so far, and the one that a person asks for.

const [EVERY, PAUSE, STALE] = [500, 150, 10]; // ms between looks, ms before a wish is sent, s without news
const HINTS = {
  plane:
    "Drag the ray by the open circle at its end, or move the slider. The star is where the training is now, on average over its latest steps; the other marks are where it came for former preferences, and the thin line is its way.",
  coordinates:
    "Move a slider; the others keep their proportions. A line for each preference so far: its losses over their latest steps, the present one bold.",
};
const list = (v, digits = 3) => `(${v.map((x) => fixed(x, digits)).join(", ")})`;

const state = { run: null, wished: null, timer: null, error: "" };
const section = document.getElementById("steer");
const course = document.getElementById("course");
const shownState = document.getElementById("state");
const told = el("p", { class: "chosen-w", "aria-live": "polite" });
const rows = el("tbody");
const off = el("p", { class: "remark", id: "off" });
const held = el("div");
const hint = el("figcaption");
let sliders = [];

const names = () => state.run.names;
const preference = () => state.wished ?? state.run.preference;
const isOpen = () => state.run !== null && state.run.state === "running";
const whole = (f) => f.every((x) => x !== null);

// Wishes -----------------------------------------------------------------------------------
/** Ask for a preference. While a person drags, only the latest wish of every moment is sent. */
function ask(w) {
  if (!isOpen()) return;
  state.wished = w;
  state.error = "";
  state.timer ??= setTimeout(send, PAUSE);
  refresh();
}

async function send() {
  state.timer = null;
  try {
    const answer = await fetch("wish", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ preference: state.wished }),
    });
    if (!answer.ok) state.error = (await answer.json()).error;
  } catch {
    state.error = "the page’s server has ended";
  }
  if (state.error) {
    state.wished = null;
    refresh();
  }
}

// Looks ------------------------------------------------------------------------------------
async function look() {
  try {
    const answer = await fetch("status", { cache: "no-store" });
    if (!answer.ok) throw new Error("refused");
    hear(await answer.json());
  } catch {
    say("gone", "The page’s server has ended. The training, if it runs, goes on.");
  }
  setTimeout(look, EVERY);
}

function say(kind, text) {
  shownState.dataset.kind = kind;
  if (shownState.textContent !== text) shownState.textContent = text;
}

function hear(found) {
  if (found.state === "absent") return say("absent", "No training has written here yet");
  if (found.state === "damaged") return say("damaged", `The state of the run cannot be read: ${found.why}`);
  const [first, before] = [state.run === null || state.run.names.length !== found.names.length, state.run];
  state.run = found;
  if (first) enter();
  const same = state.wished && state.wished.every((x, i) => Math.abs(x - found.preference[i]) < 1e-5);
  if (same || found.state !== "running") state.wished = null;
  if (found.state === "ended") say("ended", `The training has ended after step ${found.step}`);
  else if (found.state === "failed") say("failed", `The training failed (${found.why}) after step ${found.step}`);
  else if (found.age > STALE)
    say("stalled", `No news for ${Math.round(found.age)} s: the training stalled, or was killed, after step ${found.step}`);
  else say("running", `Training, step ${found.step}`);
  for (const slider of sliders) slider.disabled = !isOpen();
  if (first || before.step !== found.step || before.state !== found.state || same) refresh();
}

// The picture ------------------------------------------------------------------------------
function plane(width) {
  const { points, history } = state.run;
  const w = preference();
  const way = history.value.filter(whole);
  const reach = [...points.map((p) => p.value).filter(whole), ...way.slice(Math.floor(way.length / 2))];
  const most = [0, 1].map((i) => 1.25 * Math.max(...reach.map((f) => f[i]), 1e-9));
  const least = [0, 1].map((i) => Math.min(-0.02 * most[i], 1.1 * Math.min(...reach.map((f) => f[i]), 0)));
  const last = points.length - 1;
  const draw = (at) => {
    const parts = [svg("path", { class: "trail", d: path(way.map((f) => f[0]), way.map((f) => f[1]), at) })];
    const far = 50 * Math.max(...most);
    const end = w.map((x) => (far * Math.min(...w)) / x);
    const line = { x1: at.x(0), y1: at.y(0), x2: at.x(end[0]), y2: at.y(end[1]) };
    parts.push(svg("line", { class: state.wished ? "ray wished" : "ray", ...line }));
    if (isOpen()) parts.push(svg("line", { class: "grip", ...line }));
    points.forEach(({ value: f }, k) => {
      if (whole(f)) parts.push(marked(k === last, at.x(f[0]), at.y(f[1])));
    });
    const [hx, hy] = handle(w, at);
    parts.push(svg("circle", { class: isOpen() ? "handle" : "handle still", id: "handle", cx: hx, cy: hy, r: 9 }));
    return parts;
  };
  return {
    x: { label: names()[0], min: least[0], max: most[0] },
    y: { label: names()[1], min: least[1], max: most[1], left: 44 },
    height: Math.min(width, 520),
    label: `Losses of ${plural(points.length, "preference")} so far, and the ray of the preference ${list(w)}`,
    draw,
    points: points
      .filter((p) => whole(p.value))
      .map((p) => ({ x: p.value[0], y: p.value[1], text: pointText(p) })),
    grab: (px, py, at) =>
      isOpen() && offRay(w, px, py, at) < 13 ? (x, y) => ask(through([Math.max(x, 0), Math.max(y, 0)])) : null,
  };
}
const pointText = (p) => [`w = ${list(p.preference)}`, `f = ${list(p.value)}`, `from step ${p.after} on`];
const marked = (now, x, y) =>
  svg("path", { class: `series mark ${now ? "chosen" : "former"}`, colour: SPARE[0], d: shape(now ? 7 : 0, x, y, now ? 9 : 5) });

/** More than two objectives: parallel coordinates. */
function coordinates(width) {
  const axis = range(names().length);
  const points = state.run.points.filter((p) => whole(p.value));
  const last = state.run.points.at(-1);
  return {
    x: { label: "", min: -0.15, max: names().length - 0.85, ticks: axis.map((i) => [i, names()[i]]) },
    y: { label: "losses", ...extent(points.flatMap((p) => p.value)), left: 44 },
    height: Math.min(width, 400),
    label: `Losses of ${plural(points.length, "preference")} so far`,
    draw: (at) =>
      points.map((p) =>
        svg("path", {
          class: `series curve ${p === last ? "" : "thin"}`,
          colour: SPARE[0],
          d: path(axis, p.value, at),
        }),
      ),
    points: points.flatMap((p) => axis.map((i) => ({ x: i, y: p.value[i], text: pointText(p) }))),
  };
}

const picture = new Plot((width) => (names().length === 2 ? plane(width) : coordinates(width)));
const charts = {
  weight: { title: () => (state.run.weights === "λ" ? "λ: the weight of each loss" : "Coefficient of each loss") },
  weighted: { title: () => "Weighted losses w∘f, by the present preference: equal where it is met", log: true },
  loss: { title: () => "Losses", log: true },
};
for (const [key, chart] of Object.entries(charts)) {
  chart.head = el("strong");
  chart.plot = new Plot((width) => {
    const { history } = state.run;
    const table =
      key === "weighted"
        ? history.value.map((f) => f.map((x, i) => (x === null ? null : x * state.run.preference[i])))
        : history[key];
    const series = names().map((name, i) => ({ name, xs: history.steps, ys: table.map((row) => row[i]) }));
    const positive = table.flat().every((x) => x === null || x > 0);
    return lines(width, series, { label: "step" }, { log: Boolean(chart.log) && positive }, chart.title());
  });
}

// What is said -----------------------------------------------------------------------------
function refresh() {
  if (state.run === null) return;
  const [w, { now, refused, preference: has }] = [preference(), state.run];
  sliders.forEach((slider, i) => {
    if (document.activeElement !== slider || !state.wished) slider.value = w[i];
    slider.setAttribute("aria-valuetext", `w${sub(i)} = ${fixed(w[i], 3)}`);
  });
  const note = state.error || (state.wished ? "" : refused);
  told.replaceChildren(
    "Asked for: w = ",
    el("strong", { id: "asked" }, list(w)),
    ". The training has w = ",
    el("strong", { id: "has" }, list(has)),
    state.wished ? ": it follows after its next step." : ".",
    note ? el("span", { class: "refused differs" }, `Refused: ${note}`) : "",
  );
  rows.replaceChildren(
    ...names().map((name, i) => {
      const weight = now.weight[i];
      return el(
        "tr",
        { "data-objective": name },
        el("th", { scope: "row" }, el("span", { class: "known" }, swatch(name), name)),
        el("td", { class: "w" }, fixed(has[i], 3)),
        el("td", { class: "f" }, show(now.loss[i])),
        el("td", { class: "wf" }, show(now.value[i] === null ? null : has[i] * now.value[i])),
        el("td", { class: "weight" }, bar(name, weight), fixed(weight, 3)),
      );
    }),
  );
  const point = state.run.points.at(-1);
  const apart = point && whole(point.value) ? imbalance(has, point.value) : null;
  off.textContent =
    apart === null
      ? "No step yet."
      : `Over its latest steps the largest w∘f is ${apart < 10 ? `${fixed(100 * apart, 1)} %` : "more than ten times"} above the smallest.`;
  picture.draw();
  for (const chart of Object.values(charts)) {
    chart.head.textContent = chart.title();
    chart.plot.draw();
  }
}

function bar(name, share) {
  const width = 100 * clamp(share ?? 0, 0, 1);
  const rect = svg("rect", { class: "series", colour: looks(name).colour, x: 0, y: 0, width, height: 10 });
  return el(
    "span",
    { class: "bar", "aria-hidden": "true" },
    svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" }, rect),
  );
}

function enter() {
  if (!picture.node.isConnected) build();
  const m = names().length;
  sliders = weightSliders(m, (i, value) => ask(withEntry(preference(), i, value)));
  held.replaceChildren(
    ...sliders.map((slider, i) => el("label", { for: slider.id }, `w${sub(i)}: how much ${names()[i]} matters`, slider)),
  );
  hint.textContent = m === 2 ? HINTS.plane : HINTS.coordinates;
}

/** Nothing is drawn before there is a run. */
function build() {
  section.append(
    el(
      "div",
      { class: "beside" },
      el("figure", { id: "front" }, picture.node, held, hint),
      el(
        "div",
        {},
        told,
        el(
          "div",
          { class: "scroll", tabindex: 0, role: "region", "aria-label": "The last step" },
          el(
            "table",
            { id: "numbers" },
            el(
              "thead",
              {},
              el("tr", {}, ...["Objective", "w", "loss", "w∘f", "λ"].map((head) => el("th", { scope: "col" }, head))),
            ),
            rows,
          ),
        ),
        off,
        chart("weight"),
      ),
    ),
  );
  course.append(
    el(
      "div",
      { class: "beside" },
      chart("weighted"),
      chart("loss"),
    ),
  );
}
const chart = (key) =>
  el("figure", { id: `chart-${key}` }, el("figcaption", {}, charts[key].head), charts[key].plot.node);

document
  .querySelector("footer")
  .append(`Run: ${data.run}. This page speaks to this machine alone; closing it does not end the training.`);
look();
