// The drawer of one sample.

const MOST_COLUMNS = 16;

const promptOf = (data, i) => data.prompts.find((p) => i >= p[3] && i < p[3] + p[4]);

function makeDrawer(data) {
  const state = { at: -1, tab: "messages", mode: "loss", trajectory: 0 };
  const title = h("h2"), facts = h("div", { class: "facts" }), why = h("div", { class: "why", "data-testid": "why" }), main = h("main", { tabindex: -1, role: "tabpanel", id: "tab-panel" });
  const tabNames = [["messages", "Messages"], ["tokens", "Tokens"], ["turns", "Turns"], ["group", "Side by side"], ["branches", "Branches"], ["data", "Data"]];
  const tabs = tabNames.map(([name, label]) => h("button", { role: "tab", id: `tab-${name}`, "aria-controls": "tab-panel", "data-tab": name, onclick: () => showTab(name) }, label));
  const drawer = h("aside", { class: "drawer", role: "dialog", "aria-modal": "true", "aria-label": "Sample", "data-testid": "drawer", hidden: true },
    h("header", null, h("div", { class: "bar" }, title, h("button", { onclick: () => step(-1), title: "Previous sample (←)" }, "← Previous"), h("button", { onclick: () => step(1), title: "Next sample (→)" }, "Next →"), h("button", { onclick: () => close(), title: "Close (Esc)", "data-testid": "close" }, "Close")), facts, why, h("div", { class: "tabs", role: "tablist" }, tabs)), main);
  const shade = h("div", { class: "shade", hidden: true, onclick: () => close() });
  let current = null, vocabulary = null, before = null, asked = 0;
  const nameAt = (i) => `${promptOf(data, i)[0]}/${data.samples[0][i]}`;

  async function open(i) {
    if (drawer.hidden) before = document.activeElement;
    state.at = i;
    state.trajectory = 0;
    current = vocabulary = null;
    const prompt = promptOf(data, i), grade = gradeOf(data, i);
    const [index, reward, reason, aborted, seconds, output, calls, , drift] = data.samples.map((column) => column[i]);
    title.textContent = `${prompt[0]}, sample ${index}`;
    drawer.hidden = shade.hidden = false;
    document.body.style.overflow = "hidden";
    facts.replaceChildren();
    why.replaceChildren();
    main.replaceChildren(h("p", { class: "soft" }, "Unpacking ..."));
    const ticket = (asked += 1);
    let found;
    try { found = await source.sample(data, i, nameAt(i)); } catch (error) { main.replaceChildren(h("p", { class: "notice" }, `This sample cannot be shown: ${error.message}`)); return; }
    if (asked !== ticket) return;
    current = found.sample;
    vocabulary = found.vocabulary;
    const fact = (name, value) => h("span", null, `${name} `, h("span", { style: { color: "var(--ink)" } }, value));
    facts.replaceChildren(h("span", { class: `badge ${grade.name}` }, reward === null ? "unscored" : `reward ${short(reward)}`), fact("ended", words(data.reasons[reason])),
      ...(current.truth === null ? [] : [fact("expected", current.truth.slice(0, 120))]), fact("took", duration(seconds)),
      ...(isNumber(output) ? [fact("sampled", `${whole(output)} tokens`)] : []), ...(calls ? [fact("tool calls", whole(calls))] : []), ...(drift ? [h("button", { class: "link drifted", onclick: () => showDrift() }, `${quantity(drift, "place")} would drift`)] : []), ...(current.attempts > 1 ? [fact("attempts", current.attempts)] : []), ...(aborted ? [fact("", "lost; a resume tries it again")] : []));
    // One line, the cause's where there is one; the tab of the messages has all of it.
    const failure = current.error && (current.error.cause || `${current.error.type}: ${current.error.message}`).split("\n")[0];
    why.replaceChildren(...(failure ? [h("span", { class: "verdict bad" }, failure.slice(0, 200))] : []),
      ...current.why.map(([name, text]) => h("span", null, h("span", { class: "name" }, `${name} `), text)));
    why.hidden = !why.childNodes.length;
    history.replaceState(null, "", `#${encodeURIComponent(`${prompt[0]}/${index}`).replaceAll("%2F", "/")}`);
    showTab(state.tab);
    main.focus({ preventScroll: true });
  }

  function showTab(name) {
    state.tab = name;
    main.setAttribute("aria-labelledby", `tab-${name}`);
    tabs.forEach((tab) => tab.setAttribute("aria-selected", String(tab.dataset.tab === name)));
    if (!current) return; // still unpacking: open() shows the tab when the sample is there
    const views = { messages: () => messagesTab(current), tokens: () => tokensTab(current, vocabulary, data, state), turns: () => turnsTab(current), group: () => groupView(), branches: () => branchesTab(current, (i) => { state.trajectory = i; showTab("tokens"); }), data: () => dataTab(current) };
    main.replaceChildren(...[views[name]()].flat(Infinity).filter(Boolean));
    main.scrollTop = 0;
  }

  // The tokens of the first trajectory that drifts.
  function showDrift() {
    state.trajectory = Math.max(0, (current.trajectories || []).findIndex((item) => (item.drift || []).length));
    showTab("tokens");
  }

  function groupView() {
    const at = state.at, prompt = promptOf(data, at), view = h("div", null, h("p", { class: "soft" }, "Unpacking ..."));
    const places = Array.from({ length: Math.min(prompt[4], MOST_COLUMNS) }, (_, n) => prompt[3] + n);
    Promise.all(places.map(async (place) => {
      const found = await source.sample(data, place, nameAt(place)), [index, reward, reason] = data.samples.map((column) => column[place]);
      return { place, index, reward, grade: gradeOf(data, place), ended: data.reasons[reason], sample: found.sample, isOpen: place === at };
    })).then((group) => { if (state.at === at) view.replaceChildren(groupTab(group, open)); });
    return [view, prompt[4] > MOST_COLUMNS && h("p", { class: "soft" }, `${prompt[4] - MOST_COLUMNS} further samples are left out here.`)];
  }

  function step(by) {
    const next = state.at + by;
    if (next >= 0 && next < data.samples[0].length) open(next);
  }

  function close() {
    drawer.hidden = shade.hidden = true;
    document.body.style.overflow = "";
    history.replaceState(null, "", location.pathname + location.search);
    if (before) before.focus();
  }

  drawer.addEventListener("keydown", (event) => {
    if (event.key !== "Tab") return;
    const all = [...drawer.querySelectorAll("button, select, summary, [tabindex='0']")].filter((element) => element.offsetParent);
    const edge = event.shiftKey ? all[0] : all[all.length - 1];
    if (document.activeElement === edge) { event.preventDefault(); (event.shiftKey ? all[all.length - 1] : all[0]).focus(); }
  });
  return { elements: [shade, drawer], open, close, step, isOpen: () => !drawer.hidden, moved: (i) => { if (!drawer.hidden && i >= 0) state.at = i; }, tab: (i) => showTab(tabNames[i][0]) };
}
