// The page of one run: overview, table of prompts and samples, and the drawer of one sample.

function gradeOf(data, i) {
  const reward = data.samples[1][i];
  if (reward === null) return { name: "unscored", mark: "–", text: "unscored" };
  if (reward >= data.summary.reward_threshold) return { name: "pass", mark: "✓", text: "passed" };
  return reward > 0 ? { name: "part", mark: "~", text: "in part" } : { name: "fail", mark: "✗", text: "failed" };
}

const DRIFT_KINDS = { "broken-utf8": "bytes that are no whole character", "special-token": "special tokens spelled out, or the other way round", whitespace: "white space merged differently", "other-merge": "the same characters split differently", "other-text": "the text itself changed" };
const intervalText = (v) => `[${number(v.low)}, ${number(v.high)}]`;

// The numbers of the run, each once; `show(filter)` lists the samples that a tile is about.
function tilesView(data, show) {
  const sum = data.summary, totals = sum.totals, ks = Object.keys(sum.pass_at).map(Number), last = ks[ks.length - 1];
  const level = `${Math.round(100 * sum.mean_reward.level)}%`, isOne = number(sum.mean_reward.value) === number(sum.pass_at[1]?.value);
  const lost = sum.unscored ? `${whole(sum.unscored)} unscored${sum.aborted ? `, ${whole(sum.aborted)} of them lost` : ""}` : "all scored";
  const link = (text, filter) => h("button", { class: "link", onclick: () => show(filter) }, text);
  return h("div", { class: "tiles" },
    tile(isOne ? "Reward, pass@1" : "Mean reward", number(sum.mean_reward.value), `${intervalText(sum.mean_reward)} ${level}`),
    !isOne && tile("pass@1", number(sum.pass_at[1]?.value), sum.pass_at[1] ? intervalText(sum.pass_at[1]) : ""),
    last > 1 && tile(`pass@${last}`, number(sum.pass_at[last].value), `pass^${last} ${number(sum.pass_hat[last].value)}`),
    tile("Samples", whole(sum.samples), `of ${quantity(sum.prompts, "prompt")}, ${lost}`),
    tile("Tokens", whole(totals.output_tokens || 0), `sampled, ${whole(totals.input_tokens || 0)} read`),
    tile("Time", clock(data.header.wall_s ?? totals.wall_s), sum.samples ? `${clock(totals.wall_s / sum.samples)} a rollout` : ""),
    data.drift && tile("Drift", `${whole(data.drift.changed_trajectories)} of ${whole(data.drift.trajectories)}`, data.drift.changed_trajectories ? link("would change: show", "drift>0") : "trajectories would change", "drift-tile"),
    data.health.length ? tile("Health", quantity(data.health.length, "finding"), h("a", { href: "#health", onclick: (event) => { event.preventDefault(); document.getElementById("health").scrollIntoView(); } }, data.health.map((found) => found.check).join(", "))) : null);
}

function panelsView(data) {
  const sum = data.summary, ks = Object.keys(sum.pass_at).map(Number), level = `${Math.round(100 * sum.mean_reward.level)}%`;
  const curve = (values) => ks.filter((k) => isNumber(values[k].value)).map((k) => [k, values[k].value, values[k].low, values[k].high]);
  const at = curve(sum.pass_at), hat = curve(sum.pass_hat), none = () => h("p", { class: "soft" }, "Nothing was scored.");
  const kinds = data.drift ? Object.keys(data.drift.kinds) : [];
  return [
    h("div", { class: "grid" },
      chart("Reward over the run", data.running.length ? lineChart({ label: "running mean of the reward", lines: [data.running], xLabel: "scored samples", yRange: runningRange([data.running]), integer: true }) : none(),
        "running mean over prompts in the order of completion, with its 95% interval over prompts"),
      at.length > 1 ? chart("pass@k", lineChart({ label: "pass at k and pass hat k", lines: [at, hat], dashed: true, xLabel: "k", yRange: [0, 1], integer: true }),
        [swatch(lineColor(0), `pass@k, ${level}: at least one of k passes`), swatch(lineColor(1), "pass^k: all of k pass")]) : null,
      chart("Distribution of rewards", data.distribution ? histogram(data.distribution, "number of samples by reward") : none()),
      chart("How rollouts ended", Object.keys(sum.terminations).length ? bars(sum.terminations) : none()),
      kinds.length ? chart("Places where re-tokenising changes tokens", [bars(data.drift.kinds, () => "drifted"), driftKinds(kinds)]) : null,
      Object.keys(sum.errors).length ? chart("Errors", [bars(sum.errors), firstMessages(sum.errors, sum.messages)]) : null,
      Object.keys(sum.tool_errors).length ? chart("Exceptions of tools", [bars(sum.tool_errors), firstMessages(sum.tool_errors, sum.messages)]) : null),
    data.health.length ? h("section", { class: "panel health", id: "health" }, h("h2", null, `Health: ${quantity(data.health.length, "finding")}`), healthView(data.health)) : null,
  ];
}

