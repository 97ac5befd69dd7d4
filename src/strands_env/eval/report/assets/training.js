// A training: what changes from step to step, and the same prompt through time.

const QUANTITIES = [["reward", "Mean reward"], ["length", "Sampled tokens a rollout"], ["drift", "Sampled tokens that re-tokenising would change"], ["tool_calls", "Tool calls a rollout"], ["truncated", "Cut by a limit"], ["failed", "Without a reward"],
  ["loss", "Loss"], ["grad_norm", "Norm of the gradient"], ["entropy", "Entropy"]];

function trainingCurves(steps) {
  return h("div", { class: "grid" }, QUANTITIES.map(([name, title]) => {
    const line = steps.filter((step) => isNumber(step[name])).map((step) => (name === "reward" ? [step.step, step.reward, step.low, step.high] : [step.step, step[name]]));
    if (!line.length || (name !== "reward" && line.every((p) => p[1] === 0))) return null;
    const share = ["drift", "truncated", "failed"].includes(name), most = Math.max(...line.map((p) => p[3] ?? p[1]));
    const range = name === "loss" ? null : name === "reward" ? (Math.min(...line.map((p) => p[2] ?? p[1])) >= 0 && most <= 1 ? [0, 1] : null) : [0, share ? Math.min(1, most * 1.15 || 1) : most * 1.15];
    return chart(title, lineChart({ label: title, lines: [line], xLabel: "step", yRange: range, integer: true }), name === "reward" && isNumber(line[0][2]) ? "mean over prompts, with its 95% interval" : null);
  }));
}

// The rewards of a prompt, a cell a step.
function timeline(row, steps) {
  return steps.slice(-24).map((step) => {
    const known = (row.rewards[String(step.step)] || []).filter(isNumber);
    const value = known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
    return h("span", { class: `cell ${value === null ? "unscored" : value >= 1 ? "pass" : value > 0 ? "part" : "fail"}`, title: `step ${step.step}: ${number(value)}` }, value === null ? "–" : value >= 1 ? "✓" : value > 0 ? "~" : "✗");
  });
}

function trainingRows(data) {
  const mean = (list) => { const known = (list || []).filter(isNumber); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };
  return data.prompts.map((about, i) => {
    const values = data.steps.map((step) => mean(about.rewards[String(step.step)])).filter(isNumber), [first, last] = [values[0] ?? null, values[values.length - 1] ?? null];
    return { ...about, i, seen: Object.keys(about.rewards).length, first, last, change: isNumber(first) && isNumber(last) ? last - first : null, haystack: `${about.id} ${about.text} ${about.truth ?? ""}`.toLowerCase() };
  });
}

function trainingTable(data, open) {
  const mark = (value) => (isNumber(value) ? `${value > 0 ? "+" : ""}${number(value)}` : "–");
  const columns = [{ name: "Prompt", class: "mono", width: "minmax(110px, 1.2fr)", value: (row) => row.id, view: (row) => idView(row.id) },
    { name: "Last", class: "num", width: "60px", value: (row) => row.last, view: (row) => number(row.last) },
    { name: "Change", class: "num", width: "72px", value: (row) => row.change, view: (row) => h("span", { class: `verdict ${row.change > 0 ? "good" : row.change < 0 ? "bad" : ""}` }, mark(row.change)) },
    { name: "Steps", class: "num", wide: 2, width: "56px", value: (row) => row.seen, view: (row) => whole(row.seen) },
    { name: "Through time", class: "cells", wide: true, width: "minmax(180px, 3fr)", view: (row) => timeline(row, data.steps) },
    { name: "Text", wide: 2, width: "minmax(110px, 2fr)", view: (row) => row.text }];
  const fields = { change: (row) => row.change, first: (row) => row.first, last: (row) => row.last, steps: (row) => row.seen, id: (row) => row.id };
  const choices = [["all", "All prompts", () => true], ["learned", "Learned", (row) => row.change > 0], ["forgot", "Forgot", (row) => row.change < 0], ["again", "In several steps", (row) => row.seen > 1]];
  return dataTable({ label: "Prompts through time", testid: "prompts", placeholder: "Search ( / ), such as change<0", fields, choices, columns: { prompts: columns }, modes: { prompts: { label: "By prompt", rows: () => trainingRows(data) } }, open: (row) => open(row.i) });
}

function historyOf(data, i, answers) {
  const about = data.prompts[i];
  const steps = data.steps.filter((step) => about.rewards[String(step.step)]);
  const line = steps.map((step) => [step.step, about.rewards[String(step.step)].filter(isNumber)]).filter(([, known]) => known.length).map(([number_, known]) => [number_, known.reduce((a, b) => a + b, 0) / known.length]);
  return [...(line.length > 1 ? [chart("Reward of this prompt", lineChart({ label: "reward of the prompt by step", lines: [line], xLabel: "step", integer: true }))] : []),
    ...steps.map((step) => h("section", null, h("p", { class: "group-note" }, `step ${step.step}`), h("div", { class: "columns", "data-testid": "answers" }, (answers[String(step.step)] || []).map(([reward, text]) => h("article", { class: "column message" }, h("div", { class: "role" }, h("span", { class: `badge ${reward === null ? "unscored" : reward >= 1 ? "pass" : reward > 0 ? "part" : "fail"}` }, reward === null ? "unscored" : short(reward))), h("div", { class: "block" }, text || "(no answer)"))))))];
}

function trainingTiles(data) {
  const last = data.steps[data.steps.length - 1], first = data.steps[0];
  if (!last) return h("p", { class: "notice" }, "No step has been written yet.");
  return h("div", { class: "tiles" }, tile("Steps", whole(data.steps.length), `${first.step} to ${last.step}`), tile("Reward", number(last.reward), `${number(first.reward)} at the first step`), tile("Tokens a rollout", whole(last.length), `${whole(first.length)} at the first step`),
    isNumber(last.drift) && tile("Drift", `${(100 * last.drift).toFixed(2)}%`, "of the last step's sampled tokens"), tile("Rollouts", whole(data.steps.reduce((sum, step) => sum + step.samples, 0)), quantity(data.prompts.length, "prompt")));
}

begin(async () => {
  const data = await source.overview(), model = data.steps.map((step) => step.model).filter(Boolean).pop();
  const about = (i) => [data.prompts[i].id, data.prompts[i].text, data.prompts[i].truth];
  const drawer = promptDrawer(data, about, (i, answers) => historyOf(data, i, answers)), table = trainingTable(data, (i) => drawer.open(i));
  const tiles = h("div", null, trainingTiles(data)), curves = h("div", null, trainingCurves(data.steps));
  const redraw = () => { tiles.replaceChildren(trainingTiles(data)); curves.replaceChildren(trainingCurves(data.steps)); table.refresh(); };
  promptsPage({ title: data.title, facts: [data.path !== data.title && data.path, model && `model ${model}`, source.follow(data, redraw)], content: [tiles, curves], drawer, table });
});
