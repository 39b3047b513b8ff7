// The SQL page: an editor that completes the names of tables and columns. Ctrl+Enter runs the query.
"use strict";
(() => {
  const equip = () => {
    const field = document.getElementById("query");
    if (!field || field.classList.contains("edited")) return; // the page has no query field, or the editor already exists
    field.classList.add("edited");
    // Submit with the button that runs the query, because the other buttons need a name.
    const run = () => field.form.requestSubmit(field.form.querySelector("[data-run]"));
    const editor = CodeMirror.fromTextArea(field, {
      mode: "text/x-sql",
      lineWrapping: true,
      screenReaderLabel: field.labels[0].textContent,
      // Tab moves on to the button, as in other fields.
      extraKeys: { Tab: false, "Shift-Tab": false, "Ctrl-Enter": run, "Cmd-Enter": run, "Ctrl-Space": "autocomplete" },
      hintOptions: { tables: JSON.parse(field.dataset.columns), completeSingle: false },
    });
    field.form.addEventListener("submit", () => editor.save());
    editor.on("inputRead", (_, change) => {
      if (!editor.state.completionActive && /[\w.]$/.test(change.text.at(-1))) editor.showHint();
    });
    editor.getInputField().dataset.search = ""; // the key `/` focuses the editor, because the field is hidden
  };
  equip();
  document.addEventListener("content-changed", equip);
})();
