// A table of all readings, in a page and in JupyterLab: sorted by any column, filtered, searched, saved as CSV; a row opens its reading. Text only ever
// becomes text nodes. It is put behind inspector.js in one script, and uses its `make`, `unique` and `fillSelect`.

const MOST_ROWS = 100;
const number = (value) => (typeof value === "number" ? value.toLocaleString(undefined, { maximumFractionDigits: 2 }) : value ?? "");
const COLUMNS = [
  ["line", (e) => e.name], ["task", (e) => e.task], ["length", (e) => e.chunks ?? ""], ["question", (e) => e.question],
  ["answer", (e) => e.found ?? e.answer], ["right answer", (e) => e.answers.join(" | ")], ["score", (e) => e.score], ["fate", (e) => e.fate],
  ["turns", (e) => e.turns], ["tokens", (e) => e.tokens], ["seconds", (e) => e.seconds],
];
const FILTERS = ["line", "task", "length", "fate"];
const COSTS = ["tokens", "turns", "seconds"];

class ReadingsTable {
  constructor(root, catalog, open) {
    Object.assign(this, { catalog, open, sorted: null, down: false, most: MOST_ROWS });
    this.columns = COLUMNS.filter(([name, value]) => !["task", "length"].includes(name) || unique(catalog.map(value)).length > 1);
    this.value = Object.fromEntries(COLUMNS);
    this.search = make("input", { type: "search", placeholder: "in questions and answers", "aria-label": "find in the table", oninput: () => this.draw() });
    this.verdict = make("select", { "aria-label": "answers in the table", onchange: () => this.draw() });
    fillSelect(this.verdict, [["", "any"], ["wrong", "wrong"], ["right", "right"]], "");
    this.selects = FILTERS.map((name) => [name, unique(catalog.map(this.value[name]))]).filter(([, values]) => values.length > 1).map(([name, values]) => {
      const select = make("select", { "aria-label": `${name} in the table`, onchange: () => this.draw() });
      fillSelect(select, [["", "any"], ...values.filter((value) => value !== "").map((value) => [value, number(value)])], "");
      return [name, select];
    });
    this.cost = make("select", { "aria-label": "cost in the table", onchange: () => this.draw() });
    fillSelect(this.cost, COSTS.map((name) => [name, name]), COSTS[0]);
    const bound = (words) => make("input", { type: "number", min: "0", step: "any", placeholder: words, "aria-label": `${words} this cost in the table`, oninput: () => this.draw() });
    this.least = bound("at least");
    this.mostCost = bound("at most");
    this.count = make("small", { "aria-live": "polite" });
    this.body = make("tbody");
    this.more = make("button", { onclick: () => { this.most = Infinity; this.draw(); } });
    this.heads = this.columns.map(([name]) => make("th", { scope: "col" }, make("button", { onclick: () => this.sort(name) }, name)));
    const label = (name, node) => make("label", {}, `${name} `, node);
    const bar = make("div", { class: "ma-bar" }, ...this.selects.map(([name, select]) => label(name, select)), label("answer", this.verdict), label("cost", this.cost), this.least, this.mostCost, label("find", this.search),
      make("button", { onclick: () => this.save() }, "CSV"), this.count);
    root.replaceChildren(make("div", { class: "ma-base ma ma-readings" }, bar,
      make("div", { class: "ma-rows", tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body)), this.more));
    this.draw();
  }

  update(catalog) {
    this.catalog = catalog;
    this.draw();
  }

  listed() {
    const words = this.search.value.trim().toLowerCase(), verdict = this.verdict.value, cost = this.value[this.cost.value];
    const least = this.least.value === "" ? -Infinity : Number(this.least.value), most = this.mostCost.value === "" ? Infinity : Number(this.mostCost.value);
    const listed = this.catalog.filter((e) => this.selects.every(([name, select]) => !select.value || String(this.value[name](e)) === select.value)
      && (!verdict || e.right === (verdict === "right")) && cost(e) >= least && cost(e) <= most
      && (!words || [e.question, e.example, e.answer, ...e.answers].some((text) => text.toLowerCase().includes(words))));
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

  draw() {
    const listed = this.listed(), rows = listed.slice(0, this.most);
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", this.columns[i][0] !== this.sorted ? "none" : this.down ? "descending" : "ascending"));
    this.body.replaceChildren(...rows.map((e) => this.row(e)));
    this.count.textContent = `${listed.length.toLocaleString()} of ${this.catalog.length.toLocaleString()} readings`;
    this.more.hidden = rows.length === listed.length;
    this.more.textContent = `all ${listed.length.toLocaleString()} rows`;
  }

  row(e) {
    const isClosed = e.pack === null; // no room in this page
    const open = () => isClosed || this.open(e);
    const cells = this.columns.map(([name, value]) => {
      const words = number(value(e)), text = String(words);
      return make("td", { class: typeof value(e) === "number" ? "ma-number" : null, title: text.length > 60 ? text : null }, text.length > 60 ? `${text.slice(0, 59)}…` : text);
    });
    const key = (event) => event.key === "Enter" && open();
    return make("tr", { tabindex: "0", class: `${e.right ? "ma-row-right" : "ma-row-wrong"}${isClosed ? " ma-row-closed" : ""}`, title: isClosed ? "not in this page" : null, onclick: open, onkeydown: key }, ...cells);
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