const configurationView = (data) => h("details", { class: "panel" }, h("summary", null, "Configuration, versions and seeds"), h("pre", null, JSON.stringify(data.run, null, 2)));
const driftKinds = (kinds) => h("dl", { class: "messages-of" }, kinds.map((kind) => [h("dt", { class: "soft" }, words(kind)), h("dd", null, DRIFT_KINDS[kind] || "unknown")]));

// Of `#ID` or `#ID/INDEX`, as the rest of the program names samples, or of `#NUMBER`; -1 for none.
function placeOf(data, hash) {
  let name = hash.slice(1);
  try { name = decodeURIComponent(name); } catch { /* it has a percent sign of its own */ }
  const cut = name.lastIndexOf("/"), find = (id) => data.prompts.find((prompt) => prompt[0] === id);
  const group = cut < 0 ? undefined : find(name.slice(0, cut));
  const place = group ? data.samples[0].findIndex((index, i) => i >= group[3] && i < group[3] + group[4] && String(index) === name.slice(cut + 1)) : -1;
  if (place >= 0) return place;
  return find(name)?.[3] ?? (/^\d+$/.test(name) && Number(name) < data.samples[0].length ? Number(name) : -1);
}

const firstMessages = (counts, messages) => h("dl", { class: "messages-of" }, Object.keys(counts).filter((name) => messages[name]).map((name) => [h("dt", { class: "soft" }, name), h("dd", { class: "lines" }, messages[name].slice(0, 600))]));

const healthView = (findings) => h("dl", { class: "messages-of" }, findings.map((found) => [h("dt", null, `${found.check}: ${found.text}`),
  h("dd", { class: "soft" }, found.advice, found.samples.slice(0, 8).map((name) => [" ", h("a", { href: `#${encodeURIComponent(name)}` }, name)]), found.samples.length > 8 ? ` and ${whole(found.samples.length - 8)} more` : "")]));

const mean = (values) => { const known = values.filter(isNumber); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };

// Columns of `data.samples` by name.
const COLUMNS = { index: 0, reward: 1, reason: 2, aborted: 3, seconds: 4, tokens: 5, calls: 6, turns: 7, drift: 8, sampling: 9, tools: 10, scoring: 11 };
const column = (data, name) => data.samples[COLUMNS[name]];
const MEANS = ["reward", "tokens", "seconds", "calls", "turns", "sampling", "tools", "scoring"];

function promptRows(data) {
  const rewards = column(data, "reward");
  return data.prompts.map(([id, text, truth, start, count], i) => {
    const part = (name) => column(data, name).slice(start, start + count), scored = rewards.slice(start, start + count).filter((value) => value !== null);
    const drifts = part("drift").filter(isNumber), row = Object.fromEntries(MEANS.map((name) => [name, mean(part(name))]));
    return withWaiting({ ...row, i, id, text, truth, start, count, scored: scored.length, passed: scored.filter((value) => value >= data.summary.reward_threshold).length, drift: drifts.length ? drifts.reduce((a, b) => a + b, 0) : null,
      ended: [...new Set(part("reason").map((reason) => data.reasons[reason]))].join(" "), haystack: `${id} ${text} ${truth ?? ""}`.toLowerCase() });
  });
}

