// The SQL page: Ctrl+Enter runs the query.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "query") event.target.form.requestSubmit();
});
