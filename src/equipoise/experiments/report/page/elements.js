// Elements, numbers and the looks of methods. Text reaches the page as text nodes only: nothing here reads HTML.

const data = JSON.parse(document.getElementById("data").textContent);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "colour")
      node.style.setProperty("--c", value); // the policy forbids style attributes
    else if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const sum = (values) => values.reduce((a, b) => a + b, 0);
const range = (n) => Array.from({ length: n }, (_, i) => i);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** A number for people: as many digits as tell it apart, no more. */
function show(x, digits = 4) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? x.toExponential(2) : String(Number(x.toPrecision(digits)));
}
const fixed = (x, digits) => (x === null || !Number.isFinite(x) ? "–" : x.toFixed(digits));

// Okabe and Ito's colours for what has none of its own. Methods differ in shape and dashes too, not in colour alone.
const SPARE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#5D3A5A"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const order = Object.keys(data.colours);
function looks(name) {
  if (!order.includes(name)) order.push(name);
  const index = order.indexOf(name);
  return {
    colour: Object.hasOwn(data.colours, name) ? data.colours[name] : SPARE[index % SPARE.length],
    shape: name === "equipoise" ? 7 : index % 7, // the default is the star
    dash: DASHES[index % 4],
  };
}

/** The outline of a mark of radius r around (x, y). */
function shape(kind, x, y, r) {
  const polygon = (corners, turn, size, inner = size) =>
    `M${range(corners)
      .map((k) => [k % 2 ? inner * r : size * r, turn + (2 * Math.PI * k) / corners])
      .map(([far, a]) => `${(x + far * Math.sin(a)).toFixed(1)} ${(y - far * Math.cos(a)).toFixed(1)}`)
      .join("L")}Z`;
  return [
    () => polygon(24, 0, 1),
    () => polygon(4, Math.PI / 4, 1.25),
    () => polygon(3, 0, 1.35),
    () => polygon(4, 0, 1.3),
    () => polygon(3, Math.PI, 1.35),
    () => polygon(6, 0, 1.15),
    () => polygon(5, 0, 1.2),
    () => polygon(10, 0, 1.5, 0.65),
  ][kind]();
}

function mark(name, x, y, r, kind = "") {
  const { colour, shape: form } = looks(name);
  return svg("path", { class: `series mark ${kind}`, colour, d: shape(form, x, y, r) });
}
function swatch(name) {
  return svg("svg", { class: "swatch", viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(name, 0, 0, 6));
}

/** Buttons that show and hide methods; `shown` is a set of names that they change. */
function legend(names, shown, changed) {
  const items = names.map((name) => {
    const toggle = (event) => {
      shown.has(name) ? shown.delete(name) : shown.add(name);
      event.currentTarget.setAttribute("aria-pressed", shown.has(name));
      changed();
    };
    return el(
      "li",
      {},
      el("button", { type: "button", "aria-pressed": String(shown.has(name)), onclick: toggle }, swatch(name), name),
    );
  });
  return el("ul", { class: "legend", "aria-label": "Methods shown" }, ...items);
}

/** A labelled choice; options are texts, or groups of them. */
function choice(id, text, options, changed) {
  const groups = [...new Set(options.map((option) => option.group ?? ""))];
  const entry = (option, index) => el("option", { value: index }, option.title ?? option);
  const entries = groups.flatMap((group) => {
    const own = options.map((o, i) => ((o.group ?? "") === group ? entry(o, i) : null)).filter(Boolean);
    return group === "" ? own : [el("optgroup", { label: group }, ...own)];
  });
  const select = el("select", { id, onchange: () => changed(Number(select.value)) }, ...entries);
  return el("label", { for: id }, text, select);
}

/** The command that made a picture, and a button that copies it. */
function command(text) {
  const copy = async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it to copy"; // a page from a file may not be allowed to
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  return el("div", { class: "command" }, el("code", {}, text), el("button", { type: "button", onclick: copy }, "Copy"));
}

/** What stands in the place of a section that has nothing to show. */
function empty(text, words) {
  return el("div", { class: "empty" }, el("p", {}, text), command(words));
}
