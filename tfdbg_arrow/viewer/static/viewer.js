// Keyboard shortcuts, the theme, and forms that submit on change. The pages work without this script.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // A page opened from disk may have no storage.
  const stored = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("theme");
      localStorage.setItem("theme", value);
    } catch { /* the theme is not stored */ }
    return null;
  };
  const theme = stored();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const toggleTheme = () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    stored(root.dataset.theme);
  };

  const isShown = (element) => element.getClientRects().length > 0;
  const all = (selector) => [...document.querySelectorAll(selector)].filter(isShown);

  // Moves the focus to the next or previous item. The start is the focused item. If no item has the focus, it
  // is the position of the focus or, without a focus, the first visible item.
  const move = (selector, by) => {
    const items = all(selector);
    if (!items.length) return false;
    const active = document.activeElement;
    let at = items.indexOf(active);
    if (at < 0 && active && !active.matches("body, #main, [data-pane]")) {
      const before = items.filter((item) => active.compareDocumentPosition(item) & Node.DOCUMENT_POSITION_PRECEDING);
      at = by > 0 ? before.length - 1 : before.length;
    } else if (at < 0) {
      const pane = document.querySelector("[data-pane]");
      const top = pane ? Math.max(0, pane.getBoundingClientRect().top) : 0;
      const seen = items.findIndex((item) => item.getBoundingClientRect().bottom > top);
      if (by > 0) at = seen < 0 ? items.length : seen - 1;
      else at = seen > 0 ? seen : items.length;
    }
    const next = items[at + by];
    if (!next) return false;
    next.focus();
    next.scrollIntoView({ block: "nearest" });
    return true;
  };
  const follow = (selector) => {
    const link = document.querySelector(`${selector}:not([hidden])`);
    if (link) link.click();
    return Boolean(link);
  };
  const openSource = () => {
    const active = document.activeElement;
    const near = active && active.closest("[data-alert], .hop, .frame, li, tr, section");
    // The line in the excerpt is that of the answer. Lines above it may be of other code, such as that of the layer.
    const link = (near && near.querySelector("[data-source]")) || all(".excerpt [data-source]")[0] || all("[data-source]")[0];
    if (link) link.click();
  };
  const help = () => document.getElementById("help");

  let isGoing = false;
  const keys = {
    // After the last item, windows.js may load more.
    j: () => move("[data-item]", 1) || document.dispatchEvent(new CustomEvent("past-items", { detail: 1 })),
    k: () => move("[data-item]", -1) || document.dispatchEvent(new CustomEvent("past-items", { detail: -1 })),
    n: () => (document.body.dataset.page === "tensor" || !move("[data-bad]", 1)) && follow("a[rel='next-bad']"),
    p: () => (document.body.dataset.page === "tensor" || !move("[data-bad]", -1)) && follow("a[rel='prev-bad']"),
    "[": () => follow("a[rel='prev']"),
    "]": () => follow("a[rel='next']"),
    s: openSource,
    d: toggleTheme,
    g: () => { isGoing = true; },
    "?": () => help() && help().showModal(),
    "/": () => {
      const field = all("[data-search]")[0];
      if (field) { field.focus(); if (field.select) field.select(); } else follow("[data-go='t']");
    },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (target.closest && target.closest("input:not([type='range']), select, textarea, dialog[open]")) {
      if (event.key === "Escape" && !target.closest("dialog")) target.blur();
      return;
    }
    if (isGoing) {
      isGoing = false;
      if (/^[a-z]$/.test(event.key) && follow(`[data-go='${event.key}']`)) event.preventDefault();
      return;
    }
    const action = Object.hasOwn(keys, event.key) ? keys[event.key] : null;
    if (action) {
      event.preventDefault();
      action();
    }
  });

  // In a report, a link may lead into a folded section.
  const unfold = () => {
    if (location.hash.length > 1) show(document.getElementById(decodeURIComponent(location.hash.slice(1))));
  };
  const show = (target) => {
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target.tagName === "DETAILS") target.open = true;
    for (const lit of document.querySelectorAll("#sources .lit")) lit.classList.remove("lit");
    if (target.classList.contains("row")) target.classList.add("lit");
    target.scrollIntoView({ block: target.classList.contains("row") ? "center" : "start" });
  };

  const copied = async (button) => {
    const text = button.dataset.copyUrl
      ? await fetch(button.dataset.copyUrl).then((answer) => answer.ok ? answer.text() : Promise.reject(answer.status))
      : document.getElementById(button.dataset.copy).textContent;
    await navigator.clipboard.writeText(text);
  };
  const copy = (button) => copied(button).then(() => "Copied", () => "Could not be copied").then((said) => {
    const label = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = said;
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  // Listen on the document, so that elements added later are covered too.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if ("themeToggle" in button.dataset) toggleTheme();
    if ("help" in button.dataset) help().showModal();
    if ("helpClose" in button.dataset) help().close();
    if ("copy" in button.dataset || "copyUrl" in button.dataset) copy(button);
  });
  // In a notebook's frame, the browser would resolve a fragment link against the notebook's own page.
  document.addEventListener("click", (event) => {
    const link = location.href.startsWith("about:srcdoc") && event.target.closest("a[href^='#']");
    if (!link) return;
    event.preventDefault();
    show(document.getElementById(link.getAttribute("href").slice(1)));
  });
  document.addEventListener("change", (event) => {
    if (event.target.closest("[data-submit]") && event.target.form) event.target.form.requestSubmit();
  });
  // Leave empty fields out of the address.
  document.addEventListener("submit", (event) => {
    for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
  });

  document.addEventListener("DOMContentLoaded", () => {
    const lit = document.querySelector("[data-page='source'] .row.lit");
    if (lit) lit.scrollIntoView({ block: "center" });
    unfold();
  });
  addEventListener("hashchange", unfold);
  // The browser loads a page again when the user goes back to it. The focus then returns to the link that the user
  // followed, so that the keyboard goes on from there.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#main a[href]:not([href^='#'])");
    if (link) history.replaceState({ ...history.state, followed: link.getAttribute("href") }, "");
  });
  addEventListener("pageshow", () => {
    const followed = history.state && history.state.followed;
    const links = followed && document.activeElement === document.body ? [...document.querySelectorAll("#main a")] : [];
    const link = links.find((one) => one.getAttribute("href") === followed);
    if (link) link.focus({ preventScroll: true });
    for (const field of document.querySelectorAll("form [name]:disabled")) field.disabled = false;
  });
})();
