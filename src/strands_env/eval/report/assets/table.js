// A list of any length: only the rows in sight exist. Sorted by any column, filtered by any field.

// An id, cut at its beginning where it is long: what tells ids apart is their end.
const idView = (id) => h("span", { class: "id", title: id }, h("bdi", null, id));

const ROW = 40;
const OPERATORS = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "=": (a, b) => a === b, "!=": (a, b) => a !== b };

// `reward<1 tokens>=200 ended:max reward=none some words`: what a row has to fit.
function parseFilter(text, fields) {
  return text.trim().split(/\s+/).filter(Boolean).map((term) => {
    const found = term.match(/^([a-z_]+)(<=|>=|!=|<|>|=|:)(.*)$/i), field = found && fields[found[1].toLowerCase()];
    if (!field || (found[2] !== ":" && !found[3])) return (row) => row.haystack.includes(term.toLowerCase());
    const [, , operator, wanted] = found;
    if (operator === ":") return (row) => String(field(row) ?? "none").toLowerCase().includes(wanted.toLowerCase());
    const value = wanted === "none" ? null : Number.isNaN(Number(wanted)) ? wanted.toLowerCase() : Number(wanted);
    return (row) => {
      const own = field(row), mine = typeof own === "string" ? own.toLowerCase() : own ?? null;
      if (value === null || mine === null) return { "=": mine === value, "!=": mine !== value }[operator] ?? false;
      return OPERATORS[operator](mine, value);
    };
  });
}

const room = (column) => (column.wide === 2 ? "wide wider" : column.wide ? "wide" : "");

