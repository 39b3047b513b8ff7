// TensorBoard loads this module in the frame of the tab, and calls render(). Then the pages replace the content of the frame.
const isFramedByAnotherSite = () => {
  try {
    return top.location.origin !== location.origin;
  } catch {
    return true;
  }
};

export const render = () => {
  const url = new URL("logdirs", import.meta.url);
  if (!isFramedByAnotherSite()) {
    location.replace(url);
    return;
  }
  // The browser refuses to show the pages in a frame of another site. A notebook, for example, has such a frame.
  const link = document.createElement("a");
  link.href = url;
  link.target = "_blank";
  link.rel = "noopener";
  link.textContent = "Open the pages of tfdbg_arrow in a tab of the browser";
  const text = document.createElement("p");
  text.append("They are not shown inside a page of another site. ", link);
  document.body.append(text);
};
