// Draws the page `history`: lines with uPlot, and a mark for each stretch with bad tensors.
"use strict";
(() => {
  const SHARES = { nan: "NaN", neg_inf: "-Inf", pos_inf: "+Inf", zero: "zero" };
  const MAGNITUDES = { max_abs: "max |finite|", mean_abs: "|mean|", stddev: "stddev" };
  const MARK = 7;
  const DASHES = [[], [7, 3], [2, 3], [7, 3, 2, 3]];

  let charts = [];
  let redraw = () => { /* nothing is drawn yet */ };
  const colour = (element, name) => getComputedStyle(element).getPropertyValue(name).trim();
  const short = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(3)).toString());
  const percent = (value) => (value === null || value === undefined ? "–" : `${short(100 * value)} %`);
  const faded = (text) => `color-mix(in srgb, ${text} 25%, transparent)`;

  // A logarithmic scale has no 0, so zeros are drawn at the foot, a decade below the lowest value.
  const footOf = (measures) => {
    let least = Infinity;
    for (const { least: low, greatest: high } of measures) {
      for (const value of [...low, ...high]) if (value > 0 && value < least) least = value;
    }
    return 10 ** (Math.floor(Math.log10(Number.isFinite(least) ? least : 1)) - 1);
  };
  // Draw grid lines for at most seven decades.
  const decades = (low, high) => {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const by = Math.max(1, Math.ceil((last - first) / 6));
    return Array.from({ length: Math.floor((last - first) / by) + 1 }, (_, index) => Number(`1e${first + index * by}`));
  };
  const number = (value) => (typeof value === "number" ? value : null);

  const draw = (card, page) => {
    const { series } = page;
    const xs = series.buckets.map((bucket) => (series.axis === "step" ? bucket.first_step : bucket.first_event_index));
    const goTo = (index) => {
      const bucket = series.buckets[index];
      if (!bucket) return;
      const event = bucket.first_bad_event_index ?? bucket.first_event_index;
      location.assign(`${card.dataset.tensor}&event=${event}`);
    };
    const zoom = (chart) => {
      const { left, width } = chart.select;
      if (width < 4) return;
      const ends = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
      const part = `first_${series.axis}=${Math.max(0, Math.floor(ends[0]))}&last_${series.axis}=${Math.ceil(ends[1])}`;
      location.assign(`${card.dataset.here}&${part}`);
    };
    const marks = (chart) => {
      const { ctx, bbox } = chart;
      const ratio = devicePixelRatio;
      const at = page.event_index === null ? -1 : series.buckets.findIndex(
        (bucket) => bucket.first_event_index <= page.event_index && page.event_index <= bucket.last_event_index);
      ctx.save();
      if (at >= 0) {
        const x = chart.valToPos(xs[at], "x", true);
        ctx.strokeStyle = colour(card, "--lit-line");
        ctx.lineWidth = 2 * ratio;
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      }
      ctx.strokeStyle = colour(card, "--bad");
      ctx.lineWidth = 1.5 * ratio;
      const size = MARK * ratio / 2, y = bbox.top - size - 2 * ratio;
      ctx.beginPath();
      series.buckets.forEach((bucket, index) => {
        if (!bucket.num_bad) return;
        const x = chart.valToPos(xs[index], "x", true);
        ctx.moveTo(x - size, y - size); ctx.lineTo(x + size, y + size);
        ctx.moveTo(x - size, y + size); ctx.lineTo(x + size, y - size);
      });
      ctx.stroke();
      ctx.restore();
    };

    const chartOf = (figure, names, isLog) => {
      const known = Object.keys(names).filter((name) => series[name].least.some((value) => value !== null));
      const foot = footOf(known.map((name) => series[name]));
      const hasZero = known.some((name) => series[name].least.includes(0));
      const shown = (values) => values.map(number).map((value) => (isLog && value === 0 ? foot : value));
      const text = (value) => (isLog && value !== null && value <= foot ? "0" : isLog ? short(value) : percent(value));
      const data = [xs], lines = [{ label: series.axis, value: (_, value) => value === null ? "–" : value.toLocaleString("en") }], bands = [];
      known.forEach((name, index) => {
        const stroke = colour(figure, `--c${Object.keys(names).indexOf(name)}`);
        const dash = DASHES[index];
        const isBand = series[name].least.some((value, at) => value !== series[name].greatest[at]);
        const points = { show: (_, __, from, to) => to - from < 60, size: 5 };
        data.push(shown(series[name].greatest));
        lines.push({ label: names[name], stroke, dash, width: 1.5, points, value: (_, value) => text(value) });
        if (isBand) {
          data.push(shown(series[name].least));
          lines.push({ label: `${names[name]}, least`, stroke, dash, width: 0.75, points, value: (_, value) => text(value) });
          bands.push({ series: [data.length - 2, data.length - 1], fill: faded(stroke) });
        }
      });
      const axis = { stroke: colour(card, "--quiet"), grid: { stroke: colour(card, "--line"), width: 1 }, ticks: { stroke: colour(card, "--line"), width: 1 }, font: `11px ${colour(document.body, "--sans")}` };
      const plot = figure.querySelector(".plot");
      const single = xs.length === 1 ? { range: [xs[0] - 1, xs[0] + 1] } : {};
      return new uPlot({
        width: Math.max(200, plot.clientWidth), height: known.length ? 200 : 90, padding: [MARK + 8, 8, 0, 0], bands,
        cursor: { sync: { key: "history" }, drag: { setScale: false, x: true, y: false } },
        scales: { x: { time: false, ...single }, y: isLog ? { distr: 3, range: (_, low, high) => [hasZero ? foot : 10 ** Math.floor(Math.log10(low ?? 1)), 10 ** Math.ceil(Math.log10((high ?? 1) * 1.01))] } : { range: (_, __, high) => [0, high > 0 ? Math.min(1, high * 1.1) : 1] } },
        series: lines,
        axes: [{ ...axis, size: 34, values: (_, ticks) => ticks.map((tick) => Number.isInteger(tick) ? tick.toLocaleString("en") : "") }, { ...axis, size: 62, ...(isLog ? { splits: (_, __, low, high) => decades(low, high) } : {}), show: known.length > 0, values: (_, ticks) => ticks.map((tick) => tick === null ? "" : text(tick)) }],
        hooks: { draw: [marks], setSelect: [zoom], ready: [(chart) => {
          let from = null;
          chart.over.addEventListener("mousedown", (event) => { from = event.clientX; });
          chart.over.addEventListener("click", (event) => { if (from === null || Math.abs(event.clientX - from) < 4) goTo(chart.cursor.idx); });
        }] },
      }, data, plot);
    };

    redraw = () => {
      for (const chart of charts) chart.destroy();
      charts = [...card.querySelectorAll("[data-chart]")].map((figure) => {
        const name = figure.dataset.chart;
        return chartOf(figure, name === "shares" ? SHARES : name === "magnitudes" ? MAGNITUDES : {}, name === "magnitudes");
      });
    };
    redraw();
    card.classList.add("is-drawn");
    card.querySelector(".hint").hidden = false;
    for (const figure of card.querySelectorAll(".plot")) {
      figure.setAttribute("role", "img");
      figure.setAttribute("aria-label", `${figure.closest("figure").querySelector("figcaption").textContent}. ${page.summary}`);
    }
  };

  const start = async () => {
    const card = document.querySelector(".history[data-here]");
    if (!card) return;
    const answer = await fetch(`history.json${location.search}`);
    if (answer.ok && card.isConnected) draw(card, await answer.json());
  };
  new MutationObserver(() => redraw()).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    redraw();
  });
  document.addEventListener("content-changed", start);
  start();
})();
