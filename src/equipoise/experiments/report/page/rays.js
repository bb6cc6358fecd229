// Preferences and their rays f ∝ 1/w in a picture of two objectives.

const [LEAST, MOST] = [0.01, 0.99]; // of a weight: a preference without an objective has no ray

const normalised = (v) => v.map((x) => x / sum(v));
/** `preference.through`: the preference whose solution a point is, w ∝ 1/f; at the end of a front, one close to it. */
const through = (f) => normalised(normalised(f.map((x) => 1 / Math.max(x, 1e-9))).map((x) => clamp(x, LEAST, MOST)));
const weighted = (w, f) => f.map((x, i) => w[i] * x);
const length = (v) => Math.hypot(...v);

/** Degrees between f and the ray 1/w, as `metrics.angle` has it. */
function angle(w, f) {
  const unit = (v) => v.map((x) => x / length(v));
  const [a, b] = [unit(f), unit(w.map((x) => 1 / x))];
  const [apart, together] = [a.map((x, i) => x - b[i]), a.map((x, i) => x + b[i])];
  return (2 * Math.atan2(length(apart), length(together)) * 180) / Math.PI;
}

/** Largest over smallest weighted objective, less 1. */
function imbalance(w, f) {
  const g = weighted(w, f);
  return Math.min(...g) > 0 ? Math.max(...g) / Math.min(...g) - 1 : Infinity;
}

/** w with another entry i; the others keep their proportions. */
function withEntry(w, i, wanted) {
  const value = clamp(wanted, LEAST, MOST);
  const rest = 1 - w[i];
  return normalised(w.map((x, j) => (j === i ? value : Math.max((x * (1 - value)) / rest, 1e-3))));
}
/** A slider for each weight, one for two objectives; `moved(i, value)` hears of them. */
function weightSliders(m, moved) {
  return range(m === 2 ? 1 : m).map((i) =>
    el("input", {
      type: "range",
      id: `w${i + 1}`,
      min: LEAST,
      max: MOST,
      step: 0.005,
      oninput: (event) => moved(i, Number(event.target.value)),
    }),
  );
}
const sub = (i) => String(i + 1).replace(/\d/g, (d) => "₀₁₂₃₄₅₆₇₈₉"[d]);

/** The handle sits on the ray, inside the picture and beyond the front. */
function handle(w, at) {
  const { left, right, top, bottom } = at.area;
  const [ox, oy] = [at.x(0), at.y(0)];
  const [dx, dy] = [at.x(1 / w[0]) - ox, at.y(1 / w[1]) - oy];
  const reach = 0.93 * Math.min(dx > 0 ? (right - ox) / dx : Infinity, dy < 0 ? (top - oy) / dy : Infinity);
  return [clamp(ox + reach * dx, left + 9, right - 9), clamp(oy + reach * dy, top + 9, bottom - 9)];
}

/** How far a point of the screen is from the ray, in pixels. */
function offRay(w, px, py, at) {
  const [ox, oy] = [at.x(0), at.y(0)];
  const [hx, hy] = handle(w, at);
  if (Math.hypot(px - hx, py - hy) < 16) return 0;
  const size = Math.hypot(hx - ox, hy - oy);
  // Close to the origin all rays meet: a drag that begins there is a zoom.
  const along = ((px - ox) * (hx - ox) + (py - oy) * (hy - oy)) / size;
  return along < 24 ? Infinity : Math.abs((px - ox) * (hy - oy) - (py - oy) * (hx - ox)) / size;
}
