// Federated runs and monitoring logs: curves over the rounds, weights, archives, boxes, scatters.

const QUANTITIES = [
  { key: "train_loss", title: "worst client’s training loss", log: true },
  { key: "test_loss", title: "worst client’s test loss", log: true },
  { key: "test_accuracy", title: "average test accuracy (%)", log: false },
];
const METRICS = [
  { key: "accuracy", title: "average accuracy (%), larger is better" },
  { key: "agnostic_loss", title: "agnostic loss, smaller is better" },
  { key: "accuracy_parity", title: "accuracy parity (points), smaller is better" },
];
const STANDARD = ["LS", "TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH", "AdaOMDeg-TCH", "equipoise"];

const mean = (values) => sum(values) / values.length;
function quantile(values, q) {
  const sorted = [...values].sort((a, b) => a - b);
  const place = q * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted[low] + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

function picture(id, title, plot, words, ...controls) {
  return el("figure", { id }, el("figcaption", {}, el("strong", {}, title)), ...controls, plot.node, command(words));
}

function startTraining(section) {
  if (data.tasks.length === 0 && data.logs.length === 0)
    return section.append(
      empty(
        "There are no federated runs yet. This makes some, in about a minute:",
        "equipoise reproduce table-digits --task digits-rotation --methods LS,TCH,STCH,OMDgd-TCH,AdaOMDgd-TCH --seeds 0,25",
      ),
    );
  if (data.tasks.length) startTasks(section);
  data.logs.forEach((log, i) => section.append(...monitored(log, i)));
}

function startTasks(section) {
  const home = el("div");
  section.append(
    el(
      "div",
      { class: "controls" },
      choice("task", "Task", data.tasks, (i) => enter(data.tasks[i])),
    ),
    home,
  );

  function enter(task) {
    const names = task.methods.map((m) => m.name);
    const usual = names.filter((name) => STANDARD.includes(name));
    const state = {
      shown: new Set(usual.length ? usual : names),
      quantity: QUANTITIES[0],
      metric: METRICS[1],
      weights: 0,
    };
    const visible = () => task.methods.filter((m) => state.shown.has(m.name));
    const plots = [];
    const plot = (describe) => {
      plots.push(new Plot(describe));
      return plots.at(-1);
    };
    const refresh = () => plots.forEach((p) => p.draw());
    const rounds = { label: "round" };

    const curves = plot((width) => {
      const { key, title, log } = state.quantity;
      const series = visible().map((m) => ({
        name: m.name,
        xs: m.rounds,
        ys: m[key],
        std: m.seeds.length > 1 ? m[`${key}_std`] : null,
      }));
      return lines(width, series, rounds, { label: title, log }, `${title} over the rounds of ${task.title}`);
    });
    const archives = plot((width) => {
      const series = visible()
        .filter((m) => m.archive.length)
        .map((m) => ({ name: m.name, xs: m.weight_rounds, ys: m.archive }));
      return lines(
        width,
        series,
        rounds,
        { label: "models, mean over the seeds" },
        `Size of the archive over the rounds of ${task.title}`,
      );
    });
    // Methods that share a run have the same weights: the run is shown once.
    const runs = task.methods.filter(
      (m, i) => i === task.methods.findIndex((o) => JSON.stringify(o.weights) === JSON.stringify(m.weights)),
    );
    state.weights = Math.max(
      0,
      runs.findIndex((m) => m.name.startsWith("OMD")),
    );
    const weights = plot((width) => heat(width, runs[state.weights]));
    const boxes = plot((width) => boxed(width, visible(), state.metric, task));
    const scatter = plot((width) => scattered(width, visible(), task));

    const pickWeights = choice(
      "weights-of",
      "Method",
      runs.map((m) => m.name),
      (i) => {
        state.weights = i;
        weights.draw();
      },
    );
    pickWeights.querySelector("select").value = state.weights;
    const pickMetric = choice("metric", "Metric", METRICS, (i) => {
      state.metric = METRICS[i];
      boxes.draw();
    });
    pickMetric.querySelector("select").value = METRICS.indexOf(state.metric);
    const pickQuantity = choice("quantity", "Quantity", QUANTITIES, (i) => {
      state.quantity = QUANTITIES[i];
      curves.zoomed = null;
      curves.draw();
    });

    home.replaceChildren(
      legend(names, state.shown, refresh),
      el(
        "div",
        { class: "beside" },
        picture(
          "curves",
          "Over the rounds: mean over the seeds and a standard deviation around it",
          curves,
          task.commands.curves,
          pickQuantity,
        ),
        picture(
          "weights",
          "λ: the clients’ weights over the rounds of the first seed. Orange is more than an equal share, blue less; the deepest is tenfold",
          weights,
          task.commands.weights,
          pickWeights,
        ),
        picture("boxes", "Every seed: range, quartiles and median", boxes, task.commands.box, pickMetric),
        picture(
          "scatter",
          "Accuracy against accuracy parity: up and to the left is better",
          scatter,
          task.commands.parity,
        ),
        task.methods.some((m) => m.archive.length)
          ? picture("archive", "How many models the adaptive conversion keeps", archives, task.commands.archive)
          : null,
      ),
    );
    refresh();
  }
  enter(data.tasks[0]);
}

/** Weights of clients over the rounds: blue less, orange more than an equal share; ten times is the last colour. */
function heat(width, method) {
  const clients = method.weights[0]?.length ?? 0;
  const times = method.weight_rounds;
  const gap = times.length > 1 ? times[1] - times[0] : 1;
  const share = (c) => clamp(Math.log2(Math.max(clients * c, 1e-6)) / Math.log2(10), -1, 1);
  const cells = method.weights.flatMap((row, k) => row.map((c, i) => ({ c, i, k })));
  const tint = (s) =>
    `color-mix(in oklab, ${s < 0 ? "#0072B2" : "#D55E00"} ${Math.round(100 * Math.abs(s))}%, var(--paper))`;
  return {
    x: { label: "round", min: times[0] - gap, max: times.at(-1) },
    y: { label: "client", min: clients - 0.5, max: -0.5, ticks: range(clients).map((i) => [i, String(i)]), left: 30 },
    height: 40 + 76 + 18 * clients,
    label: `Weight of each of ${clients} clients over the rounds of ${method.name}`,
    draw: (at) =>
      cells.map(({ c, i, k }) => {
        const [x, y] = [at.x(times[k] - gap), at.y(i - 0.5)];
        const rect = svg("rect", { x, y, width: at.x(times[k]) - x + 0.5, height: at.y(i + 0.5) - y + 0.5 });
        rect.style.fill = tint(share(c));
        return rect;
      }),
    points: cells.map(({ c, i, k }) => ({
      x: times[k] - gap / 2,
      y: i,
      text: [`client ${i}`, `round ${times[k]}: ${show(clients * c, 3)} equal shares`],
    })),
  };
}

function boxed(width, methods, metric, task) {
  const longest = Math.max(...methods.map((m) => m.name.length), 4);
  const all = methods.map((m) => m.scores[metric.key]);
  return {
    x: { label: metric.title, ...extent(all.flat()) },
    y: {
      label: "",
      min: methods.length - 0.4,
      max: -0.6,
      ticks: methods.map((m, i) => [i, m.name.length > 24 ? `${m.name.slice(0, 23)}…` : m.name]),
      left: 12 + 7.6 * Math.min(longest, 24),
    },
    height: MARGIN.top + MARGIN.bottom + 30 * Math.max(methods.length, 2),
    label: `Box plots of ${metric.title} on ${task.title}`,
    draw: (at) =>
      methods.flatMap((m, i) => {
        const values = all[i];
        const { colour } = looks(m.name);
        const [low, q1, middle, q3, high] = [0, 0.25, 0.5, 0.75, 1].map((q) => at.x(quantile(values, q)));
        const y = at.y(i);
        return [
          svg("line", { class: "series whisker", colour, x1: low, x2: high, y1: y, y2: y }),
          ...[low, high].map((x) =>
            svg("line", { class: "series whisker", colour, x1: x, x2: x, y1: y - 5, y2: y + 5 }),
          ),
          svg("rect", { class: "series quartiles", colour, x: q1, y: y - 9, width: Math.max(q3 - q1, 1), height: 18 }),
          svg("line", { class: "median", x1: middle, x2: middle, y1: y - 9, y2: y + 9 }),
        ];
      }),
    points: methods.flatMap((m, i) =>
      m.seeds.map((seed, k) => ({ x: all[i][k], y: i, text: [m.name, `seed ${seed}: ${show(all[i][k], 5)}`] })),
    ),
  };
}

function scattered(width, methods, task) {
  const places = methods.map((m) => ({
    name: m.name,
    // Parity is a standard deviation: over the seeds its squares are averaged, as in fig:6.
    x: Math.sqrt(mean(m.scores.accuracy_parity.map((v) => v * v))),
    y: mean(m.scores.accuracy),
  }));
  return {
    x: {
      label: "accuracy parity (points)",
      ...extent(
        places.map((p) => p.x),
        false,
        0.12,
      ),
    },
    y: {
      label: "average accuracy (%)",
      ...extent(
        places.map((p) => p.y),
        false,
        0.12,
      ),
    },
    height: Math.min(380, 0.8 * width + 60),
    label: `Average accuracy against accuracy parity on ${task.title}`,
    draw: (at) => [...places.map((p) => mark(p.name, at.x(p.x), at.y(p.y), 7)), ...labels(places, at)],
    points: places.map((p) => ({ x: p.x, y: p.y, text: [p.name, `accuracy ${show(p.y)} %`, `parity ${show(p.x)}`] })),
  };
}

/** Names beside their marks where there is room; the others answer to the pointer. */
function labels(places, at) {
  const taken = places.map((p) => ({ x: at.x(p.x) - 7, y: at.y(p.y) - 7, w: 14, h: 14 }));
  const free = (a) =>
    a.x > at.area.left &&
    a.x + a.w < at.area.right &&
    taken.every((b) => a.x > b.x + b.w || b.x > a.x + a.w || a.y > b.y + b.h || b.y > a.y + a.h);
  return places.flatMap((p) => {
    const [x, y, w] = [at.x(p.x), at.y(p.y), 7.2 * p.name.length];
    const spots = [
      [x + 10, y - 8],
      [x - 10 - w, y - 8],
      [x - w / 2, y - 24],
      [x - w / 2, y + 9],
      [x + 8, y - 22],
      [x + 8, y + 8],
      [x - w - 8, y - 22],
      [x - w - 8, y + 8],
    ];
    const spot = spots.map(([left, top]) => ({ x: left, y: top, w, h: 15 })).find(free);
    if (!spot) return [];
    taken.push(spot);
    return [svg("text", { class: "name", x: spot.x, y: spot.y + 12 }, p.name)];
  });
}

// A run of one's own ------------------------------------------------------------------------
const GROUPS = {
  lambda: { title: "λ" },
  weighted: { title: "weighted losses w∘f: equal where the preference is met", log: true },
  loss: { title: "losses", log: true },
  coefficient: { title: "coefficients of the gradient step" },
  tch: { title: "largest weighted loss", log: true },
  imbalance: { title: "imbalance: largest over smallest w∘f, less 1", log: true },
  angle: { title: "angle to the preferred ray (radians)" },
  archive: { title: "copies of the parameters in the archive" },
};
const WRITES = 'log.write(json.dumps(mol.metrics()) + "\\n")    # after every step';

function monitored(log, number) {
  const figures = Object.keys(GROUPS)
    .filter((group) => log.groups[group])
    .map((group) => {
      const { title, log: logarithmic } = GROUPS[group];
      const own = log.groups[group];
      const shown = new Set(Object.keys(own));
      const positive = Object.values(own)
        .flat()
        .every((v) => v === null || v > 0);
      const plot = new Plot((width) =>
        lines(
          width,
          [...shown].map((name) => ({ name, xs: log.steps, ys: own[name] })),
          { label: "step" },
          { log: Boolean(logarithmic) && positive },
          `${title} over the steps of ${log.title}`,
        ),
      );
      queueMicrotask(() => plot.draw());
      const names = Object.keys(own).length > 1 ? legend(Object.keys(own), shown, () => plot.draw()) : null;
      return el(
        "figure",
        { id: `log${number}-${group}` },
        el("figcaption", {}, el("strong", {}, title)),
        names,
        plot.node,
        command(WRITES),
      );
    });
  return [el("h3", {}, `Your run: ${log.title}`), el("div", { class: "beside" }, ...figures)];
}
