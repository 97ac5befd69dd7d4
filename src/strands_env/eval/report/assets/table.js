// A list of any length: only the rows in sight exist. Sorted by any column, filtered by any field.

// An id, cut at its beginning where it is long: what tells ids apart is their end.
const idView = (id) => h("span", { class: "id", title: id }, h("bdi", null, id));

const ROW = 40;
const OPERATORS = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "=": (a, b) => a === b, "!=": (a, b) => a !== b };
const TERM = /"[^"]*"?|[^\s"<>=!:]+(?:\s*(?:<=|>=|!=|[<>=])\s*|:)(?:"[^"]*"?|[^\s"]*)|\S+/g;
const FIELD_TERM = /^([^\s"<>=!:]+)\s*(<=|>=|!=|<|>|=|:)\s*(.*)$/s;
const TEXT_FIELDS = new Set(["id", "ended"]);
const unquoted = (text) => text.replace(/^"|"$/g, "");

// The name that was probably meant, by edits; null where none is near.
function nearest(name, names) {
  const edits = (a, b) => {
    let row = [...Array(b.length + 1).keys()];
    for (let i = 1; i <= a.length; i += 1) {
      const next = [i];
      for (let j = 1; j <= b.length; j += 1) next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + Number(a[i - 1] !== b[j - 1]));
      row = next;
    }
    return row[b.length];
  };
  const near = names.map((other) => [other.startsWith(name) ? 0 : edits(name, other), other]).sort((one, two) => one[0] - two[0])[0];
  return near && near[0] <= Math.max(1, name.length / 3) ? near[1] : null;
}

// A filter is terms that a row has to fit, all of them: `reward<1`, `drift > 0`, `ended:max`, `reward=none`, a word, `"a phrase"`.
// What cannot be read is left out, and `problem` explains the first of it.
function parseFilter(text, fields) {
  const tests = [], problems = [], names = Object.keys(fields);
  for (const term of text.match(TERM) || []) {
    const found = term.startsWith('"') ? null : term.match(FIELD_TERM);
    if (!found) { const word = unquoted(term).toLowerCase(); tests.push((row) => row.haystack.includes(word)); continue; }
    const name = found[1].toLowerCase(), operator = found[2], wanted = unquoted(found[3]).toLowerCase(), field = fields[name];
    const isText = TEXT_FIELDS.has(name), value = wanted === "none" ? null : isText ? wanted : Number(wanted), meant = nearest(name, names);
    if (!field) problems.push(`There is no field “${name}”${meant ? `: did you mean ${meant}${operator}${found[3]}?` : `; the fields are ${names.join(", ")}.`} To search for text, put it in quotes.`);
    else if (!wanted && operator !== ":") problems.push(`“${term.trim()}” needs a value, as in ${name}${operator}${isText ? "max" : "0"}.`);
    else if (operator === ":") tests.push((row) => String(field(row) ?? "none").toLowerCase().includes(wanted));
    else if (isText && !["=", "!="].includes(operator)) problems.push(`${name} is text: use = or != or : (contains), not ${operator}.`);
    else if (value !== null && !isText && Number.isNaN(value)) problems.push(`${name} is a number: “${found[3]}” is none (“none” finds rows without one).`);
    else tests.push((row) => {
      const own = field(row), mine = typeof own === "string" ? own.toLowerCase() : own ?? null;
      if (value === null || mine === null) return { "=": mine === value, "!=": mine !== value }[operator] ?? false;
      return OPERATORS[operator](mine, value);
    });
  }
  return { tests, problem: problems[0] || null };
}

const room = (column) => (column.wide === 2 ? "wide wider" : column.wide ? "wide" : "");

// columns: { name, view(row), value(row), width, wide } (wide: only where there is room; 2: where there is much). fields: name to value(row), for filters.
// orders: [name, text, rank(row)], lowest first, beside those of the columns. exported(row): the values of a row in the files.
function dataTable({ label, testid, columns, fields, choices, modes, open, placeholder, legend, orders = [], exported = null, file = "rows" }) {
  let rows = [], listed = [], active = 0, sort = { column: null, down: true }, mode = null, current = null;
  const space = h("div", { role: "presentation" });
  const scroll = h("div", { class: "scroll", tabindex: 0, role: "listbox", "aria-label": label, "data-testid": testid }, space);
  const count = h("span", { class: "soft", "data-testid": "count", role: "status" });
  const problem = h("p", { class: "problem", "data-testid": "problem", role: "alert", hidden: true });
  const [asked, example] = placeholder.split(", such as "); // the example stands in the hint: a narrow field would cut it
  const search = h("input", { type: "search", placeholder: asked, "aria-label": placeholder, oninput: () => update() });
  const filter = h("select", { "aria-label": "Filter", onchange: () => update() }, choices.map(([value, text]) => h("option", { value }, text)));
  const order = h("select", { "aria-label": "Order", onchange: () => { const [column, down] = order.value.split("|"); sort = { column: column === "" || down === "rank" ? null : Number(column), down: down === "1", rank: down === "rank" ? column : null }; update(); } });
  const head = h("div", { class: "head" });
  const table = h("div", { class: "table" }, head, scroll);

  function setMode(name) {
    mode = name;
    current = columns[name];
    rows = modes[name].rows();
    sort = { column: null, down: true };
    table.style.setProperty("--cols", current.map((column) => column.width).join(" "));
    table.style.setProperty("--middle", current.filter((column) => column.wide !== 2).map((column) => column.width).join(" "));
    table.style.setProperty("--narrow", current.filter((column) => !column.wide).map((column) => column.width.replace(/minmax\(\d+px/, "minmax(0")).join(" "));
    head.replaceChildren(...current.map((column, i) => h("span", { class: `${room(column)} ${column.class === "num" ? "num" : ""}` }, column.value
      ? h("button", { "aria-pressed": "false", title: `Sort by ${column.name.toLowerCase()}`, onclick: () => { sort = { column: i, down: sort.column === i ? !sort.down : true }; update(); } }, column.name) : column.name)));
    order.replaceChildren(h("option", { value: "|1" }, "In order of the tasks"), ...orders.map(([name, text]) => h("option", { value: `${name}|rank` }, text)), ...current.flatMap((column, i) => (column.value ? [h("option", { value: `${i}|1` }, `${column.name}: highest first`), h("option", { value: `${i}|0` }, `${column.name}: lowest first`)] : [])));
    for (const button of switches) button.setAttribute("aria-pressed", String(button.dataset.mode === name));
    update();
  }

  const names = Object.keys(modes);
  const switches = names.length > 1 ? names.map((name) => h("button", { "data-mode": name, onclick: () => setMode(name) }, modes[name].label)) : [];

  function draw() {
    const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - 6);
    const end = Math.min(listed.length, first + Math.ceil((scroll.clientHeight || 600) / ROW) + 12);
    space.replaceChildren(...listed.slice(first, end).map((row, i) => {
      const place = first + i;
      return h("div", { class: `row${place === active ? " active" : ""}`, id: `row-${place}`, role: "option", "aria-selected": String(place === active), "aria-posinset": place + 1, "aria-setsize": listed.length, style: { top: `${place * ROW}px` }, onclick: (event) => { activate(place); open(row, event.target.closest("[data-place]")); } },
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

  // `keeps`: the list stays where it is, for only its rows are new.
  function update(keeps = false) {
    const chosen = choices.find(([value]) => value === filter.value)[2], asked = parseFilter(search.value, fields);
    const at = scroll.scrollTop, before = listed[active]?.id;
    listed = rows.filter((row) => chosen(row) && asked.tests.every((fits) => fits(row)));
    problem.textContent = asked.problem || "";
    problem.hidden = !asked.problem;
    search.setAttribute("aria-invalid", String(Boolean(asked.problem)));
    const rank = sort.rank && orders.find(([name]) => name === sort.rank)[2];
    if (rank) listed.sort((one, two) => rank(one) - rank(two) || one.i - two.i);
    else if (sort.column !== null) listed.sort(compareRows);
    order.value = rank ? `${sort.rank}|rank` : sort.column === null ? "|1" : `${sort.column}|${sort.down ? 1 : 0}`;
    [...head.children].forEach((cell, i) => { const button = cell.querySelector("button"); if (button) { button.setAttribute("aria-pressed", String(sort.column === i)); button.textContent = current[i].name + (sort.column === i ? (sort.down ? " ↓" : " ↑") : ""); } });
    space.style.height = `${listed.length * ROW}px`;
    scroll.style.height = `min(58vh, 640px, ${Math.max(2, listed.length) * ROW + 2}px)`;
    align();
    count.textContent = `${whole(listed.length)} of ${whole(rows.length)}`;
    if (keeps) { active = Math.max(0, listed.findIndex((row) => row.id === before)); scroll.scrollTop = at; draw(); return; }
    scroll.scrollTop = 0;
    activate(0);
  }

  const refresh = () => { rows = modes[mode].rows(); update(true); };
  function find(name, text) { if (mode !== name) setMode(name); search.value = text; update(); scroll.focus(); element.scrollIntoView({ block: "start" }); }

  function move(event) {
    const page = Math.floor(scroll.clientHeight / ROW);
    const to = { ArrowDown: active + 1, j: active + 1, ArrowUp: active - 1, k: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: listed.length - 1 }[event.key];
    if (to !== undefined) { event.preventDefault(); activate(to); }
    if (event.key === "Enter" && listed.length) { event.preventDefault(); open(listed[active], null); }
  }

  let isAsked = false;
  scroll.addEventListener("scroll", () => { if (!isAsked) { isAsked = true; requestAnimationFrame(() => { isAsked = false; draw(); }); } });
  scroll.addEventListener("keydown", move);
  const align = () => { head.style.paddingRight = `${14 + scroll.offsetWidth - scroll.clientWidth}px`; }; // the rows make room for a scroll bar
  addEventListener("resize", () => { align(); draw(); });
  // What is listed, in its order. A text that a spreadsheet would take for a formula gets an apostrophe.
  const cell = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? `"${value.replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"` : String(value));
  const csv = (found) => [Object.keys(found[0] || {}).join(","), ...found.map((row) => Object.values(row).map(cell).join(","))].join("\r\n") + "\r\n";
  const files = exported ? [h("button", { title: "Save the listed rows as CSV", onclick: () => save(`${file}.csv`, "text/csv", csv(listed.map(exported))) }, "CSV"),
    h("button", { title: "Save the listed rows as JSON", onclick: () => save(`${file}.json`, "application/json", JSON.stringify(listed.map(exported), null, 1)) }, "JSON")] : [];
  const hint = h("details", { class: "soft hint" }, h("summary", null, "Filters"), `${Object.keys(fields).join(", ")} with < <= > >= = != or : (contains), words and "phrases", as in ${example || "reward<1"}`);
  const element = h("section", { class: "panel", "aria-label": label }, h("div", { class: "tools" }, search, filter, order, switches, files, count, hint, legend && h("span", { class: "legend wide" }, legend)), problem, table);
  return { element, search, scroll, move, refresh, find, start: () => setMode(names[0]) };
}
