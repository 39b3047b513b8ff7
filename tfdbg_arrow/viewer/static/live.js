// Follows a logdir that is still being written: polls for changes and replaces the content of the page.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const SHARE = 4; // spend at most 1/SHARE of the time on reloading the page
  let isOn = true;
  let isKnownLive = false;
  let pause = EVERY_MS;

  const button = () => document.querySelector("[data-live]");
  const show = (text, title) => {
    const found = button();
    found.hidden = false;
    found.textContent = text;
    found.title = title;
    found.setAttribute("aria-pressed", String(isOn));
  };
  const showState = () => show(isOn ? "● live" : "○ live", isOn ? "New data is shown as it arrives; press to pause" : "Press to show new data as it arrives");

  // Do not interrupt a user who reads a dialog, types, or has selected text.
  const isBusy = () => {
    const active = document.activeElement;
    const selection = getSelection();
    return Boolean(document.querySelector("dialog[open]") || (active && active.closest("#main input, #main textarea, #main select"))
      || (selection && !selection.isCollapsed));
  };

  // A click is lost if the element under a pressed pointer is replaced.
  let release = null;
  let released = Promise.resolve();
  document.addEventListener("pointerdown", () => {
    if (!release) released = new Promise((resolve) => { release = resolve; });
  });
  for (const end of ["pointerup", "pointercancel"]) {
    addEventListener(end, () => {
      if (release) setTimeout(release); // the click follows this event
      release = null;
    });
  }

  const summaries = () => [...document.querySelectorAll("#main details")];
  const nameOf = (details) => details.dataset.name || (details.querySelector("summary") || details).textContent.replace(/[\d,]+/g, "#").trim();

  const take = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html");
    // The parser parses <noscript> elements as for a browser without scripts, so remove them.
    for (const element of next.querySelectorAll("noscript")) element.remove();
    const main = document.getElementById("main");
    const open = new Set(summaries().filter((details) => details.open).map(nameOf));
    const folded = new Set(summaries().filter((details) => !details.open && details.dataset.name).map(nameOf));
    const active = document.activeElement;
    const place = main.contains(active) && (active.id ? `#${CSS.escape(active.id)}` : active.getAttribute("href") && `a[href="${CSS.escape(active.getAttribute("href"))}"]`);
    const [x, y] = [scrollX, scrollY];
    main.replaceChildren(...[...next.getElementById("main").childNodes].map((node) => document.importNode(node, true)));
    for (const details of summaries()) details.open = (details.open && !folded.has(nameOf(details))) || open.has(nameOf(details));
    const runs = document.querySelector(".runs");
    const nextRuns = next.querySelector(".runs");
    if (runs && nextRuns && !runs.contains(document.activeElement)) runs.replaceWith(document.importNode(nextRuns, true));
    if (document.body.dataset.state !== next.body.dataset.state) { // this can also happen when the page requested its remaining content
      isKnownLive = true;
      showState();
    }
    document.body.dataset.state = next.body.dataset.state;
    const focus = place && main.querySelector(place);
    if (focus) focus.focus({ preventScroll: true });
    scrollTo(x, y);
    document.dispatchEvent(new Event("content-changed"));
  };

  // Returns whether the server answered with the page.
  const update = async () => {
    const started = performance.now();
    const answer = await fetch(location.href, { redirect: "manual" });
    if (answer.type === "opaqueredirect") { // another page replaced this page
      location.reload();
      await new Promise(() => { /* the loop ends when this page is unloaded */ });
    }
    if (answer.ok) {
      const text = await answer.text();
      await released;
      take(text);
    }
    pause = Math.max(EVERY_MS, SHARE * (performance.now() - started));
    return answer.ok;
  };

  const look = async () => {
    if (document.hidden || !innerHeight) return; // a frame that is not shown has no height
    const { state } = await fetch("state.json").then((answer) => answer.json());
    if (state === document.body.dataset.state) {
      if (isKnownLive) showState();
      return;
    }
    isKnownLive = true;
    if (isOn && !isBusy()) {
      showState();
      await update();
    } else {
      show("○ new data", "Press to show it");
    }
  };
  const loop = () => {
    look().catch(() => show("○ no answer", "The server does not answer; it may have been stopped")).finally(() => setTimeout(loop, pause));
  };

  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-live]")) return;
    if (isOn && button().textContent === "● live") {
      isOn = false;
      showState();
    } else {
      isOn = true;
      showState();
      update().catch(() => { /* the next look() reports the error */ });
    }
  });
  // A page that does not have all of its content yet asks for the rest.
  document.addEventListener("update-content", async () => {
    const isShown = !isBusy() && await update().catch(() => show("○ no answer", "The server does not answer; it may have been stopped"));
    if (!isShown) setTimeout(() => document.dispatchEvent(new Event("content-changed")), EVERY_MS);
  });
  document.addEventListener("DOMContentLoaded", () => setTimeout(loop, EVERY_MS));
})();
