// Curves and bars.

const H = 200, PAD = { left: 46, right: 14, top: 10, bottom: 38 };

// A chart in the width that its panel has, drawn anew when that changes: text and lines keep their size.
function plot(make) {
  const box = h("div", { class: "plot" });
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.max(200, Math.round(box.clientWidth));
    if (width !== drawn) box.replaceChildren(make(drawn = width));
  }).observe(box);
  return box;
}

const lineChart = (options) => plot((width) => lineSvg(options, width));
const histogram = (data, label) => plot((width) => histogramSvg(data, label, width));

function ticks(low, high, count) {
  const step = Math.pow(10, Math.floor(Math.log10((high - low) / count || 1)));
  const nice = [1, 2, 5, 10].map((factor) => factor * step).find((value) => (high - low) / value <= count) || step * 10;
  const found = [];
  for (let value = Math.ceil(low / nice) * nice; value <= high + nice * 1e-6; value += nice) found.push(Number(value.toPrecision(6)));
  return found;
}

const onAxis = (value) => (value && Math.abs(value) < 0.005 ? value.toExponential(0) : short(value));

// Lines over x, each with a band where its points have one. A point is [x, y, low, high].
function lineSvg({ label, lines, xLabel, yRange, integer, dashed }, W) {
  lines = lines.filter((line) => line.length);
  const points = lines.flat();
  const xs = points.map((p) => p[0]), ys = points.flatMap((p) => p.slice(1)).filter(isNumber);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = yRange || [Math.min(...ys), Math.max(...ys)];
  const x = (value) => PAD.left + ((value - x0) / (x1 - x0 || 1)) * (W - PAD.left - PAD.right);
  const y = (value) => H - PAD.bottom - ((Math.min(y1, Math.max(y0, value)) - y0) / (y1 - y0 || 1)) * (H - PAD.top - PAD.bottom);
  const path = (list) => list.map((p, i) => `${i ? "L" : "M"}${p[0].toFixed(1)} ${p[1].toFixed(1)}`).join("");
  const band = (line) => {
    const known = line.filter((p) => isNumber(p[2]) && isNumber(p[3]));
    const area = [...known.map((p) => [x(p[0]), y(p[3])]), ...known.slice().reverse().map((p) => [x(p[0]), y(p[2])])];
    return area.length ? `${path(area)}Z` : null;
  };
  return s("svg", { width: W, height: H, role: "img", "aria-label": label },
    ticks(y0, y1, 5).map((value) => [
      s("line", { class: "axis", x1: PAD.left, x2: W - PAD.right, y1: y(value), y2: y(value) }),
      s("text", { x: PAD.left - 7, y: y(value) + 4, "text-anchor": "end" }, onAxis(value)),
    ]),
    ticks(x0, x1, W < 420 ? 4 : 6).filter((value) => !integer || Number.isInteger(value)).map((value) =>
      s("text", { x: x(value), y: H - 20, "text-anchor": "middle" }, value.toLocaleString("en"))),
    s("text", { x: W - PAD.right, y: H - 4, "text-anchor": "end" }, xLabel),
    lines.map((line, i) => band(line) && s("path", { class: "band", style: { fill: lineColor(i) }, d: band(line) })),
    lines.map((line, i) => s("path", { class: i && dashed ? "line second" : "line", style: { stroke: lineColor(i) }, d: path(line.map((p) => [x(p[0]), y(p[1])])) })),
    lines.map((line, i) => (line.length > 24 ? null : line.map((p) => s("circle", { class: "dot", style: { fill: lineColor(i) }, cx: x(p[0]), cy: y(p[1]), r: 3 },
      s("title", null, `${xLabel} ${p[0]}: ${number(p[1])}${isNumber(p[2]) ? ` [${number(p[2])}, ${number(p[3])}]` : ""}`))))));
}

// The range of rewards: from 0 to 1 where their means lie there, whatever the bands.
function runningRange(lines) {
  const points = lines.flat(), means = points.map((p) => p[1]).filter(isNumber);
  if (means.every((value) => value >= 0 && value <= 1)) return [0, 1];
  const values = points.flatMap((p) => p.slice(1)).filter(isNumber);
  return [Math.min(...values), Math.max(...values)];
}

function histogramSvg(data, label, W) {
  const labels = data.values || data.edges.slice(0, -1).map((edge, i) => (edge + data.edges[i + 1]) / 2);
  const most = Math.max(...data.counts), width = (W - PAD.left - PAD.right) / labels.length;
  const every = Math.ceil(labels.length / Math.min(10, W / 40));
  const [, mark] = ticks(0, most, 4), step = Math.max(1, mark), top = step * Math.ceil(most / step); // counts are whole
  return s("svg", { width: W, height: H, role: "img", "aria-label": label },
    Array.from({ length: top / step + 1 }, (_, i) => i * step).map((value) => {
      const y = H - PAD.bottom - (value / top) * (H - PAD.top - PAD.bottom);
      return [s("line", { class: "axis", x1: PAD.left, x2: W - PAD.right, y1: y, y2: y }),
        s("text", { x: PAD.left - 7, y: y + 4, "text-anchor": "end" }, whole(value))];
    }),
    labels.map((value, i) => {
      const height = (data.counts[i] / top) * (H - PAD.top - PAD.bottom), wide = Math.min(width * 0.8, 80);
      const center = PAD.left + (i + 0.5) * width;
      return [s("rect", { class: "bar-shape", x: center - wide / 2, y: H - PAD.bottom - height, width: wide, height, rx: 3 },
        s("title", null, `reward ${short(value)}: ${whole(data.counts[i])} samples`)),
      i % every ? null : s("text", { x: center, y: H - 20, "text-anchor": "middle" }, short(value))];
    }),
    s("text", { x: W - PAD.right, y: H - 4, "text-anchor": "end" }, "reward"));
}

const LIMITS = new Set(["max_tool_iterations_reached", "max_tool_calls_reached", "max_tokens_reached", "token_budget_reached",
  "context_window_overflow", "program_failed"]);

// [name, count] with the colour of what it stands for, by its name if `kindOf` does not say.
function bars(counts, kindOf = (name) => (name === "task_complete" ? "" : LIMITS.has(name) ? "limit" : "failure")) {
  const entries = Object.entries(counts), most = Math.max(...entries.map(([, count]) => count));
  return h("div", { class: "bars" }, entries.map(([name, count]) => {
    return [h("div", { class: "what" }, words(name)),
      h("div", { class: "track" }, h("div", { class: `fill ${kindOf(name)}`, style: { width: `${(100 * count) / most}%` } })),
      h("div", { class: "count" }, whole(count))];
  }));
}
