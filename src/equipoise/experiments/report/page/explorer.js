// The front explorer: a preference, and what every method found for it.

const FIRST_SHOWN = ["LS", "TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH"];
const HINT =
  "Drag the ray by the open circle at its end, or click the front; the ring is where the ray meets it. To zoom, drag a box or use Ctrl and the wheel; a double click goes back.";
/** Where the ray of a preference meets a front of two objectives that is given as a line; null if it does not. */
function meeting(w, front) {
  const side = (f) => w[0] * f[0] - w[1] * f[1];
  for (let i = 1; i < front.length; i++) {
    const [a, b] = [side(front[i - 1]), side(front[i])];
    if (a !== b && a * b <= 0) return front[i].map((x, k) => front[i - 1][k] + (a / (a - b)) * (x - front[i - 1][k]));
  }
  return null;
}

function startExplorer(section) {
  if (data.sets.length === 0)
    return section.append(
      empty(
        "There are no solutions of problems with a known front yet. This makes some:",
        "equipoise reproduce table-hv",
      ),
    );
  const state = { set: data.sets[0], w: null, seed: 0, shown: new Set() };
  const home = el("div");
  const solutions = el("tbody");
  const told = el("p", { class: "chosen-w", id: "chosen", "aria-live": "polite" });
  const plot = new Plot((width) => (state.set.objectives === 2 ? plane(width) : coordinates(width)));
  let sliders = [];

  const set = (w) => {
    state.w = w;
    refresh();
  };

  /** The computed preference nearest to the one that is asked for. */
  const nearest = () => {
    const away = state.set.preferences.map((p) => length(p.map((x, i) => x - state.w[i])));
    return away.indexOf(Math.min(...away));
  };
  const visible = () => state.set.methods.filter((method) => state.shown.has(method.name));
  const solution = (method, k) => method.losses[state.seed][k];
  const whole = (f) => f.every((x) => x !== null);
  const list = (v, digits = 3) => `(${v.map((x) => fixed(x, digits)).join(", ")})`;

  function pointText(method, k, seed) {
    const f = method.losses[seed][k];
    return [
      method.name,
      `f = ${list(f)}`,
      `asked for w = ${list(state.set.preferences[k])}`,
      `seed ${state.set.seeds[seed]}`,
    ];
  }

  // Two objectives: the plane --------------------------------------------------------------
  function plane(width) {
    const { front, methods } = state.set;
    const reach = front.length ? front : methods.flatMap((m) => m.losses[state.seed]).filter(whole);
    const most = [0, 1].map((i) => 1.12 * Math.max(...reach.map((f) => f[i])));
    const least = [0, 1].map((i) => Math.min(-0.02 * most[i], 1.1 * Math.min(...reach.map((f) => f[i]))));
    const k = nearest();
    const points = visible().flatMap((m) =>
      m.losses.flatMap((own, seed) => own.map((f, j) => ({ m, f, j, seed })).filter(({ f }) => whole(f))),
    );
    const draw = (at) => {
      const parts = [];
      for (const line of pieces(front)) parts.push(svg("path", { class: "front", d: path(...columns(line), at) }));
      // The ray leaves the picture: it is drawn to a point far outside.
      const far = 50 * Math.max(...most);
      const end = state.w.map((x) => (far * Math.min(...state.w)) / x);
      const line = { x1: at.x(0), y1: at.y(0), x2: at.x(end[0]), y2: at.y(end[1]) };
      parts.push(svg("line", { class: "ray", ...line }), svg("line", { class: "grip", ...line }));
      const rank = ({ j, seed }) => (j === k ? 1 : 0) + (seed === state.seed ? 2 : 0);
      for (const p of [...points].sort((a, b) => rank(a) - rank(b))) {
        const kind = rank(p) === 3 ? "chosen" : p.seed === state.seed ? "" : "faint";
        parts.push(mark(p.m.name, at.x(p.f[0]), at.y(p.f[1]), rank(p) === 3 ? 8 : 4.5, kind));
      }
      const target = meeting(state.w, front);
      if (target) parts.push(svg("circle", { class: "target", cx: at.x(target[0]), cy: at.y(target[1]), r: 12 }));
      const [hx, hy] = handle(state.w, at);
      parts.push(svg("circle", { class: "handle", id: "handle", cx: hx, cy: hy, r: 9 }));
      return parts;
    };
    return {
      x: { label: "f₁", min: least[0], max: most[0] },
      y: { label: "f₂", min: least[1], max: most[1], left: 44 },
      height: Math.min(width, 560),
      label: `The front of ${state.set.title}, the ray of the preference ${list(state.w)}, and the solutions of ${plural(visible().length, "method")}`,
      draw,
      points: points.map((p) => ({ x: p.f[0], y: p.f[1], text: pointText(p.m, p.j, p.seed) })),
      grab: (px, py, at) => (offRay(state.w, px, py, at) < 13 ? (x, y) => turn(x, y) : null),
      click: (px, py, at) =>
        pick(
          px,
          py,
          at,
          points.map((p) => p.f),
        ),
    };
  }

  const turn = (x, y) => set(through([Math.max(x, 0), Math.max(y, 0)]));

  /** A click on a solution, or else anywhere near the front, asks for the preference that leads there. */
  function pick(px, py, at, points) {
    const away = (f) => Math.hypot(at.x(f[0]) - px, at.y(f[1]) - py);
    const nearestOf = (all) => all.reduce((best, f) => (best === null || away(f) < away(best) ? f : best), null);
    const close = nearestOf([...state.set.front, ...points]);
    if (close && away(close) < 14) return set(through(close));
    const onFront = nearestOf(state.set.front);
    if (onFront && away(onFront) < 60) set(through(onFront));
  }

  const columns = (line) => [line.map((f) => f[0]), line.map((f) => f[1])];
  /** A front may have gaps: steps much longer than the usual one. */
  function pieces(front) {
    if (front.length < 2) return [];
    const steps = front.slice(1).map((f, i) => Math.hypot(f[0] - front[i][0], f[1] - front[i][1]));
    const usual = [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 2)];
    const lines = [[front[0]]];
    steps.forEach((step, i) => (step > 12 * usual ? lines.push([front[i + 1]]) : lines.at(-1).push(front[i + 1])));
    return lines;
  }

  // More objectives: parallel coordinates --------------------------------------------------
  function coordinates(width) {
    const { front, methods, objectives } = state.set;
    const all = visible().flatMap((m) => m.losses[state.seed].map((f, j) => ({ m, f, j })).filter(({ f }) => whole(f)));
    const k = nearest();
    const axis = range(objectives);
    const draw = (at) => [
      ...front.map((f) => svg("path", { class: "front thin", d: path(axis, f, at) })),
      ...[...all]
        .sort((a, b) => (a.j === k) - (b.j === k))
        .map(({ m, f, j }) => {
          const { colour, dash } = looks(m.name);
          return svg("path", {
            class: `series curve ${j === k ? "" : "thin"}`,
            colour,
            "stroke-dasharray": dash,
            d: path(axis, f, at),
          });
        }),
    ];
    return {
      x: { label: "", min: -0.15, max: objectives - 0.85, ticks: axis.map((i) => [i, `f${sub(i)}`]) },
      y: {
        label: "objective values: one line per solution, the chosen ones bold",
        ...extent([...front, ...all.map(({ f }) => f)].flat()),
        left: 44,
      },
      height: Math.min(width, 440),
      label: `Objective values of the solutions of ${plural(visible().length, "method")} on ${state.set.title}`,
      draw,
      points: all.flatMap(({ m, f, j }) => axis.map((i) => ({ x: i, y: f[i], text: pointText(m, j, state.seed) }))),
      click: (px, py, at) => {
        const away = (f) => Math.min(...axis.map((i) => Math.hypot(at.x(i) - px, at.y(f[i]) - py)));
        const close = [...front, ...all.map(({ f }) => f)].reduce(
          (best, f) => (best === null || away(f) < away(best) ? f : best),
          null,
        );
        if (close && away(close) < 14) set(through(close));
      },
    };
  }

  // What is said beside the picture --------------------------------------------------------
  function refresh() {
    const { set: chosen, w } = state;
    const k = nearest();
    const p = chosen.preferences[k];
    const target = chosen.objectives === 2 ? meeting(w, chosen.front) : null;
    sliders.forEach((slider, i) => {
      slider.value = w[i];
      slider.setAttribute("aria-valuetext", `w${sub(i)} = ${fixed(w[i], 3)}`);
    });
    told.replaceChildren(
      "Asked for: w = ",
      el("strong", { id: "asked" }, list(w)),
      ". Nearest computed preference: ",
      el("strong", { id: "nearest" }, list(p)),
      target
        ? `. The ray meets the front at f = ${list(target)}.`
        : chosen.front.length
          ? "."
          : ". The front is not known.",
    );
    const rows = visible().map((method) => {
      const f = solution(method, k);
      const name = el("th", { scope: "row" }, el("span", { class: "known" }, swatch(method.name), method.name));
      if (!whole(f)) return el("tr", { "data-method": method.name }, name, el("td", { colspan: 2 }, "diverged"));
      const off = imbalance(p, f);
      const numbers = (v) => v.map((x) => fixed(x, 4)).join(", ");
      return el(
        "tr",
        { "data-method": method.name },
        name,
        el("td", { class: p.length > 3 ? "f many" : "f" }, numbers(f), el("small", {}, numbers(weighted(p, f)))),
        el(
          "td",
          { class: "off" },
          `${fixed(angle(p, f), 2)}°`,
          el("small", {}, off < 10 ? `${fixed(100 * off, 1)} %` : "> 999 %"),
        ),
      );
    });
    solutions.replaceChildren(...rows);
    plot.draw();
  }

  function enter(chosen) {
    state.set = chosen;
    state.seed = 0;
    const names = chosen.methods.map((m) => m.name);
    // Methods stay shown from one problem to the next.
    const kept = names.filter((name) => state.shown.has(name));
    const usual = chosen.methods.filter((m) => m.own || FIRST_SHOWN.includes(m.name)).map((m) => m.name);
    state.shown = new Set(kept.length ? kept : usual.length ? usual : names);
    const m = chosen.objectives;
    if (!state.w || state.w.length !== m) state.w = chosen.preferences[Math.floor(chosen.preferences.length / 2)];
    sliders = weightSliders(m, (i, value) => set(withEntry(state.w, i, value)));
    held.replaceChildren(
      ...sliders.map((slider, i) =>
        el(
          "label",
          { for: slider.id },
          m === 2 ? "w₁: how much the first objective matters" : `w${sub(i)}: how much objective ${i + 1} matters`,
          slider,
        ),
      ),
    );
    home.replaceChildren(
      legend(names, state.shown, refresh),
      ...(chosen.seeds.length > 1
        ? [
            el(
              "div",
              { class: "controls" },
              choice("seed", "Seed", chosen.seeds.map(String), (seed) => {
                state.seed = seed;
                refresh();
              }),
            ),
          ]
        : []),
      told,
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Solutions" },
        el(
          "table",
          { id: "solutions" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col" }, "Method"),
              el("th", { scope: "col" }, "f", el("small", {}, "w∘f")),
              el("th", { scope: "col" }, "Off the ray", el("small", {}, "imbalance")),
            ),
          ),
          solutions,
        ),
      ),
      el(
        "p",
        { class: "remark" },
        "For the nearest computed preference: w∘f, the angle to its ray, and the imbalance, largest over smallest w∘f, less 1.",
      ),
      chosen.note ? el("p", { class: "remark", id: "rays" }, `${chosen.note}.`) : "",
    );
    made.replaceChildren(
      el(
        "figcaption",
        {},
        m === 2 ? HINT : HINT.replace(/^.*meets it/, "Click a line to ask for what leads there"),
      ),
      command(chosen.command),
    );
    plot.zoomed = null;
    refresh();
  }

  const [held, made] = [el("div"), el("div")];
  section.append(
    el(
      "div",
      { class: "controls" },
      choice("set", "Problem", data.sets, (i) => enter(data.sets[i])),
    ),
    el("div", { class: "beside" }, el("figure", { id: "front" }, plot.node, held, made), home),
  );
  enter(state.set);
}