function sampleRows(data) {
  const indices = column(data, "index"), reasons = column(data, "reason"), rewards = column(data, "reward"), drifts = column(data, "drift");
  return data.prompts.flatMap(([id, text, truth, start, count]) => Array.from({ length: count }, (_, n) => {
    const i = start + n, reward = rewards[i], row = Object.fromEntries(MEANS.map((name) => [name, column(data, name)[i]]));
    return withWaiting({ ...row, i, id: `${id}/${indices[i]}`, text, truth, start: i, count: 1, scored: Number(reward !== null), passed: Number(reward !== null && reward >= data.summary.reward_threshold), drift: drifts[i],
      ended: data.reasons[reasons[i]], haystack: `${id} ${text} ${truth ?? ""}`.toLowerCase() });
  }));
}

// Where the time of a rollout went; waiting is the rest: set-up, pauses, earlier attempts.
const PARTS = [["waiting", "waiting"], ["sampling", "sampling"], ["tools", "tools"], ["scoring", "reward"]];
const withWaiting = (row) => Object.assign(row, { waiting: isNumber(row.seconds) ? Math.max(0, row.seconds - (row.sampling || 0) - (row.tools || 0) - (row.scoring || 0)) : null });
function timeView(row, longest) {
  const known = PARTS.filter(([name]) => row[name] > 0), text = known.map(([name, label]) => `${label} ${clock(row[name])}`).join(", ") || "no times were recorded";
  return h("span", { class: "spans", role: "img", "aria-label": text, title: text }, known.map(([name]) => h("span", { class: `time ${name}`, style: { width: `${(100 * row[name]) / longest}%` } })));
}

function sampleCells(data, row) {
  const cells = [];
  for (let i = row.start; i < row.start + Math.min(row.count, 12); i += 1) {
    const grade = gradeOf(data, i);
    cells.push(h("span", { class: `cell ${grade.name}`, "data-place": i, role: "img", "aria-label": `sample ${data.samples[0][i]} ${grade.text}`, title: `sample ${data.samples[0][i]}: ${grade.text}` }, grade.mark));
  }
  return [...cells, row.count > 12 ? h("span", { class: "soft" }, `+${row.count - 12}`) : null];
}

