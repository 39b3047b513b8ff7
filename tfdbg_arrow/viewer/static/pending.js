// Requests the page again until all its content is ready.
"use strict";
(() => {
  const EVERY_MS = 300, LONGEST_MS = 2000, GROWTH = 1.3;
  let timer = null;
  let pause = EVERY_MS;
  const look = () => {
    clearTimeout(timer);
    if (document.querySelector("[data-pending]")) {
      timer = setTimeout(() => document.dispatchEvent(new Event("update-content")), pause);
      pause = Math.min(LONGEST_MS, GROWTH * pause);
    } else {
      pause = EVERY_MS;
    }
  };
  document.addEventListener("DOMContentLoaded", look);
  document.addEventListener("content-changed", look);
})();
