// Says what a cell of the picture of distributions holds: at the pointer, or at the cursor that the arrow keys move.
"use strict";
(() => {
  const percent = (share) => (share === 0 ? "none" : share < 0.0001 ? "less than 0.01 %" : `${Number((100 * share).toPrecision(3))} %`);
  const number = (value) => value.toLocaleString("en");

  const follow = (section, picture) => {
    const holder = section.querySelector(".cells"), drawing = holder.querySelector("svg");
    const here = drawing.querySelector(".here"), readout = section.querySelector(".readout");
    const hint = "Move over a cell to see its numbers, or use the arrow keys. Click, or press Enter, to open a tensor of the column.";
    const numColumns = picture.columns.length, numRows = picture.rows.length;
    let at = null;

    const show = (column, row) => {
      at = [Math.min(Math.max(column, 0), numColumns - 1), Math.min(Math.max(row, 0), numRows - 1)];
      const [x, y] = at;
      const [first, last] = picture.columns[x], { text, counts } = picture.rows[y];
      const where = first === last ? `${picture.axis} ${number(first)}` : `${picture.axis}s ${number(first)} to ${number(last)}`;
      const total = picture.totals[x];
      readout.textContent = total
        ? `${where}, ${text}: ${percent(counts[x] / total)} of the elements (${number(counts[x])} of ${number(total)})`
        : `${where}: no elements`;
      here.setAttribute("x", x);
      here.setAttribute("y", picture.rows[y].top);
      here.setAttribute("height", picture.rows[y].height);
      here.setAttribute("visibility", "visible");
    };
    const hide = () => {
      at = null;
      here.setAttribute("visibility", "hidden");
      readout.textContent = hint;
    };
    const open = () => {
      const event = at === null ? null : picture.columns[at[0]][2];
      if (event !== null) location.assign(`${section.dataset.tensor}&event=${event}`);
    };
    const cellAt = (event) => {
      const box = drawing.getBoundingClientRect();
      const y = (event.clientY - box.top) / box.height * picture.height;
      return [Math.floor((event.clientX - box.left) / box.width * numColumns), picture.rows.findLastIndex((row) => row.top <= y)];
    };
    drawing.addEventListener("pointermove", (event) => show(...cellAt(event)));
    drawing.addEventListener("pointerdown", (event) => show(...cellAt(event)));
    drawing.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && document.activeElement !== holder) hide(); });
    drawing.addEventListener("click", (event) => { if (event.pointerType !== "touch") open(); });
    holder.addEventListener("blur", hide);
    holder.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-numColumns, 0], End: [numColumns, 0] };
      const move = moves[event.key];
      if (event.key === "Enter") open();
      if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      const [x, y] = at ?? [0, picture.rows.findIndex((row) => row.kind === "zero")];
      show(...(at === null ? [x, y] : [x + move[0], y + move[1]]));
    });
    hide();
  };

  const start = () => {
    const section = document.querySelector(".distribution[data-picture]");
    if (section) follow(section, JSON.parse(section.dataset.picture));
  };
  document.addEventListener("content-changed", start);
  start();
})();
