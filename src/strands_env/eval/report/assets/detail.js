// One sample: messages, tokens, turns, the samples of its prompt side by side, branches, data.

// An image where it stands, or what it is where the report had no room for it.
const picture = (url, text) => (url ? h("img", { class: "picture", src: url, alt: text, title: text, loading: "lazy" }) : text);

function blockView(block, images) {
  const tag = (text) => h("span", { class: "tag" }, text);
  switch (block.kind) {
    case "call": return h("div", { class: "block call" }, tag(`call ${block.name}`), JSON.stringify(block.input));
    case "result": return h("div", { class: `block result ${block.status === "error" ? "error" : ""}` }, tag(`result, ${block.status}`),
      block.blocks.map((inner, i) => [i ? "\n" : "", inner.kind === "media" ? picture(images[inner.image], inner.text)
        : inner.kind === "text" ? inner.text : JSON.stringify(inner.value ?? inner, null, 2)]));
    case "json": return h("div", { class: "block json" }, tag("json"), JSON.stringify(block.value, null, 2));
    case "reasoning": return h("div", { class: "block reasoning" }, tag("reasoning"), block.text);
    case "media": return h("div", { class: "block media" }, tag("media"), picture(images[block.image], block.text));
    default: return h("div", { class: "block" }, block.text);
  }
}

function messageView(message, images) {
  return h("article", { class: `message ${message.role.startsWith("assistant") ? "assistant" : ""}` },
    h("div", { class: "role" }, message.role), message.blocks.length ? message.blocks.map((block) => blockView(block, images)) : h("div", { class: "block soft" }, "(empty)"));
}

// The cause comes first: it is what one mends.
function errorView(error, title) {
  return error && h("div", { class: "error-box" }, error.cause && h("div", { class: "lines" }, h("strong", null, "cause: "), error.cause),
    h("strong", null, `${title} in ${error.where}: ${error.type}`), h("div", { class: "lines" }, error.message),
    error.raised_at && h("div", { class: "mono" }, error.raised_at),
    error.traceback && h("details", null, h("summary", null, "traceback"), h("pre", null, error.traceback)));
}

const toolErrors = (sample) => (sample.tool_errors || []).map((error) => errorView(error, `tool ${error.tool} raised an exception`));

function promptView(sample) {
  if (!sample.prompt) return null;
  const tokens = sample.trajectories[sample.main].prompt;
  return h("details", { class: "message", "data-testid": "prompt" }, h("summary", { class: "role" }, `first prompt, ${whole(tokens)} tokens, as the model read it`), h("div", { class: "block mono" }, sample.prompt));
}

// The history before the task's own message, folded where it is long.
function historyView(sample) {
  const given = sample.messages.slice(0, sample.given || 0), system = given.filter((message) => message.role === "system");
  const history = given.slice(system.length), view = (messages) => messages.map((message) => messageView(message, sample.images));
  if (history.length <= 2) return view(given);
  const by = history[0].role.replace(/^.*, /, "");
  return [view(system), h("details", { class: "history", "data-testid": "history" }, h("summary", null, `${history.length} messages before, ${by}`), view(history))];
}

const messagesTab = (sample) => [errorView(sample.error, "error"), errorView(sample.cleanup_error, "cleanup error"), toolErrors(sample), promptView(sample), historyView(sample),
  sample.messages.slice(sample.given || 0).map((message) => messageView(message, sample.images))];

// A row a model call, with the tools it asked for.
function turnsTab(sample) {
  const turns = sample.metrics.turns || [];
  if (!turns.length) return h("p", { class: "soft" }, "No times of single turns were recorded.");
  const said = sample.messages.slice(sample.given || 0).filter((message) => message.role === "assistant");
  const main = (sample.trajectories || [])[sample.main];
  const outputs = main ? main.segments.filter(([isOutput]) => isOutput) : [];
  const meanLogprob = (i) => {
    if (outputs.length !== turns.length) return null;
    const [, start, end] = outputs[i], found = [];
    main.logprobs.forEach(([at, values]) => values.forEach((value, j) => { if (at + j >= start && at + j < end && isNumber(value)) found.push(value); }));
    return found.length ? found.reduce((a, b) => a + b, 0) / found.length : null;
  };
  const longest = Math.max(...turns.map((turn) => turn.model_s + turn.tool_s)) || 1;
  const what = (i) => {
    const blocks = (said[i] || { blocks: [] }).blocks, calls = blocks.filter((block) => block.kind === "call");
    return calls.length ? calls.map((block) => `${block.name}(${JSON.stringify(block.input)})`).join(", ") : blocks.map((block) => block.text || "").join(" ");
  };
  const wide = (turn, key, name) => h("span", { class: `time ${name}`, title: `${name} ${turn[key].toFixed(2)} s`, style: { width: `${(100 * turn[key]) / longest}%` } });
  const head = ["Turn", "What the model did", "Time", "Model", "Tools", "Read", "Cached", "Sampled", "Mean logprob"];
  return [h("div", { class: "legend" }, swatch("var(--time-sampling)", "model"), swatch("var(--time-tools)", "tools")),
    h("div", { class: "panel turns" }, h("table", { "data-testid": "turns" }, h("thead", null, h("tr", null, head.map((name, i) => h("th", { class: i === 0 || i > 2 ? "num" : "" }, name)))),
      h("tbody", null, turns.map((turn, i) => h("tr", null, h("td", { class: "num" }, i + 1), h("td", { class: "said mono", title: what(i) }, what(i)),
        h("td", { class: "spent", "aria-label": `model ${turn.model_s.toFixed(2)} s, tools ${turn.tool_s.toFixed(2)} s` }, h("div", null, wide(turn, "model_s", "model"), wide(turn, "tool_s", "tools"))), h("td", { class: "num" }, `${turn.model_s.toFixed(2)} s`), h("td", { class: "num" }, turn.tool_s ? `${turn.tool_s.toFixed(2)} s` : "–"),
        h("td", { class: "num" }, whole(turn.input_tokens)), h("td", { class: "num" }, isNumber(turn.cached_tokens) && turn.input_tokens ? `${Math.round((100 * turn.cached_tokens) / turn.input_tokens)}%` : "–"),
        h("td", { class: "num" }, whole(turn.output_tokens)), h("td", { class: "num" }, number(meanLogprob(i))))))))];
}

