"use strict";
// Draws charts; used by the report and by the live page.
globalThis.turnwiseCharts = (() => {
  const HEIGHT = 200;
  const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const css = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const plain = (value) => {
    if (value === 0) return "0";
    if (Math.abs(value) < 1e-3) return value.toExponential(1).replace(".0e", "e");
    if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(3)));
  };
  const forms = {
    plain,
    percent: (value) => `${Number((100 * value).toPrecision(3))}%`,
  };

  const axes = (form, steps, label = "training step") => {
    const common = {
      stroke: () => css("muted"),
      font: FONT,
      grid: { stroke: () => css("line"), width: 1 },
      ticks: { show: false },
    };
    return [
      { ...common, ...steps, grid: { show: false }, size: 24, label,
        labelFont: FONT, labelSize: 14, labelGap: 0 },
      { ...common, size: 52, values: (u, splits) => splits.map((v) => v === null ? "" : form(v)) },
    ];
  };

  const range = ({ bounds, log }) => (u, low, high) => {
    if (low === null || high === null) return [0, 1];
    if (log) return uPlot.rangeLog(low, high, 10, true);
    const found = uPlot.rangeNum(low, high, 0.1, true);
    return bounds ? [Math.max(found[0], bounds[0]), Math.min(found[1], bounds[1])] : found;
  };

  const curve = (data) => {
    const form = forms[data.form];
    const edge = (sign) =>
      data.y.map((y, at) => {
        const error = data.errors[at];
        return error === null || data.log ? null : y + sign * error;
      });
    const hidden = { stroke: "transparent", width: 0, points: { show: false } };
    const levels = Object.entries(data.levels);
    const columns = [data.x, data.y, edge(1), edge(-1)];
    for (const [, level] of levels) columns.push(data.x.map(() => level));
    return {
      columns,
      options: {
        scales: { x: { time: false }, y: { distr: data.log ? 3 : 1, range: range(data) } },
        axes: axes(form, { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5] },
          data.axis),
        bands: [{ series: [2, 3], fill: () => css(`${data.color}-band`) }],
        series: [
          {},
          { stroke: () => css(data.color), width: 1.8, points: { show: data.x.length <= 40, size: 6,
            fill: () => css(data.color) } },
          hidden,
          hidden,
          ...levels.map(() => ({ stroke: () => css("muted"), width: 1, dash: [4, 3],
            points: { show: false } })),
        ],
      },
      tell: (at) => {
        const error = data.errors[at];
        const place = `${data.axis.replace("training ", "")} ${plain(data.x[at])}`;
        return `${place}: ${form(data.y[at])}${error === null ? "" : ` ± ${form(error)}`}`;
      },
      still: levels.map(([name, level]) => `- - ${name} ${form(level)}`).join("   "),
    };
  };

  const bars = (data) => {
    const form = forms[data.form];
    // The last part stands on all others; it is drawn first and the others over it.
    const parts = [...data.parts].reverse();
    const tops = parts.map((part, place) =>
      data.x.map((x, at) => parts.slice(place).reduce((sum, one) => sum + one.heights[at], 0))
    );
    const places = data.x.map((x, at) => at);
    return {
      columns: [places, ...tops],
      options: {
        scales: {
          x: { time: false, range: [-0.6, data.x.length - 0.4] },
          y: { range: (u, low, high) => [0, high > 0 ? uPlot.rangeNum(0, high, 0.05, true)[1] : 1] },
        },
        axes: axes(form, {
          incrs: [1, 2, 5, 10, 20],
          values: (u, splits) => splits.map((at) => Number.isInteger(at) && at in data.x ? data.x[at] : ""),
        }),
        series: [
          {},
          ...parts.map((part) => ({
            width: 0,
            fill: () => `color-mix(in srgb, ${css(part.color)} ${100 * part.opacity}%, ${css("panel")})`,
            paths: uPlot.paths.bars({ size: [0.84, 60] }),
            points: { show: false },
          })),
        ],
      },
      tell: (at) => {
        const told = data.parts.filter((part) => part.heights[at] > 0);
        return `step ${data.x[at]}: ${told.map((part) => `${part.name} ${form(part.heights[at])}`).join(", ")}`;
      },
      still: "",
    };
  };

  const PALETTE = ["eval", "train", "tool", "system", "lost", "muted"];
  const lines = (data) => {
    const form = forms[data.form];
    const steps = [...new Set(data.series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const columns = data.series.map((one) => {
      const known = new Map(one.x.map((x, at) => [x, one.y[at]]));
      return steps.map((x) => (known.has(x) ? known.get(x) : null));
    });
    return {
      columns: [steps, ...columns],
      options: {
        scales: { x: { time: false }, y: { distr: data.log ? 3 : 1, range: range(data) } },
        axes: axes(form, {}, data.axis),
        series: [
          {},
          ...data.series.map((one, at) => ({
            stroke: () => css(PALETTE[at % PALETTE.length]), width: 1.8, spanGaps: true,
            dash: at < PALETTE.length ? [] : [5, 3],
            points: { show: steps.length <= 40, size: 5 },
          })),
        ],
      },
      tell: (at) =>
        `${data.axis} ${plain(steps[at])}: ` +
        data.series.map((one, k) => columns[k][at] === null ? "" : `${one.name} ${form(columns[k][at])}`)
          .filter(Boolean).join(", "),
      still: "",
    };
  };

  const kinds = { bars, curve, lines };
  const draw = (place, data) => {
    const { columns, options, tell, still } = kinds[data.kind](data);
    const readout = document.createElement("p");
    readout.className = "readout";
    readout.textContent = still;
    const plot = new uPlot(
      {
        width: place.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, y: false },
        hooks: {
          setCursor: [
            (u) => {
              const at = u.cursor.idx;
              readout.textContent = at === null || at === undefined ? still : tell(at);
            },
          ],
        },
        ...options,
      },
      columns,
      place
    );
    place.append(readout);
    const resize = new ResizeObserver(() => {
      if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
    });
    resize.observe(place);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const repaint = () => plot.redraw(false, true);
    scheme.addEventListener("change", repaint);
    return () => {
      scheme.removeEventListener("change", repaint);
      resize.disconnect();
      plot.destroy();
      readout.remove();
    };
  };

  const embedded = document.getElementById("chart-data");
  if (embedded) {
    const charts = JSON.parse(embedded.textContent);
    document.querySelectorAll("[data-chart]").forEach((place) => {
      draw(place, charts[Number(place.dataset.chart)]);
    });
  }
  return { draw, PALETTE };
})();
