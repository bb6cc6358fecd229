// A picture with two axes: ticks, hover, zoom. What is in it is described anew whenever it is drawn.

const MARGIN = { top: 34, right: 12, bottom: 42 };

/** Round numbers between two values; on a logarithmic axis 1, 2 and 5 times powers of ten. */
function ticks(low, high, log, many) {
  if (log && high / low > 6) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const digit of [1, 2, 5]) found.push(digit * 10 ** power);
    const inside = found.filter((t) => t >= low * 0.999 && t <= high * 1.001);
    return inside.length > many + 2
      ? inside.filter((t) => Number.isInteger(Math.round(1e6 * Math.log10(t)) / 1e6))
      : inside;
  }
  const rough = (high - low) / many;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return range(Math.floor(high / step + 1e-9) - first + 1).map((k) => Number(((first + k) * step).toPrecision(10)));
}

function scale(axis, from, to) {
  const bend = axis.log ? Math.log10 : (v) => v;
  const [low, high] = [bend(axis.min), bend(axis.max)];
  const at = (value) => from + ((bend(value) - low) / (high - low)) * (to - from);
  const value = (pixel) => {
    const v = low + ((pixel - from) / (to - from)) * (high - low);
    return axis.log ? 10 ** v : v;
  };
  return { at, value };
}

/** The extent of some numbers with a margin; every axis that follows the data has one. */
function extent(values, log = false, margin = 0.05) {
  const found = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  if (found.length === 0) return log ? { min: 0.1, max: 1 } : { min: 0, max: 1 };
  let [low, high] = [Math.min(...found), Math.max(...found)];
  if (log) return { min: low * (low / high) ** margin * 0.97, max: high * (high / low) ** margin * 1.03 };
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  return { min: low - margin * (high - low), max: high + margin * (high - low) };
}

/**
 * Draws into a figure. `describe(width)` returns
 *   x, y      axes: {label, min, max, log, ticks: [[value, text], …] where they are not numbers, left: margin}
 *   height    in pixels
 *   label     what the picture shows, for those who cannot see it
 *   draw      (at) => elements; at.x and at.y turn values into pixels
 *   points    [{x, y, text: [lines]}] that answer to the pointer
 *   grab      (px, py, at) => a function (x, y) that is called while dragging, or null to let a zoom begin
 *   click     (px, py, at) => called for a click
 */
class Plot {
  constructor(describe) {
    this.describe = describe;
    this.zoomed = null;
    this.canvas = svg("svg", { class: "plot", role: "img" });
    this.tip = el("div", { class: "tip", hidden: "" });
    const tool = (text, name, action) =>
      el("button", { type: "button", "aria-label": name, title: name, onclick: action }, text);
    this.tools = el(
      "div",
      { class: "tools" },
      tool("+", "Zoom in", () => this.zoomBy(0.6)),
      tool("−", "Zoom out", () => this.zoomBy(1 / 0.6)),
      tool("⟲", "Reset the zoom", () => this.zoomTo(null)),
    );
    this.node = el("div", { class: "drawn" }, this.canvas, this.tools, this.tip);
    this.node.style.position = "relative";
    this.listen();
    new ResizeObserver(() => this.node.clientWidth !== this.width && this.draw()).observe(this.node);
  }

  draw() {
    this.width = this.node.clientWidth;
    if (this.width === 0) return;
    const spec = (this.spec = this.describe(this.width));
    const [x, y] = ["x", "y"].map((k) => ({ ...spec[k], ...(this.zoomed ? this.zoomed[k] : {}) }));
    this.axes = { x, y };
    const [left, right] = [y.left ?? 52, this.width - MARGIN.right];
    const [top, bottom] = [MARGIN.top, spec.height - MARGIN.bottom];
    this.area = { left, right, top, bottom };
    this.scales = { x: scale(x, left, right), y: scale(y, bottom, top) };
    const at = (this.at = { x: this.scales.x.at, y: this.scales.y.at, area: this.area });
    this.canvas.setAttribute("viewBox", `0 0 ${this.width} ${spec.height}`);
    this.canvas.setAttribute("height", spec.height);
    this.canvas.setAttribute("aria-label", spec.label);
    const id = (this.clip ??= `clip${Plot.count++}`);
    const clip = svg("clipPath", { id }, svg("rect", { x: left, y: top, width: right - left, height: bottom - top }));
    const layer = svg("g", { "clip-path": `url(#${id})` }, ...spec.draw(at));
    this.canvas.replaceChildren(clip, ...this.frame(x, y), layer);
    this.tip.hidden = true;
  }