function runTable(data, openSample) {
  const round = (value) => (isNumber(value) ? whole(value) : "–");
  const id = { name: "Prompt", class: "mono", width: "minmax(110px, 1.1fr)", value: (row) => row.id, view: (row) => idView(row.id) };
  const reward = { name: "Reward", class: "num", width: "68px", value: (row) => row.reward, view: (row) => number(row.reward) };
  const samples = { name: "Samples", class: "cells", width: "minmax(100px, 1.4fr)", value: (row) => row.passed, view: (row) => sampleCells(data, row) };
  let longest = 1;
  const drift = data.has_texts ? [{ name: "Drift", class: "num", width: "56px", value: (row) => row.drift, view: (row) => (row.drift ? h("span", { class: "drifted" }, whole(row.drift)) : round(row.drift)) }] : [];
  const more = [...drift,
    { name: "Tokens", class: "num", wide: true, width: "68px", value: (row) => row.tokens, view: (row) => round(row.tokens) },
    { name: "Turns", class: "num", wide: 2, width: "56px", value: (row) => row.turns, view: (row) => short(row.turns) },
    { name: "Time", class: "num", wide: true, width: "76px", value: (row) => row.seconds, view: (row) => clock(row.seconds) },
    { name: "Spent", wide: true, width: "minmax(60px, 1.4fr)", view: (row) => timeView(row, longest) },
    { name: "Text", wide: true, width: "minmax(110px, 2.6fr)", view: (row) => row.text },
    { name: "Expected", class: "mono soft", wide: 2, width: "minmax(60px, 1fr)", value: (row) => row.truth, view: (row) => row.truth ?? "" }];
  const ended = { name: "Ended", width: "minmax(110px, 1.2fr)", value: (row) => row.ended, view: (row) => words(row.ended) };
  const fields = Object.fromEntries([...MEANS, "waiting", "drift", "ended", "id"].map((name) => [name, (row) => row[name]]));
  const choices = [["all", "All", () => true], ["failed", "Never passed", (row) => row.scored && !row.passed], ["mixed", "Passed sometimes", (row) => row.passed && row.passed < row.scored],
    ["passed", "Always passed", (row) => row.scored && row.passed === row.scored], ["unscored", "With unscored samples", (row) => row.scored < row.count]];
  // Never passed, passed in part, not scored, passed.
  const severity = (row) => (!row.scored ? 2 : row.passed === row.scored ? 3 : row.passed || row.reward > 0 ? 1 : 0);
  const orders = [["failed", "Failed first", (row) => severity(row)]];
  const measured = (rows) => { longest = rows.reduce((most, row) => Math.max(most, row.seconds || 0), 1e-9); return rows; };
  const exported = (row) => ({ id: row.id, reward: row.reward, samples: row.count, scored: row.scored, passed: row.passed, tokens: row.tokens, turns: row.turns, tool_calls: row.calls, seconds: row.seconds, drift: row.drift, ended: row.ended, text: row.text, expected: row.truth });
  return dataTable({ label: "Prompts and samples", orders, exported, file: data.title, testid: "prompts", placeholder: "Search ( / ), such as reward<1 drift>0", fields, choices, legend: PARTS.map(([name, text]) => swatch(`var(--time-${name})`, text)),
    columns: { prompts: [id, reward, samples, ...more], samples: [{ ...id, name: "Sample", width: "minmax(120px, 1.6fr)" }, reward, ended, ...more] },
    modes: { prompts: { label: "By prompt", rows: () => measured(promptRows(data)) }, samples: { label: "By sample", rows: () => measured(sampleRows(data)) } },
    open: (row, cell) => openSample(cell ? Number(cell.dataset.place) : row.start) });
}

const KEYS = [["/", "search and filter"], ["↑ ↓  or  j k", "move in the list"], ["Enter", "open a sample"], ["← →", "previous and next sample; in tokens, previous and next token"], ["1 to 6", "messages, tokens, turns, side by side, branches, data"], ["Esc", "close"], ["t", "light or dark"], ["?", "this help"]];

begin(async () => {
  const data = await source.overview();
  const drawer = makeDrawer(data), table = runTable(data, (i) => drawer.open(i));
  const tiles = h("div", null, tilesView(data, (filter) => table.find("samples", filter))), panels = h("div", null, panelsView(data));
  const redraw = () => {
    drawer.moved(placeOf(data, location.hash));
    tiles.replaceChildren(tilesView(data, (filter) => table.find("samples", filter)));
    panels.replaceChildren(...panelsView(data).filter(Boolean));
    table.refresh();
  };
  const facts = [...runFacts(data.header), source.follow(data, redraw)];
  const { help, toggleTheme, toggleHelp } = pageView({ title: data.title, facts, keys: KEYS, content: [tiles, table.element, panels, configurationView(data)], overlays: drawer.elements,
    notice: data.tokens_left_out ? `Tokens of ${whole(data.tokens_left_out)} samples are left out, to keep this file small.` : null });
  table.start();
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") { if (!help.hidden) help.hidden = true; else if (drawer.isOpen()) drawer.close(); else if (typing) table.scroll.focus(); return; }
    if (typing) return;
    const actions = { "/": () => table.search.focus(), t: toggleTheme, "?": toggleHelp };
    if (drawer.isOpen()) Object.assign(actions, { "/": null, ArrowLeft: () => drawer.step(-1), ArrowRight: () => drawer.step(1) }, Object.fromEntries([0, 1, 2, 3, 4, 5].map((i) => [i + 1, () => drawer.tab(i)])));
    const action = actions[event.key];
    if (action) { event.preventDefault(); action(); }
    else if (!drawer.isOpen() && event.target === document.body) table.move(event);
  });
  const follow = () => { const place = placeOf(data, location.hash); if (place >= 0) drawer.open(place); };
  addEventListener("hashchange", follow);
  follow();
});
