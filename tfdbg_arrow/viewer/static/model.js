// Draws a map of the pages `model` and `diff`: rows are layers, columns are steps, with the forward and the gradient side beside each other.
"use strict";
(() => {
  const ROW = 18, HEAD = 42, GAP = 26, PAD = 8;
  const LEAST_PANEL = 220;
  const SIDES = ["forward", "gradient"];
  const NUM_LEVELS = 255;
  const LEAST_DRAG = 5;
  const TARGET_TICKS = 90; // pixels between the numbers of the axis

  const make = (tag, attributes = {}, parent = null) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "text") element.textContent = value;
      else element.setAttribute(name, value);
    }
    if (parent) parent.append(element);
    return element;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const whole = (value) => value.toLocaleString("en");
  const short = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 1e7 ? value.toExponential(3).replace(/\.?0+e/, "e") : Number(value.toPrecision(4)).toString());
  const isDark = () => {
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  // Control and direction characters, as safe_text.printable shows them.
  const printable = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => {
    const code = character.codePointAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : code < 65536 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });

  // The place of a value on its scale, from 0 to 1, as ColourScale.place computes it.
  const placeOf = (scale, value) => {
    if (scale.kind === "signed") {
      const size = Math.log1p(Math.min(Math.abs(value), scale.high) / scale.linear) / Math.log1p(scale.high / scale.linear);
      return 0.5 + Math.sign(value) * size / 2;
    }
    if (scale.kind === "log") return value <= scale.low || scale.high <= scale.low ? 0 : Math.min(1, Math.log(value / scale.low) / Math.log(scale.high / scale.low));
    return Math.min(1, Math.max(0, value));
  };
  const mixed = (stops, place) => {
    const at = place * (stops.length - 1), index = Math.min(Math.floor(at), stops.length - 2);
    const part = (text, from) => parseInt(text.slice(from, from + 2), 16);
    return `rgb(${[1, 3, 5].map((from) => Math.round(part(stops[index], from) + (part(stops[index + 1], from) - part(stops[index], from)) * (at - index))).join(" ")})`;
  };
  const colours = () => now.data.colours[isDark() ? "dark" : "light"];
  const paletteOf = (scale) => {
    const stops = colours()[scale.kind === "signed" ? "diverging" : "sequential"];
    return Array.from({ length: NUM_LEVELS + 1 }, (_, level) => mixed(stops, level / NUM_LEVELS));
  };

  // What the reader folded or unfolded, and the cell under the keyboard's cursor. A live page keeps both.
  const folds = new Map();
  let cursor = null;
  let now = null;

  const keyOf = (row) => `${row.kind} ${row.layer}`;
  const isOpen = (row) => folds.get(keyOf(row)) ?? row.is_open;
  const isVisible = (rows, row) => row.parent === null || (isOpen(rows[row.parent]) && isVisible(rows, rows[row.parent]));

  const start = () => {
    const holder = document.getElementById("map");
    now = null;
    if (!holder || !holder.dataset.map) return;
    build(holder, JSON.parse(holder.dataset.map));
  };

  const build = (holder, data) => {
    const measure = data.measures.find((each) => each.name === data.measure);
    const hadFocus = holder.dataset.hasFocus === "1" || document.activeElement === document.body && cursor && cursor.isFocused;
    for (const old of holder.querySelectorAll(".map-pane, .map-tip, .map-legend")) old.remove();
    const pane = make("div", { class: "map-pane" }, holder);
    const body = make("div", { class: "map-body" }, pane);
    const names = make("div", { class: "map-names" }, body);
    const cells = make("div", { class: "map-cells", id: "map-cells", tabindex: "0", role: "application", "aria-label": `Map of layers over ${data.axis}s: ${measure.title}. ${holder.dataset.title} The arrow keys go from cell to cell, Enter opens the tensors.` }, body);
    const canvas = make("canvas", { "aria-hidden": "true" }, cells);
    const tip = make("div", { class: "map-tip", role: "status", hidden: "" }, holder);
    const legend = make("div", { class: "map-legend" }, holder);
    const hasGradient = data.rows.some((row) => row.gradient !== null);
    now = { holder, data, measure, pane, body, names, cells, canvas, tip, legend, hasGradient, visible: [], drag: null, hover: null };
    document.querySelector(".model .hint").hidden = false;
    layOut();
    listen();
    if (cursor && (hadFocus || cursor.isFocused)) {
      cells.focus({ preventScroll: true });
      showTip(cursorCell(), true);
    }
  };

  // ---- layout

  const layOut = () => {
    const { data, names, pane, cells, hasGradient } = now;
    now.visible = data.rows.filter((row) => isVisible(data.rows, row));
    now.rowAt = new Map(now.visible.map((row, index) => [row, index]));
    const active = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.fold : undefined;
    const originRow = data.origin === null ? null : data.origin.row;
    names.replaceChildren(make("div", { class: "map-corner" }));
    now.visible.forEach((row) => {
      const line = make("div", { class: "map-name" }, names);
      line.style.paddingLeft = `${Math.min(row.depth, 8) * 12 + 4}px`;
      if (row.kind === "role") line.classList.add("is-role");
      if (originRow !== null && [row.forward, row.gradient].includes(originRow)) line.classList.add("is-origin");
      if (row.has_children) {
        const name = printable(row.name);
        const button = make("button", { type: "button", "aria-expanded": String(isOpen(row)), "aria-label": `Layers in ${name}`, "data-fold": keyOf(row), text: isOpen(row) ? "▾" : "▸" }, line);
        button.addEventListener("click", () => {
          folds.set(keyOf(row), !isOpen(row));
          layOut();
        });
        if (active === keyOf(row)) button.focus({ preventScroll: true });
      } else {
        make("span", { class: "leaf", "aria-hidden": "true" }, line);
      }
      make("span", { class: "text", title: printable(row.layer), text: printable(row.name) }, line);
    });
    const num = hasGradient ? 2 : 1;
    const room = pane.clientWidth - names.offsetWidth - 2 * PAD - (num - 1) * GAP;
    const panel = Math.max(LEAST_PANEL, Math.floor(room / num));
    now.cell = panel / data.columns.length;
    now.panel = panel;
    now.lefts = { forward: PAD, gradient: PAD + panel + GAP };
    now.width = 2 * PAD + num * panel + (num - 1) * GAP;
    cells.style.width = `${now.width}px`;
    cells.style.height = `${HEAD + now.visible.length * ROW}px`;
    draw();
    drawLegend();
  };

  // ---- drawing

  const middle = (row) => HEAD + (now.rowAt.get(row) + 0.5) * ROW;
  const drawnRow = (index) => {
    const { data } = now;
    const side = data.rows.some((row) => row.forward === index) ? "forward" : "gradient";
    let row = data.rows.find((each) => each[side] === index);
    while (row && (!now.rowAt.has(row) || row[side] === null)) row = row.parent === null ? null : data.rows[row.parent];
    return row ? { row, side } : null;
  };

  const draw = () => {
    if (!now) return;
    const { data, measure, canvas, pane, visible, lefts, cell, panel } = now;
    const ratio = devicePixelRatio || 1;
    const height = Math.min(pane.clientHeight, HEAD + visible.length * ROW);
    canvas.width = Math.round(now.width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${now.width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const top = pane.scrollTop;
    const palette = paletteOf(measure.scale);
    const bad = colours().bad;
    const [text, quiet, line, card] = ["--text", "--quiet", "--line-strong", "--card"].map(colour);
    const first = Math.max(0, Math.floor(top / ROW)), end = Math.min(visible.length, Math.ceil((top + height - HEAD) / ROW) + 1);
    const sides = now.hasGradient ? SIDES : ["forward"];
    context.save();
    context.beginPath();
    context.rect(0, HEAD, now.width, height - HEAD);
    context.clip();
    context.translate(0, -top);
    for (const side of sides) {
      const hatch = new Path2D();
      const by = Math.max(1, Math.ceil(5 / cell));
      for (let index = first; index < end; index++) {
        const row = visible[index][side];
        const y = HEAD + index * ROW;
        if (row === null) continue;
        // A dotted line shows where nothing is known.
        context.fillStyle = quiet;
        for (let x = lefts[side]; x < lefts[side] + panel; x += 6) context.fillRect(x, y + ROW / 2, 1.5, 1);
        const values = measure.values[row], bads = data.bad[row];
        for (let column = 0; column < values.length; column++) {
          const isBad = bads[column] > 0;
          if (!isBad && values[column] === null) continue;
          const from = lefts[side] + column * cell;
          const [left, right] = cell < 4 ? [from, from + cell + 0.3] : [from, from + cell - 0.5];
          context.fillStyle = isBad ? bad : palette[Math.round(placeOf(measure.scale, values[column]) * NUM_LEVELS)];
          context.fillRect(left, y + 0.5, right - left, ROW - 1);
          if (isBad && column % by === 0) {
            const width = Math.min(by * cell, panel - column * cell);
            hatch.moveTo(from, y + ROW - 1);
            hatch.lineTo(from + width, y + 1);
          }
        }
      }
      context.strokeStyle = "#fff";
      context.globalAlpha = 0.75;
      context.lineWidth = 1;
      context.stroke(hatch);
      context.globalAlpha = 1;
    }
    drawWay(context, card, text);
    drawCursor(context, text, card);
    context.restore();
    drawAxis(context, sides, text, quiet, line);
  };

  // The first column, and round numbers at a distance at which their texts do not meet.
  const ticks = () => {
    const { data, cell } = now;
    const least = TARGET_TICKS / cell * (data.columns[0][1] - data.columns[0][0] + 1);
    const power = 10 ** Math.floor(Math.log10(least));
    const by = Math.max(1, [1, 2, 5, 10].find((times) => times * power >= least) * power);
    const found = [{ column: 0, number: data.columns[0][0] }];
    data.columns.forEach(([first, last], column) => {
      const number = Math.floor(last / by) * by;
      if (number >= first && (column - found[found.length - 1].column) * cell >= 0.8 * TARGET_TICKS) found.push({ column, number });
    });
    return found;
  };

  const drawAxis = (context, sides, text, quiet, line) => {
    const { data, lefts, cell, panel, drag } = now;
    const sans = colour("--sans");
    for (const side of sides) {
      context.textAlign = "left";
      context.fillStyle = text;
      context.font = `600 12px ${sans}`;
      context.fillText(side === "forward" ? "forward" : "gradient", lefts[side], 13);
      context.font = `11px ${sans}`;
      context.fillStyle = quiet;
      for (const { column, number } of ticks()) {
        const x = lefts[side] + (column + (cell > 14 ? 0.5 : 0)) * cell;
        context.textAlign = column === 0 ? "left" : "center";
        context.fillText(column === 0 ? `${data.axis} ${whole(number)}` : whole(number), x, 31);
        context.fillRect(x, 34, 1, 6);
      }
      context.fillStyle = line;
      context.fillRect(lefts[side], HEAD - 1, panel, 1);
      if (drag && drag.side === side && drag.from !== drag.to) {
        const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
        context.fillStyle = colour("--focus");
        context.globalAlpha = 0.25;
        context.fillRect(lefts[side] + low * cell, 20, (high - low + 1) * cell, now.canvas.clientHeight);
        context.globalAlpha = 1;
      }
    }
  };

  // The outline of the cell where it began, and the numbered cells of its way. No line joins them: it would cross others.
  const drawWay = (context, card, text) => {
    const { data, lefts, cell, panel } = now;
    if (!data.origin) return;
    const points = [];
    for (const index of [data.origin.row, ...data.path]) {
      const found = drawnRow(index);
      if (!found) continue;
      const point = { x: lefts[found.side] + (data.origin.column + 0.5) * cell, y: middle(found.row), side: found.side };
      if (!points.some((other) => other.x === point.x && other.y === point.y)) points.push(point);
    }
    if (!points.length) return;
    context.font = `650 11px ${colour("--sans")}`;
    points.slice(1).forEach((point, index) => {
      context.fillStyle = text;
      context.strokeStyle = card;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(point.x, point.y, ROW / 2 - 1, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
      context.fillStyle = card;
      context.textAlign = "center";
      context.fillText(String(index + 2), point.x, point.y + 4);
    });
    const [at] = points;
    const size = Math.max(cell, 7);
    for (const [style, width] of [[card, 5], [text, 2]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.strokeRect(at.x - size / 2 - 1, at.y - ROW / 2, size + 2, ROW);
    }
    // In the cell, or else beside it within the panel.
    const label = data.words.origin, long = context.measureText(label).width + 10;
    const right = at.x + size / 2 + 6, isRight = right + long <= lefts[at.side] + panel;
    const x = long + 4 <= size ? at.x - long / 2 : isRight ? right : Math.max(lefts[at.side], at.x - size / 2 - 6 - long);
    context.fillStyle = text;
    context.beginPath();
    context.roundRect(x, at.y - 8, long, 16, 4);
    context.fill();
    context.fillStyle = card;
    context.textAlign = "left";
    context.fillText(label, x + 5, at.y + 4);
  };

  const drawCursor = (context, text, card) => {
    const cell = now.hover || (document.activeElement === now.cells ? cursorCell() : null);
    if (!cell) return;
    const x = now.lefts[cell.side] + cell.column * now.cell, y = HEAD + now.rowAt.get(cell.row) * ROW;
    const size = Math.max(now.cell, 5);
    for (const [style, width] of [[card, 4], [text, 1.5]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.strokeRect(x - (size - now.cell) / 2, y, size, ROW);
    }
  };

  const drawLegend = () => {
    const { data, measure, legend } = now;
    legend.replaceChildren();
    const scale = make("span", { text: measure.title }, legend);
    const canvas = make("canvas", { role: "img", "aria-label": `Colour scale of ${measure.title}: ${measure.ticks.map(([, text]) => text).join(", ")}` }, scale);
    const width = 230, height = 28, ratio = devicePixelRatio || 1, pad = 30;
    canvas.width = (width + 2 * pad) * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width + 2 * pad}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const palette = paletteOf(measure.scale);
    palette.forEach((each, level) => {
      context.fillStyle = each;
      context.fillRect(pad + level * width / (NUM_LEVELS + 1), 2, width / NUM_LEVELS + 1, 10);
    });
    context.fillStyle = colour("--quiet");
    context.font = `11px ${colour("--sans")}`;
    context.textAlign = "center";
    for (const [place, text] of measure.ticks) {
      context.fillRect(pad + place * width - 0.5, 12, 1, 3);
      context.fillText(text, pad + place * width, 25);
    }
    const swatch = (paint, text) => {
      const holder = make("span", {}, legend);
      const small = make("canvas", { "aria-hidden": "true" }, holder);
      small.width = 18 * ratio;
      small.height = 14 * ratio;
      small.style.width = "18px";
      small.style.height = "14px";
      const to = small.getContext("2d");
      to.scale(ratio, ratio);
      paint(to);
      holder.append(text);
    };
    if (data.bad.some((row) => row.some((number) => number > 0))) {
      swatch((to) => {
        to.fillStyle = colours().bad;
        to.fillRect(0, 0, 18, 14);
        to.strokeStyle = "#fff";
        for (const x of [0, 6, 12]) { to.beginPath(); to.moveTo(x, 14); to.lineTo(x + 6, 0); to.stroke(); }
      }, data.words.bad);
    }
    swatch((to) => {
      to.fillStyle = colour("--quiet");
      for (let x = 0; x < 18; x += 6) to.fillRect(x, 7, 1.5, 1);
    }, "nothing known");
    if (data.origin) {
      swatch((to) => { to.strokeStyle = colour("--text"); to.lineWidth = 2; to.strokeRect(4, 1, 10, 12); }, data.words.outline);
    }
  };

  // ---- cells under the pointer and the cursor

  const cursorCell = () => {
    if (!cursor) return null;
    const { data, visible } = now;
    const row = visible.find((each) => keyOf(each) === cursor.key) || visible[0];
    const side = row[cursor.side] === null ? SIDES.find((each) => row[each] !== null) : cursor.side;
    return { row, side, column: Math.max(0, Math.min(data.columns.length - 1, cursor.column)) };
  };
  const setCursor = (cell) => { cursor = { key: keyOf(cell.row), side: cell.side, column: cell.column, isFocused: true }; };
  const firstCell = () => {
    const { data } = now;
    const found = data.origin && drawnRow(data.origin.row);
    if (found) return { ...found, column: data.origin.column };
    const row = now.visible[0];
    return { row, side: SIDES.find((each) => row[each] !== null), column: 0 };
  };

  const cellAt = (event) => {
    const { canvas, pane, visible, lefts, panel, cell, hasGradient, data } = now;
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const side = hasGradient && x > lefts.gradient - GAP / 2 ? "gradient" : "forward";
    const column = Math.floor((x - lefts[side]) / cell);
    const inside = x >= lefts[side] && x < lefts[side] + panel;
    const index = Math.floor((y - HEAD + pane.scrollTop) / ROW);
    const row = y >= HEAD && index < visible.length ? visible[index] : null;
    return { side, column: Math.max(0, Math.min(data.columns.length - 1, column)), row: inside && row && row[side] !== null ? row : null };
  };

  const stepsText = ([first, last]) => (first === last ? `${now.data.axis} ${whole(first)}` : `${now.data.axis}s ${whole(first)} to ${whole(last)}`);

  const showTip = (cell, isKeyboard = false) => {
    const { data, measure, tip, holder, canvas, pane } = now;
    for (const line of now.names.querySelectorAll(".is-lit")) line.classList.remove("is-lit");
    if (!cell || !cell.row) {
      tip.hidden = true;
      return;
    }
    const index = cell.row[cell.side];
    const [numOutputs, , role] = data.sides[index];
    const numBad = data.bad[index][cell.column];
    const badOfRuns = data.bad_of_runs.map((rows) => rows[index][cell.column]);
    tip.replaceChildren(make("b", { text: printable(cell.row.layer) }));
    make("div", { class: "quiet", text: `${cell.side}${role !== cell.side ? `, ${role}` : ""} · ${stepsText(data.columns[cell.column])} · ${whole(numOutputs)} op output${numOutputs === 1 ? "" : "s"}` }, tip);
    if (badOfRuns.some((number) => number)) make("div", { class: "is-bad", text: `✕ bad tensors: ${whole(badOfRuns[0])} in A, ${whole(badOfRuns[1])} in B` }, tip);
    else if (numBad) make("div", { class: "is-bad", text: `✕ ${whole(numBad)} bad tensor${numBad === 1 ? "" : "s"}` }, tip);
    const table = make("table", {}, tip);
    const numberText = (each, value) => (value !== null && each.is_share ? `${short(Number((100 * value).toPrecision(4)))} %` : short(value));
    if (badOfRuns.length) {
      const head = make("tr", {}, table);
      for (const name of ["", "A", "B", "B − A"]) make("th", { class: "num", text: name }, head);
    }
    for (const each of data.measures) {
      const line = make("tr", each === measure ? { class: "is-shown" } : {}, table);
      make("td", { text: each.title }, line);
      if (badOfRuns.length && !each.of_runs.length) make("td", { colspan: "2" }, line);
      for (const rows of each.of_runs) make("td", { class: "num", text: numberText(each, rows[index][cell.column]) }, line);
      const value = each.values[index][cell.column];
      const percent = value === null ? short(value) : `${value > 0 && each.of_runs.length ? "+" : ""}${short(Number((100 * value).toPrecision(3)))} %`;
      make("td", { class: "num", text: badOfRuns.length ? percent : numberText(each, value) }, line);
    }
    if (data.is_part) make("div", { class: "quiet", text: "The map is large; choose another measure to see its numbers." }, tip);
    tip.hidden = false;
    const outer = holder.getBoundingClientRect(), box = canvas.getBoundingClientRect();
    const x = box.left - outer.left + now.lefts[cell.side] + (cell.column + 1) * now.cell + 12;
    const y = box.top - outer.top + HEAD + now.rowAt.get(cell.row) * ROW - pane.scrollTop + ROW + 4;
    const isLeft = x + tip.offsetWidth > holder.clientWidth;
    tip.style.left = `${Math.max(0, Math.min(holder.clientWidth - tip.offsetWidth, isLeft ? x - tip.offsetWidth - now.cell - 24 : x))}px`;
    tip.style.top = `${y + tip.offsetHeight > holder.clientHeight + 60 ? Math.max(0, y - tip.offsetHeight - ROW - 8) : y}px`;
    const line = now.names.children[now.rowAt.get(cell.row) + 1];
    if (line) line.classList.add("is-lit");
    if (isKeyboard) {
      const rowTop = HEAD + now.rowAt.get(cell.row) * ROW;
      if (rowTop - pane.scrollTop < HEAD) pane.scrollTop = rowTop - HEAD;
      else if (rowTop + ROW > pane.scrollTop + pane.clientHeight) pane.scrollTop = rowTop + ROW - pane.clientHeight;
    }
  };

  // ---- actions

  const open = (cell, isB = false) => {
    if (!cell || !cell.row) return;
    const { data, holder } = now;
    const [first, last, event] = data.columns[cell.column];
    if (cell.row.kind === "line") {
      const at = cell.row.layer.lastIndexOf(":");
      const lineno = cell.row.layer.slice(at + 1);
      location.assign(`${holder.dataset.source}&${new URLSearchParams({ file: cell.row.layer.slice(0, at), line: lineno })}#L${lineno}`);
      return;
    }
    // The events are those of A.
    const place = data.axis === "step" ? { first_step: first, last_step: last } : event === null || isB ? {} : { at: event };
    location.assign(`${isB ? holder.dataset.tensorsB : holder.dataset.tensors}&${new URLSearchParams({ layer: cell.row.layer, side: cell.side, ...place })}`);
  };
  const goTo = (first, last) => location.assign(`${now.holder.dataset.here}&first=${Math.max(0, first)}&last=${Math.max(0, last)}`);
  const zoom = (by) => {
    const { data } = now;
    const cell = document.activeElement === now.cells ? cursorCell() : now.hover;
    const [low, high] = [data.columns[0][0], data.columns[data.columns.length - 1][1]];
    const at = cell ? data.columns[cell.column][0] : data.origin ? data.columns[data.origin.column][0] : (low + high) / 2;
    const span = Math.max(4, Math.round((high - low + 1) * by));
    const first = by > 1 ? Math.round((low + high - span) / 2) : Math.max(low, Math.min(Math.round(at - span / 2), high - span + 1));
    goTo(first, Math.max(first, 0) + span - 1);
  };

  const move = (key) => {
    const cell = cursorCell() || firstCell();
    if (!cursor) return cell;
    const { visible, data, hasGradient } = now;
    const last = data.columns.length - 1;
    if (key === "ArrowUp" || key === "ArrowDown") {
      const index = now.rowAt.get(cell.row) + (key === "ArrowUp" ? -1 : 1);
      const row = visible[Math.max(0, Math.min(visible.length - 1, index))];
      return { ...cell, row, side: row[cell.side] === null ? SIDES.find((each) => row[each] !== null) : cell.side };
    }
    if (key === "Home") return { ...cell, column: 0 };
    if (key === "End") return { ...cell, column: last };
    const column = cell.column + (key === "ArrowLeft" ? -1 : 1);
    // From the last column of the forward side, the cursor goes to the gradient side, and back.
    if (column > last && cell.side === "forward" && hasGradient && cell.row.gradient !== null) return { ...cell, side: "gradient", column: 0 };
    if (column < 0 && cell.side === "gradient" && cell.row.forward !== null) return { ...cell, side: "forward", column: last };
    return { ...cell, column: Math.max(0, Math.min(last, column)) };
  };

  const listen = () => {
    const { cells, canvas, pane } = now;
    pane.addEventListener("scroll", () => requestAnimationFrame(draw));
    canvas.addEventListener("pointermove", (event) => {
      if (!now) return;
      const cell = cellAt(event);
      if (now.drag) {
        now.drag.to = cell.column;
        now.hover = null;
      } else {
        now.hover = cell.row ? cell : null;
      }
      showTip(now.drag ? null : cell);
      draw();
    });
    canvas.addEventListener("pointerleave", () => { if (now) { now.hover = null; showTip(null); draw(); } });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      const cell = cellAt(event);
      now.drag = { side: cell.side, from: cell.column, to: cell.column, x: event.clientX };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      const { drag, data } = now;
      now.drag = null;
      if (drag && Math.abs(event.clientX - drag.x) >= LEAST_DRAG && drag.from !== drag.to) {
        const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
        goTo(data.columns[low][0], data.columns[high][1]);
        return;
      }
      const cell = cellAt(event);
      if (cell.row) setCursor(cell);
      open(cell, event.shiftKey && "tensorsB" in now.holder.dataset);
    });
    cells.addEventListener("focus", () => {
      if (!cursor) setCursor(firstCell());
      cursor.isFocused = true;
      if (cells.matches(":focus-visible")) showTip(cursorCell(), true);
      draw();
    });
    cells.addEventListener("blur", () => {
      // An update of a live page also takes the focus away, by removing the element.
      setTimeout(() => { if (cursor && cells.isConnected && document.activeElement !== cells) cursor.isFocused = false; });
      if (now) { showTip(null); draw(); }
    });
    cells.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
        event.preventDefault();
        setCursor(move(event.key));
        now.hover = null;
        showTip(cursorCell(), true);
        draw();
      } else if (event.key === "Enter") {
        event.preventDefault();
        open(cursorCell(), event.shiftKey && "tensorsB" in now.holder.dataset);
      }
    });
  };

  document.addEventListener("keydown", (event) => {
    if (!now || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog[open]")) return;
    if (event.key === "+") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0") location.assign(now.holder.dataset.here);
  });
  const redraw = () => { if (now) { draw(); drawLegend(); } };
  new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", () => { if (now) layOut(); });
  document.addEventListener("content-changed", start);
  start();
})();