  frame(x, y) {
    const { left, right, top, bottom } = this.area;
    const of = (axis, many) => axis.ticks ?? ticks(axis.min, axis.max, axis.log, many).map((t) => [t, show(t)]);
    const parts = [];
    for (const [value, text] of of(x, Math.max(2, (right - left) / 80))) {
      const px = this.at.x(value);
      if (px < left - 1 || px > right + 1) continue;
      parts.push(svg("line", { class: "grid", x1: px, x2: px, y1: top, y2: bottom }));
      parts.push(svg("text", { x: px, y: bottom + 16, "text-anchor": "middle" }, text));
    }
    for (const [value, text] of of(y, Math.max(2, (bottom - top) / 45))) {
      const py = this.at.y(value);
      if (py < top - 1 || py > bottom + 1) continue;
      parts.push(svg("line", { class: "grid", x1: left, x2: right, y1: py, y2: py }));
      parts.push(svg("text", { class: y.ticks ? "name" : "", x: left - 6, y: py + 4, "text-anchor": "end" }, text));
    }
    parts.push(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    parts.push(svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom }));
    parts.push(svg("text", { x: right, y: bottom + 34, "text-anchor": "end" }, x.label ?? ""));
    // Above the axis rather than along it: a turned text is hard to read, and costs width on a phone.
    parts.push(svg("text", { x: 4, y: 14 }, y.label ?? ""));
    return parts;
  }

  // Zoom -------------------------------------------------------------------------------------
  zoomTo(zoomed) {
    this.zoomed = zoomed;
    this.draw();
  }

  /** Around a point in pixels, or the middle. */
  zoomBy(factor, px, py) {
    const { left, right, top, bottom } = this.area;
    const [cx, cy] = [px ?? (left + right) / 2, py ?? (top + bottom) / 2];
    this.zoomToBox(
      cx + (left - cx) * factor,
      cy + (bottom - cy) * factor,
      cx + (right - cx) * factor,
      cy + (top - cy) * factor,
    );
  }

  zoomToBox(x1, y1, x2, y2) {
    const { x, y } = this.scales;
    const along = (s, a, b) => ({ min: s.value(a), max: s.value(b) });
    // Named rows stay as they are: there is nothing between two methods.
    const vertical = this.axes.y.ticks ? {} : along(y, Math.max(y1, y2), Math.min(y1, y2));
    this.zoomTo({ x: along(x, Math.min(x1, x2), Math.max(x1, x2)), y: vertical });
  }

  // The pointer ------------------------------------------------------------------------------
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  listen() {
    const canvas = this.canvas;
    let held = null; // what the button went down on
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.spec) return;
      const [px, py] = this.place(event);
      held = { px, py, moved: false, drag: this.spec.grab?.(px, py, this.at) ?? null };
      if (held.drag) event.preventDefault();
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [px, py] = this.place(event);
      if (!held) return this.hover(px, py);
      held.moved ||= Math.hypot(px - held.px, py - held.py) > 4;
      if (!held.moved) return;
      this.tip.hidden = true;
      if (held.drag) held.drag(this.scales.x.value(px), this.scales.y.value(py));
      else if (event.pointerType === "mouse") this.band(held, px, py);
    });
    canvas.addEventListener("pointerup", (event) => {
      const [px, py] = this.place(event);
      const was = held;
      held = null;
      this.box?.remove();
      this.box = null;
      if (!was) return;
      if (!was.moved) this.spec.click?.(px, py, this.at);
      else if (!was.drag && event.pointerType === "mouse" && Math.min(Math.abs(px - was.px), Math.abs(py - was.py)) > 8)
        this.zoomToBox(was.px, was.py, px, py);
    });
    canvas.addEventListener("pointercancel", () => (held = null));
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("dblclick", () => this.zoomTo(null));
    // Only with Ctrl, which a pinch on a touchpad sends too: the plain wheel scrolls the page.
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoomBy(event.deltaY > 0 ? 1.2 : 1 / 1.2, ...this.place(event));
      },
      { passive: false },
    );
  }

  band(held, px, py) {
    this.box ??= this.canvas.appendChild(svg("rect", { class: "box" }));
    const sides = {
      x: Math.min(px, held.px),
      y: Math.min(py, held.py),
      width: Math.abs(px - held.px),
      height: Math.abs(py - held.py),
    };
    for (const [name, value] of Object.entries(sides)) this.box.setAttribute(name, value);
  }

  hover(px, py) {
    if (!this.spec) return;
    let [best, distance] = [null, 24];
    for (const point of this.spec.points ?? []) {
      const away = Math.hypot(this.at.x(point.x) - px, this.at.y(point.y) - py);
      if (away < distance) [best, distance] = [point, away];
    }
    this.tip.hidden = best === null;
    if (best === null) return;
    this.tip.replaceChildren(...best.text.map((line) => el("div", {}, line)));
    const x = clamp(this.at.x(best.x) + 12, 0, Math.max(0, this.width - this.tip.offsetWidth - 2));
    this.tip.style.left = `${x}px`;
    this.tip.style.top = `${this.at.y(best.y) + 12}px`;
  }
}
Plot.count = 0;

/** The path through points in pixels; a gap where a value is missing. */
function path(xs, ys, at) {
  let pen = "M";
  return xs
    .map((x, i) => {
      if (ys[i] === null || ys[i] === undefined) {
        pen = "M";
        return "";
      }
      const step = `${pen}${at.x(x).toFixed(1)} ${at.y(ys[i]).toFixed(1)}`;
      pen = "L";
      return step;
    })
    .join("");
}
