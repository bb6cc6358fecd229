// Line charts.

/** A described line chart; series are {name, xs, ys, std}. */
function lines(width, series, x, y, label) {
  const values = series.flatMap((s) => s.ys);
  return {
    x: {
      ...x,
      ...extent(
        series.flatMap((s) => s.xs),
        false,
        0.02,
      ),
    },
    y: { ...y, ...extent(values, y.log) },
    height: Math.min(360, 0.75 * width + 60),
    label,
    draw: (at) =>
      series.flatMap(({ name, xs, ys, std }) => {
        const { colour, dash } = looks(name);
        const parts = [svg("path", { class: "series curve", colour, "stroke-dasharray": dash, d: path(xs, ys, at) })];
        if (std) {
          const floor = y.log ? 1e-6 : -Infinity;
          const up = path(
            xs,
            ys.map((v, i) => v + std[i]),
            at,
          );
          const down = path([...xs].reverse(), ys.map((v, i) => Math.max(v - std[i], floor)).reverse(), at);
          parts.unshift(svg("path", { class: "series band", colour, d: `${up}${down.replace("M", "L")}Z` }));
        }
        return parts;
      }),
    points: series.flatMap(({ name, xs, ys }) =>
      xs
        .map((v, i) => ({ x: v, y: ys[i], text: [name, `${x.label} ${v}: ${show(ys[i])}`] }))
        .filter(({ y: v }) => v !== null),
    ),
  };
}
