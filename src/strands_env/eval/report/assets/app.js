// The page of one run: overview, table of prompts and samples, and the drawer of one sample.

function gradeOf(data, i) {
  const reward = data.samples[1][i];
  if (reward === null) return { name: "unscored", mark: "–", text: "unscored" };
  if (reward >= data.summary.reward_threshold) return { name: "pass", mark: "✓", text: "passed" };
  return reward > 0 ? { name: "part", mark: "~", text: "in part" } : { name: "fail", mark: "✗", text: "failed" };
}

function overviewView(data) {
  const sum = data.summary, totals = sum.totals, interval = (v) => `[${number(v.low)}, ${number(v.high)}]`;
  const ks = Object.keys(sum.pass_at).map(Number), last = ks[ks.length - 1];
  const curve = (values) => ks.filter((k) => isNumber(values[k].value)).map((k) => [k, values[k].value, values[k].low, values[k].high]);
  const at = curve(sum.pass_at), hat = curve(sum.pass_hat);
  const level = `${Math.round(100 * sum.mean_reward.level)}%`;
  const none = () => h("p", { class: "soft" }, "Nothing was scored.");
  return [
    h("div", { class: "tiles" },
      tile("Mean reward", number(sum.mean_reward.value), `${interval(sum.mean_reward)} ${level} over prompts`),
      tile("pass@1", number(sum.pass_at[1]?.value), sum.pass_at[1] ? interval(sum.pass_at[1]) : ""),
      last > 1 && tile(`pass@${last}`, number(sum.pass_at[last].value), `over ${whole(sum.pass_at[last].prompts)} prompts; pass^${last} ${number(sum.pass_hat[last].value)}`),
      tile("Samples", whole(sum.samples), `of ${whole(sum.prompts)} prompts; ${sum.unscored ? `${whole(sum.unscored)} unscored${sum.aborted ? `, of these ${whole(sum.aborted)} lost to infrastructure` : ""}` : "all scored"}${sum.left_out ? `; ${whole(sum.left_out)} prompts with lost or missing samples left out` : ""}`),
      tile("Tokens", whole((totals.input_tokens || 0) + (totals.output_tokens || 0)), `${whole(totals.output_tokens || 0)} sampled, ${whole(totals.tool_calls || 0)} tool calls`),
      tile("Time", duration(data.header.wall_s ?? totals.wall_s), sum.samples ? `${data.header.wall_s ? "in all; " : "of all rollouts together; "}${duration(totals.wall_s / sum.samples)} a rollout` : ""),
      data.drift && tile("Drift", `${whole(data.drift.changed_trajectories)} of ${whole(data.drift.trajectories)}`, `trajectories change when re-tokenised${driftKinds(data.drift)}`, "drift-tile")),
    h("div", { class: "grid" },
      chart("Reward over the run", data.running.length ? lineChart({ label: "running mean of the reward", lines: [data.running], xLabel: "scored samples", yRange: runningRange([data.running]), integer: true }) : none(),
        "running mean over prompts in the order of completion, with its 95% interval over prompts"),
      at.length > 1 ? chart("pass@k", lineChart({ label: "pass at k and pass hat k", lines: [at, hat], dashed: true, xLabel: "k", yRange: [0, 1], integer: true }),
        [swatch(lineColor(0), `pass@k, ${level}: at least one of k passes`), swatch(lineColor(1), "pass^k: all of k pass")]) : null,
      chart("Distribution of rewards", data.distribution ? histogram(data.distribution, "number of samples by reward") : none()),
      chart("How rollouts ended", Object.keys(sum.terminations).length ? bars(sum.terminations) : none()),
      Object.keys(sum.errors).length ? chart("Errors", [bars(sum.errors), firstMessages(sum.errors, sum.messages)]) : null,
      Object.keys(sum.tool_errors).length ? chart("Exceptions of tools", [bars(sum.tool_errors), firstMessages(sum.tool_errors, sum.messages)]) : null),
    data.health.length ? h("details", { class: "panel health", open: true }, h("summary", null, `Health: ${data.health.length} ${data.health.length === 1 ? "finding" : "findings"}`), healthView(data.health)) : null,
    h("details", { class: "panel" }, h("summary", null, "Configuration, versions and seeds"), h("pre", null, JSON.stringify(data.run, null, 2))),
  ];
}

const DRIFT_KINDS = { "broken-utf8": "bytes that are no whole character", "special-token": "special tokens spelled out, or the other way round", whitespace: "white space merged differently", "other-merge": "the same characters split differently", "other-text": "the text itself changed" };
const driftKinds = (drift) => { const kinds = Object.entries(drift.kinds); return kinds.length ? `: ${kinds.map(([kind, count]) => `${kind} ${whole(count)} (${DRIFT_KINDS[kind] || "unknown"})`).join(", ")}` : ""; };

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

const firstMessages = (counts, messages) => h("dl", { class: "messages-of" }, Object.keys(counts).filter((name) => messages[name]).map((name) => [h("dt", { class: "soft" }, name), h("dd", null, messages[name].slice(0, 300))]));

const healthView = (findings) => h("dl", { class: "messages-of" }, findings.map((found) => [h("dt", null, `${found.check}: ${found.text}`),
  h("dd", { class: "soft" }, found.advice, found.samples.slice(0, 8).map((name) => [" ", h("a", { href: `#${encodeURIComponent(name)}` }, name)]), found.samples.length > 8 ? ` and ${whole(found.samples.length - 8)} more` : "")]));

const mean = (values) => { const known = values.filter(isNumber); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };

