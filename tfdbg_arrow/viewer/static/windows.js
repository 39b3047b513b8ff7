// Endless scrolling for a window of rows: fetches the next rows from the page itself and removes rows that are far out
// of sight, so that the document stays small. The address follows the visible rows.
"use strict";
(() => {
  const MAX_ROWS = 500;
  const PLACES = ["at", "before", "place", "step"];
  const NEAR = 600; // fetch more when the end is closer than this, in pixels
  let hasPlace = false; // a page without a place in its address opens at the first bad row
  let pane, table, slider, shown, moves, trouble, detailPlace; // set by begin()

  // A window is a <tbody> element whose attributes contain its position among all rows.
  const windows = () => [...table.tBodies];
  const numberOf = (body, name) => (body.dataset[name] === undefined ? null : Number(body.dataset[name]));
  const start = () => numberOf(table.tBodies[0], "before");
  const end = () => {
    const last = windows().at(-1);
    return numberOf(last, "before") + last.rows.length;
  };
  const matching = () => numberOf(windows().at(-1), "matching");

  const address = (changes) => {
    const url = new URL(location.href);
    for (const name of PLACES) url.searchParams.delete(name);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) url.searchParams.delete(name);
      else url.searchParams.set(name, value);
    }
    url.hash = "";
    return url;
  };
  const read = async (url, signal) => {
    const answer = await fetch(url, { signal, headers: { Accept: "text/html" } });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };
  const tellTrouble = (text) => {
    trouble.textContent = text;
    trouble.hidden = !text;
  };
  // Only one fetch runs at a time. A new fetch aborts the current fetch.
  let underWay = null;
  const fetchRows = async (parameters) => {
    if (underWay) underWay.abort();
    const own = underWay = new AbortController();
    pane.setAttribute("aria-busy", "true");
    try {
      // Do not load the details of an execution again if the page already shows them.
      const url = address({ ...parameters, ...(detailPlace ? { execution: null } : {}) });
      const found = (await read(url, own.signal)).querySelector("tbody[data-rows]");
      tellTrouble("");
      return own === underWay && found ? document.importNode(found, true) : null;
    } catch (error) {
      if (error.name !== "AbortError") tellTrouble(`More rows could not be read: ${error.message}.`);
      return null;
    } finally {
      if (own === underWay) {
        underWay = null;
        pane.removeAttribute("aria-busy");
      }
    }
  };

  // Adding or removing rows above must not move the visible rows.
  const keepingPlace = (change) => {
    const row = rowInSight();
    const top = row ? row.getBoundingClientRect().top : 0;
    change();
    if (row && row.isConnected) pane.scrollTop += row.getBoundingClientRect().top - top;
  };
  const letGo = (fromTop) => {
    const numRows = () => windows().reduce((sum, body) => sum + body.rows.length, 0);
    while (numRows() > MAX_ROWS && table.tBodies.length > 2) (fromTop ? table.tBodies[0] : windows().at(-1)).remove();
  };
  const outermost = (isDown) => (isDown ? windows().at(-1) : table.tBodies[0]);
  const load = async (isDown) => {
    const edge = outermost(isDown);
    if (isDown ? end() >= matching() : start() <= 0) return false;
    const body = await fetchRows(isDown ? { at: numberOf(edge, "last") + 1 } : { before: numberOf(edge, "first") });
    if (!body || outermost(isDown) !== edge) return false;
    keepingPlace(() => {
      if (isDown) edge.after(body);
      else edge.before(body);
      letGo(isDown);
    });
    settle();
    return true;
  };
  const jump = async (parameters) => {
    const body = await fetchRows(parameters);
    if (!body) return false;
    for (const old of windows()) old.remove();
    table.append(body);
    hasPlace = true;
    pane.scrollTop = 0;
    settle();
    return true;
  };

  // The first visible row below the table's head.
  const rowInSight = () => {
    const top = (table.tHead.offsetHeight || 0) + pane.getBoundingClientRect().top;
    const bodies = windows();
    const body = bodies.find((one) => one.getBoundingClientRect().bottom > top + 1) || bodies.at(-1);
    return [...body.rows].find((row) => row.getBoundingClientRect().bottom > top + 1) || body.rows[0];
  };
  // Scroll only the pane, not the page.
  const scrollTo = (row) => {
    const box = pane.getBoundingClientRect();
    const { top, bottom } = row.getBoundingClientRect();
    const from = box.top + table.tHead.offsetHeight;
    if (top < from || bottom > box.bottom) pane.scrollTop += top - from - (box.bottom - from) / 3;
  };
  const placeOf = (row) => numberOf(row.parentElement, "before") + row.sectionRowIndex;
  const fill = () => {
    if (underWay) return;
    if (pane.scrollHeight - pane.scrollTop - pane.clientHeight < NEAR && end() < matching()) load(true);
    else if (pane.scrollTop < NEAR && start() > 0) load(false);
  };
  const format = (number) => number.toLocaleString("en-US");
  let isHeld = false; // the user is dragging the slider, so scrolling must not move it
  const tell = () => {
    const first = rowInSight();
    if (!first) return;
    const bottom = pane.getBoundingClientRect().bottom;
    let last = first;
    for (let row = first; row && row.getBoundingClientRect().top < bottom - 8; row = nextRow(row)) last = row;
    const place = placeOf(first);
    if (shown) shown.textContent = `${format(place + 1)} to ${format(placeOf(last) + 1)} of `;
    if (slider && !isHeld) {
      slider.max = matching() - 1;
      slider.value = place;
    }
    const atStart = place === 0;
    const atEnd = placeOf(last) >= matching() - 1;
    const hide = (rel, isHidden) => {
      const link = moves && moves.querySelector(`[rel="${rel}"]`);
      if (link) link.hidden = isHidden;
    };
    for (const rel of ["first", "prev"]) hide(rel, atStart);
    for (const rel of ["next", "last"]) hide(rel, atEnd);
    hide("prev-bad", numberOf(table.tBodies[0], "previousBad") === null && !table.querySelector("[data-bad]"));
    hide("next-bad", numberOf(windows().at(-1), "nextBad") === null && !table.querySelector("[data-bad]"));
  };
  const nextRow = (row) => row.nextElementSibling || (row.parentElement.nextElementSibling || { rows: [] }).rows[0];
  const follow = () => {
    const row = rowInSight();
    if (!row) return;
    const place = placeOf(row);
    hasPlace = hasPlace || place > 0;
    history.replaceState(history.state, "", address(place ? { at: row.dataset.at } : hasPlace ? { place: 0 } : {}));
  };
  let timer = 0;
  const settle = () => {
    mark();
    tell();
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (!pane) return;
      follow();
      fill();
    }, 150);
  };
  let isAsked = false;
  const scrolled = () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      if (!pane) return;
      fill();
      settle();
    });
  };

  // Keys and buttons.
  const focusIn = (row, selector) => {
    const item = row && row.querySelector(selector);
    if (!item) return;
    item.focus({ preventScroll: true });
    scrollTo(row);
    row.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("past-items", async (event) => {
    if (!pane) return;
    const isDown = event.detail > 0;
    const edge = outermost(isDown);
    if (!await load(isDown)) return;
    const next = isDown ? edge.nextElementSibling : edge.previousElementSibling;
    if (next && next.rows) focusIn(isDown ? next.rows[0] : next.rows[next.rows.length - 1], "[data-item]");
  });
  const toBad = async (index) => {
    if (index === null || !await jump({ at: index })) return;
    focusIn(table.querySelector(`tr[data-at="${index}"]`), "[data-bad]");
  };
  const actions = {
    first: () => jump({ place: 0 }),
    last: async () => {
      if (await jump({ before: "9223372036854775807" })) windows().at(-1).lastElementChild.scrollIntoView({ block: "nearest" });
    },
    prev: () => pane.scrollBy(0, -(pane.clientHeight - table.tHead.offsetHeight)),
    next: () => pane.scrollBy(0, pane.clientHeight - table.tHead.offsetHeight),
    "prev-bad": () => toBad(numberOf(table.tBodies[0], "previousBad")),
    "next-bad": () => toBad(numberOf(windows().at(-1), "nextBad")),
  };
  // A click on the button does the same as the key: it searches the loaded rows first, and then the other rows.
  const nearBad = (by) => {
    const items = [...table.querySelectorAll("[data-bad]")];
    const at = rowInSight();
    const from = document.activeElement && table.contains(document.activeElement) ? document.activeElement : at;
    const side = by > 0 ? Node.DOCUMENT_POSITION_FOLLOWING : Node.DOCUMENT_POSITION_PRECEDING;
    const found = items.filter((item) => item !== from && from.compareDocumentPosition(item) & side);
    return by > 0 ? found[0] : found.at(-1);
  };
  const isPlain = (event) => event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a");
    if (!pane || !link || !isPlain(event)) return;
    if (moves && moves.contains(link)) {
      event.preventDefault();
      const rel = link.rel;
      const near = rel.endsWith("-bad") ? nearBad(rel === "next-bad" ? 1 : -1) : null;
      if (near) focusIn(near.closest("tr"), "[data-bad]");
      else actions[rel]();
    } else if (link.dataset.jump !== undefined) {
      event.preventDefault();
      jump({ at: link.dataset.jump });
    } else if (link.dataset.focus !== undefined) {
      event.preventDefault();
      openDetail(link.dataset.focus);
    }
  });
  let soon = 0;
  const slid = () => {
    isHeld = true;
    shown.textContent = `${format(Number(slider.value) + 1)} of `;
    clearTimeout(soon);
    soon = setTimeout(async () => {
      await jump({ place: slider.value });
      isHeld = false;
    }, 120);
  };

  // The details of an execution, beside the rows.
  let focused = null;
  const mark = () => {
    if (!detailPlace) return;
    for (const row of table.querySelectorAll("tr[aria-current]")) row.removeAttribute("aria-current");
    const row = focused && table.querySelector(`tbody tr[data-at="${focused}"]`);
    if (row) row.setAttribute("aria-current", "true");
  };
  const openDetail = async (index) => {
    const active = document.activeElement;
    const wasIn = active && active.closest("[data-detail]") ? active.getAttribute("aria-label") : null;
    focused = index || null;
    const url = address({ at: index || null, execution: focused });
    const found = index ? (await read(url)).querySelector("[data-detail]") : null;
    if ((index || null) !== focused) return;
    const old = document.querySelector("[data-detail]");
    if (old) old.remove();
    if (found) detailPlace.prepend(document.importNode(found, true));
    const again = wasIn && document.querySelector(`[data-detail] [aria-label="${CSS.escape(wasIn)}"]`);
    if (again) again.focus();
    const kept = new URL(location.href);
    if (focused) kept.searchParams.set("execution", focused);
    else kept.searchParams.delete("execution");
    history.replaceState(history.state, "", kept);
    mark();
    const row = focused && table.querySelector(`tbody tr[data-at="${focused}"]`);
    if (row) scrollTo(row);
    else if (focused) jump({ at: focused });
    // On a narrow screen the details are above the rows.
    const detail = document.querySelector("[data-detail]");
    if (detail && matchMedia("(max-width: 999px)").matches) detail.scrollIntoView({ block: "nearest" });
  };

  const begin = () => {
    hasPlace = PLACES.some((name) => new URL(location.href).searchParams.has(name));
    if (underWay) underWay.abort();
    [pane, slider, shown, moves, trouble, detailPlace] = ["pane", "place", "shown", "moves", "trouble", "executions"].map(
      (name) => document.querySelector(`[data-${name}]`));
    if (!pane) return;
    table = pane.querySelector("table");
    focused = detailPlace && new URL(location.href).searchParams.get("execution");
    pane.addEventListener("scroll", scrolled, { passive: true });
    if (slider) slider.addEventListener("input", slid);
    const lit = table.querySelector("tr[aria-current]");
    if (lit) scrollTo(lit);
    tell();
    fill();
  };
  begin();
  // live.js may have replaced the content of the page, so look up the elements again.
  document.addEventListener("content-changed", begin);
})();
