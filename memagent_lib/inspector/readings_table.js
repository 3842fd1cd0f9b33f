// Scores and a table of the readings that the inspector's filters choose, in a page and in JupyterLab; a row opens its reading. Text only ever
// becomes text nodes. It is put behind inspector.js in one script, and uses its `make`, `unique`, `counted` and `fillSelect`.

const MOST_ROWS = 100;
const number = (value) => (typeof value === "number" ? value.toLocaleString(undefined, { maximumFractionDigits: 2 }) : value ?? "");
const COLUMNS = [
  ["line", (e) => e.name], ["task", (e) => e.task], ["length", (e) => e.chunks ?? ""], ["question", (e) => e.question],
  ["answer", (e) => e.found ?? e.answer], ["right answer", (e) => e.answers.join(" | ")], ["score", (e) => e.score], ["fate", (e) => e.fate],
  ["turns", (e) => e.turns], ["tokens", (e) => e.tokens], ["seconds", (e) => e.seconds],
];
const COSTS = ["tokens", "turns", "seconds"];

// A button that opens the readings of some filters; it is pressed while these are the view's.
function opener(view, filters, text, more = {}) {
  const open = () => {
    view.open({ ...Object.fromEntries(FILTERS.map((name) => [name, ""])), ...filters, search: "", turn: undefined });
    view.box.focus(); // where arrows move through its turns
  };
  const isOpen = Object.entries(filters).every(([name, value]) => String(view.state[name]) === value);
  return make("button", { ...more, "aria-pressed": String(isOpen), onclick: open }, text);
}

// Mean scores by line, task and length; a click opens the readings of one, or those of them with a wrong answer.
class Scores {
  constructor(root, view) {
    Object.assign(this, { root, view });
    this.draw();
  }

