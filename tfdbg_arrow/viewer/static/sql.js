// The SQL box: Ctrl+Enter runs what stands in it.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "query") event.target.form.requestSubmit();
});
