// The tokens of one trajectory.

const BATCH = 4000;
const VERSIONS = 8;

// Lists of runs as one value a token.
function expand(trajectory) {
  const count = trajectory.ids.length;
  const tokens = { sampled: new Uint8Array(count), trained: new Uint8Array(count), turn: new Int32Array(count),
    logprob: new Array(count).fill(null), version: new Array(count).fill(undefined), drift: new Array(count).fill(null), starts: new Map() };
  trajectory.segments.forEach(([isOutput, start, end, turn]) => {
    tokens.sampled.fill(isOutput, start, end);
    tokens.turn.fill(turn, start, end);
    tokens.starts.set(start, isOutput ? `turn ${turn + 1}: sampled` : start === 0 ? "first prompt" : `turn ${turn + 1}: prompt`);
  });
  trajectory.trained.forEach(([start, end]) => tokens.trained.fill(1, start, end));
  trajectory.logprobs.forEach(([start, values]) => values.forEach((value, i) => { tokens.logprob[start + i] = value; }));
  trajectory.versions.forEach(([version, start, end]) => tokens.version.fill(version, start, end));
  (trajectory.drift || []).forEach((span) => tokens.drift.fill(span, span[1] > span[0] ? span[0] : Math.max(0, span[0] - 1), Math.max(span[1], span[0] || 1)));
  return tokens;
}

// Certain tokens stay pale, unlikely ones are red: the style sheet makes a colour of it, in either theme. The root tells
// 0 from -0.5, where most tokens are.
function heat(element, logprob) {
  element.classList.toggle("heat", isNumber(logprob));
  element.style.setProperty("--surprise", isNumber(logprob) ? Math.sqrt(Math.min(1, Math.max(0, -logprob / 6))) : "");
  return element;
}

function visible(text) {
  const parts = [];
  for (const piece of text.split(/(\n|\t)/)) {
    if (piece === "\n") parts.push(h("span", { class: "ws" }, "⏎"), "\n");
    else if (piece === "\t") parts.push(h("span", { class: "ws" }, "⇥"), "\t");
    else if (piece) parts.push(piece);
  }
  return parts;
}

const CONTEXT = 4; // tokens on either side of a drifted place

// A drifted place as two rows of tokens, aligned: what was sampled, and what its text would come back as.
function driftRows(trajectory, vocabulary, [start, end, kind, texts, ids]) {
  const own = (i) => vocabulary[trajectory.ids[i]] || String(trajectory.ids[i]), range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, n) => from + n);
  const before = range(Math.max(0, start - CONTEXT), start), sampled = range(start, Math.min(end, start + 32)), after = range(end, Math.min(trajectory.ids.length, end + CONTEXT));
  const piece = (text) => h("span", { class: "piece" }, visible(text)), cell = (i) => h("td", null, piece(own(i)));
  const row = (name, pieces) => h("tr", null, h("th", { scope: "row" }, name), before.map(cell), h("td", { class: "changed" }, pieces.length ? pieces : h("span", { class: "soft" }, "nothing")), after.map(cell));
  const logprobs = sampled.map((i) => trajectory.logprobs.find(([at, values]) => i >= at && i < at + values.length)).map((found, n) => (found ? found[1][sampled[n] - found[0]] : null));
  const sum = logprobs.length && logprobs.every(isNumber) ? `, log-probability ${logprobs.reduce((a, b) => a + b, 0).toFixed(2)}` : "";
  return h("div", { class: "drift-rows", "data-testid": "drift-rows" }, h("p", { class: "soft" }, `${words(kind)}, tokens ${start} to ${end - 1}${sum}`),
    h("table", null, h("tbody", null, row("sampled", sampled.map((i) => piece(own(i)))), row("from text", texts.map(piece)))), h("p", { class: "soft mono" }, `ids ${sampled.map((i) => trajectory.ids[i]).join(" ") || "none"} → ${ids.join(" ") || "none"}`));
}

