// Two or more runs: numbers, curves, and the same prompts side by side.

function runsTable(data) {
  const interval = (value) => (value ? `${number(value.value)} [${number(value.low)}, ${number(value.high)}]` : "–");
  const last = (values) => { const ks = Object.keys(values).map(Number), k = ks[ks.length - 1]; return k > 1 ? `pass@${k} ${number(values[k].value)}` : "–"; };
  const verdict = (test) => {
    if (!test) return "baseline";
    const difference = test.difference.value, sign = difference > 0 ? "+" : "", significant = isNumber(test.p_value) && test.p_value < 0.05;
    return h("span", { class: `verdict ${significant ? (difference > 0 ? "good" : "bad") : ""}` }, `${sign}${number(difference)} [${number(test.difference.low)}, ${number(test.difference.high)}], p ${number(test.p_value, 4)}; ${test.wins} better, ${test.losses} worse`);
  };
  const rows = data.runs.map((run, i) => {
    const sum = run.summary, each = (name) => (sum.samples ? sum.totals[name] / sum.samples : null);
    return h("tr", null, h("td", null, h("span", { class: "swatch", style: { background: lineColor(i) } }), run.name), h("td", null, run.header.model || "–"), h("td", { class: "num" }, interval(sum.mean_reward)),
      h("td", null, verdict(i ? data.tests[i - 1] : null)), h("td", { class: "num" }, interval(sum.pass_at[1])), h("td", { class: "num" }, last(sum.pass_at)), h("td", { class: "num" }, `${whole(sum.scored)} of ${whole(sum.samples)}`),
      h("td", { class: "num" }, whole(each("output_tokens"))), h("td", { class: "num" }, duration(each("wall_s"))));
  });
  const head = ["Run", "Model", "Mean reward", "Against the first", "pass@1", "pass@k", "Scored", "Tokens each", "Time each"];
  return h("section", { class: "panel turns", style: { marginBottom: "16px" } }, h("table", { "data-testid": "runs" }, h("thead", null, h("tr", null, head.map((name, i) => h("th", { class: i === 2 || i > 3 ? "num" : "" }, name)))), h("tbody", null, rows)));
}

function comparisonCurves(data) {
  const legend = () => data.runs.map((run, i) => swatch(lineColor(i), run.name));
  const pass = data.runs.map((run) => Object.entries(run.summary.pass_at).map(([k, value]) => [Number(k), value.value]).filter((p) => isNumber(p[1])));
  return h("div", { class: "grid" },
    chart("Reward over the run", data.runs.some((run) => run.running.length) ? lineChart({ label: "running mean of the reward", lines: data.runs.map((run) => run.running), xLabel: "scored samples", yRange: runningRange(data.runs.map((run) => run.running)), integer: true }) : "Nothing was scored.", legend()),
    pass.some((line) => line.length > 1) ? chart("pass@k", lineChart({ label: "pass at k", lines: pass, xLabel: "k", yRange: [0, 1], integer: true }), legend()) : null);
}

function comparisonRows(data) {
  return data.prompts.map(([id, text, truth, runs], i) => {
    const means = runs.map((answers) => { const known = (answers || []).map(([reward]) => reward).filter(isNumber); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; });
    const known = means.filter(isNumber);
    const change = isNumber(means[0]) && isNumber(means[means.length - 1]) ? means[means.length - 1] - means[0] : null;
    return { i, id, text, truth, means, change, spread: known.length > 1 ? Math.max(...known) - Math.min(...known) : null, haystack: `${id} ${text} ${truth ?? ""}`.toLowerCase() };
  });
}

function comparisonTable(data, open) {
  const mark = (value) => (isNumber(value) ? `${value > 0 ? "+" : ""}${number(value)}` : "–");
  const columns = [{ name: "Prompt", class: "mono", width: "minmax(110px, 1.2fr)", value: (row) => row.id, view: (row) => idView(row.id) },
    ...data.runs.map((run, i) => ({ name: run.name, class: "num", width: "minmax(60px, 1fr)", wide: i > 1 ? 2 : false, value: (row) => row.means[i], view: (row) => number(row.means[i]) })),
    { name: "Change", class: "num", width: "76px", value: (row) => row.change, view: (row) => h("span", { class: `verdict ${row.change > 0 ? "good" : row.change < 0 ? "bad" : ""}` }, mark(row.change)) },
    { name: "Text", wide: true, width: "minmax(110px, 3fr)", view: (row) => row.text }, { name: "Expected", wide: 2, class: "mono soft", width: "minmax(60px, 1fr)", value: (row) => row.truth, view: (row) => row.truth ?? "" }];
  const fields = { change: (row) => row.change, spread: (row) => row.spread, id: (row) => row.id };
  const choices = [["all", "All prompts", () => true], ["worse", "Worse than in the first", (row) => row.change < 0], ["better", "Better than in the first", (row) => row.change > 0], ["differ", "That differ", (row) => row.spread > 0], ["missing", "Not in every run", (row) => row.means.some((value) => value === null)]];
  return dataTable({ label: "Prompts", testid: "prompts", placeholder: "Search ( / ), such as change<0", fields, choices, columns: { prompts: columns }, modes: { prompts: { label: "By prompt", rows: () => comparisonRows(data) } }, open });
}

function answersOf(data, i, answers) {
  const runs = data.prompts[i][3];
  return [h("div", { class: "columns", "data-testid": "answers" }, data.runs.map((run, place) => h("section", { class: "column" }, h("p", { class: "group-note" }, h("span", { class: "swatch", style: { background: lineColor(place) } }), run.name),
    runs[place] === null ? h("p", { class: "soft" }, "not in this run") : runs[place].map(([reward, reason, index], n) => h("article", { class: "message" }, h("div", { class: "role" }, h("span", { class: `badge ${reward === null ? "unscored" : reward >= data.threshold ? "pass" : reward > 0 ? "part" : "fail"}` }, reward === null ? "unscored" : short(reward)), ` sample ${index}, ${words(reason)}`), h("div", { class: "block" }, answers[place][n] || "(no answer)"))))))];
}

begin(async () => {
  const data = await unpack("overview");
  const drawer = promptDrawer(data, islands(), (i) => data.prompts[i], (i, answers) => answersOf(data, i, answers)), table = comparisonTable(data, (row) => drawer.open(row.i));
  promptsPage({ title: data.runs.map((run) => run.name).join("  against  "), facts: [quantity(data.prompts.length, "prompt"), `made ${day(data.made)}`], content: [runsTable(data), comparisonCurves(data)], drawer, table });
});
