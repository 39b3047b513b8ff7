// Handles the pointer and the keyboard on charts that the server drew: shows the numbers of a place, opens the link of a
// place, and zooms. A chart has rows and columns. The script knows only the attributes of charts and rows.
//
// The chart, an element with an id:
//   data-chart            marks the chart
//   data-columns          the texts of the columns; in all lists, | separates the items
//   data-places           the places of the columns, as shares of a row's width; without it, the columns are cells of equal width
//   data-ranges           the first and last position of each column, such as 4-9
//   data-queries          the text of each column that replaces {column} in links; if the text is empty, such a link does nothing
//   data-zoom, data-whole the address of a range, with {first} and {last}; the address of the whole range
//   data-synced           shows the numbers of all rows at a column, instead of the numbers of one row
// A row, as wide as its columns:
//   data-row              the name of the row within the chart
//   data-label, data-note the name of the row for readers, and more text about the row
//   data-start            the column at which the keyboard begins
//   <metadata data-name data-values data-kind>   the numbers of the row in each column; empty numbers are not shown
// Chart or row: data-href, data-href-shift   the address that a click opens, and the address for a click with Shift
"use strict";
(() => {
  const LEAST_DRAG = 5, GAP = 10, LEAST_CELL = 5;
  const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  const make = (name, text, ...classes) => {
    const element = document.createElement(name);
    element.textContent = text;
    element.classList.add(...classes.filter(Boolean));
    return element;
  };
  const tip = make("div", "", "chart-tip");
  tip.setAttribute("role", "status");
  tip.hidden = true;
  let shown = null; // the place whose numbers are shown: a chart, a row and a column
  let cursor = null; // the place that the keyboard chose: the chart's id, the row's name and the column; a live page keeps this place
  let drag = null;

  const list = (element, name) => (element.dataset[name] ? element.dataset[name].split("|") : []);
  const chartOf = (target) => (target.closest ? target.closest("[data-chart]") : null);
  const rowsOf = (chart) => [...chart.querySelectorAll("[data-row]")].filter((row) => row.checkVisibility());
  const numColumns = (chart) => list(chart, "columns").length;
  const isFocused = (chart) => document.activeElement === chart;

  // ---- geometry

  const middles = (chart) => {
    const places = list(chart, "places").map(Number);
    return places.length ? places : list(chart, "columns").map((_, index, all) => (index + 0.5) / all.length);
  };
  const columnAt = (chart, row, x) => {
    const box = row.getBoundingClientRect();
    const share = (x - box.left) / box.width;
    return middles(chart).reduce((best, place, index, all) => (Math.abs(place - share) < Math.abs(all[best] - share) ? index : best), 0);
  };
  // The left and right end of a column on the screen. A column that is a point has no width.
  const endsOf = (chart, row, column) => {
    const box = row.getBoundingClientRect();
    const middle = box.left + middles(chart)[column] * box.width;
    const width = chart.dataset.places ? 0 : box.width / numColumns(chart);
    return [middle - width / 2, middle + width / 2];
  };
  const placeAt = (chart, event) => {
    const row = rowsOf(chart).find((each) => {
      const box = each.getBoundingClientRect();
      return box.left <= event.clientX && event.clientX <= box.right && box.top <= event.clientY && event.clientY < box.bottom;
    });
    return row ? { chart, row, column: columnAt(chart, row, event.clientX) } : null;
  };

  // ---- the numbers

  const cover = (name, [left, right], top, bottom, chart) => {
    const mark = make("div", "", name);
    Object.assign(mark.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    chart.append(mark);
  };
  const clear = () => {
    for (const mark of document.querySelectorAll(".chart-cursor, .chart-drag")) mark.remove();
    for (const line of document.querySelectorAll(".is-lit")) line.classList.remove("is-lit");
  };
  const hide = () => {
    shown = null;
    tip.hidden = true;
    clear();
  };
  const mark = (chart, row, column) => {
    const { top, bottom } = row.getBoundingClientRect();
    let [left, right] = endsOf(chart, row, column);
    const isLine = left === right, room = Math.max(0, (isLine ? 1 : LEAST_CELL) - (right - left)) / 2;
    cover("chart-cursor", [left - room, right + room], top, bottom, chart);
    chart.lastElementChild.classList.toggle("is-line", isLine);
    row.parentElement.classList.add("is-lit");
  };
  const show = (place) => {
    hide();
    if (!place) return;
    shown = place;
    const { chart, row, column } = place;
    const text = list(chart, "columns")[column], isSynced = "synced" in chart.dataset;
    const rows = isSynced ? rowsOf(chart) : [row];
    for (const each of rows) mark(chart, each, column);
    const { label, note } = row.dataset;
    tip.replaceChildren(make("b", isSynced || !label ? text : label));
    if (!isSynced && label) tip.append(make("div", note ? `${text} · ${note}` : text, "quiet"));
    const table = make("table", "");
    for (const numbers of rows.flatMap((each) => [...each.querySelectorAll("metadata")])) {
      const value = numbers.dataset.values.split("|")[column];
      if (!value) continue;
      const line = make("tr", "", numbers.dataset.kind);
      line.append(make("td", numbers.dataset.name), make("td", value, "num"));
      table.append(line);
    }
    tip.append(table);
    chart.append(tip);
    tip.hidden = false;
    const [left, right] = endsOf(chart, row, column), box = row.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = tip;
    const x = right + GAP + width < innerWidth ? right + GAP : left - GAP - width;
    const y = box.bottom + GAP + height < innerHeight ? box.bottom + GAP : box.top - GAP - height;
    tip.style.left = `${Math.max(0, Math.min(x, innerWidth - width))}px`;
    tip.style.top = `${Math.max(0, y)}px`;
  };

  // ---- the pointer

  const open = ({ chart, row, column }, isShift) => {
    const shift = isShift && (row.dataset.hrefShift ?? chart.dataset.hrefShift);
    const address = shift || (row.dataset.href ?? chart.dataset.href);
    const query = list(chart, "queries")[column];
    if (!address || (address.includes("{column}") && !query)) return;
    // Click a link, because viewer.js also follows links in a page that has no address of its own, as in a notebook.
    const link = make("a", "");
    link.setAttribute("href", address.replace("{column}", query));
    chart.append(link);
    link.click();
    link.remove();
  };
  const goTo = (chart, first, last) => location.assign(chart.dataset.zoom.replace("{first}", Math.max(0, first)).replace("{last}", Math.max(0, last)));
  const rangeOf = (chart, column) => list(chart, "ranges")[column].split("-").map(Number);

  const showDrag = () => {
    const { chart, row, from, to } = drag;
    hide();
    const box = row.getBoundingClientRect();
    const beside = rowsOf(chart).map((each) => each.getBoundingClientRect()).filter((each) => Math.abs(each.left - box.left) < 1);
    const ends = [...endsOf(chart, row, from), ...endsOf(chart, row, to)];
    cover("chart-drag", [Math.min(...ends), Math.max(...ends)], Math.min(...beside.map((each) => each.top)), Math.max(...beside.map((each) => each.bottom)), chart);
  };
  document.addEventListener("pointermove", (event) => {
    if (drag) {
      drag.to = columnAt(drag.chart, drag.row, event.clientX);
      if (Math.abs(event.clientX - drag.x) >= LEAST_DRAG) showDrag();
      return;
    }
    const chart = event.pointerType === "touch" ? null : chartOf(event.target);
    const place = chart && placeAt(chart, event);
    if (place) show(place);
    else if (shown && event.pointerType !== "touch" && !isFocused(shown.chart)) hide();
  });
  document.addEventListener("pointerdown", (event) => {
    const chart = event.button === 0 && event.pointerType !== "touch" ? chartOf(event.target) : null;
    const place = chart && placeAt(chart, event);
    if (place && chart.dataset.zoom) drag = { ...place, from: place.column, to: place.column, x: event.clientX };
  });
  document.addEventListener("pointerup", (event) => {
    const ended = drag;
    drag = null;
    if (!ended || Math.abs(event.clientX - ended.x) < LEAST_DRAG) return;
    const [low, high] = [Math.min(ended.from, ended.to), Math.max(ended.from, ended.to)];
    clear();
    if (low !== high) goTo(ended.chart, rangeOf(ended.chart, low)[0], rangeOf(ended.chart, high)[1]);
    // Suppress the click that follows, so that it does not open the link at the end of the drag.
    addEventListener("click", (click) => { click.preventDefault(); click.stopPropagation(); }, { capture: true, once: true });
    setTimeout(() => dispatchEvent(new Event("click")));
  });
  document.addEventListener("click", (event) => {
    const chart = chartOf(event.target), place = chart && placeAt(chart, event);
    if (!place) return;
    event.preventDefault(); // a row can be inside the <summary> that folds its inner rows
    const isShown = shown && shown.row === place.row && shown.column === place.column;
    if (event.pointerType === "touch" && !isShown) show(place);
    else open(place, event.shiftKey);
  });
  document.addEventListener("scroll", () => { if (shown) show(isFocused(shown.chart) ? shown : null); }, { capture: true, passive: true });

  // ---- the keyboard

  const chosen = (chart) => {
    const rows = rowsOf(chart);
    const isHere = cursor && cursor.chart === chart.id;
    const start = chart.querySelector("[data-start]"); // this row can be folded
    const row = (isHere && rows.find((each) => each.dataset.row === cursor.row)) || (rows.includes(start) ? start : rows[0]);
    return { chart, row, column: Math.min(isHere ? cursor.column : Number(start ? start.dataset.start : 0), numColumns(chart) - 1) };
  };
  const keep = ({ chart, row, column }) => { cursor = { chart: chart.id, row: row.dataset.row, column }; };
  const choose = (place) => {
    keep(place);
    place.row.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(place);
  };
  // The nearest row in a direction. At the end of a row, this is the row beside it.
  const rowBeside = (chart, row, [x, y]) => {
    const from = row.getBoundingClientRect();
    const distance = (each) => {
      const to = each.getBoundingClientRect();
      const along = y ? y * (to.top - from.top) : x * (to.left - from.left);
      const across = Math.abs(y ? to.left - from.left : to.top - from.top);
      return along < 1 ? Infinity : x && across >= 1 ? Infinity : along + 1000 * across;
    };
    return rowsOf(chart).filter((each) => distance(each) < Infinity).sort((one, other) => distance(one) - distance(other))[0];
  };
  const moved = ({ chart, row, column }, [x, y]) => {
    const next = column + x;
    if (!y && next >= 0 && next < numColumns(chart)) return { chart, row, column: next };
    const beside = rowBeside(chart, row, [x, y]);
    if (!beside) return { chart, row, column };
    return { chart, row: beside, column: y ? column : x > 0 ? 0 : numColumns(chart) - 1 };
  };
  const zoom = (chart, by) => {
    const last = numColumns(chart) - 1, [low] = rangeOf(chart, 0), [, high] = rangeOf(chart, last);
    const place = isFocused(chart) || !shown ? chosen(chart) : shown;
    const at = rangeOf(chart, place.column)[0];
    const span = Math.max(4, Math.round((high - low + 1) * by));
    const first = by > 1 ? Math.round((low + high - span) / 2) : Math.max(low, Math.min(Math.round(at - span / 2), high - span + 1));
    goTo(chart, first, Math.max(first, 0) + span - 1);
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog[open]")) return;
    const chart = event.target.matches("[data-chart]") ? event.target : null;
    const zoomed = chart?.dataset.whole ? chart : document.querySelector("[data-whole]");
    if (chart && (KEYS[event.key] || ["Home", "End", "Enter"].includes(event.key))) {
      event.preventDefault();
      const place = chosen(chart);
      if (event.key === "Enter") open(place, event.shiftKey);
      else if (event.key === "Home" || event.key === "End") choose({ ...place, column: event.key === "Home" ? 0 : numColumns(chart) - 1 });
      else choose(moved(place, KEYS[event.key]));
    } else if (event.key === "Escape" && shown) {
      hide();
    } else if (zoomed && event.key === "0") {
      location.assign(zoomed.dataset.whole);
    } else if (zoomed && (event.key === "+" || event.key === "-")) {
      zoom(zoomed, event.key === "+" ? 0.5 : 2);
    }
  });
  document.addEventListener("focusin", (event) => {
    if (!event.target.matches("[data-chart]")) return;
    const place = chosen(event.target);
    keep(place);
    if (event.target.matches(":focus-visible")) show(place);
  });
  document.addEventListener("focusout", (event) => { if (event.target.matches("[data-chart]")) hide(); });

  // Screen readers pass keys only to an application. Without this script, a chart is not an application.
  const start = () => {
    hide();
    for (const chart of document.querySelectorAll("[data-chart]")) {
      chart.setAttribute("role", "application");
      if (isFocused(chart) && cursor && cursor.chart === chart.id) show(chosen(chart));
    }
  };
  document.addEventListener("DOMContentLoaded", start);
  document.addEventListener("content-changed", start);
})();
