// Draws the curves of the page `overview` with uPlot. If they were not read for lack of time, asks for them.
"use strict";
(() => {
  const HEIGHT = 130, MARK = 3.5;
  let charts = [];
  let redraw = () => { /* nothing is drawn yet */ };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isDark = () => {
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const short = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 1e6 ? value.toExponential(2).replace(/\.?0+e/, "e") : Number(value.toPrecision(3)).toString());
  const finite = (value) => (typeof value === "number" ? value : null);
  const make = (tag, parent, text = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    parent.append(element);
    return element;
  };
  const decades = (low, high) => {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const by = Math.max(1, Math.ceil((last - first) / 4));
    return Array.from({ length: Math.floor((last - first) / by) + 1 }, (_, index) => Number(`1e${first + index * by}`));
  };

  const chartOf = (curve, found, bad, holder, model) => {
    const { columns, axis, first_bad: firstBad } = found;
    const xs = columns.map((column) => column.first);
    const positive = curve.values.map(finite).filter((value) => value !== null && value > 0);
    const isLog = curve.scale === "log" && positive.length > 0;
    // A logarithmic scale has no 0, so zeros are drawn at the foot, a decade below the lowest value.
    const foot = isLog ? 10 ** (Math.floor(Math.log10(Math.min(...positive))) - 1) : 0;
    const hasZero = isLog && curve.values.includes(0);
    const values = curve.values.map(finite).map((value) => (isLog && value === 0 ? foot : value));
    const text = (value) => (value === null ? "–" : isLog && value <= foot ? "0" : curve.scale === "share" ? `${short(100 * value)} %` : short(value));
    const figure = make("figure", holder);
    const caption = make("figcaption", figure, `${curve.title} `);
    const source = make("span", caption, curve.source);
    source.className = "quiet";
    const plot = make("div", figure);
    plot.className = "plot";
    plot.setAttribute("role", "img");
    const known = values.filter((value) => value !== null);
    const from = (column) => {
      const { first, last } = columns[column];
      return first === last ? `${axis} ${first.toLocaleString("en")}` : `${axis}s ${first.toLocaleString("en")} to ${last.toLocaleString("en")}`;
    };
    plot.setAttribute("aria-label", `${curve.title}: ${known.length ? `from ${text(known[0])} to ${text(known[known.length - 1])}` : "no finite value"}${curve.first_bad === null ? "" : `, bad from ${from(curve.first_bad)} on`}`);
    const marks = (chart) => {
      const { ctx, bbox } = chart;
      const ratio = devicePixelRatio || 1;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = bad;
      ctx.lineWidth = 1.3 * ratio;
      const size = MARK * ratio, y = bbox.top - size - ratio;
      ctx.beginPath();
      curve.values.forEach((value, index) => {
        if (value === null || typeof value === "number") return;
        const x = chart.valToPos(xs[index], "x", true);
        if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return;
        ctx.moveTo(x - size, y - size); ctx.lineTo(x + size, y + size);
        ctx.moveTo(x - size, y + size); ctx.lineTo(x + size, y - size);
      });
      ctx.stroke();
      if (firstBad !== null) {
        const x = chart.valToPos(xs[firstBad], "x", true);
        ctx.setLineDash([4 * ratio, 3 * ratio]);
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
        ctx.setLineDash([]);
        const isLeft = x > bbox.left + bbox.width * 0.55;
        ctx.font = `${11 * ratio}px ${colour("--sans")}`;
        ctx.textAlign = isLeft ? "right" : "left";
        const label = `bad from ${axis} ${columns[firstBad].first.toLocaleString("en")} on`, long = ctx.measureText(label).width;
        const room = isLeft ? x - bbox.left : bbox.left + bbox.width - x;
        const at = x + (isLeft ? -4 : 4) * ratio + (isLeft ? 1 : -1) * Math.max(0, long + 4 * ratio - room);
        ctx.fillStyle = colour("--card");
        ctx.globalAlpha = 0.8;
        ctx.fillRect(isLeft ? at - long : at, bbox.top + 2 * ratio, long, 14 * ratio);
        ctx.globalAlpha = 1;
        ctx.fillStyle = bad;
        ctx.fillText(label, at, bbox.top + 13 * ratio);
      }
      ctx.restore();
    };
    const line = { stroke: colour("--line"), width: 1 };
    const axisStyle = { stroke: colour("--quiet"), grid: line, ticks: line, font: `11px ${colour("--sans")}` };
    const range = isLog ? (_, low, high) => [hasZero ? foot : 10 ** Math.floor(Math.log10(low ?? 1)), 10 ** Math.ceil(Math.log10((high ?? 1) * 1.01))]
      : curve.scale === "share" ? (_, __, high) => [0, high > 0 ? Math.min(1, high * 1.15) : 1] : (_, low, high) => {
        const [least, most] = [low ?? 0, high ?? 1], room = 0.08 * (most - least || Math.abs(most) || 1);
        return [least - room, most + room];
      };
    const open = (query) => { if (model) location.assign(`${model}${query}`); };
    return new uPlot({
      width: Math.max(200, plot.clientWidth), height: HEIGHT, padding: [2 * MARK + 5, 8, 0, 0],
      cursor: { sync: { key: "training" }, drag: { setScale: false, x: true, y: false } },
      scales: { x: { time: false, ...(xs.length === 1 ? { range: [xs[0] - 1, xs[0] + 1] } : {}) }, y: { ...(isLog ? { distr: 3 } : {}), range } },
      series: [
        { label: axis, value: (_, value) => (value === null ? "–" : value.toLocaleString("en")) },
        { label: curve.scale === "share" ? "share" : "value", stroke: colour("--link"), width: 1.6, spanGaps: false, points: { show: (_, __, first, last) => last - first < 60, size: 4 }, value: (_, __, ___, index) => (index === null ? "–" : typeof curve.values[index] === "string" ? curve.values[index] : text(values[index])) },
      ],
      axes: [
        { ...axisStyle, size: 30, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en") : "")) },
        { ...axisStyle, size: 58, ...(isLog ? { splits: (_, __, low, high) => decades(low, high) } : {}), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : text(tick))) },
      ],
      // The legend has numbers only for a place under the pointer.
      hooks: { draw: [marks], setCursor: [(chart) => chart.root.classList.toggle("is-idle", (chart.cursor.idx ?? null) === null)], setSelect: [(chart) => {
        const { left, width } = chart.select;
        if (width < 4) return;
        const [first, last] = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
        open(`&first=${Math.max(0, Math.floor(first))}&last=${Math.max(0, Math.ceil(last))}`);
      }], ready: [(chart) => {
        chart.root.classList.add("is-idle");
        let start = null;
        chart.over.addEventListener("mousedown", (event) => { start = event.clientX; });
        chart.over.addEventListener("click", (event) => { if (start === null || Math.abs(event.clientX - start) < 4) open(""); });
      }] },
    }, [xs, values], plot);
  };

  const draw = (card) => {
    const { curves: found, colours } = JSON.parse(card.dataset.curves);
    const plots = card.querySelector(".plots");
    const link = card.querySelector("a[href*='model?']");
    redraw = () => {
      if (!plots.isConnected) return;
      for (const chart of charts) chart.destroy();
      plots.replaceChildren();
      plots.hidden = false;
      card.querySelector(".still").hidden = true;
      const { bad } = colours[isDark() ? "dark" : "light"];
      charts = found.curves.map((curve) => chartOf(curve, found, bad, plots, link ? link.getAttribute("href") : null));
    };
    redraw();
  };

  const start = () => {
    const card = document.getElementById("training");
    if (card && card.dataset.curves) draw(card);
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
