/* The drawing of a picture: folding, panning, searching, colouring, replaying.
 *
 * Every string of the picture reaches the page as text (textContent, attributes other than handlers), never as markup.
 */
(() => {
  "use strict";

  const data = JSON.parse(document.getElementById("picture").textContent);
  const { nodes, layouts, arrows, metrics, shapes } = data;
  const ROOT = -1;
  const AT_ONCE = 1500; // visible boxes up to which "unfold all" goes
  const MANY = 3000; // things in view above which they are drawn as a few paths
  const FAR = 0.16; // the scale below which no text can be read
  const MARGIN = 28;
  const SCALES = { memory: bytes, gradient: digits, time: seconds };
  const VIRIDIS = ["#fde725", "#8bd646", "#2db27d", "#21908d", "#2f6b8e", "#414487", "#440154"];

  const $ = (id) => document.getElementById(id);
  const drawing = $("drawing"), world = $("world"), stage = $("stage");
  const opened = new Set(data.open);
  const compose = composing(data, opened);
  const view = { x: 0, y: 0, k: 1 };
  const state = { language: data.language, colour: "kind", selected: null, step: 0, hits: [], hit: -1, drawn: null };
  let scene = null; // what is visible: places, curves, size
  let timer = null; // of the replay
  let flight = 0; // of an animated move
  let hush = 0; // of what was last said
  let size = { width: 0, height: 0 }; // of the stage

  // ---------------------------------------------------------------- words and numbers

  const patterns = Object.entries(data.words)
    .filter(([english]) => english.includes("{}"))
    .map(([english, chinese]) => {
      const parts = english.split("{}").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
      return [new RegExp(`^${parts.join("([^]*?)")}$`), chinese];
    });

  /** An English word in the language of the page; what is not known stays as it is. */
  function word(english) {
    if (state.language !== "zh") return english;
    if (Object.hasOwn(data.words, english)) return data.words[english];
    for (const [pattern, chinese] of patterns) {
      const found = pattern.exec(english);
      if (found) return chinese.split("{}").reduce((text, part, i) => text + found[i] + part);
    }
    return english;
  }

  /** A sentence with its `{}` filled in after it has been translated. */
  function sentence(english, ...values) {
    let i = 0;
    return word(english).replace(/\{\}/g, () => values[i++]);
  }

  function scaled(value, units, step) {
    let i = 0;
    while (i < units.length - 1 && Math.abs(value) >= step) { value /= step; i += 1; }
    return `${Number(value.toPrecision(3))} ${units[i]}`;
  }
  function bytes(value) { return scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024); }
  function seconds(value) { return value >= 1 ? `${Number(value.toPrecision(3))} s` : scaled(value * 1e9, ["ns", "µs", "ms"], 1000); }
  function digits(value) { return value !== 0 && (Math.abs(value) < 1e-2 || Math.abs(value) >= 1e4) ? value.toExponential(2) : String(Number(value.toPrecision(3))); }

  // ---------------------------------------------------------------- elements

  function fill(made, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  }
  const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const sv = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  // ---------------------------------------------------------------- the tree

  const kindOf = (node) => (node.boxes === undefined ? node.kind : "group");
  const holds = (index) => nodes[index].boxes !== undefined;
  const childrenOf = (group) => layouts[group].items.filter((item) => item[0] >= 0).map((item) => item[0]);
  const nameOf = (node) => (node.kind === "part" ? sentence("part {}", node.label) : node.label);
  const cutName = (node) => (node.kind === "part" ? nameOf(node) : node.cut ? node.cut[0] : node.label);
  const cutDetail = (node) => (node.cut ? node.cut[1] : node.detail);

  const visible = (index) => scene.visible(index);

  function above(index) {
    const out = [];
    while (index !== ROOT) { index = nodes[index].parent; out.push(index); }
    return out;
  }

  const written = (pen) => pen.map(([letter, ...numbers]) => letter + numbers.map((n) => n.toFixed(1)).join(" ")).join("");

  // ---------------------------------------------------------------- painting

  /** Compose again after a fold or unfold, keeping `anchor` (a node) where it was on the screen. */
  function recompose(anchor = null) {
    const before = anchor === null || !scene ? null : scene.at.get(anchor);
    scene = compose();
    const after = before && scene.at.get(anchor);
    if (after) {
      view.x += (before.x + before.w / 2 - after.x - after.w / 2) * view.k;
      view.y += (before.y - after.y) * view.k;
    }
    paint();
  }

  /** Draw what lies in view and around it; all of it where that is little. */
  function paint() {
    const focused = document.activeElement?.closest?.("#world [data-index]")?.dataset.index;
    const box = stage.getBoundingClientRect();
    const few = scene.places.length <= AT_ONCE;
    const region = few || printing() ? { x: -1e9, y: -1e9, w: 2e9, h: 2e9 } : {
      x: (-view.x - box.width) / view.k, y: (-view.y - box.height) / view.k,
      w: (3 * box.width) / view.k, h: (3 * box.height) / view.k,
    };
    const inside = (p) => p.x < region.x + region.w && p.x + p.w > region.x && p.y < region.y + region.h && p.y + p.h > region.y;
    const places = scene.places.filter(inside), curves = scene.curves.filter(inside);
    const far = places.length > MANY || (!few && view.k < FAR);
    world.replaceChildren(...(far ? farAway(places, curves) : [...places.filter((p) => p.frame).map(backElement), ...curves.map(curveElement), ...places.map(placeElement)]));
    state.drawn = { region, far, k: view.k, few };
    markAll();
    move();
    if (focused !== undefined) world.querySelector(`[data-index="${focused}"]`)?.focus({ preventScroll: true });
  }

  /** Thousands of boxes at a scale at which none can be read: one path for each colour. */
  function farAway(places, curves) {
    const paths = new Map(), colour = colouring();
    for (const p of places) {
      const kind = p.frame ? "frame" : kindOf(nodes[p.index]), tint = p.frame ? null : colour(nodes[p.index]);
      const key = tint ? tint.fill : kind;
      if (!paths.has(key)) paths.set(key, { kind: `${kind} far`, tint, d: [] });
      paths.get(key).d.push(`M${p.x.toFixed(0)} ${p.y.toFixed(0)}h${p.w.toFixed(0)}v${p.h.toFixed(0)}h${-p.w.toFixed(0)}z`);
    }
    const drawn = [...paths.values()].map(({ kind, tint, d }) => {
      const path = sv("path", { class: kind, d: d.join("") });
      if (tint) path.style.fill = tint.fill;
      return path;
    });
    return [sv("path", { class: "arrow", d: curves.map((c) => written(c.path)).join("") }), ...drawn];
  }

  function curveElement(curve) {
    return sv("path", {
      class: "arrow", d: written(curve.path), "marker-end": "url(#head)", "data-source": curve.source, "data-target": curve.target,
      "data-count": curve.count, "stroke-width": Math.min(5, 1.2 + 0.8 * Math.log2(curve.count)).toFixed(1),
    });
  }

  function placeElement(place) {
    const node = nodes[place.index];
    const spoken = [nameOf(node), node.detail, word(node.kind)].filter(Boolean).join(", ");
    const made = sv("g", {
      class: place.frame ? "node open" : "node", "data-index": place.index, "data-kind": node.kind, role: "button", tabindex: 0,
      "aria-label": spoken, "aria-expanded": holds(place.index) ? String(place.frame) : null,
      transform: `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})`,
    }, sv("title", {}, node.detail ? `${nameOf(node)}\n${node.detail}` : nameOf(node)));
    made.append(...(place.frame ? frameParts(place, node) : boxParts(place, node)));
    return made;
  }

  /** The ground of a frame, below the arrows; its name and edge are above them. */
  function backElement(place) {
    return sv("rect", { class: "frame", x: place.x.toFixed(1), y: place.y.toFixed(1), width: place.w.toFixed(1), height: place.h.toFixed(1), rx: 12 });
  }

  function frameParts(place, node) {
    const { pad, title } = metrics;
    return [
      sv("rect", { class: "edge shape", width: place.w.toFixed(1), height: place.h.toFixed(1), rx: 12 }),
      sv("rect", { class: "bar", width: place.w.toFixed(1), height: title, rx: 12 }),
      foldSign(18, title / 2, "−"),
      sv("text", { class: "label start", x: pad + 12, y: title / 2 + 5 }, cutName(node),
        sv("tspan", { class: "detail", dx: 8 }, cutDetail(node))),
    ];
  }

  function boxParts(place, node) {
    const group = holds(place.index), kind = kindOf(node), shape = shapes[`${kind}:${node.w}`], h = metrics.height;
    const middle = place.w / 2 - (group ? 12 : 0), detail = cutDetail(node), tint = colouring()(node);
    const front = sv("path", { class: `shape ${kind}`, d: shape });
    const parts = [
      group ? sv("path", { class: `behind ${kind}`, d: shape, transform: "translate(4 4)" }) : null, front,
      sv("text", { class: "label", x: middle, y: detail ? h / 2 - 3 : h / 2 + 5 }, cutName(node)),
      detail ? sv("text", { class: "detail", x: middle, y: h / 2 + 13 }, detail) : null,
      group ? foldSign(place.w - 20, h / 2 - 5, "+") : null,
      group ? sv("text", { class: "count", x: place.w - 20, y: h / 2 + 16 }, String(node.boxes)) : null,
    ].filter(Boolean);
    if (tint) {
      front.style.fill = tint.fill;
      for (const part of parts) if (part.tagName === "text") part.style.fill = tint.ink;
    }
    return parts;
  }

  function foldSign(x, y, sign) {
    return sv("g", { class: "fold", transform: `translate(${x} ${y})` }, sv("circle", { r: 8 }), sv("text", { y: 4 }, sign));
  }

  /** Mark the selected node, the hits of the search and the step of the replay, and the arrows of the selected node. */
  function markAll() {
    const hits = new Set(state.hits), step = state.step ? data.steps[state.step - 1].box : null;
    const shown = (index) => (index === null ? null : visible(index));
    const now = shown(step), chosen = shown(state.selected), hit = state.hits[state.hit] ?? null;
    for (const element of world.querySelectorAll("[data-index]")) {
      const index = Number(element.dataset.index);
      element.classList.toggle("hit", hits.has(index));
      element.classList.toggle("thishit", index === hit);
      element.classList.toggle("now", index === now);
      element.classList.toggle("selected", index === chosen);
      if (index === now) element.setAttribute("aria-current", "step");
      else element.removeAttribute("aria-current");
    }
    const hot = [now ?? chosen];
    for (const path of world.querySelectorAll(".arrow[data-source]")) {
      path.classList.toggle("hot", hot.includes(Number(path.dataset.source)) || hot.includes(Number(path.dataset.target)));
    }
  }

  // ---------------------------------------------------------------- the view

  function move() {
    if (printing()) return;
    world.setAttribute("transform", `translate(${view.x.toFixed(2)} ${view.y.toFixed(2)}) scale(${view.k.toFixed(4)})`);
    $("scale").textContent = `${Math.round(view.k * 100)} %`;
  }

  /** After the view has changed: move what is drawn, and draw anew what has come into view. */
  function moved() {
    const { region, few, k, far } = state.drawn, box = stage.getBoundingClientRect();
    const left = -view.x / view.k, top = -view.y / view.k;
    const covered = left >= region.x && top >= region.y
      && left + box.width / view.k <= region.x + region.w && top + box.height / view.k <= region.y + region.h;
    if (few || (covered && (k < FAR) === (view.k < FAR) && !(far && view.k > 2 * k))) move();
    else paint();
  }

  function pan(dx, dy) { stop(); view.x += dx; view.y += dy; moved(); }

  function zoom(factor, x, y) {
    stop();
    const box = stage.getBoundingClientRect(), k = Math.min(4, Math.max(0.02, view.k * factor));
    const [cx, cy] = [x ?? box.width / 2, y ?? box.height / 2];
    view.x = cx - ((cx - view.x) * k) / view.k;
    view.y = cy - ((cy - view.y) * k) / view.k;
    view.k = k;
    moved();
  }

  const stop = () => { cancelAnimationFrame(flight); };

  /** Move the view to `goal` in a quarter of a second, or at once where less motion is wanted. */
  function fly(goal) {
    stop();
    const from = { ...view }, begun = performance.now();
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) { Object.assign(view, goal); moved(); return; }
    const frame = (time) => {
      const share = Math.min(1, Math.max(0, (time - begun) / 250)), eased = share * (2 - share);
      for (const name of ["x", "y", "k"]) view[name] = from[name] + (goal[name] - from[name]) * eased;
      moved();
      if (share < 1) flight = requestAnimationFrame(frame);
    };
    flight = requestAnimationFrame(frame);
  }

  function fitted() {
    const box = stage.getBoundingClientRect();
    const room = box.height - $("legend").offsetHeight - 2 * MARGIN;
    const k = Math.max(0.02, Math.min(1.25, (box.width - 2 * MARGIN) / Math.max(1, scene.w), room / Math.max(1, scene.h)));
    return { k, x: (box.width - scene.w * k) / 2, y: MARGIN + (room - scene.h * k) / 2 };
  }

  /** All of the drawing, or the beginning of it where all of it could not be read. */
  function readable() {
    const box = stage.getBoundingClientRect(), goal = fitted();
    if (goal.k < 0.6) {
      goal.k = Math.min(0.9, Math.max(0.6, (box.width - 2 * MARGIN) / scene.w));
      goal.y = MARGIN;
      const first = scene.places[0];
      goal.x = scene.w * goal.k <= box.width ? (box.width - scene.w * goal.k) / 2 : box.width / 2 - (first.x + first.w / 2) * goal.k;
    }
    return goal;
  }

  /** What was in the middle stays there. */
  function resized() {
    if (printing()) return;
    const box = stage.getBoundingClientRect();
    if (size.width) pan((box.width - size.width) / 2, (box.height - size.height) / 2);
    size = { width: box.width, height: box.height };
  }

  function centre(index) {
    const place = scene.at.get(visible(index)), box = stage.getBoundingClientRect(), k = Math.max(view.k, 0.7);
    const h = place.frame ? metrics.title : place.h;
    fly({ k, x: box.width / 2 - (place.x + place.w / 2) * k, y: box.height / 2 - (place.y + h / 2) * k });
  }

  /** Move as little as is needed for a node to be seen. */
  function keepInView(index) {
    const place = scene.at.get(visible(index)), box = stage.getBoundingClientRect(), edge = 40;
    const h = place.frame ? metrics.title : place.h;
    const left = place.x * view.k + view.x, top = place.y * view.k + view.y;
    const by = (low, size, room) => (low < edge ? edge - low : low + size > room - edge ? Math.max(edge - low, room - edge - low - size) : 0);
    const dx = by(left, place.w * view.k, box.width), dy = by(top, h * view.k, box.height);
    if (dx || dy) fly({ k: view.k, x: view.x + dx, y: view.y + dy });
  }

  // ---------------------------------------------------------------- folding

  function toggle(index) {
    if (!opened.delete(index)) opened.add(index);
    recompose(index);
    if (state.selected === index) showCard();
  }

  function foldAll() { opened.clear(); recompose(); fly(readable()); say(sentence("{} boxes are visible.", scene.places.length)); }

  /** Unfold from the top, group by group, as long as not too many boxes are visible. */
  function unfoldAll() {
    opened.clear();
    let seen = childrenOf(ROOT).length, whole = true;
    const queue = childrenOf(ROOT);
    for (let i = 0; i < queue.length; i += 1) {
      if (!holds(queue[i])) continue;
      const inside = childrenOf(queue[i]);
      if (seen + inside.length - 1 > AT_ONCE) { whole = false; continue; }
      seen += inside.length - 1;
      opened.add(queue[i]);
      queue.push(...inside);
    }
    recompose();
    fly(readable());
    say(whole ? sentence("All {} boxes are visible.", seen) : sentence("{} boxes are visible; unfold the others one by one.", seen));
  }

  /** Unfold all that hides a node. */
  function reveal(index) {
    const hidden = above(index).filter((group) => group !== ROOT && !opened.has(group));
    if (!hidden.length) return;
    const anchor = visible(index);
    hidden.forEach((group) => opened.add(group));
    recompose(anchor);
  }

  function say(text) {
    $("said").textContent = text;
    clearTimeout(hush);
    hush = setTimeout(() => $("said").replaceChildren(), 6000);
  }

  // ---------------------------------------------------------------- colours

  const numberOf = (value) => (typeof value === "string" ? Number(value) : value);
  const domains = {};
  for (const name of Object.keys(SCALES)) {
    const all = nodes.map((node) => numberOf(node.amounts?.[name])).filter((value) => value !== undefined);
    const finite = all.filter(Number.isFinite), positive = finite.filter((value) => value > 0);
    if (!all.length) continue;
    const low = finite.reduce((a, b) => Math.min(a, b), Infinity), high = finite.reduce((a, b) => Math.max(a, b), -Infinity);
    const least = positive.reduce((a, b) => Math.min(a, b), Infinity);
    domains[name] = { high, log: low >= 0 && high > 50 * least, low: low >= 0 && high > 50 * least ? least : Math.min(low, high), odd: finite.length < all.length };
  }

  function dark() {
    const theme = document.documentElement.dataset.theme;
    return !printing() && (theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  }

  function ramp(share) {
    const at = (dark() ? 1 - share : share) * (VIRIDIS.length - 1), i = Math.min(VIRIDIS.length - 2, Math.floor(at));
    const part = (stop, j) => parseInt(VIRIDIS[stop].slice(1 + 2 * j, 3 + 2 * j), 16);
    return [0, 1, 2].map((j) => Math.round(part(i, j) + (part(i + 1, j) - part(i, j)) * (at - i)));
  }

  function tinted([r, g, b]) {
    return { fill: `rgb(${r}, ${g}, ${b})`, ink: 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10131a" : "#ffffff" };
  }

  const nothing = () => tinted(dark() ? [38, 43, 51] : [240, 241, 243]);

  /** From a node to its fill and ink under the chosen colouring; null where the kind decides. */
  function colouring() {
    const domain = domains[state.colour];
    if (!domain) return () => null;
    const { low, high, log } = domain;
    return (node) => {
      const value = numberOf(node.amounts?.[state.colour]);
      if (value === undefined) return nothing();
      if (!Number.isFinite(value)) return tinted([214, 40, 40]);
      if (log && value === 0) return nothing();
      if (high <= low) return tinted(ramp(value > 0 ? 1 : 0));
      const share = log ? (Math.log(Math.max(value, low)) - Math.log(low)) / (Math.log(high) - Math.log(low)) : (value - low) / (high - low);
      return tinted(ramp(share));
    };
  }

  function legend() {
    const box = $("legend"), domain = domains[state.colour];
    if (!domain) { box.replaceChildren(...kindLegend()); return; }
    const { low, high, log, odd } = domain, told = SCALES[state.colour];
    const middle = log ? Math.sqrt(low * high) : (low + high) / 2;
    const bar = el("div", { class: "ramp", "aria-hidden": "true" });
    bar.style.background = `linear-gradient(to right, ${[0, 1, 2, 3, 4, 5, 6].map((i) => tinted(ramp(i / 6)).fill).join(", ")})`;
    const ticks = Number.isFinite(high) ? [low, middle, high].map((value) => el("span", {}, told(value))) : [];
    box.replaceChildren(
      el("div", { class: "scale" }, el("div", {}, word(state.colour), log ? el("small", {}, word("logarithmic")) : ""), bar, el("div", { class: "ticks" }, ...ticks)),
      swatch("none", nothing().fill),
      odd ? swatch("not finite", "rgb(214, 40, 40)") : "",
    );
  }

  function swatch(name, fillColour) {
    const dot = el("i", { class: "dot", "aria-hidden": "true" });
    dot.style.background = fillColour;
    return el("div", { class: "swatch" }, dot, word(name));
  }

  function kindLegend() {
    const kinds = [...new Set(nodes.map(kindOf))];
    const order = ["input", "parameter", "buffer", "operation", "custom", "output", "group"].filter((kind) => kinds.includes(kind));
    return order.map((kind) => el("div", { class: "swatch" },
      sv("svg", { class: "sample", viewBox: `-3 -3 ${metrics.sample + 6} 52`, "aria-hidden": "true" },
        sv("path", { class: `shape ${kind}`, d: shapes[`${kind}:${metrics.sample}`] })), word(kind)));
  }

  function colourBy(name) {
    state.colour = name;
    document.querySelectorAll("input[name=colour]").forEach((input) => { input.checked = input.value === name; });
    legend();
    paint();
  }

  // ---------------------------------------------------------------- cards and tables

  function factsElement(facts) {
    if (!facts?.length) return null;
    return el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, word(name)), el("dd", {}, value)]));
  }

  function sourceElement(source) {
    if (!source) return null;
    const [file, line, where, text] = source;
    return el("figure", { class: "source" },
      el("figcaption", {}, el("span", { class: "place" }, `${file}:${line}`), where ? ` ${sentence("in {}", where)}` : ""),
      text ? el("pre", { tabindex: 0 }, el("code", {}, text)) : null);
  }

  function tableElement([title, head, rows]) {
    const shown = rows.slice(0, 500);
    const numeric = head.map((_, i) => rows.length > 0 && rows.every((row) => /^[\s\d.,+\-−eE%×]*([KMGT]?i?B|[nµm]?s)?$/.test(row[i] ?? "")));
    const cell = (tag) => (text, i) => el(tag, numeric[i] ? { class: "number" } : {}, tag === "th" ? word(text) : text);
    return el("div", { class: "table", tabindex: 0, role: "region", "aria-label": word(title) },
      el("table", {}, el("caption", {}, word(title)), el("thead", {}, el("tr", {}, ...head.map(cell("th")))),
        el("tbody", {}, ...shown.map((row) => el("tr", {}, ...row.map(cell("td")))))),
      shown.length < rows.length ? el("p", { class: "more" }, sentence("{} more rows", rows.length - shown.length)) : null);
  }

  function cardParts(card) {
    if (!card) return [];
    return [factsElement(card.facts), sourceElement(card.source), ...(card.tables ?? []).map(tableElement)].filter(Boolean);
  }

  /** Links to the boxes that made what a box uses, or use what it made. */
  function neighbours(title, pairs) {
    if (!pairs.length) return null;
    return el("section", { class: "near" }, el("h3", {}, word(title)), el("ul", {}, ...pairs.slice(0, 30).map(([index, label]) => {
      const link = el("button", { type: "button", class: "link" }, nameOf(nodes[index]));
      link.addEventListener("click", () => goTo(index));
      return el("li", {}, link, label ? el("small", {}, label) : "");
    }), pairs.length > 30 ? el("li", {}, sentence("{} more", pairs.length - 30)) : ""));
  }

  function nearOf(index) {
    const label = (number) => data.labels[number];
    return [
      neighbours("made from", arrows.filter((arrow) => arrow[1] === index).map(([source, , l]) => [source, label(l)])),
      neighbours("used by", arrows.filter((arrow) => arrow[0] === index).map(([, target, l]) => [target, label(l)])),
    ].filter(Boolean);
  }

  function nodeParts(index) {
    const node = nodes[index], group = holds(index);
    const parts = [
      el("p", { class: `badge ${kindOf(node)}` }, word(node.kind)),
      el("h2", {}, nameOf(node)), node.detail ? el("p", { class: "sub" }, node.detail) : null,
    ];
    const around = above(index).filter((one) => one !== ROOT).reverse();
    if (around.length) parts.splice(1, 0, el("p", { class: "around" }, around.map((one) => nameOf(nodes[one])).join(" › ")));
    if (group) {
      const button = el("button", { type: "button", id: "cardfold" }, word(opened.has(index) ? "fold" : "unfold"));
      button.addEventListener("click", () => { toggle(index); $("cardfold")?.focus(); });
      parts.push(el("p", {}, button, ` ${sentence("{} boxes", node.boxes)}`));
    }
    const amounts = Object.keys(SCALES).filter((name) => node.amounts?.[name] !== undefined)
      .map((name) => [name, Number.isFinite(numberOf(node.amounts[name])) ? SCALES[name](numberOf(node.amounts[name])) : String(node.amounts[name])]);
    parts.push(...cardParts(node.card));
    if (amounts.length) parts.push(el("section", { class: "amounts" }, factsElement(amounts)));
    return [...parts.filter(Boolean), ...(group ? [] : nearOf(index))];
  }

  function showCard() {
    const parts = [];
    if (state.step) {
      const { text, card } = data.steps[state.step - 1];
      parts.push(el("section", { class: "step" }, el("p", { class: "badge" }, sentence("step {} of {}", state.step, data.steps.length)),
        el("p", { class: "text" }, word(text)), ...cardParts(card)));
    }
    if (state.selected !== null) parts.push(el("section", { class: "node" }, ...nodeParts(state.selected)));
    if (!parts.length) parts.push(el("p", { class: "hint" }, word("Choose a box to see what it holds.")));
    $("card").replaceChildren(...parts);
  }

  function select(index, show = true) {
    state.selected = index;
    markAll();
    showCard();
    if (show) tab("card");
  }

  function goTo(index) {
    reveal(index);
    select(index);
    centre(index);
    world.querySelector(`[data-index="${index}"]`)?.focus({ preventScroll: true });
  }

  function tab(name) {
    for (const one of ["card", "tables"]) {
      $(one).hidden = one !== name;
      $(`${one}-tab`).setAttribute("aria-selected", String(one === name));
      $(`${one}-tab`).tabIndex = one === name ? 0 : -1;
    }
  }

  function showTables() {
    $("tables").replaceChildren(...data.tables.map(tableElement));
    $("tables-tab").hidden = !data.tables.length;
  }

  // ---------------------------------------------------------------- search

  const haystacks = nodes.map((node) => {
    const source = node.card?.source;
    const texts = [node.kind === "part" ? "" : node.label, node.detail, source ? `${source[0]}:${source[1]}` : "", source ? source[3] : ""];
    return texts.join("\n").toLowerCase();
  });

  function search(text) {
    const needle = text.trim().toLowerCase();
    state.hits = needle ? nodes.map((_, i) => i).filter((i) => nodes[i].kind !== "part" && haystacks[i].includes(needle)) : [];
    state.hit = -1;
    found(needle);
    markAll();
  }

  function found(needle) {
    const many = state.hits.length;
    $("hits").textContent = !needle ? "" : !many ? word("nothing found")
      : state.hit < 0 ? sentence("{} found", many) : sentence("{} of {}", state.hit + 1, many);
    $("before").disabled = $("after").disabled = !many;
  }

  function nextHit(by) {
    if (!state.hits.length) return;
    state.hit = (state.hit + (state.hit < 0 && by < 0 ? 0 : by) + state.hits.length) % state.hits.length;
    const index = state.hits[state.hit];
    reveal(index);
    select(index);
    centre(index);
    found("?");
  }

  // ---------------------------------------------------------------- replay

  function stepTo(number) {
    state.step = Math.min(data.steps.length, Math.max(0, number));
    const step = data.steps[state.step - 1];
    if (step) {
      reveal(step.box);
      state.selected = step.box;
      if (view.k < 0.3) centre(step.box);
      else keepInView(step.box);
      tab("card");
    }
    tellStep();
    markAll();
    showCard();
    if (state.step === data.steps.length) play(false);
  }

  function tellStep() {
    const step = data.steps[state.step - 1], text = word(step ? step.text : "before the first step");
    $("slider").value = state.step;
    $("slider").setAttribute("aria-valuetext", step ? `${state.step}: ${text}` : text);
    $("steptext").textContent = text;
    $("stepcount").textContent = `${state.step} / ${data.steps.length}`;
  }

  function play(on) {
    clearInterval(timer);
    timer = null;
    if (on) {
      if (state.step === data.steps.length) state.step = 0;
      timer = setInterval(() => stepTo(state.step + 1), 900);
      stepTo(state.step + 1);
    }
    const playing = timer !== null;
    $("play").textContent = playing ? "❚❚" : "▶";
    label($("play"), playing ? "pause" : "play");
  }

  // ---------------------------------------------------------------- words of the page, light and dark

  function label(element, english) {
    element.dataset.label = english;
    element.setAttribute("aria-label", word(english));
    element.title = word(english);
  }

  function speak() {
    document.documentElement.lang = state.language === "zh" ? "zh-Hans" : "en";
    for (const element of document.querySelectorAll("[data-word]")) element.textContent = word(element.dataset.word);
    for (const element of document.querySelectorAll("[data-label]")) label(element, element.dataset.label);
    for (const element of document.querySelectorAll("[data-hint]")) element.placeholder = word(element.dataset.hint);
    $("language").textContent = state.language === "zh" ? "English" : "中文";
    $("language").lang = state.language === "zh" ? "en" : "zh-Hans";
    say("");
    showTables();
    showCard();
    legend();
    found($("search").value.trim());
    tellStep();
    paint();
  }

  function retheme() { legend(); paint(); }

  const paper = matchMedia("print");
  let printed = false;
  function printing() { return printed || paper.matches; }

  /** On paper the whole drawing is fitted to the page; afterwards the view is as it was. */
  function print(on) {
    printed = on;
    if (printing()) {
      drawing.setAttribute("viewBox", `${-MARGIN} ${-MARGIN} ${scene.w + 2 * MARGIN} ${scene.h + 2 * MARGIN}`);
      world.removeAttribute("transform");
    } else drawing.removeAttribute("viewBox");
    legend();
    paint();
  }

  // ---------------------------------------------------------------- hands

  function indexAt(event) {
    const element = event.target.closest("[data-index]");
    if (element) return Number(element.dataset.index);
    const box = stage.getBoundingClientRect();
    const x = (event.clientX - box.left - view.x) / view.k, y = (event.clientY - box.top - view.y) / view.k;
    const under = state.drawn.far ? scene.places.filter((p) => x >= p.x && x <= p.x + p.w && y >= p.y && y <= p.y + p.h) : [];
    return under.length ? under.at(-1).index : null;
  }

  function listenToPointers() {
    const fingers = new Map();
    let travelled = 0;
    const spread2 = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a.x - b.x, a.y - b.y); };
    drawing.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      if (fingers.size === 1) travelled = 0;
    });
    drawing.addEventListener("pointermove", (event) => {
      const finger = fingers.get(event.pointerId);
      if (!finger) return;
      const dx = event.clientX - finger.x, dy = event.clientY - finger.y, apartBefore = fingers.size === 2 ? spread2() : 0;
      travelled += Math.abs(dx) + Math.abs(dy);
      if (travelled < 4) return;
      if (!drawing.hasPointerCapture(event.pointerId)) drawing.setPointerCapture(event.pointerId);
      Object.assign(finger, { x: event.clientX, y: event.clientY });
      pan(dx / fingers.size, dy / fingers.size);
      if (fingers.size === 2 && apartBefore) {
        const box = stage.getBoundingClientRect(), [a, b] = [...fingers.values()];
        zoom(spread2() / apartBefore, (a.x + b.x) / 2 - box.left, (a.y + b.y) / 2 - box.top);
      }
    });
    for (const end of ["pointerup", "pointercancel"]) drawing.addEventListener(end, (event) => fingers.delete(event.pointerId));
    drawing.addEventListener("click", (event) => {
      const index = indexAt(event);
      if (travelled >= 4 || index === null) return;
      if (event.target.closest(".fold")) toggle(index);
      else select(index);
    });
    drawing.addEventListener("dblclick", (event) => {
      const index = indexAt(event);
      if (index !== null && holds(index) && !event.target.closest(".fold")) toggle(index);
    });
    drawing.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = stage.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
  }

  function listenToKeys() {
    const pans = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };
    stage.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const index = event.target.closest("[data-index]")?.dataset.index;
      if (pans[event.key]) pan(...pans[event.key]);
      else if (event.key === "+" || event.key === "=") zoom(1.25);
      else if (event.key === "-") zoom(0.8);
      else if (event.key === "0") fly(fitted());
      else if (event.key === "Enter" && index !== undefined) select(Number(index));
      else if (event.key === " " && index !== undefined) { if (holds(Number(index))) toggle(Number(index)); else select(Number(index)); }
      else return;
      event.preventDefault();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.closest("input")) return;
      $("search").focus();
      event.preventDefault();
    });
    world.addEventListener("focusin", (event) => {
      const index = event.target.closest("[data-index]")?.dataset.index;
      if (index !== undefined && event.target.matches(":focus-visible")) keepInView(Number(index));
    });
    $("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") { $("search").value = ""; search(""); }
      else return;
      event.preventDefault();
    });
    for (const [one, other] of [["card", "tables"], ["tables", "card"]]) {
      $(`${one}-tab`).addEventListener("keydown", (event) => {
        if (!["ArrowLeft", "ArrowRight"].includes(event.key) || $(`${other}-tab`).hidden) return;
        tab(other);
        $(`${other}-tab`).focus();
      });
    }
  }

  function listenToButtons() {
    const clicks = {
      fit: () => fly(fitted()), nearer: () => zoom(1.25), farther: () => zoom(0.8), foldall: foldAll, unfoldall: unfoldAll,
      before: () => nextHit(-1), after: () => nextHit(1), "card-tab": () => tab("card"), "tables-tab": () => tab("tables"),
      play: () => play(timer === null), previous: () => { play(false); stepTo(state.step - 1); }, next: () => { play(false); stepTo(state.step + 1); },
      language: () => { state.language = state.language === "zh" ? "en" : "zh"; speak(); },
      theme: () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; retheme(); },
    };
    for (const [id, act] of Object.entries(clicks)) $(id).addEventListener("click", act);
    $("search").addEventListener("input", (event) => search(event.target.value));
    $("slider").addEventListener("input", (event) => { const to = Number(event.target.value); play(false); stepTo(to); });
    for (const input of document.querySelectorAll("input[name=colour]")) {
      input.disabled = input.value !== "kind" && !domains[input.value];
      input.addEventListener("change", () => colourBy(input.value));
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);
    paper.addEventListener("change", () => print(false));
    window.addEventListener("beforeprint", () => print(true));
    window.addEventListener("afterprint", () => print(false));
    new ResizeObserver(resized).observe(stage);
  }

  function start() {
    scene = compose();
    $("replay").hidden = !data.steps.length;
    $("slider").max = data.steps.length;
    tab("card");
    legend();
    Object.assign(view, readable());
    speak();
    listenToPointers();
    listenToKeys();
    listenToButtons();
    requestAnimationFrame(() => { document.documentElement.dataset.drawn = performance.now().toFixed(0); });
  }

  start();
})();
