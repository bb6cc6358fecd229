// Tables that sort: our numbers, the paper's below them.

function startTables(section) {
  if (data.tables.length === 0)
    return section.append(empty("There are no tables yet. This makes one:", "equipoise reproduce table-hv"));
  data.tables.forEach((table, i) =>
    section.append(sortable(table, i === 0 || table.title.startsWith("tab:3: mnist-rotation"))),
  );
}

function sortable(table, open) {
  const body = el("tbody");
  const best = table.columns.map((column, j) => {
    const found = table.rows.map((row) => row.cells[j]?.ours).filter((x) => x !== null && x !== undefined);
    return column.best === "high" ? Math.max(...found) : Math.min(...found);
  });
  const rows = table.rows.map((row) => ({
    row,
    node: el(
      "tr",
      {},
      el("th", { scope: "row" }, row.method),
      ...row.cells.map((cell, j) => number(cell, table.digits, cell?.ours === best[j], table.columns.length < 5)),
    ),
  }));
  let by = null; // the column, and +1 or -1; null is the paper's order

  const heads = ["Method", ...table.columns.map((c) => c.label)].map((text, j) => {
    const sort = () => {
      const first = j > 0 && table.columns[j - 1].best === "high" ? -1 : 1;
      by = by?.column !== j ? { column: j, way: first } : by.way === first ? { column: j, way: -first } : null;
      arrange();
    };
    return el("th", { scope: "col", "aria-sort": "none" }, el("button", { type: "button", onclick: sort }, text));
  });

  function arrange() {
    heads.forEach((head, j) =>
      head.setAttribute("aria-sort", by?.column !== j ? "none" : by.way > 0 ? "ascending" : "descending"),
    );
    const key = ({ row }) => (by.column === 0 ? row.method : (row.cells[by.column - 1]?.ours ?? null));
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === null || y === null) return (x === null) - (y === null); // what is missing comes last either way
      return by.way * (typeof x === "string" ? x.localeCompare(y) : x - y);
    };
    body.replaceChildren(...(by ? [...rows].sort(compare) : rows).map(({ node }) => node));
  }
  arrange();
  return el(
    "details",
    { open: open ? "" : null },
    el("summary", {}, el("h3", {}, table.title), table.summary),
    el("p", { class: "remark" }, table.note),
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title },
      el("table", { "aria-label": table.title }, el("thead", {}, el("tr", {}, ...heads)), body),
    ),
    command(table.command),
  );
}

function number(cell, digits, isBest, wide) {
  if (!cell) return el("td", {}, "–");
  const agreement = cell.agrees === null ? "" : cell.agrees ? "agrees" : "differs";
  const spread = (std) => (wide ? ` ± ${fixed(std, 3)}` : "");
  const text = `${fixed(cell.ours, digits)}${spread(cell.std)}${cell.agrees === null ? "" : cell.agrees ? " ✓" : " ✗"}`;
  const paper = cell.paper === null ? "" : `paper ${fixed(cell.paper, 3)}${spread(cell.paper_std)}`;
  const both = cell.paper === null ? "" : `; the paper has ${cell.paper} ± ${cell.paper_std}`;
  return el(
    "td",
    { class: `${agreement}${isBest ? " best" : ""}`, title: `${show(cell.ours, 5)} ± ${show(cell.std, 3)}${both}` },
    text,
    el("small", {}, paper),
  );
}