function tokenView(trajectory, vocabulary, state, images) {
  const tokens = expand(trajectory), count = trajectory.ids.length;
  const versions = [...new Set(trajectory.versions.map(([version]) => version))];
  const inspect = h("div", { class: "inspect soft", "aria-live": "polite" }, "Point at a token, or move with the arrow keys.");
  const body = h("div", { class: "tokens", "data-testid": "tokens" });
  // The tokens of an image are one place: [offset, length, index of the image].
  const media = new Map(trajectory.media.map((place) => [place[0], place])), inside = new Map();
  trajectory.media.forEach(([offset, length]) => { for (let i = offset + 1; i < offset + length; i += 1) inside.set(i, offset); });
  let from = trajectory.prompt < count ? trajectory.prompt : 0, shown = from;

  function describe(i) {
    const place = media.get(i);
    const facts = [place ? `tokens ${i} to ${i + place[1] - 1} of ${count}, one image` : `token ${i} of ${count}`, `id ${trajectory.ids[i]}`, `turn ${tokens.turn[i] + 1}`,
      tokens.trained[i] ? "sampled, trained" : tokens.sampled[i] ? "sampled, no loss here" : "prompt or tool result"];
    const logprob = tokens.logprob[i];
    if (isNumber(logprob)) facts.push(`logprob ${logprob.toFixed(4)} (p = ${(100 * Math.exp(logprob)).toFixed(2)}%)`);
    if (tokens.version[i] !== undefined) facts.push(`weights ${tokens.version[i] === null ? "not reported" : tokens.version[i]}`);
    const drift = tokens.drift[i];
    if (drift) facts.push(`re-tokenising gives ${JSON.stringify(drift[3])} (${words(drift[2])})`);
    return facts.join("  ·  ");
  }

  function paint(element, i) {
    const mode = state.mode;
    let name = "tok";
    if (mode === "loss") name += tokens.trained[i] ? " trained" : tokens.sampled[i] ? " sampled" : " plain";
    if (mode === "version" && tokens.version[i] !== undefined) name += ` v${versions.indexOf(tokens.version[i]) % VERSIONS}`;
    if (mode !== "loss" && !tokens.sampled[i]) name += " plain";
    if (tokens.drift[i]) name += " drift";
    if (!vocabulary) name += " id";
    element.className = name;
    heat(element, mode === "logprob" ? tokens.logprob[i] : null);
  }

  function part(start, end) {
    const made = document.createDocumentFragment();
    for (let i = start; i < end; i += 1) {
      if (inside.has(i)) continue;
      if (tokens.starts.has(i)) made.append(h("span", { class: `turn-mark${i ? "" : " first"}` }, tokens.starts.get(i)));
      const text = vocabulary ? vocabulary[trajectory.ids[i]] : null;
      const place = media.get(i), name = text ? visible(text) : String(trajectory.ids[i]);
      const element = h("span", { tabindex: -1, "data-i": i }, place ? [`${name} × ${whole(place[1])}`, picture(images[place[2]], "")] : name);
      paint(element, i);
      made.append(element);
    }
    return made;
  }

  function more() {
    const end = Math.min(count, shown + BATCH);
    body.append(part(shown, end));
    shown = end;
    rest.hidden = shown >= count;
    rest.textContent = `Show more (${whole(count - shown)} of ${whole(count)} tokens left)`;
  }

  // The prompt is folded: what the model sampled is what one looks for.
  function unfold() {
    body.prepend(part(0, from));
    from = 0;
    fold.hidden = true;
  }

  const fold = h("button", { class: "fold", "data-testid": "fold", hidden: !from, onclick: () => unfold() }, `Show the first prompt (${whole(from)} tokens)`);
  const rest = h("button", { onclick: () => more() });
  const at = (i) => { if (i < from) unfold(); while (shown <= i && shown < count) more(); return body.querySelector(`[data-i="${inside.has(i) ? inside.get(i) : i}"]`); };
  const select = (target) => { const token = target.closest && target.closest("[data-i]"); if (token) inspect.textContent = describe(Number(token.dataset.i)); };
  body.addEventListener("mouseover", (event) => select(event.target));
  body.addEventListener("focusin", (event) => select(event.target));
  body.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], token = event.target.closest("[data-i]");
    if (!step || !token) return;
    const place = media.get(Number(token.dataset.i));
    const next = at(Math.max(0, Math.min(count - 1, Number(token.dataset.i) + (place && step > 0 ? place[1] : step))));
    event.preventDefault();
    event.stopPropagation();
    next.focus();
  });

  const legend = h("div", { class: "legend" });
  function explain() {
    const entry = (name, text, color) => h("span", null, h("span", { class: `swatch ${name}`, style: color ? { background: color } : null }), text);
    const hot = (value) => h("span", null, heat(h("span", { class: "swatch" }), value), value === -6 ? "≤ −6" : String(value));
    const list = {
      loss: [entry("tok trained", "sampled, carries loss"), entry("tok sampled", "sampled, trained in another row or not at all"), entry("", "prompt and tool results: no loss", "var(--hover)")],
      logprob: [0, -0.5, -1.5, -3, -6].map(hot),
      version: versions.length ? versions.map((version, i) => entry(`v${i % VERSIONS}`, version === null ? "not reported" : `weights ${version}`)) : ["no weight versions recorded"],
    }[state.mode];
    legend.replaceChildren(...list);
  }

  const modes = [["loss", "Loss mask"], ["logprob", "Log-probability"], ["version", "Weight version"]].map(([mode, label]) =>
    h("button", { "aria-pressed": String(state.mode === mode), "data-mode": mode, onclick: (event) => {
      state.mode = mode;
      for (const button of modes) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      body.querySelectorAll("[data-i]").forEach((element) => paint(element, Number(element.dataset.i)));
      explain();
    } }, label));
  const drifts = trajectory.drift || [], places = h("div", { class: "panel drift-panel", hidden: !drifts.length || !vocabulary });
  let driftAt = -1;
  const showPlace = (number) => { if (!places.hidden) places.replaceChildren(h("h2", null, `Drift, place ${number + 1} of ${drifts.length}`), driftRows(trajectory, vocabulary, drifts[number])); };
  const driftTool = !trajectory.drift ? h("span", { class: "soft" }, "drift not computed (no tokenizer)")
    : drifts.length ? h("button", { "data-testid": "drift", onclick: () => {
      driftAt = (driftAt + 1) % drifts.length;
      const token = at(Math.min(count - 1, drifts[driftAt][0]));
      showPlace(driftAt);
      token.scrollIntoView({ block: "center" });
      token.focus();
    } }, `Next of ${drifts.length} drifted ${drifts.length === 1 ? "place" : "places"}`)
      : h("span", { class: "soft", "data-testid": "drift" }, "re-tokenising would change nothing");
  more();
  explain();
  if (drifts.length) showPlace(0);
  const first = body.querySelector("[data-i]");
  if (first) first.tabIndex = 0;
  return [h("div", { class: "tools" }, modes, driftTool), places, legend, h("p", { class: "sr" }, `${count} tokens`), fold, body, rest, inspect];
}
