/* Where everything stands when some groups are unfolded: does what compose.py does; a test holds them together.
 *
 * `composing(data, opened)` returns a function that composes what is visible now: `places` from the outside in, `curves`
 * as lists of commands, where each node is (`at`), and the size of the whole.
 */
function composing(data, opened) {
  "use strict";

  const { nodes, layouts, arrows, metrics } = data;
  const ROOT = -1, IN = -2, OUT = -3;
  let scene = null;

  function compose() {
    const whole = frameOf(ROOT);
    scene = {
      places: [], curves: [], at: new Map(), frames: new Map([[ROOT, whole]]), origins: new Map([[ROOT, [0, 0]]]),
      w: whole.w, h: whole.h, visible,
    };
    collect(scene, whole, ROOT);
    scene.curves = curvesOf();
    return scene;
  }

  function above(index) {
    const out = [];
    while (index !== ROOT) { index = nodes[index].parent; out.push(index); }
    return out;
  }

  /** The node itself if it is visible, or the outermost folded group around it. */
  function visible(index) {
    while (!scene.at.has(index)) index = nodes[index].parent;
    return index;
  }

  function frameOf(group) {
    const layout = layouts[group], inner = new Map();
    const sizes = layout.items.map(([what]) => {
      if (what >= 0 && opened.has(what)) {
        const frame = frameOf(what);
        inner.set(what, frame);
        return [frame.w, frame.h];
      }
      return what < 0 ? [metrics.narrow, 0] : [nodes[what].w, metrics.height];
    });
    const frame = { layout, inner, sizes, x: settle(layout, sizes), tops: [], bottoms: [], lanes: new Map(), ports: [] };
    stack(frame, group);
    widen(frame, group === ROOT ? 0 : nodes[group].bar);
    spread(frame);
    return frame;
  }

  /** The items of each row and what legs join above and below; the same for every state of folding. */
  function linesOf(layout) {
    if (layout.lines) return layout;
    layout.lines = [];
    layout.items.forEach((item, i) => (layout.lines[item[2]] ??= []).push(i));
    layout.above = layout.items.map(() => []);
    layout.below = layout.items.map(() => []);
    layout.find = new Map();
    layout.legs.forEach(([source, target, over], number) => {
      layout.find.set(`${layout.items[source][0]},${layout.items[target][0]}`, number);
      if (layout.items[source][2] >= layout.items[target][2]) return;
      const path = [source, ...over, target];
      for (let i = 1; i < path.length; i += 1) {
        layout.above[path[i]].push(path[i - 1]);
        layout.below[path[i - 1]].push(path[i]);
      }
    });
    return layout;
  }

  function settle(layout, sizes) {
    const { items, lines, above: up, below: down } = linesOf(layout);
    const x = items.map((item) => item[1]);
    for (const row of lines) apart(items, sizes, x, row, row.map((i) => items[i][1]));
    for (const [order, linked] of [[lines, up], [[...lines].reverse(), down]]) {
      for (const row of order) {
        const wanted = row.map((i) => {
          const near = linked[i].length ? linked[i] : [i];
          return items[i][1] + near.reduce((sum, j) => sum + x[j] - items[j][1], 0) / near.length;
        });
        apart(items, sizes, x, row, wanted);
      }
    }
    return x;
  }

  /** Isotonic regression by pooling adjacent violators: as near to `wanted` as the distances in a row allow. */
  function apart(items, sizes, x, row, wanted) {
    const shifts = [], blocks = [];
    let shift = 0;
    row.forEach((i, place) => {
      if (place) {
        const before = row[place - 1];
        const ways = items[i][0] < 0 || items[before][0] < 0;
        shift += (sizes[i][0] + sizes[before][0]) / 2 + (ways ? metrics.beside : metrics.apart);
      }
      shifts.push(shift);
      blocks.push([wanted[place] - shift, 1]);
      while (blocks.length > 1 && blocks.at(-2)[0] > blocks.at(-1)[0]) {
        const [mean, count] = blocks.pop(), last = blocks.at(-1);
        last[0] = (last[0] * last[1] + mean * count) / (last[1] + count);
        last[1] += count;
      }
    });
    let place = 0;
    for (const [mean, count] of blocks) {
      for (let n = 0; n < count; n += 1, place += 1) x[row[place]] = mean + shifts[place];
    }
  }

  function stack(frame, group) {
    let y = group === ROOT ? 0 : metrics.title, high = 0;
    frame.layout.lines.forEach((row, number) => {
      const before = high;
      high = Math.max(...row.map((i) => frame.sizes[i][1]));
      if (number) y += before && high ? metrics.gap : metrics.doorGap;
      frame.tops.push(y);
      y += high;
      frame.bottoms.push(y);
    });
    frame.h = group === ROOT || !high ? y : y + metrics.pad;
  }

  function widen(frame, least) {
    const { items, legs } = frame.layout;
    let left = Infinity, right = -Infinity;
    frame.x.forEach((x, i) => {
      left = Math.min(left, x - frame.sizes[i][0] / 2);
      right = Math.max(right, x + frame.sizes[i][0] / 2);
    });
    if (!items.length) left = right = 0;
    const back = legs.map((leg, i) => i).filter((i) => items[legs[i][0]][2] >= items[legs[i][1]][2]);
    const content = right - left + metrics.lane * back.length;
    frame.w = Math.max(content + (least ? 2 * metrics.pad : 0), least);
    const move = (frame.w - content) / 2 - left;
    frame.x = frame.x.map((x) => x + move);
    back.forEach((leg, number) => frame.lanes.set(leg, right + move + metrics.lane * (number + 1)));
  }

  function spread(frame) {
    const ends = new Map();
    const note = (item, side, x, number) => {
      const key = `${item},${side}`;
      if (!ends.has(key)) ends.set(key, { item, side, found: [] });
      ends.get(key).found.push([x, number]);
    };
    frame.layout.legs.forEach(([source, target, over], number) => {
      const path = [source, ...over, target], lane = frame.lanes.get(number);
      frame.ports.push([0, 0]);
      note(source, 0, lane ?? frame.x[path[1]], number);
      note(target, 1, lane ?? frame.x[path.at(-2)], number);
    });
    for (const { item, side, found } of ends.values()) {
      const what = frame.layout.items[item][0];
      if (what < 0 || frame.inner.has(what)) continue;
      const step = Math.min(metrics.ports, (0.6 * frame.sizes[item][0]) / found.length);
      found.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      found.forEach(([, number], place) => { frame.ports[number][side] = (place - (found.length - 1) / 2) * step; });
    }
  }

  function collect(out, frame, group) {
    const [left, top] = out.origins.get(group);
    frame.layout.items.forEach(([what, , row], i) => {
      if (what < 0) return;
      const [w, h] = frame.sizes[i];
      const place = {
        index: what, x: left + frame.x[i] - w / 2, y: top + (frame.tops[row] + frame.bottoms[row]) / 2 - h / 2,
        w, h, frame: frame.inner.has(what),
      };
      out.places.push(place);
      out.at.set(what, place);
      if (place.frame) {
        out.origins.set(what, [place.x, place.y]);
        out.frames.set(what, frame.inner.get(what));
        collect(out, frame.inner.get(what), what);
      }
    });
  }

  // ---------------------------------------------------------------- arrows

  function curvesOf() {
    const pairs = new Map();
    for (const [source, target] of arrows) {
      const a = visible(source), b = visible(target), key = a * nodes.length + b;
      if (a === b) continue;
      const known = pairs.get(key);
      if (known) known.count += 1;
      else pairs.set(key, { source: a, target: b, count: 1 });
    }
    const out = [];
    for (const curve of pairs.values()) {
      curve.path = pathOf(curve.source, curve.target);
      if (curve.path) out.push(Object.assign(curve, boundsOf(curve.path)));
    }
    return out;
  }

  function pathOf(source, target) {
    const up = [source, ...above(source)], down = [target, ...above(target)];
    while (up.length > 1 && down.length > 1 && up.at(-2) === down.at(-2)) { up.pop(); down.pop(); }
    if (up.length === 1 || down.length === 1) return null;
    const pen = [];
    for (let i = 0; i < up.length - 2; i += 1) legOf(pen, up[i + 1], up[i], OUT);
    legOf(pen, up.at(-1), up.at(-2), down.at(-2));
    for (let i = down.length - 3; i >= 0; i -= 1) legOf(pen, down[i + 1], IN, down[i]);
    return pen;
  }

  /** Add one leg to a path of commands: vertical through every row, bent between rows. */
  function legOf(pen, group, source, target) {
    const frame = scene.frames.get(group), [left, top] = scene.origins.get(group);
    const { items, legs, find } = frame.layout;
    const number = find.get(`${source},${target}`), [from, to, over] = legs[number];
    let [x, y] = endOf(group, from, frame.ports[number][0], OUT);
    const [endX, endY] = endOf(group, to, frame.ports[number][1], IN);
    const down = (until) => { if (until - y > 0.05) pen.push(["L", x, until]); y = until; };
    pen.push([pen.length ? "L" : "M", x, y]);
    down(top + frame.bottoms[items[from][2]]);
    if (frame.lanes.has(number)) {
      const lane = left + frame.lanes.get(number), turn = top + frame.tops[items[to][2]], bend = metrics.doorGap * 0.75;
      pen.push(["C", x, y + bend, lane, y + bend, lane, y], ["L", lane, turn]);
      pen.push(["C", lane, turn - bend, endX, turn - bend, endX, turn]);
      x = endX; y = turn;
    } else {
      for (const i of [...over, to]) {
        const toX = i === to ? endX : left + frame.x[i], toY = top + frame.tops[items[i][2]], half = (y + toY) / 2;
        pen.push(["C", x, half, toX, half, toX, toY]);
        x = toX; y = toY;
        if (i !== to) down(top + frame.bottoms[items[i][2]]);
      }
    }
    down(endY);
  }

  function endOf(group, item, port, door) {
    const frame = scene.frames.get(group), [left, top] = scene.origins.get(group), what = frame.layout.items[item][0];
    if (what === IN) return [left + frame.x[item], top];
    if (what === OUT) return [left + frame.x[item], top + frame.h];
    const place = scene.at.get(what), inner = frame.inner.get(what);
    return [place.x + (inner ? doorOf(inner, door) : place.w / 2 + port), place.y + (door === OUT ? place.h : 0)];
  }

  function doorOf(frame, which) {
    const i = frame.layout.items.findIndex((item) => item[0] === which);
    return i < 0 ? frame.w / 2 : frame.x[i];
  }

  function boundsOf(pen) {
    let x0 = Infinity, y0 = Infinity, x1 = -Infinity, y1 = -Infinity;
    for (const command of pen) {
      for (let i = 1; i < command.length; i += 2) {
        x0 = Math.min(x0, command[i]); x1 = Math.max(x1, command[i]);
        y0 = Math.min(y0, command[i + 1]); y1 = Math.max(y1, command[i + 1]);
      }
    }
    return { x: x0, y: y0, w: x1 - x0, h: y1 - y0 };
  }

  return compose;
}
