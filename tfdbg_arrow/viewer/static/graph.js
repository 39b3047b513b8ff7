// Draws the neighbourhood of an op, or a graph with its ops grouped by scope: measures the boxes, lets a worker place them
// from top to bottom, and draws the lines. To unfold a scope in place, the script loads its boxes and lines from the server.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LINE_HEIGHT = 15, PAD = 9, INTO_WIDTH = 46, INTO_HEIGHT = 18;
  const SIGN = 16, MINIMAP = { width: 170, height: 120 };
  const MIN_SCALE = 0.15, MAX_SCALE = 2.5, LEAST_READABLE = 0.7, ROW = 6;

  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.append(element);
    return element;
  };
  const say = (parent, text, attributes) => {
    const element = make("text", attributes, parent);
    element.textContent = text;
    return element;
  };
  const slug = (text) => (text || "").replaceAll(" ", "-");

  const isScope = (box) => box.scope_id !== null;

  // Measure widths with the page's fonts before the layout.
  const measure = (svg, box) => {
    const probe = make("g", {}, svg);
    const texts = [
      say(probe, `${box.mark} ${box.head}`, { class: "head-line" }),
      ...box.lines.map((text, number) => say(probe, text, { class: number ? "note" : "op-name" })),
    ];
    const width = Math.max(...texts.map((text) => text.getComputedTextLength()));
    probe.remove();
    return {
      width: Math.ceil(Math.max(width + (isScope(box) ? 2 * SIGN : 0), box.into ? INTO_WIDTH + 20 : 0) + 2 * PAD),
      height: (box.lines.length + 1) * LINE_HEIGHT + 2 * PAD - 4 + (box.into ? INTO_HEIGHT + 4 : 0),
    };
  };

  // Boxes with a single neighbour get extra rows. Otherwise a loop with thirty inputs would have one very long row.
  const rowsOf = (drawing) => {
    const neighbours = drawing.boxes.map(() => new Set());
    for (const { source, target } of drawing.lines) {
      neighbours[source].add(target);
      neighbours[target].add(source);
    }
    const hanging = new Map();
    return drawing.lines.map(({ source, target }) => {
      const leaf = neighbours[source].size === 1 ? source : neighbours[target].size === 1 ? target : null;
      if (leaf === null) return 1;
      const key = leaf === source ? `to ${target}` : `from ${source}`;
      if (!hanging.has(key)) hanging.set(key, []);
      const leaves = hanging.get(key);
      if (!leaves.includes(leaf)) leaves.push(leaf);
      return 1 + Math.floor(leaves.indexOf(leaf) / ROW);
    });
  };

  // Places boxes in the worker, which computes one layout after the other.
  const LAYOUT = new URL("graph_layout.js", document.currentScript.src);
  let worker = null, numLayouts = 0;
  const layout = (asked) => new Promise((resolve, reject) => {
    worker = worker || new Worker(LAYOUT);
    const number = ++numLayouts;
    const take = ({ data }) => {
      if (data.number !== number) return;
      worker.removeEventListener("message", take);
      resolve(data);
    };
    worker.addEventListener("message", take);
    worker.addEventListener("error", reject, { once: true });
    worker.postMessage({ number, ...asked });
  });

  const place = (svg, drawing) => {
    const frames = drawing.frames;
    const ranksep = 30 + Math.min(50, drawing.lines.length / 2);
    const options = { rankdir: "TB", nodesep: 22, ranksep, edgesep: 12, marginx: 16, marginy: 16 };
    const rows = rowsOf(drawing);
    const outerOf = ({ outer }) => (outer === null ? null : `frame ${outer}`);
    const nodes = [
      ...drawing.boxes.map((box, number) => ({ name: String(number), outer: outerOf(box), label: measure(svg, box) })),
      ...frames.map((frame, number) => ({ name: `frame ${number}`, outer: outerOf(frame), label: {} })),
    ];
    const edges = drawing.lines.map((line, number) => {
      const probe = say(svg, line.text, { class: "line-text" });
      const width = line.text ? probe.getComputedTextLength() + 6 : 0;
      probe.remove();
      // Control edges weigh less in the layout than edges that carry tensors.
      const label = { width, height: line.text ? 14 : 0, labelpos: "c", weight: line.is_control ? 0 : 2, minlen: rows[number] };
      return { name: String(number), from: String(line.source), to: String(line.target), label };
    });
    return layout({ options, nodes, edges });
  };

  // Lines leave a box at its lower edge, and enter a box at its upper edge. At an edge, they are side by side in the order
  // of their other ends. dagre would end a line where the straight line to the centre of the box crosses its border. This
  // is often at the side of the box, and the line often crosses other boxes.
  const route = (placed) => {
    const ends = placed.edges.map((edge) => {
      const from = placed.nodes.get(edge.from), to = placed.nodes.get(edge.to), points = edge.points;
      const isDown = from.y <= to.y;
      return { edge, from, to, isDown, between: points.slice(1, -1), start: null, end: null };
    });
    const ports = new Map();
    const add = (name, side, line, end, toward) => {
      const key = `${name} ${side}`;
      if (!ports.has(key)) ports.set(key, []);
      ports.get(key).push({ line, end, toward });
    };
    for (const line of ends) {
      const { edge, from, to, between, isDown } = line;
      const first = between[0] || to, last = between[between.length - 1] || from;
      add(edge.from, isDown ? "lower" : "upper", line, "start", first.x);
      add(edge.to, isDown ? "upper" : "lower", line, "end", last.x);
    }
    for (const [key, some] of ports) {
      some.sort((one, other) => one.toward - other.toward);
      some.forEach(({ line, end }, number) => {
        const box = end === "start" ? line.from : line.to;
        const x = box.x + box.width * 0.8 * ((number + 1) / (some.length + 1) - 0.5);
        line[end] = { x, y: box.y + (key.endsWith("lower") ? 1 : -1) * box.height / 2 };
      });
    }
    return new Map(ends.map((line) => [line.edge.name, [line.start, ...line.between, line.end]]));
  };
  // A line is vertical at every point, so that it bends between the rows and not inside a box.
  const smooth = (points) => points.slice(1).reduce((path, point, at) => {
    const middle = (points[at].y + point.y) / 2;
    return `${path}C${points[at].x},${middle} ${point.x},${middle} ${point.x},${point.y}`;
  }, `M${points[0].x},${points[0].y}`);
  const tip = (points) => {
    const end = points[points.length - 1], sign = end.y >= points[points.length - 2].y ? 1 : -1;
    return `M${end.x},${end.y}L${end.x - 4},${end.y - 8 * sign}L${end.x + 4},${end.y - 8 * sign}Z`;
  };

  const drawLine = (parent, line, points, middle) => {
    const classes = ["line", line.is_control && "is-control", line.is_bad && "is-bad"].filter(Boolean).join(" ");
    const group = make("g", { class: classes, "data-source-box": line.source, "data-target-box": line.target }, parent);
    make("title", {}, group).textContent = line.title;
    make("path", { d: smooth(points) }, group);
    make("path", { d: smooth(points), class: "wide" }, group);
    make("path", { d: tip(points), class: "tip" }, group);
    if (line.text && middle) {
      say(group, (line.is_bad ? "✕ " : "") + line.text, { class: "line-text", x: middle.x, y: middle.y + 4, "text-anchor": "middle" });
    }
  };

  // The frame around an unfolded scope. A click on the name of the frame folds the scope.
  const drawFrame = (parent, frame, at) => {
    const group = make("g", { class: `frame ${slug(frame.state)}` }, parent);
    const left = at.x - at.width / 2, top = at.y - at.height / 2;
    make("rect", { class: "around", x: left, y: top, width: at.width, height: at.height, rx: 10 }, group);
    return { frame, left, top };
  };
  const drawFrameName = (parent, { frame, left, top }) => {
    const link = make("a", { href: frame.href, class: `frame-name ${slug(frame.state)}`, "aria-label": frame.label, "data-fold": frame.scope_id }, parent);
    const text = say(link, `− ${frame.mark} ${frame.head}`, { x: left + 12, y: top + 4, class: "head-line" });
    const rect = make("rect", { x: left + 6, y: top - 9, width: text.getComputedTextLength() + 12, height: 18, rx: 9 });
    text.before(rect);
  };

  const drawBox = (parent, box, number, at) => {
    const classes = ["box", box.kind, slug(box.state), box.is_focus && "is-focus"].filter(Boolean).join(" ");
    const group = make("g", { class: classes, transform: `translate(${at.x - at.width / 2},${at.y - at.height / 2})` }, parent);
    const link = make(box.href ? "a" : "g", { "aria-label": box.label, "data-box": number }, group);
    if (box.href) {
      link.setAttribute("href", box.href);
      link.setAttribute("data-item", "");
      if (box.state === "bad") link.setAttribute("data-bad", "");
      if (box.is_focus) link.setAttribute("aria-current", "true");
      if (isScope(box)) link.setAttribute("data-unfold", box.scope_id);
      if (box.outer !== null) link.setAttribute("data-frame", box.outer);
    }
    make("title", {}, group).textContent = box.title;
    make("rect", { class: "outer", width: at.width, height: at.height, rx: box.kind === "border" ? 14 : 6 }, link);
    if (box.kind === "call") {
      make("rect", { x: 3.5, y: 3.5, width: at.width - 7, height: at.height - 7, rx: 4, fill: "none" }, link);
    }
    if (isScope(box)) {
      const sign = make("g", { class: "unfold", "data-unfold-now": "", "aria-hidden": "true" }, link);
      make("rect", { x: at.width - SIGN - 5, y: 5, width: SIGN, height: SIGN, rx: 4 }, sign);
      say(sign, "+", { x: at.width - SIGN / 2 - 5, y: SIGN + 1, "text-anchor": "middle" });
    }
    let y = PAD + 9;
    const middle = { x: at.width / 2, "text-anchor": "middle" };
    const head = say(link, "", { ...middle, y, class: "head-line" });
    const mark = make("tspan", { class: "mark" }, head);
    mark.textContent = box.mark;
    mark.setAttribute("aria-hidden", "true"); // the label has the state in words
    head.append(` ${box.head}`);
    box.lines.forEach((text, index) => {
      y += LINE_HEIGHT;
      const look = text.startsWith("✕") ? "note is-warning" : index ? "note" : "op-name";
      link.append(" "); // so that screen readers and voice control treat the texts as separate words
      say(link, text, { ...middle, y, class: look });
    });
    if (box.num_hidden) {
      const isInput = box.level < 0;
      const words = `${isInput ? "↑" : "↓"} ${box.num_hidden.toLocaleString("en")} more`;
      say(group, words, { x: at.width / 2, y: isInput ? -4 : at.height + 11, "text-anchor": "middle", class: "note more" });
    }
    if (box.into) {
      const into = make("a", { href: box.into, class: "into", "aria-label": `into the graph that ${box.label} calls` }, group);
      const x = (at.width - INTO_WIDTH) / 2, top = at.height - INTO_HEIGHT - 6;
      make("rect", { x, y: top, width: INTO_WIDTH, height: INTO_HEIGHT, rx: 4 }, into);
      say(into, "into ↧", { x: at.width / 2, y: top + 13, "text-anchor": "middle" });
    }
    return link;
  };

  const draw = async (holder, drawing) => {
    const svg = make("svg", { role: "group", "aria-label": drawing.title, visibility: "hidden" }, holder);
    const wait = document.createElement("p");
    wait.className = "is-waiting";
    wait.textContent = `Placing ${drawing.boxes.length.toLocaleString("en")} boxes …`;
    holder.prepend(wait);
    const placed = await place(svg, drawing).finally(() => wait.remove());
    const { size, nodes } = placed;
    svg.removeAttribute("visibility");
    svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    const around = make("g", {}, svg), lines = make("g", {}, svg), boxes = make("g", {}, svg), names = make("g", {}, svg);
    const frames = drawing.frames.map((frame, number) => drawFrame(around, frame, nodes.get(`frame ${number}`)));
    const routes = route(placed);
    for (const edge of placed.edges) drawLine(lines, drawing.lines[Number(edge.name)], routes.get(edge.name), edge);
    // Draw the boxes in reading order, so that the keys j and k move from top to bottom.
    const order = drawing.boxes.map((box, number) => ({ box, number, at: nodes.get(String(number)) }));
    order.sort((one, other) => one.at.y - other.at.y || one.at.x - other.at.x);
    const links = new Map(order.map(({ box, number, at }) => [number, drawBox(boxes, box, number, at)]));
    for (const each of frames) drawFrameName(names, each);
    return { svg, width: size.width, height: size.height, order, links, frames };
  };

  // Arrow keys move to the nearest box above, below or beside.
  const nextBox = (picture, number, key) => {
    const from = picture.order.find((each) => each.number === number).at;
    const isAcross = key === "ArrowLeft" || key === "ArrowRight";
    const sign = key === "ArrowUp" || key === "ArrowLeft" ? -1 : 1;
    let best = null, least = Infinity;
    for (const { number: other, at, box } of picture.order) {
      const x = at.x - from.x, y = at.y - from.y;
      const along = sign * (isAcross ? x : y), aside = Math.abs(isAcross ? y : x);
      if (!box.href || other === number || along < 2 || (isAcross && aside > 30)) continue;
      const far = along + aside / 2;
      if (far < least) { least = far; best = other; }
    }
    return best;
  };

  // The current picture with its scale and position. A live page is redrawn when its logdir changes, and keeps the scale
  // and the position.
  let now = null, before = null;
  let from = null, hasMoved = false, lastFocused = null;

  const zoom = (wanted, x = now.holder.clientWidth / 2, y = now.holder.clientHeight / 2) => {
    const { holder, picture, scale } = now;
    const left = (holder.scrollLeft + x) / scale, top = (holder.scrollTop + y) / scale;
    now.scale = Math.min(MAX_SCALE, Math.max(MIN_SCALE, wanted));
    picture.svg.setAttribute("width", Math.round(picture.width * now.scale));
    picture.svg.setAttribute("height", Math.round(picture.height * now.scale));
    holder.scrollLeft = left * now.scale - x;
    holder.scrollTop = top * now.scale - y;
  };
  const centre = (at) => {
    now.holder.scrollLeft = at.x * now.scale - now.holder.clientWidth / 2;
    now.holder.scrollTop = at.y * now.scale - now.holder.clientHeight / 2;
  };
  // Centres the op of the page. In a graph grouped by scope, centres the first bad box.
  const centreOp = () => {
    const { order } = now.picture;
    centre((order.find((each) => each.box.is_focus) || order.find((each) => each.box.state === "bad") || order[0]).at);
  };
  const whole = () => {
    const { holder, picture } = now;
    return Math.min(1, (holder.clientWidth - 4) / picture.width, (holder.clientHeight - 4) / picture.height);
  };
  const ACTIONS = [
    { key: "-", sign: "−", name: "smaller", act: () => zoom(now.scale / 1.25) },
    { key: "+", sign: "+", name: "larger", act: () => zoom(now.scale * 1.25) },
    { key: "0", sign: "whole", name: "picture", act: () => { zoom(whole()); centreOp(); } },
    { key: "1", sign: "1:1", name: "in full size", act: () => { zoom(1); centreOp(); } },
  ];

  // Highlight the lines of the box that has the focus or is under the pointer.
  const light = (box) => {
    for (const line of now.picture.svg.querySelectorAll(".line")) {
      const ends = [line.dataset.sourceBox, line.dataset.targetBox];
      line.classList.toggle("is-lit", Boolean(box) && ends.includes(box.dataset.box));
    }
  };
  const addTools = (holder) => {
    const tools = document.createElement("div");
    tools.className = "picture-tools";
    const hint = document.createElement("span");
    hint.className = "quiet";
    hint.textContent = "drag to move, arrow keys go from box to box";
    tools.append(hint);
    for (const { key, sign, name, act } of ACTIONS) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = sign;
      button.setAttribute("aria-label", `${sign} ${name} (${key})`);
      button.title = `${name} (${key})`;
      button.addEventListener("click", act);
      tools.append(button);
    }
    holder.before(tools);
  };

  // A small picture of the whole graph that marks the part in view. It is shown if the large picture does not fit.
  const addMinimap = (holder, picture) => {
    const scale = Math.min(MINIMAP.width / picture.width, MINIMAP.height / picture.height);
    const size = { width: Math.max(20, Math.round(picture.width * scale)), height: Math.max(20, Math.round(picture.height * scale)) };
    const map = make("svg", { class: "minimap", viewBox: `0 0 ${picture.width} ${picture.height}`, preserveAspectRatio: "none", "aria-hidden": "true", ...size });
    make("rect", { class: "ground", width: picture.width, height: picture.height }, map);
    for (const { at, box } of picture.order) {
      const [x, y] = [at.x - at.width / 2, at.y - at.height / 2];
      make("rect", { class: `spot ${slug(box.state)}`, x, y, width: at.width, height: at.height }, map);
      if (box.state !== "bad") continue;
      make("path", { class: "cross", d: `M${x},${y}l${at.width},${at.height}M${x},${y + at.height}l${at.width},${-at.height}` }, map);
    }
    const view = make("rect", { class: "view" }, map);
    let frame = null;
    const wrap = holder.parentElement.classList.contains("picture-wrap") ? holder.parentElement : document.createElement("div");
    if (!wrap.isConnected) {
      wrap.className = "picture-wrap";
      holder.replaceWith(wrap);
      wrap.append(holder);
    }
    for (const old of wrap.querySelectorAll(".minimap")) old.remove();
    wrap.append(map);
    const follow = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        if (!now || now.picture !== picture) return;
        const at = { x: holder.scrollLeft, y: holder.scrollTop, width: holder.clientWidth, height: holder.clientHeight };
        for (const [name, value] of Object.entries(at)) view.setAttribute(name, value / now.scale);
        map.classList.toggle("is-needed", holder.scrollWidth > holder.clientWidth + 4 || holder.scrollHeight > holder.clientHeight + 4);
      });
    };
    const move = (event) => {
      const box = map.getBoundingClientRect();
      centre({ x: (event.clientX - box.left) / box.width * picture.width, y: (event.clientY - box.top) / box.height * picture.height });
    };
    map.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      map.setPointerCapture(event.pointerId);
      move(event);
    });
    map.addEventListener("pointermove", (event) => { if (map.hasPointerCapture(event.pointerId)) move(event); });
    holder.addEventListener("scroll", follow);
    new ResizeObserver(follow).observe(picture.svg);
    follow();
  };

  // Unfolds or folds a scope: replaces the section of the model graph with the section from the page at another address.
  let asked = 0, scale = null; // `scale` keeps the scale while there is no current picture
  const go = async (href, { isNew = true, scope = null } = {}) => {
    const mine = ++asked;
    const section = document.getElementById("model");
    section.setAttribute("aria-busy", "true");
    const answer = await fetch(href);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("model");
    if (mine !== asked) return; // another scope was unfolded meanwhile
    for (const element of next ? next.querySelectorAll("noscript") : []) element.remove();
    if (!next) { location.assign(href); return; }
    if (now) ({ scale } = now);
    const isListOpen = section.querySelector(".scope-list").open;
    section.replaceWith(document.importNode(next, true));
    document.querySelector("#model .scope-list").open = isListOpen;
    if (isNew) history.pushState(null, "", href);
    now = null;
    if (!await show()) return; // another scope was unfolded meanwhile
    if (scale !== null) zoom(scale);
    goToScope(scope);
  };
  // Centres and focuses the first box of a scope that was unfolded, or the box of a scope that was folded.
  const goToScope = (scope) => {
    if (scope === null) return;
    const { order, frames, links } = now.picture;
    const number = frames.findIndex(({ frame }) => frame.scope_id === scope);
    const found = order.find(({ box }) => (number < 0 ? box.scope_id === scope : box.outer === number)) || order[0];
    centre(found.at);
    links.get(found.number).focus({ preventScroll: true });
  };
  const unfold = (link) => go(link.getAttribute("href"), { scope: Number(link.dataset.unfold) });
  const foldAround = (link) => {
    const found = link.dataset.frame === undefined ? null : now.picture.frames[Number(link.dataset.frame)].frame;
    if (found) go(found.href, { scope: found.scope_id });
    return Boolean(found);
  };
  const isPlain = (event) => !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button);
  document.addEventListener("click", (event) => {
    if (!now || event.defaultPrevented || !isPlain(event)) return;
    const inList = event.target.closest("#model .scope-list a[href*='open=']");
    const fold = event.target.closest("[data-fold]"), link = event.target.closest("[data-unfold]");
    if (!fold && !link && !inList) return;
    event.preventDefault();
    if (inList) go(inList.getAttribute("href"));
    else if (fold) go(fold.getAttribute("href"), { scope: Number(fold.dataset.fold) });
    else if (!event.detail || event.target.closest("[data-unfold-now]")) unfold(link); // a click by the key Enter has the detail 0
    else link.focus({ preventScroll: true });
  });
  document.addEventListener("dblclick", (event) => {
    const link = now && event.target.closest("[data-unfold]");
    if (link && !event.target.closest("[data-unfold-now]")) unfold(link);
  });
  addEventListener("popstate", () => { if (document.getElementById("model")) go(location.href, { isNew: false }); });

  const listen = (holder, picture) => {
    picture.svg.addEventListener("focusin", (event) => {
      const box = event.target.closest("[data-box]");
      light(box);
      if (!box) return;
      const { at } = picture.order.find((each) => each.number === Number(box.dataset.box));
      const x = at.x * now.scale - holder.scrollLeft, y = at.y * now.scale - holder.scrollTop;
      if (x < 40 || x > holder.clientWidth - 40 || y < 40 || y > holder.clientHeight - 40) centre(at);
    });
    picture.svg.addEventListener("focusout", () => light(null));
    picture.svg.addEventListener("pointerover", (event) => light(event.target.closest("[data-box]")));
    holder.addEventListener("pointerdown", (event) => {
      hasMoved = false;
      if (event.button === 0 && event.pointerType === "mouse") {
        from = { x: event.clientX, y: event.clientY, left: holder.scrollLeft, top: holder.scrollTop };
      }
    });
    holder.addEventListener("dragstart", (event) => event.preventDefault());
    holder.addEventListener("click", (event) => { if (hasMoved) event.preventDefault(); }, true);
    holder.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const box = holder.getBoundingClientRect();
      zoom(now.scale * (event.deltaY < 0 ? 1.1 : 1 / 1.1), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
  };

  // Shows the picture. Returns false if the picture was replaced before it could be shown.
  const show = async () => {
    const holder = document.getElementById("picture");
    before = now || before; // while boxes are placed, there is no current picture
    now = null;
    if (!holder) return false;
    const picture = await draw(holder, JSON.parse(holder.dataset.drawing));
    if (!holder.isConnected) return false;
    addMinimap(holder, picture);
    addTools(holder.parentElement);
    listen(holder, picture);
    now = { holder, picture, scale: 1, address: location.href };
    zoom(Math.max(LEAST_READABLE, whole()));
    holder.style.height = `${Math.min(holder.clientHeight, Math.ceil(picture.height * now.scale)) + 4}px`;
    centreOp();
    if (before && before.address === now.address) {
      zoom(before.scale);
      [holder.scrollLeft, holder.scrollTop] = [before.left, before.top];
      const box = [...picture.links.values()].find((link) => link.getAttribute("aria-label").startsWith(`${lastFocused};`));
      if (lastFocused && box && document.activeElement === document.body) box.focus({ preventScroll: true });
    }
    holder.addEventListener("scroll", () => { if (holder.isConnected) [now.left, now.top] = [holder.scrollLeft, holder.scrollTop]; });
    [now.left, now.top] = [holder.scrollLeft, holder.scrollTop];
    return true;
  };

  document.addEventListener("focusin", (event) => {
    const box = event.target.closest("[data-box]");
    lastFocused = box && box.getAttribute("aria-label").split(";")[0];
  });
  document.addEventListener("keydown", (event) => {
    if (!now || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea, dialog[open]")) return;
    const action = ACTIONS.find(({ key }) => key === (event.key === "=" ? "+" : event.key));
    const box = event.target.closest("[data-box]");
    if (box && box.dataset.unfold !== undefined && (event.key === "+" || event.key === "=")) {
      event.preventDefault();
      unfold(box);
    } else if (box && event.key === "-" && box.closest("#model") && foldAround(box)) {
      event.preventDefault();
    } else if (action) {
      event.preventDefault();
      action.act();
    } else if (box && event.key.startsWith("Arrow")) {
      event.preventDefault();
      const next = nextBox(now.picture, Number(box.dataset.box), event.key);
      if (next !== null) now.picture.links.get(next).focus();
    }
  });
  addEventListener("pointermove", (event) => {
    if (!from || !now) return;
    if (Math.hypot(event.clientX - from.x, event.clientY - from.y) > 4) hasMoved = true;
    if (!hasMoved) return;
    now.holder.classList.add("is-dragged");
    now.holder.scrollLeft = from.left - (event.clientX - from.x);
    now.holder.scrollTop = from.top - (event.clientY - from.y);
  });
  addEventListener("pointerup", () => {
    from = null;
    if (now) now.holder.classList.remove("is-dragged");
  });
  document.addEventListener("DOMContentLoaded", () => show());
  document.addEventListener("content-changed", show);
})();