function promptRows(data) {
  const [, rewards, , , seconds, tokens, calls, turns] = data.samples;
  return data.prompts.map(([id, text, truth, start, count], i) => {
    const part = (column) => column.slice(start, start + count), mine = part(rewards), scored = mine.filter((value) => value !== null);
    const passed = scored.filter((value) => value >= data.summary.reward_threshold).length;
    return { i, id, text, truth, start, count, scored: scored.length, passed, reward: mean(scored), tokens: mean(part(tokens)), seconds: mean(part(seconds)), calls: mean(part(calls)), turns: mean(part(turns)),
      ended: [...new Set(part(data.samples[2]).map((reason) => data.reasons[reason]))].join(" "), haystack: `${id} ${text} ${truth ?? ""}`.toLowerCase() };
  });
}

function sampleRows(data) {
  const [indices, rewards, reasons, , seconds, tokens, calls, turns] = data.samples;
  return data.prompts.flatMap(([id, text, truth, start, count]) => Array.from({ length: count }, (_, n) => {
    const i = start + n, reward = rewards[i];
    return { i, id: `${id}/${indices[i]}`, text, truth, start: i, count: 1, scored: Number(reward !== null), passed: Number(reward !== null && reward >= data.summary.reward_threshold), reward, tokens: tokens[i], seconds: seconds[i], calls: calls[i], turns: turns[i],
      ended: data.reasons[reasons[i]], haystack: `${id} ${text} ${truth ?? ""}`.toLowerCase() };
  }));
}

function sampleCells(data, row) {
  const cells = [];
  for (let i = row.start; i < row.start + Math.min(row.count, 12); i += 1) {
    const grade = gradeOf(data, i);
    cells.push(h("span", { class: `cell ${grade.name}`, "data-place": i, title: `sample ${data.samples[0][i]}: ${grade.text}` }, grade.mark));
  }
  return [...cells, row.count > 12 ? h("span", { class: "soft" }, `+${row.count - 12}`) : null];
}

function runTable(data, openSample) {
  const round = (value) => (isNumber(value) ? whole(value) : "–");
  const id = { name: "Prompt", class: "mono", width: "minmax(110px, 1.1fr)", value: (row) => row.id, view: (row) => idView(row.id) };
  const reward = { name: "Reward", class: "num", width: "68px", value: (row) => row.reward, view: (row) => number(row.reward) };
  const samples = { name: "Samples", class: "cells", width: "minmax(100px, 1.4fr)", value: (row) => row.passed, view: (row) => sampleCells(data, row) };
  const more = [
    { name: "Tokens", class: "num", wide: true, width: "68px", value: (row) => row.tokens, view: (row) => round(row.tokens) },
    { name: "Turns", class: "num", wide: 2, width: "56px", value: (row) => row.turns, view: (row) => short(row.turns) },
    { name: "Time", class: "num", wide: true, width: "82px", value: (row) => row.seconds, view: (row) => clock(row.seconds) },
    { name: "Text", wide: true, width: "minmax(110px, 2.6fr)", view: (row) => row.text },
    { name: "Expected", class: "mono soft", wide: 2, width: "minmax(60px, 1fr)", value: (row) => row.truth, view: (row) => row.truth ?? "" }];
  const ended = { name: "Ended", width: "minmax(110px, 1.2fr)", value: (row) => row.ended, view: (row) => words(row.ended) };
  const fields = Object.fromEntries(["reward", "tokens", "turns", "calls", "seconds", "ended", "id"].map((name) => [name, (row) => row[name]]));
  const choices = [["all", "All", () => true], ["failed", "Never passed", (row) => row.scored && !row.passed], ["mixed", "Passed sometimes", (row) => row.passed && row.passed < row.scored],
    ["passed", "Always passed", (row) => row.scored && row.passed === row.scored], ["unscored", "With unscored samples", (row) => row.scored < row.count]];
  // Never passed, passed in part, not scored, passed.
  const severity = (row) => (!row.scored ? 2 : row.passed === row.scored ? 3 : row.passed || row.reward > 0 ? 1 : 0);
  const orders = [["failed", "Failed first", (row) => severity(row)]];
  const exported = (row) => ({ id: row.id, reward: row.reward, samples: row.count, scored: row.scored, passed: row.passed, tokens: row.tokens, turns: row.turns, tool_calls: row.calls, seconds: row.seconds, ended: row.ended, text: row.text, expected: row.truth });
  return dataTable({ label: "Prompts and samples", orders, exported, file: data.title, testid: "prompts", placeholder: "Search ( / ), such as reward<1 tokens>200", fields, choices,
    columns: { prompts: [id, reward, samples, ...more], samples: [{ ...id, name: "Sample", width: "minmax(120px, 1.6fr)" }, reward, ended, ...more] },
    modes: { prompts: { label: "By prompt", rows: () => promptRows(data) }, samples: { label: "By sample", rows: () => sampleRows(data) } },
    open: (row, cell) => openSample(cell ? Number(cell.dataset.place) : row.start) });
}

const KEYS = [["/", "search and filter"], ["↑ ↓  or  j k", "move in the list"], ["Enter", "open a sample"], ["← →", "previous and next sample; in tokens, previous and next token"], ["1 to 6", "messages, tokens, turns, side by side, branches, data"], ["Esc", "close"], ["t", "light or dark"], ["?", "this help"]];

begin(async () => {
  const data = await unpack("overview");
  const drawer = makeDrawer(data, islands()), table = runTable(data, (i) => drawer.open(i));
  const facts = [...runFacts(data.header), `${data.path}, report of ${day(data.made)}`];
  const { help, toggleTheme, toggleHelp } = pageView({ title: data.title, facts, keys: KEYS, content: [overviewView(data), table.element], overlays: drawer.elements,
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