// columns: { name, view(row), value(row), width, wide } (wide: only where there is room; 2: where there is much). fields: name to value(row), for filters.
// orders: [name, text, rank(row)], lowest first, beside those of the columns. exported(row): the values of a row in the files.
function dataTable({ label, testid, columns, fields, choices, modes, open, placeholder, orders = [], exported = null, file = "rows" }) {
  let rows = [], listed = [], active = 0, sort = { column: null, down: true }, current = null;
  const space = h("div", { role: "presentation" });
  const scroll = h("div", { class: "scroll", tabindex: 0, role: "listbox", "aria-label": label, "data-testid": testid }, space);
  const count = h("span", { class: "soft num", "data-testid": "count", role: "status" });
  const [asked, example] = placeholder.split(", such as "); // the example stands in the hint: a narrow field would cut it
  const search = h("input", { type: "search", placeholder: asked, "aria-label": placeholder, oninput: () => update() });
  const filter = h("select", { "aria-label": "Filter", onchange: () => update() }, choices.map(([value, text]) => h("option", { value }, text)));
  const order = h("select", { "aria-label": "Order", onchange: () => { const [column, down] = order.value.split("|"); sort = { column: column === "" || down === "rank" ? null : Number(column), down: down === "1", rank: down === "rank" ? column : null }; update(); } });
  const head = h("div", { class: "head" });
  const table = h("div", { class: "table" }, head, scroll);

  function setMode(name) {
    current = columns[name];
    rows = modes[name].rows();
    sort = { column: null, down: true };
    table.style.setProperty("--cols", current.map((column) => column.width).join(" "));
    table.style.setProperty("--middle", current.filter((column) => column.wide !== 2).map((column) => column.width).join(" "));
    table.style.setProperty("--narrow", current.filter((column) => !column.wide).map((column) => column.width.replace(/minmax\(\d+px/, "minmax(0")).join(" "));
    head.replaceChildren(...current.map((column, i) => h("span", { class: room(column) }, column.value
      ? h("button", { "aria-pressed": "false", title: `Sort by ${column.name.toLowerCase()}`, onclick: () => { sort = { column: i, down: sort.column === i ? !sort.down : true }; update(); } }, column.name) : column.name)));
    order.replaceChildren(h("option", { value: "|1" }, "In order of the tasks"), ...orders.map(([name, text]) => h("option", { value: `${name}|rank` }, text)), ...current.flatMap((column, i) => (column.value ? [h("option", { value: `${i}|1` }, `${column.name}: highest first`), h("option", { value: `${i}|0` }, `${column.name}: lowest first`)] : [])));
    for (const button of switches) button.setAttribute("aria-pressed", String(button.dataset.mode === name));
    update();
  }

  const names = Object.keys(modes);
  const switches = names.length > 1 ? names.map((name) => h("button", { "data-mode": name, onclick: () => setMode(name) }, modes[name].label)) : [];

  function draw() {
    head.style.paddingRight = `${14 + scroll.offsetWidth - scroll.clientWidth}px`; // the rows make room for a scroll bar
    const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - 6);
    const end = Math.min(listed.length, first + Math.ceil((scroll.clientHeight || 600) / ROW) + 12);
    space.replaceChildren(...listed.slice(first, end).map((row, i) => {
      const place = first + i;
      return h("div", { class: `row${place === active ? " active" : ""}`, id: `row-${place}`, role: "option", "aria-selected": String(place === active), style: { top: `${place * ROW}px` }, onclick: (event) => { activate(place); open(row, event.target.closest("[data-place]")); } },
        current.map((column) => h("span", { class: `${room(column)} ${column.class || ""}` }, column.view(row))));
    }));
    if (!listed.length) space.append(h("div", { class: "empty" }, "Nothing fits."));
    scroll.setAttribute("aria-activedescendant", `row-${active}`);
  }

  function activate(place) {
    active = Math.max(0, Math.min(listed.length - 1, place));
    const top = active * ROW;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    else if (top + ROW > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + ROW - scroll.clientHeight;
    draw();
  }

  function compareRows(one, two) {
    const value = current[sort.column].value, a = value(one), b = value(two);
    if (a === b) return one.i - two.i;
    if (a === null || a === undefined) return 1; // what has no value comes last, in either direction
    if (b === null || b === undefined) return -1;
    const by = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return sort.down ? -by : by;
  }

  function update() {
    const chosen = choices.find(([value]) => value === filter.value)[2], terms = parseFilter(search.value, fields);
    listed = rows.filter((row) => chosen(row) && terms.every((fits) => fits(row)));
    const rank = sort.rank && orders.find(([name]) => name === sort.rank)[2];
    if (rank) listed.sort((one, two) => rank(one) - rank(two) || one.i - two.i);
    else if (sort.column !== null) listed.sort(compareRows);
    order.value = rank ? `${sort.rank}|rank` : sort.column === null ? "|1" : `${sort.column}|${sort.down ? 1 : 0}`;
    [...head.children].forEach((cell, i) => { const button = cell.querySelector("button"); if (button) { button.setAttribute("aria-pressed", String(sort.column === i)); button.textContent = current[i].name + (sort.column === i ? (sort.down ? " ↓" : " ↑") : ""); } });
    space.style.height = `${listed.length * ROW}px`;
    scroll.style.height = `min(58vh, 640px, ${Math.max(2, listed.length) * ROW + 2}px)`;
    count.textContent = `${whole(listed.length)} of ${whole(rows.length)}`;
    scroll.scrollTop = 0;
    activate(0);
  }

  function move(event) {
    const page = Math.floor(scroll.clientHeight / ROW);
    const to = { ArrowDown: active + 1, j: active + 1, ArrowUp: active - 1, k: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: listed.length - 1 }[event.key];
    if (to !== undefined) { event.preventDefault(); activate(to); }
    if (event.key === "Enter" && listed.length) { event.preventDefault(); open(listed[active], null); }
  }

  scroll.addEventListener("scroll", () => requestAnimationFrame(draw));
  scroll.addEventListener("keydown", move);
  addEventListener("resize", draw);
  // What is listed, in its order. A text that a spreadsheet would take for a formula gets an apostrophe.
  const cell = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? `"${value.replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"` : String(value));
  const csv = (found) => [Object.keys(found[0] || {}).join(","), ...found.map((row) => Object.values(row).map(cell).join(","))].join("\r\n") + "\r\n";
  const files = exported ? [h("button", { title: "Save the listed rows as CSV", onclick: () => save(`${file}.csv`, "text/csv", csv(listed.map(exported))) }, "CSV"),
    h("button", { title: "Save the listed rows as JSON", onclick: () => save(`${file}.json`, "application/json", JSON.stringify(listed.map(exported), null, 1)) }, "JSON")] : [];
  const element = h("section", { class: "panel" }, h("h2", null, label), h("div", { class: "tools" }, search, filter, order, switches, files, count),
    h("p", { class: "soft hint" }, `Filters: ${Object.keys(fields).join(", ")} with < <= > >= = != or : (contains), and words, as in “${example || "reward<1"}”.`), table);
  return { element, search, scroll, move, start: () => setMode(names[0]) };
}
