// A page with a table of prompts: the drawer of one prompt, and the keys.

// `about(i)` gives `[id, text, truth]` of a prompt, `content(i, answers)` what its drawer shows.
function promptDrawer(data, about, content) {
  const title = h("h2"), facts = h("div", { class: "facts" }), main = h("main", { tabindex: -1 });
  const drawer = h("aside", { class: "drawer", role: "dialog", "aria-modal": "true", "aria-label": "Prompt", "data-testid": "drawer", hidden: true },
    h("header", null, h("div", { class: "bar" }, title, h("button", { onclick: () => step(-1) }, "← Previous"), h("button", { onclick: () => step(1) }, "Next →"), h("button", { onclick: () => close() }, "Close")), facts), main);
  const shade = h("div", { class: "shade", hidden: true, onclick: () => close() });
  let at = -1, before = null;

  async function open(i) {
    if (drawer.hidden) before = document.activeElement;
    at = i;
    const [id, text, truth] = about(i);
    title.textContent = id;
    facts.replaceChildren(h("span", null, text), truth === null ? "" : h("span", null, `expected ${truth}`));
    drawer.hidden = shade.hidden = false;
    document.body.style.overflow = "hidden";
    const answers = await source.answers(data, i, id);
    if (at !== i) return;
    main.replaceChildren(...content(i, answers));
    main.scrollTop = 0;
    main.focus({ preventScroll: true });
  }

  const step = (by) => { if (data.prompts[at + by]) open(at + by); };
  function close() { drawer.hidden = shade.hidden = true; document.body.style.overflow = ""; if (before) before.focus(); }
  return { elements: [shade, drawer], open, close, step, isOpen: () => !drawer.hidden };
}

function promptsPage({ title, facts, content, drawer, table }) {
  const keys = [["/", "search and filter"], ["↑ ↓  or  j k", "move in the list"], ["Enter", "open a prompt"], ["← →", "previous and next prompt"], ["Esc", "close"], ["t", "light or dark"], ["?", "this help"]];
  const { help, toggleTheme, toggleHelp } = pageView({ title, facts, keys, content: [...content, table.element], overlays: drawer.elements });
  table.start();
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT)$/.test(event.target.tagName);
    if (event.key === "Escape") { if (!help.hidden) help.hidden = true; else if (drawer.isOpen()) drawer.close(); else if (typing) table.scroll.focus(); return; }
    if (typing) return;
    const actions = drawer.isOpen() ? { ArrowLeft: () => drawer.step(-1), ArrowRight: () => drawer.step(1), t: toggleTheme } : { "/": () => table.search.focus(), t: toggleTheme, "?": toggleHelp };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); } else if (!drawer.isOpen() && event.target === document.body) table.move(event);
  });
}