  draw() {
    const scored = this.view.all().filter((e) => e.found !== null), lengths = byLength(unique(scored.map((e) => e.chunks)));
    const rows = new Map(scored.map((e) => [`${e.task}\n${e.line}`, e]));
    const head = ["task", "line", ...lengths.map((n) => (n || lengths.length > 1 ? lengthInWords(n) : "score"))].map((name) => make("th", { scope: "col" }, name));
    const body = [...rows.values()].map((e) => make("tr", {}, make("td", {}, e.task), make("td", {}, e.line), ...lengths.map((n) => make("td", {}, ...this.cell(e, n, scored)))));
    this.root.replaceChildren(make("table", { class: "ma-scores" }, make("caption", {}, "Mean score of the readings here", make("span", { class: "ma-help" }, "; a click shows its readings")), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
  }

  cell({ task, line, policy, reader }, chunks, scored) {
    const own = scored.filter((e) => e.task === task && e.line === line && e.chunks === chunks), wrong = own.filter((e) => !e.right).length;
    if (!own.length) return [];
    const score = (100 * own.reduce((sum, e) => sum + e.score, 0)) / own.length, view = { policy, reader, task, length: lengthOf({ chunks }) };
    const button = (text, answer) => opener(this.view, { ...view, outcome: "", answer }, text);
    return [button(`${score.toFixed(1)} % (n=${own.length.toLocaleString()})`, ""), " ", wrong ? button(`${wrong.toLocaleString()} wrong`, "wrong") : null].filter((part) => part !== null);
  }
}

// The outcomes of the evidence: a bar for each task, length and line, as in plots.evidence_outcomes. A click on a part opens its readings.
class Outcomes {
  constructor(root, view) {
    Object.assign(this, { root, view });
    this.draw();
  }

  draw() {
    const bars = new Map();
    for (const e of this.view.all().filter((each) => each.outcomes)) {
      const name = JSON.stringify([e.task, e.chunks, e.line]);
      bars.set(name, [...(bars.get(name) ?? []), e]);
    }
    const order = [...bars.values()].sort(([a], [b]) => a.task.localeCompare(b.task) || (a.chunks ?? Infinity) - (b.chunks ?? Infinity));
    const found = new Set(order.flat().flatMap(outcomesOf)), names = Object.keys(OUTCOMES).filter((name) => found.has(name));
    const all = { policy: "", reader: "", task: "", length: "" };
    const legend = names.map((outcome) => opener(this.view, { ...all, outcome }, outcome, { class: `ma-end-${OUTCOMES[outcome]}` }));
    const caption = make("p", {}, "Where was the evidence lost? ", make("span", { class: "ma-help" }, "A click on a part shows its readings: "), ...legend);
    this.root.replaceChildren(...(order.length ? [caption, make("div", { class: "ma-outcomes-box", tabindex: "0" }, make("table", { class: "ma-outcomes" }, make("tbody", {}, ...order.map((bar) => this.bar(bar, names)))))] : []));
  }

  bar(readings, names) {
    const [{ task, chunks, line, policy, reader }] = readings, ends = readings.flatMap(outcomesOf);
    const parts = names.filter((outcome) => ends.includes(outcome)).map((outcome) => {
      const count = ends.filter((fact) => fact === outcome).length, of = readings.filter((e) => outcomesOf(e).includes(outcome)).length;
      const words = `${outcome}: ${count.toLocaleString()} of ${counted(ends.length, "fact")}, in ${counted(of, "reading")}`;
      return opener(this.view, { policy, reader, task, length: lengthOf({ chunks }), outcome }, count.toLocaleString(), { class: `ma-end-${OUTCOMES[outcome]}`, style: `flex-grow: ${count}`, title: words, "aria-label": words });
    });
    return make("tr", {}, make("th", { scope: "row" }, `${task}, ${lengthInWords(chunks)}: `, make("bdi", {}, line)), make("td", {}, make("div", { class: "ma-ends" }, ...parts)), make("td", { class: "ma-number" }, counted(ends.length, "fact")));
  }
}

class ReadingsTable {
  constructor(root, view) {
    const catalog = view.all();
    Object.assign(this, { view, sorted: null, down: false, most: MOST_ROWS });
    this.columns = COLUMNS.filter(([name, value]) => !["task", "length"].includes(name) || unique(catalog.map(value)).length > 1);
    this.value = Object.fromEntries(COLUMNS);
    this.cost = make("select", { "aria-label": "cost in the table", onchange: () => this.draw() });
    fillSelect(this.cost, COSTS.map((name) => [name, name]), COSTS[0]);
    const bound = (words) => make("input", { type: "number", min: "0", step: "any", placeholder: words, "aria-label": `${words} this cost in the table`, oninput: () => this.draw() });
    this.least = bound("at least");
    this.mostCost = bound("at most");
    this.count = make("small", { "aria-live": "polite" });
    this.body = make("tbody", { onkeydown: (event) => this.key(event) });
    this.more = make("button", { onclick: () => { this.most = Infinity; this.draw(); } });
    this.heads = this.columns.map(([name]) => make("th", { scope: "col" }, make("button", { onclick: () => this.sort(name) }, name)));
    this.bar = make("div", { class: "ma-bar" }, make("label", {}, "cost ", this.cost), this.least, this.mostCost, make("button", { onclick: () => this.save() }, "CSV"), this.count);
    this.rows = make("div", { class: "ma-rows", tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body));
    const scores = make("div", { class: "ma-scores-box" }), outcomes = make("div");
    root.replaceChildren(make("div", { class: "ma-base ma ma-readings" }, scores, outcomes, this.bar, this.rows, this.more));
    const overviews = [new Scores(scores, view), new Outcomes(outcomes, view)];
    view.onChoice = () => [...overviews, this].forEach((each) => each.draw());
    this.draw();
  }

  listed() {
    const cost = this.value[this.cost.value];
    const least = this.least.value === "" ? -Infinity : Number(this.least.value), most = this.mostCost.value === "" ? Infinity : Number(this.mostCost.value);
    const listed = this.view.listed().filter((e) => cost(e) >= least && cost(e) <= most);
    if (!this.sorted) return listed;
    const value = this.value[this.sorted], sign = this.down ? -1 : 1;
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? ""), undefined, { numeric: true }));
    return [...listed].sort((a, b) => sign * compare(value(a), value(b)));
  }

  sort(name) {
    this.down = this.sorted === name ? !this.down : false;
    this.sorted = name;
    this.draw();
  }

  // The row of the open reading is marked and in sight; it keeps the focus if the table has it.
  draw() {
    const listed = this.listed(), at = listed.findIndex((e) => e.key === this.view.state.key), rows = listed.slice(0, Math.max(this.most, at + 1));
    const hasFocus = this.body.contains(document.activeElement);
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", this.columns[i][0] !== this.sorted ? "none" : this.down ? "descending" : "ascending"));
    this.body.replaceChildren(...rows.map((e) => this.row(e)));
    this.count.textContent = `${listed.length.toLocaleString()} of ${this.view.all().length.toLocaleString()} readings`;
    this.more.hidden = rows.length === listed.length;
    this.more.textContent = `all ${listed.length.toLocaleString()} rows`;
    const open = this.body.children[at], { rows: box } = this;
    if (!open) return;
    if (open.offsetTop < box.scrollTop + 30 || open.offsetTop > box.scrollTop + box.clientHeight - 40) box.scrollTop = open.offsetTop - box.clientHeight / 2;
    if (hasFocus) open.focus({ preventScroll: true });
  }

  key(event) {
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const row = next ? event.target.closest("tr")[next] : event.key === "Enter" && event.target.closest("tr");
    if (!row) return;
    event.preventDefault();
    row.focus({ preventScroll: true });
    row.click();
  }

  row(e) {
    const isClosed = e.pack === null; // no room in this page
    const open = () => isClosed || this.view.set({ key: e.key, turn: undefined });
    const verdict = e.right ? "ma-row-right" : "ma-row-wrong";
    const cells = this.columns.map(([name, value]) => {
      const words = number(value(e)), text = String(words);
      return make("td", { class: typeof value(e) === "number" ? "ma-number" : null, title: text.length > 60 ? text : null }, text.length > 60 ? `${text.slice(0, 59)}…` : text);
    });
    const attributes = { tabindex: "0", "aria-selected": String(e.key === this.view.state.key), title: isClosed ? "not in this page" : null, onclick: open };
    return make("tr", { ...attributes, class: isClosed ? `${verdict} ma-row-closed` : verdict }, ...cells);
  }

  csv() {
    const quoted = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
    const names = COLUMNS.map(([name]) => name);
    return [["reading", "example", ...names], ...this.listed().map((e) => [e.key, e.example, ...names.map((name) => this.value[name](e))])].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
  }

  save() {
    download(this.csv(), "text/csv", "readings.csv");
  }
}