// All samples of the prompt in columns, what differs from the start: their own messages.
function groupTab(group, open) {
  return h("div", { class: "columns", "data-testid": "group" }, group.map(({ place, grade, reward, index, ended, sample, isOpen }) => h("section", { class: `column${isOpen ? " active" : ""}` },
    h("button", { class: "column-head", onclick: () => open(place) }, h("span", { class: `badge ${grade.name}` }, reward === null ? "unscored" : short(reward)), ` sample ${index}, ${words(ended)}`),
    errorView(sample.error, "error"), sample.messages.slice((sample.given || 0) + 1).map((message) => messageView(message, sample.images)))));
}

function tokensTab(sample, vocabulary, data, state) {
  const list = sample.trajectories;
  if (!list) {
    const why = sample.tokens_left_out ? `${whole(sample.tokens_left_out)} tokens are left out, to keep this file small.` : "No tokens were kept for this sample.";
    return h("p", { class: "soft" }, why);
  }
  state.trajectory = Math.min(state.trajectory, list.length - 1);
  const view = h("div");
  const show = () => view.replaceChildren(...tokenView(list[state.trajectory], data.has_texts ? vocabulary : null, state, sample.images));
  const label = (item, i) => `${i + 1}: ${item.agent}${item.role === "main" ? "" : ` (${item.role})`}${item.trainable ? "" : " (frozen)"}${item.discarded ? " (discarded)" : ""}, ${whole(item.ids.length)} tokens`;
  show();
  return [data.tokenizer_note && h("p", { class: "soft" }, data.tokenizer_note),
    list.length > 1 && h("div", { class: "tools" }, h("label", null, "Trajectory ",
      h("select", { onchange: (event) => { state.trajectory = Number(event.target.value); show(); } },
        list.map((item, i) => h("option", { value: i, selected: i === state.trajectory }, label(item, i)))))), view];
}

function branchesTab(sample, open) {
  if (!sample.trajectories) return h("p", { class: "soft" }, "No tokens were kept for this sample.");
  const list = sample.trajectories;
  const node = (item) => {
    const path = list[item.path];
    const sampled = path.trained.reduce((sum, [start, end]) => sum + Math.max(0, Math.min(end, item.end) - Math.max(start, item.start)), 0);
    const ends = item.paths.filter((i) => list[i].ids.length === item.end);
    const flags = ends.map((i) => `ends trajectory ${i + 1} (${list[i].agent}${list[i].discarded ? ", discarded" : ""}${list[i].trainable ? "" : ", frozen"}${list[i].finish ? `, ${list[i].finish}` : ""})`);
    return h("li", null, h("button", { class: "node", onclick: () => open(item.path) },
      h("div", null, `${whole(item.end - item.start)} tokens, ${whole(sampled)} trained`),
      h("div", { class: "soft" }, `${whole(item.start)} to ${whole(item.end)}${item.paths.length > 1 ? `, shared by ${item.paths.length} trajectories` : ""}${flags.length ? `; ${flags.join("; ")}` : ""}`)),
    item.children.length ? h("ul", null, item.children.map(node)) : null);
  };
  return h("div", { class: "tree panel", "data-testid": "tree" }, h("p", { class: "soft" },
    `${list.length} ${list.length === 1 ? "trajectory" : "trajectories"} in ${sample.tree.length} ${sample.tree.length === 1 ? "tree" : "trees"}. A node is a run of tokens that its branches share.`),
  h("ul", null, sample.tree.map(node)));
}

const dataTab = (sample) => [["Reward details", sample.info], ["Metrics", sample.metrics], ["Identity", { id: sample.id, attempts: sample.attempts }]]
  .map(([title, value]) => h("section", { class: "panel", style: { marginBottom: "12px" } }, h("h2", null, title), h("pre", null, JSON.stringify(value, null, 2))));
