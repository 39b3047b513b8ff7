// Asks for the page again until all rules have finished.
"use strict";
(() => {
  const EVERY_MS = 300;
  let timer = null;
  const look = () => {
    clearTimeout(timer);
    if (document.querySelector("[data-pending]")) timer = setTimeout(() => document.dispatchEvent(new Event("update-content")), EVERY_MS);
  };
  document.addEventListener("DOMContentLoaded", look);
  document.addEventListener("content-changed", look);
})();
