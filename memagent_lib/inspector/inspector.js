// The inspector's front end, the same in JupyterLab (an anywidget) and in a page of its own. Text of documents and models only ever
// becomes text nodes. `mount(root, source)` draws; a source has: catalog, state, story(key), detail(key, turn), phrases(key),
// search(text). Turns and chunks count from 0 here and from 1 on the page.

const FATES = { a: "ahead", h: "present", m: "missed", l: "lost", n: "none" };
const NAMES = { ahead: "not read yet", present: "in memory", missed: "read but never noted", lost: "noted and lost", none: "no memory" };
const FATE_FILTERS = ["noted and lost", "read but never noted", "in memory", "memory cut at its limit", "a reply was not a memory"];
// What became of a needed fact, as plots.evidence_outcomes names it, in the order of a bar's parts; and the classes of their colours.
const OUTCOMES = {
  "in memory, right": "right", "in memory, wrong": "wrong", "noted and lost to another value": "value", "noted and lost to another statement": "statement",
  "noted and lost to nothing": "nothing", "read but never noted": "missed", "not read yet": "ahead",
};
const FILTERS = ["policy", "reader", "task", "length", "outcome", "fate", "answer"]; // of the table, the scores and the inspector
const HELP = "← → turn · n p next or previous change · [ ] reading · Home End";
const WORST = "namhl"; // when several turns share a column of pixels, the worst is drawn

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function fillSelect(select, options, chosen) {
  const words = JSON.stringify(options);
  if (select.words === words && options.some(([value]) => String(value) === String(chosen))) return void (select.value = chosen); // thousands of readings at every turn
  select.words = words;
  select.replaceChildren(...options.map(([value, text]) => {
    const node = make("option", { value }, text);
    node.selected = String(value) === String(chosen);
    return node;
  }));
}

const ANSWERS = ["answer", "direct", "blind"];
const outcomesOf = (e) => (e.outcomes ? e.outcomes.split(" | ") : []).map((fact) => (fact === "in memory" ? `${fact}, ${e.right ? "right" : "wrong"}` : fact.replace(/ after \d+ turns?/, "")));
const lengthOf = (e) => String(e.chunks ?? "no set length");
const unique = (values) => [...new Set(values)];
const byLength = (lengths) => lengths.sort((a, b) => (a ?? Infinity) - (b ?? Infinity));
const counted = (n, what) => `${n.toLocaleString()} ${what}${n === 1 ? "" : "s"}`;
const lengthInWords = (chunks) => (chunks ? counted(chunks, "chunk") : lengthOf({ chunks }));

// Text with some spans marked, [start, end, class, title] each. Python counts code points, so the text is split into those.
function marked(text, spans) {
  const letters = Array.from(text);
  const at = new Set([0, letters.length]);
  const inside = spans.filter(([start, end]) => start < letters.length && end > 0);
  inside.forEach(([start, end]) => at.add(Math.max(0, start)).add(Math.min(letters.length, end)));
  const edges = [...at].sort((a, b) => a - b);
  return edges.slice(0, -1).map((start, i) => {
    const here = inside.filter(([a, b]) => a <= start && start < b);
    const piece = letters.slice(start, edges[i + 1]).join("");
    if (!here.length) return document.createTextNode(piece);
    return make("mark", { class: unique(here.map((span) => span[2])).join(" "), title: unique(here.map((span) => span[3])).join("; ") }, piece);
  });
}

// The words of two memories in order, each run with its change: "gone", "new" or "same". Most words in a row stay the same.
function wordChanges(before, after) {
  const [old, now] = [before, after].map((text) => text.match(/\s*\S+/g) ?? []);
  const isSame = (i, j) => old[i].trim() === now[j].trim();
  const common = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1)); // from word i and word j on
  for (let i = old.length - 1; i >= 0; i--)
    for (let j = now.length - 1; j >= 0; j--) common[i][j] = isSame(i, j) ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const changes = [];
  const add = (text, change) => (changes.at(-1)?.[1] === change ? (changes.at(-1)[0] += text) : changes.push([text, change]));
  let i = 0, j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && isSame(i, j)) {
      add(now[j++], "same");
      i++;
    } else if (j === now.length || (i < old.length && common[i + 1][j] >= common[i][j + 1])) add(old[i++], "gone");
    else add(now[j++], "new");
  }
  return changes;
}

// The turn of reading `to` that belongs beside a turn of `from`: the same chunk, else the last one before it; answer beside answer.
function aligned(from, to, turn) {
  const start = from.starts[turn];
  const last = to.starts.length - 1;
  if (start < 0 || turn === from.starts.length - 1) return last;
  if (to.starts[turn] === start) return turn;
  if (to.starts.includes(start)) return to.starts.indexOf(start);
  let best = 0;
  to.starts.forEach((other, i) => { if (other >= 0 && other <= start && other >= to.starts[best]) best = i; });
  return best;
}

// What a rollout was trained with: its catalog entry has [reward, advantages, tokens, rewards of the group], with an advantage and a
// number of tokens for each reply; null if the update left it out, "" if it is not a rollout of training.
const isRollout = (e) => e.credit !== "";
const LEFT_OUT = "left out of the update: all rollouts of this prompt have the same reward";
const fixed = (value, digits) => value.toFixed(digits).replace("-", "−");
const signed = (value) => `${value > 0 ? "+" : ""}${fixed(value, 3)}`;
const inWords = ([advantage, tokens]) => (!tokens ? "no gradient: masked" : advantage ? `advantage ${signed(advantage)} on ${counted(tokens, "token")}` : "no policy gradient: advantage 0");

function pushed(credit) {
  const trained = credit[1].filter((_, i) => credit[2][i]), names = unique([Math.min(...trained), Math.max(...trained)].map(signed));
  return trained.length ? names.join(" to ") : "masked";
}

// The advantages of the replies that carry policy gradient; and whether these are made more likely ("up"), less, or neither.
const carried = ([, advantages, tokens]) => advantages.filter((advantage, i) => advantage && tokens[i]);
const direction = (credit) => ["down", "level", "up"][1 + (carried(credit).length && (carried(credit).every((value) => value > 0) - carried(credit).every((value) => value < 0)))];

// Reward and advantage of one rollout, and how many of its replies carry gradient.
function trainedWith({ credit }) {
  if (!credit) return LEFT_OUT;
  const [reward, , tokens] = credit, way = { up: ": made more likely", down: ": made less likely", level: "" }[direction(credit)];
  const masked = tokens.filter((count) => !count).length, sum = tokens.reduce((a, b) => a + b, 0);
  const notes = [`reward ${fixed(reward, 2)}`, `advantage ${pushed(credit)}${way}`, `${carried(credit).length} of ${tokens.length} replies carry policy gradient`, counted(sum, "trained token"), masked && `${masked} masked`];
  return notes.filter(Boolean).join(" · ");
}

// The worst fate of several turns, which share one bar.
const worstOf = (fates) => [...fates].reduce((a, b) => (WORST.indexOf(b) > WORST.indexOf(a) ? b : a));

class Timeline {
  constructor(onTurn) {
    this.canvas = make("canvas", { class: "ma-time", tabindex: "0", role: "slider", "aria-label": "turn", "aria-valuemin": "1" });
    this.tip = make("div", { class: "ma-tip", hidden: true });
    this.root = make("div", { class: "ma-time-box" }, this.canvas, this.tip);
    this.canvas.addEventListener("pointerdown", (event) => this.story && onTurn(this.at(event)));
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.story) return;
      this.hover(event);
      if (event.buttons) onTurn(this.at(event));
    });
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    for (const media of ["print", "(prefers-color-scheme: dark)"]) window.matchMedia(media).addEventListener("change", () => this.draw()); // other ink
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), n = this.story.fates.length;
    return Math.max(0, Math.min(n - 1, Math.floor(((event.clientX - box.left) / box.width) * n)));
  }

  hover(event) {
    const turn = this.at(event), { story } = this, box = this.canvas.getBoundingClientRect();
    const notes = [story.evidence.includes(turn) && "evidence in its chunk", story.cut.includes(turn) && "cut at its limit", story.bad.includes(turn) && "no memory", ...(story.credit[turn] ?? []).map(inWords)].filter(Boolean);
    this.tip.textContent = [`turn ${turn + 1}: ${NAMES[FATES[story.fates[turn]]]}`, counted(story.tokens[turn], "token"), ...notes].join(" · ");
    this.tip.hidden = false;
    const x = event.clientX - box.left;
    this.tip.style.left = `${Math.max(0, Math.min(x + 8, box.width - this.tip.offsetWidth))}px`;
  }

  show(story, turn) {
    Object.assign(this, { story, turn });
    this.root.hidden = false;
    const fate = NAMES[FATES[story.fates[turn]]];
    for (const [name, value] of [["valuemax", story.fates.length], ["valuenow", turn + 1], ["valuetext", `turn ${turn + 1}: ${fate}`]])
      this.canvas.setAttribute(`aria-${name}`, value);
    this.draw();
  }

  colours() {
    const style = getComputedStyle(this.canvas);
    return Object.fromEntries(Object.entries(FATES).map(([letter, name]) => [letter, style.getPropertyValue(`--${name}`).trim()]));
  }

  // Everything is drawn at whole device pixels: edges between pixels would look like stripes that are not in the data.
  draw() {
    const { canvas, story } = this;
    const ratio = window.devicePixelRatio || 1, width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
    if (!story || !width) return;
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas), px = (n) => Math.round(n * ratio), colour = this.colours();
    const floor = height - px(26), most = story.tokens.reduce((a, b) => Math.max(a, b), 1), n = story.fates.length;
    const edge = (turn) => Math.round((turn * width) / n), gap = width / n >= 7 * ratio ? px(1) : 0;
    const tall = (tokens) => px(4) + Math.round((floor - px(8)) * (tokens / most));
    const bar = (x, w, letter, tokens) => {
      pen.fillStyle = colour[letter];
      pen.fillRect(x, floor - tall(tokens), w, tall(tokens));
    };
    const bars = Math.min(n, width), turnOf = (b) => Math.floor((b * n) / bars);
    for (let b = 0; b < bars; b++) {
      const first = turnOf(b), end = turnOf(b + 1), x = Math.round((b * width) / bars), next = Math.round(((b + 1) * width) / bars);
      const worst = worstOf(story.fates.slice(first, end));
      bar(x, Math.max(1, next - x - gap), worst, Math.max(...story.tokens.slice(first, end)));
    }
    pen.fillStyle = colour.l;
    for (const i of [...story.cut, ...story.bad]) pen.fillRect(edge(i), 0, Math.max(px(2), edge(i + 1) - edge(i) - gap), px(3));
    this.axis(pen, style, { width, n, px, floor, edge });
    pen.strokeStyle = style.color;
    pen.lineWidth = px(2);
    pen.strokeRect(edge(this.turn) - gap / 2, px(1), Math.max(px(3), edge(this.turn + 1) - edge(this.turn)), floor + px(1));
  }

  axis(pen, style, { width, n, px, floor, edge }) {
    pen.fillStyle = style.color;
    for (const i of this.story.evidence) {
      const x = (edge(i) + edge(i + 1)) / 2;
      pen.beginPath();
      pen.moveTo(x - px(4), floor + px(9));
      pen.lineTo(x + px(4), floor + px(9));
      pen.lineTo(x, floor + px(2));
      pen.fill();
    }
    pen.globalAlpha = 0.75;
    pen.font = `${px(10.5)}px ${style.fontFamily}`;
    pen.textBaseline = "bottom";
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((size) => (width * size) / n >= px(44)) ?? 10000;
    const named = [1, ...Array.from({ length: Math.floor(n / step) }, (_, i) => (i + 1) * step).filter((turn) => turn > 1)];
    let free = -1;
    for (const turn of named) {
      const text = turn === 1 ? "turn 1" : turn.toLocaleString(), size = pen.measureText(text).width;
      const x = Math.min(Math.max((edge(turn - 1) + edge(turn)) / 2 - size / 2, 0), width - size);
      if (x < free) continue;
      pen.fillText(text, x, floor + px(26));
      pen.fillRect(Math.round((edge(turn - 1) + edge(turn)) / 2), floor + px(1), px(1), px(3));
      free = x + size + px(8);
    }
    pen.globalAlpha = 1;
  }
}

// The timeline as a picture of its own, in the colours of the page but with dark ink on white, for papers and slides.
function timelineSvg(entry, story, colours) {
  const width = 900, floor = 96, n = story.fates.length, bars = Math.min(n, width), most = Math.max(1, ...story.tokens);
  const svg = (name, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const short = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);
  const text = (x, y, words, more = {}) => svg("text", { x, y, "font-size": 12, ...more }, words);
  const at = (turn) => (turn * width) / n, middle = (turn) => at(turn + 0.5);
  const columns = Array.from({ length: bars }, (_, b) => {
    const first = Math.floor((b * n) / bars), end = Math.floor(((b + 1) * n) / bars);
    const worst = worstOf(story.fates.slice(first, end)), tall = 4 + 50 * (Math.max(...story.tokens.slice(first, end)) / most);
    const wide = width / bars - (bars < 120 ? 1 : 0);
    return svg("rect", { x: (b * width) / bars, y: floor - tall, width: wide, height: tall, fill: colours[worst] }, svg("title", {}, `turn ${first + 1}: ${NAMES[FATES[worst]]}`));
  });
  const cuts = [...story.cut, ...story.bad].map((turn) => svg("rect", { x: at(turn), y: 38, width: Math.max(2, width / n - 1), height: 3, fill: colours.l }));
  const marks = story.evidence.map((turn) => svg("path", { transform: `translate(${middle(turn)} ${floor + 2})`, d: "M-4 7 L4 7 L0 0 Z" }));
  const named = [...new Set([...story.fates])];
  const legend = named.map((letter, i) => svg("g", { transform: `translate(${i * 170} 138)` }, svg("circle", { cx: 5, cy: 0, r: 5, fill: colours[letter] }), text(15, 4, NAMES[FATES[letter]])));
  if (story.evidence.length) legend.push(text(named.length * 170, 142, "▲ the chunk with the evidence"));
  const head = `${entry.name}: ${entry.right ? "right" : "wrong"}, ${entry.found || entry.answer || "no answer"}`;
  return svg("svg", { role: "img", "aria-label": `${entry.question} ${head}`, viewBox: "-10 0 920 152", width: 920, height: 152, "font-family": "sans-serif", fill: "#222" },
    svg("rect", { x: -10, width: 920, height: 152, fill: "#fff" }), text(0, 16, short(entry.question, 120), { "font-size": 14, "font-weight": 600 }), text(0, 33, short(head, 140)),
    ...columns, ...cuts, ...marks, text(0, floor + 22, "turn 1"), text(width, floor + 22, n.toLocaleString(), { "text-anchor": "end" }), ...legend);
}

// One reading: its head and timeline above, its open turn below. The chunk between them belongs to the view.
class Side {
  constructor(view, own) {
    this.view = view;
    this.timeline = new Timeline((turn) => view.go(own ? turn : view.turnFor(turn)));
    this.head = make("h4");
    this.body = make("div", { class: "ma-detail", "aria-live": "polite" });
    this.origin = make("div");
    this.trained = make("p", { class: "ma-trained" });
    this.top = make("section", { class: "ma-reading" }, this.head, this.trained, this.timeline.root);
    this.bottom = make("section", { class: "ma-reading" }, this.body, this.origin);
  }

  hide(hidden) {
    this.top.hidden = this.bottom.hidden = hidden;
    if (hidden) this.key = this.story = this.detail = undefined;
  }

  begin(entry) {
    if (this.key === entry.key) return;
    Object.assign(this, { key: entry.key, story: undefined, detail: undefined, entry });
    this.head.replaceChildren(
      `${entry.name} `, make("b", { class: entry.right ? "ma-right" : "ma-wrong" }, entry.right ? "right" : "wrong"),
      " ", make("code", { title: entry.answer }, make("bdi", {}, entry.answer || "no answer")),
      make("button", { class: "ma-save", title: "save this timeline as a picture (SVG)", onclick: () => this.save() }, "SVG"),
    );
    this.trained.hidden = !isRollout(entry);
    this.trained.textContent = isRollout(entry) ? trainedWith(entry) : "";
    this.origin.replaceChildren(make("button", { onclick: () => this.trace(entry.key) }, "Where did these words come from?"));
  }

  save() {
    if (!this.story) return;
    const picture = new XMLSerializer().serializeToString(timelineSvg(this.entry, this.story, this.timeline.colours()));
    download(picture, "image/svg+xml", `${this.entry.example}.svg`);
  }

  fail(failure) {
    this.timeline.root.hidden = !this.story; // what it shows is of another reading
    this.body.replaceChildren(make("p", { class: "ma-cut" }, failure.message));
  }

  // `since` is the detail of a turn whose memory the changes are counted from, instead of the turn before.
  fill(d, chunkShared, since) {
    const answers = ANSWERS.includes(d.kind);
    const dot = make("span", { class: `ma-dot ma-${FATES[d.letter]}` });
    const parts = [make("p", { class: "ma-turn-head" }, dot, `turn ${d.turn + 1}${headline(d)} `, ...this.metadata(d))];
    if (d.chunk && !chunkShared) parts.push(chunkBox(d.chunk, this.spans(d)));
    if (d.thinking) parts.push(make("details", {}, make("summary", {}, "thinking"), make("p", { class: "ma-chunk" }, d.thinking)));
    for (const text of d.turned_away) parts.push(make("p", { class: "ma-away" }, make("small", {}, "turned away "), text || "(empty)"));
    const changes = since ? wordChanges(since.after, d.after) : d.changes;
    const words = changes.map(([text, change]) => (change === "same" ? text : make(change === "new" ? "ins" : "del", {}, text)));
    if (!words.length) words.push(make("i", {}, "empty"));
    const label = answers ? "answer " : d.edited ? "memory, edited " : "memory ";
    const from = since ? `compared with turn ${since.turn + 1} ` : "";
    parts.push(make("div", { class: "ma-memory" }, make("small", {}, label, from), make("bdi", {}, ...words)));
    if (d.editable && this.view.source.rerun?.(this.entry.policy)) parts.push(this.editor(d));
    this.body.replaceChildren(...parts);
    this.body.dataset.turn = d.turn + 1;
  }

  metadata(d) {
    const [prompt, cached, reply] = d.tokens;
    const notes = [d.fate, d.signal].filter(Boolean);
    const fromCache = cached ? ` (${cached.toLocaleString()} of them from the cache)` : "";
    if (prompt) notes.push(`${counted(prompt, "token")} read${fromCache}, ${reply.toLocaleString()} written`);
    notes.push(...(this.story.credit[d.turn] ?? []).map(inWords));
    const nodes = [make("small", {}, notes.join(" · "))];
    if (d.cut) nodes.push(" ", make("small", { class: "ma-cut" }, "cut at its token limit"));
    if (d.bad) nodes.push(" ", make("small", { class: "ma-cut" }, d.bad));
    return nodes;
  }

  spans(d, mark = "ma-brought") {
    const name = this.entry.name;
    return [...d.evidence.map((span) => [...span, "ma-evidence", "evidence"]), ...d.brought.map((span) => [...span, mark, `taken into memory: ${name}`])];
  }

  // What is typed stays while the turn is drawn again, as with another reading beside it, or all of the inspector.
  editor(d) {
    if (this.detail === d) return this.edit;
    this.detail = d;
    const note = make("small");
    const text = make("textarea", { rows: 2, "aria-label": "memory to read on with" });
    const run = make("button", { class: "ma-main" }, "Read on with this memory");
    const draft = (this.view.source.drafts[`${this.key} ${d.turn}`] ??= { text: d.after, hidden: true });
    const box = make("div", { class: "ma-edit", hidden: draft.hidden }, text, run, note);
    text.value = draft.text;
    text.addEventListener("input", () => { draft.text = text.value; });
    const open = make("button", { onclick: () => { box.hidden = draft.hidden = !box.hidden; text.focus(); } }, "Edit this memory and read on");
    run.addEventListener("click", async () => {
      run.disabled = true;
      note.textContent = " reading… (the first time, the model has to be loaded)";
      try {
        this.view.add(await this.view.source.rerun(this.entry.policy)(this.key, d.turn, text.value), d.turn);
        note.textContent = "";
      } catch (failure) {
        note.textContent = ` ${failure.message}`;
      }
      run.disabled = false;
    });
    this.edit = make("div", {}, open, box);
    return this.edit;
  }

  async trace(key) {
    this.origin.replaceChildren(make("small", {}, "looking…"));
    try {
      const { phrases, all } = await this.view.source.phrases(key);
      const turn = (at) => make("button", { onclick: () => this.view.go(this === this.view.sides[0] ? at : this.view.turnFor(at)) }, `turn ${at + 1}`);
      const rows = phrases.map((p) => make("tr", {}, make("td", {}, p.text), make("td", {}, turn(p.brought)),
        make("td", {}, p.dropped === null ? "most of them are there at the end" : turn(p.dropped)), make("td", {}, `${p.start.toLocaleString()} to ${p.end.toLocaleString()}`)));
      const names = ["words", "brought in", "dropped", "characters"].map((name) => make("th", {}, name));
      const part = all > phrases.length ? `the first ${phrases.length} of ${all.toLocaleString()} phrases` : "";
      const note = all ? part : "No words of this reading's memories come from its chunks.";
      const table = all ? make("div", { class: "ma-scroll" }, make("table", {}, make("tr", {}, ...names), ...rows)) : null;
      this.origin.replaceChildren(...[table, note && make("p", {}, make("small", {}, note))].filter(Boolean));
    } catch (failure) {
      this.origin.replaceChildren(make("small", { class: "ma-cut" }, failure.message));
    }
  }
}

function headline(d) {
  if (ANSWERS.includes(d.kind)) return ": the answer";
  if (d.kind === "merge") return ": two memories become one";
  if (d.kind === "found") return `: a passage of chunk ${d.chunk.index + 1}`;
  return d.chunk ? `: chunk ${d.chunk.index + 1}` : "";
}

function chunkBox(chunk, spans) {
  const where = `chunk ${chunk.index + 1}, characters ${chunk.start.toLocaleString()} to ${chunk.end.toLocaleString()}`;
  const box = make("div", { class: "ma-chunk ma-scroll", tabindex: "0", "aria-label": "chunk" }, make("small", { class: "ma-where" }, where), ...marked(chunk.text, spans));
  const first = () => {
    const mark = box.querySelector("mark");
    if (mark) box.scrollTop = Math.max(0, mark.offsetTop - box.offsetTop - box.clientHeight / 2);
  };
  requestAnimationFrame(first); // it has a position only once it is in the page
  return box;
}

class View {
  constructor(root, source) {
    this.source = source;
    this.entries = new Map(source.catalog.map((entry) => [entry.key, entry]));
    this.state = { ...Object.fromEntries(FILTERS.map((name) => [name, ""])), search: "", key: "", beside: "", turn: 0, since: "", ...source.state };
    this.matches = null; // keys that the search found; null without a search
    this.selects = Object.fromEntries([...FILTERS, "key", "beside"].map((name) => [name, make("select", { "aria-label": name === "key" ? "reading" : name })]));
    this.selects.outcome.title = "what had become of a needed fact at the end";
    this.selects.fate.title = "what happened at any turn, and at the end if it says so";
    for (const [name, select] of Object.entries(this.selects)) select.addEventListener("change", () => this.set({ [name]: select.value, ...(name === "key" ? { turn: undefined } : {}) }));
    this.search = make("input", { type: "search", placeholder: "in questions and memories", "aria-label": "search" });
    this.search.value = this.state.search;
    this.search.addEventListener("input", () => { clearTimeout(this.typing); this.typing = setTimeout(() => this.look(this.search.value.trim()), 250); });
    this.since = make("input", { type: "number", min: "1", placeholder: "before", title: "any turn; empty: the turn before", "aria-label": "changes since turn", oninput: () => this.set({ since: Number(this.since.value) || "" }) });
    this.count = make("small", { class: "ma-count" });
    this.question = make("p", { class: "ma-question" });
    this.about = make("p", { class: "ma-about" });
    this.chunk = make("div");
    this.group = make("p", { class: "ma-group" });
    this.sides = [new Side(this, true), new Side(this, false)];
    this.tops = make("div", { class: "ma-sides ma-tops" }, ...this.sides.map((side) => side.top));
    this.bottoms = make("div", { class: "ma-sides" }, ...this.sides.map((side) => side.bottom));
    const bar = this.bar();
    this.box = make("div", { class: "ma-base ma ma-inspector", tabindex: "0", role: "application", "aria-label": "memory inspector" },
      bar, this.question, this.about, this.group, legend(), this.tops, this.chunk, this.bottoms, make("p", { class: "ma-help" }, make("small", {}, HELP)));
    this.box.addEventListener("keydown", (event) => this.key(event));
    root.replaceChildren(make("div", { class: "ma-base ma ma-readings" }, this.filters), this.box);
    this.open({});
  }

  bar() {
    const { selects } = this, { key, beside } = selects, label = (name, ...what) => make("label", {}, `${name} `, ...what);
    const step = (by, name, title) => make("button", { title, "aria-label": title, onclick: () => this.move(by) }, name);
    this.filters = make("div", { class: "ma-bar" }, ...FILTERS.map((name) => label(name, selects[name])), label("search", this.search));
    const copy = this.source.link && make("button", { onclick: () => this.copy(copy) }, "Copy link");
    return make("div", {}, make("div", { class: "ma-bar" }, make("span", { class: "ma-pick" }, label("reading", key), step(-1, "‹", "previous reading"), step(1, "›", "next reading"), this.count), label("beside", beside), label("changes since turn", this.since), copy));
  }

  all() {
    return [...this.entries.values()];
  }

  listed() {
    const { policy, reader, task, length, outcome, fate, answer } = this.state;
    return this.all().filter((e) => (!policy || e.policy === policy) && (!reader || e.reader === reader) && (!task || e.task === task) && (!length || lengthOf(e) === String(length))
      && (!outcome || outcomesOf(e).includes(outcome)) && (!fate || e.fates.includes(fate)) && (!answer || e.right === (answer === "right")) && (!this.matches || this.matches.has(e.key)));
  }

  // Two files of questions about one document may number them alike.
  isSame(e, other) {
    return e.example === other.example && e.document === other.document && e.question === other.question;
  }

  others(entry) {
    return entry ? this.all().filter((e) => e.key !== entry.key && this.isSame(e, entry)) : [];
  }

  async look(text) {
    try {
      this.looking = text;
      const found = text ? new Set(await this.source.search(text)) : null;
      if (this.looking !== text) return; // a later search has begun
      this.matches = found;
      this.set({ search: text });
    } catch (failure) {
      this.count.textContent = failure.message;
    }
  }

  // The only way to change what is displayed. An undefined turn is the one that the reading's story opens with.
  set(change) {
    Object.assign(this.state, change);
    const { state } = this, policies = unique(this.all().map((e) => e.policy));
    if (!policies.length) return this.box.replaceChildren(make("p", {}, "no readings"));
    if (!policies.includes(state.policy)) state.policy = "";
    const own = this.all().filter((e) => !state.policy || e.policy === state.policy);
    if (state.reader && !own.some((e) => e.reader === state.reader)) state.reader = "";
    const listed = this.listed();
    if (!listed.some((entry) => entry.key === state.key)) this.change(listed);
    const entry = listed.length ? this.entries.get(state.key) : undefined, others = this.others(entry);
    const group = entry && isRollout(entry) ? others.filter((e) => e.policy === entry.policy && e.credit) : [], far = (e) => Math.abs(e.credit[0] - (entry.credit?.[0] ?? 0));
    if (state.beside && !others.some((e) => e.name === state.beside)) { // of another group, or the reading's own line
      const other = group.length ? group.reduce((a, b) => (far(b) > far(a) ? b : a)) : others.find((e) => e.reader === entry.reader);
      state.beside = other?.name ?? state.beside;
    }
    this.offer(policies, own, listed, others);
    this.question.textContent = entry?.question ?? "No reading matches; choose other filters.";
    const about = entry ? [entry.example, entry.chunks && counted(entry.chunks, "chunk"), counted(entry.turns, "turn"), entry.sharing, `accepted: ${entry.answers.join(" | ")}`].filter(Boolean) : [];
    this.about.replaceChildren(...about.flatMap((part, i) => [i ? " · " : "", make("bdi", {}, part)])); // names may run from right to left
    const open = [entry, others.find((e) => e.name === state.beside)];
    this.fillGroup(entry, others);
    this.sides.forEach((side, i) => {
      if (open[i]) side.begin(open[i]);
      side.hide(!open[i]);
    });
    this.chunk.hidden = !entry;
    if (entry) this.draw(open.filter(Boolean).length);
    this.source.save?.(state);
    const choice = JSON.stringify([...FILTERS, "search", "key"].map((name) => state[name]).concat(this.entries.size));
    if (choice !== this.choice) this.onChoice?.(); // not at every turn
    this.choice = choice;
  }

  // The rollouts of the same prompt and step, the highest reward first. A click opens one beside the reading.
  fillGroup(entry, others) {
    const drawn = JSON.stringify([entry?.key, this.state.beside, others.length]);
    if (drawn === this.drawnGroup) return; // a button in it keeps its focus
    this.drawnGroup = drawn;
    const group = entry && isRollout(entry) ? [entry, ...others.filter((e) => e.policy === entry.policy)] : [], reward = (e) => e.credit?.[0] ?? -Infinity;
    const chips = group.sort((a, b) => reward(b) - reward(a)).map((e) => {
      const words = e.credit ? `${fixed(e.credit[0], 2)} (${pushed(e.credit)})` : "left out";
      const attributes = { class: `ma-push ma-${e.credit ? direction(e.credit) : "level"}`, title: `${trainedWith(e)}: ${e.answer}`, disabled: e === entry, "aria-pressed": String(e.name === this.state.beside) };
      return make("button", { ...attributes, onclick: () => { this.set({ beside: e.name }); this.box.focus(); } }, `${e.right ? "✓" : "✗"} ${e.name.slice(e.line.length + 2)}: ${words}`);
    });
    const all = entry?.credit?.[3] ?? [], part = all.length > group.length ? `; ${group.length} of ${all.length} are recorded, and all rewards are ${all.map((each) => fixed(each, 2)).join(", ")}` : "";
    const { produced, trained, skipped, padding } = entry?.rows ?? {}, parts = { trained, masked: produced - trained - skipped, "left out": skipped, "of padding added": padding };
    const rows = produced === undefined ? "" : ` Rows of this step: ${Object.entries(parts).map(([name, count]) => `${count.toLocaleString()} ${name}`).join(", ")}.`;
    this.group.hidden = !group.length;
    this.group.replaceChildren(`The group of ${entry?.line}: rewards (advantages)${part}. `, ...chips, rows, make("span", { class: "ma-help" }, " A click opens one beside."));
  }

  // Choose another reading: one of the same example if the list has any, else the first. A filter that matches nothing leaves
  // no reading; once it is cleared, the reading before it and its turn are open again.
  change(listed) {
    if (this.state.key) this.left = { key: this.state.key, turn: this.state.turn };
    const before = this.entries.get(this.left?.key);
    const same = listed.find((e) => e.key === before?.key);
    const next = same ?? listed.find((e) => before && this.isSame(e, before)) ?? listed[0];
    Object.assign(this.state, { key: next?.key ?? "", turn: same ? this.left.turn : undefined });
  }

  offer(policies, own, listed, others) {
    const { state, selects } = this, readers = unique(own.map((e) => e.reader));
    const lengths = byLength(unique(this.all().map((e) => e.chunks)));
    const tasks = unique(this.all().map((e) => e.task)), found = this.all().flatMap(outcomesOf), same = (name) => [name, name];
    const options = {
      policy: policies.map(same), reader: readers.map(same), task: tasks.map(same), length: lengths.map((n) => [lengthOf({ chunks: n }), lengthInWords(n)]),
      outcome: Object.keys(OUTCOMES).filter((name) => found.includes(name)).map(same), fate: FATE_FILTERS.map((f) => [f, f === "in memory" ? "in memory at the end" : f]), answer: ["wrong", "right"].map(same),
    };
    for (const name of FILTERS) {
      fillSelect(selects[name], [["", "any"], ...options[name]], state[name]);
      selects[name].parentNode.hidden = options[name].length < 2;
    }
    const many = readers.length > 1 && !state.reader, long = lengths.length > 1 && !state.length;
    fillSelect(selects.key, listed.map((e) => [e.key, [`${e.right ? "✓" : "✗"} ${e.example}`, e.name.slice(e.line.length + 2), !state.policy && policies.length > 1 && e.policy, long && e.chunks && counted(e.chunks, "chunk"), many && e.reader, e.pack === null && "not in this page"].filter(Boolean).join(" · ")]), state.key);
    fillSelect(selects.beside, [["", "nothing"], ...unique(others.map((e) => e.name)).map((n) => [n, n])], others.some((e) => e.name === state.beside) ? state.beside : "");
    const at = listed.findIndex((e) => e.key === state.key);
    this.count.textContent = listed.length ? `${(at + 1).toLocaleString()} of ${listed.length.toLocaleString()}` : "none";
  }

  async draw(number) {
    const sides = this.sides.slice(0, number);
    const drawing = {};
    this.drawing = drawing; // a later call makes this one stale
    const stale = () => this.drawing !== drawing;
    try {
      const stories = await Promise.all(sides.map((side) => this.source.story(side.key)));
      if (stale()) return;
      sides.forEach((side, i) => (side.story = stories[i]));
      const left = stories[0];
      this.state.turn = Math.max(0, Math.min(left.fates.length - 1, this.state.turn ?? left.first));
      this.source.save?.(this.state);
      const turns = stories.map((story, i) => (i ? aligned(left, story, this.state.turn) : this.state.turn));
      sides.forEach((side, i) => side.timeline.show(stories[i], turns[i]));
      const since = Math.min(this.state.since, left.fates.length) - 1;
      const sinces = stories.map((story, i) => (i && since >= 0 ? aligned(left, story, since) : since));
      const details = (at) => Promise.all(sides.map((side, i) => at[i] >= 0 && this.source.detail(side.key, at[i])));
      const [opened, compared] = await Promise.all([details(turns), details(sinces)]);
      if (stale()) return;
      this.fill(sides, opened, compared);
      sides.forEach((side, i) => [1, -1].forEach((by) => {
        const near = turns[i] + by;
        if (near >= 0 && near < stories[i].fates.length) this.source.detail(side.key, near).catch(() => {});
      }));
    } catch (failure) {
      if (stale()) return;
      this.chunk.replaceChildren();
      sides.forEach((side) => side.fail(failure));
    }
  }

  // A chunk that both have read appears once, above both.
  fill(sides, details, compared) {
    const chunks = details.map((d) => d.chunk);
    const [left, right] = chunks;
    const shared = left && right && left.start === right.start && left.text === right.text;
    sides.forEach((side, i) => side.fill(details[i], shared || (i === 0 && sides.length === 1), compared[i]));
    const spans = sides.flatMap((side, i) => side.spans(details[i], i ? "ma-beside" : "ma-brought"));
    this.chunk.replaceChildren(...((shared || sides.length === 1) && chunks[0] ? [chunkBox(chunks[0], spans)] : []));
  }

  turnFor(turn) {
    const [left, right] = this.sides;
    return left.story && right.story ? aligned(right.story, left.story, turn) : turn;
  }

  go(turn) {
    if (this.sides[0].story) this.set({ turn: Math.max(0, Math.min(this.sides[0].story.fates.length - 1, turn)) });
  }

  // Change the whole view, as a link does.
  open(state) {
    Object.assign(this.state, state);
    this.search.value = this.state.search;
    this.since.value = this.state.since;
    return this.look(this.state.search);
  }

  async copy(button) {
    const link = this.source.link(this.state);
    try {
      await navigator.clipboard.writeText(link);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy link"), 2000);
    } catch {
      window.prompt("The link to this view", link); // a page in a sandbox cannot write to the clipboard
    }
  }

  add(entry, turn) {
    this.entries.set(entry.key, entry);
    this.sides[1].key = undefined;
    this.set(this.others(this.entries.get(this.state.key)).includes(entry) ? { beside: entry.name, turn } : {});
  }

  nextChange(by) {
    const [left, right] = this.sides;
    const { turn } = this.state;
    const changes = new Set(left.story.changes);
    if (right.story) for (const i of right.story.changes) changes.add(aligned(right.story, left.story, i));
    const turns = [...changes].sort((a, b) => a - b);
    return (by > 0 ? turns.find((i) => i > turn) : turns.reverse().find((i) => i < turn)) ?? turn;
  }

  move(by) {
    const listed = this.listed(), next = listed[listed.findIndex((entry) => entry.key === this.state.key) + by];
    if (next) this.set({ key: next.key, turn: undefined });
  }

  key(event) {
    if (["TEXTAREA", "SELECT", "INPUT"].includes(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const { turn } = this.state;
    const moves = {
      ArrowRight: () => this.go(turn + 1), ArrowLeft: () => this.go(turn - 1), j: () => this.go(turn + 1), k: () => this.go(turn - 1),
      Home: () => this.go(0), End: () => this.go(Infinity), n: () => this.go(this.nextChange(1)), p: () => this.go(this.nextChange(-1)),
      "]": () => this.move(1), "[": () => this.move(-1),
    };
    if (!moves[event.key] || (!this.sides[0].story && !"[]".includes(event.key))) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  }
}

function legend() {
  const fates = Object.entries(NAMES).filter(([fate]) => fate !== "none").map(([fate, name]) => make("span", {}, make("span", { class: `ma-dot ma-${fate}` }), name));
  return make("p", { class: "ma-legend" }, ...fates,
    make("span", {}, make("mark", { class: "ma-evidence" }, "evidence"), " ", make("mark", { class: "ma-brought" }, "taken into memory"), ", ", make("mark", { class: "ma-beside" }, "beside"), " ", make("ins", {}, "new"), " ", make("del", {}, "gone")),
    make("span", {}, "▲ the chunk with the evidence; height: tokens of the reply"));
}

export function mount(root, source) {
  return new View(root, source);
}

// A page has the texts of all readings of one question in one compressed pack, which is opened with the first of them.
async function unpacked(pack) {
  const bytes = Uint8Array.from(atob(pack), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

// A link page#READING/TURN?FILTERS opens a view; turns count from 1. Without filters, the reading's policy is chosen; without a
// reading, as in the scores of a report, the first one that the filters choose.
const IN_LINK = [...FILTERS, "search", "beside", "since"];

function linkTo(state) {
  const view = new URLSearchParams(IN_LINK.filter((name) => state[name]).map((name) => [name, state[name]]));
  return `#${encodeURIComponent(state.key)}/${(state.turn ?? 0) + 1}?${view}`;
}

export function linked(catalog) {
  const [, key, turn, view] = /^#(?:([^/?]+)\/(\d+))?(\?.*)?$/.exec(window.location.hash) ?? [];
  const entry = key && catalog.find((e) => encodeURIComponent(e.key) === key);
  const none = Object.fromEntries([...FILTERS, "search", "since", ...(key && view ? ["beside"] : [])].map((name) => [name, ""]));
  const chosen = view ? Object.fromEntries(new URLSearchParams(view)) : { policy: entry?.policy };
  if (!key && view) return { ...none, ...chosen, key: "", turn: undefined };
  return entry && { ...none, ...chosen, key: entry.key, turn: Number(turn) - 1 };
}

export function embedded(data) {
  const packs = new Map();
  const numbers = new Map(data.catalog.map((e) => [e.key, e.pack]));
  const part = async (what, key) => {
    const number = numbers.get(key);
    if (number === null) throw new Error(`This page has room for ${data.room}, not for this reading; inspector.show opens it.`);
    if (!packs.has(number)) packs.set(number, unpacked(data.packs[number]));
    const pack = await packs.get(number);
    return { pack, found: pack[what][key] };
  };
  const detail = async (key, turn) => {
    const { pack, found } = await part("details", key), d = found[turn];
    return d.chunk ? { ...d, chunk: { ...d.chunk, text: pack.texts[d.chunk.text] } } : d;
  };
  let opening;
  const memories = async (e) => (e.pack === null ? [] : Object.values((await part("details", e.key)).found).map((d) => d.after));
  const searched = async (e) => [e.question, e.example, e.answer, ...e.answers, ...(await memories(e))];
  return {
    catalog: data.catalog,
    state: { ...data.state, ...linked(data.catalog) },
    story: async (key) => (await part("stories", key)).found,
    detail,
    phrases: async (key) => (await part("phrases", key)).found,
    search: async (text) => {
      const texts = await Promise.all(data.catalog.map(searched));
      return data.catalog.filter((e, i) => texts[i].some((words) => words.toLowerCase().includes(text.toLowerCase()))).map((e) => e.key);
    },
    link: (state) => new URL(linkTo(state), window.location.href).href,
    save: (state) => {
      if (!state.key || state.turn === undefined) return; // an undefined turn is the one that its story opens with
      opening ??= linked(data.catalog) ? "" : linkTo(state);
      if (linkTo(state) === opening) return; // nobody has chosen it, and a page without a link opens at its top
      opening = "";
      window.history.replaceState(null, "", linkTo(state));
    },
  };
}

// The widget's source: texts saved with the notebook at once, the others from the kernel, each requested once. `onGone` gets what
// to do once the kernel is gone, or "": JupyterLab says so by a class of the output and by the kernel's status.
function fromKernel(model, el, onGone) {
  const waiting = new Map();
  const known = new Map();
  const saved = () => ({ stories: {}, details: {}, phrases: {}, ...model.get("saved") }); // the kernel changes it
  const fix = model.get("live") || "the cells of this notebook again";
  const gone = `The kernel of this inspector is gone. What the notebook has saved still opens; for the rest, run: ${fix}`;
  const silent = `The kernel does not answer: it is busy or gone. Try again when it is idle, or run: ${fix}`;
  let isGone = false, hasDied = false;
  let free = Promise.resolve(); // while the kernel reads on, it answers nothing else
  let last = 0;
  const end = (id, message) => {
    waiting.get(id)?.reject(new Error(message));
    waiting.delete(id);
  };
  const check = (status) => {
    hasDied ||= ["restarting", "autorestarting", "terminating", "dead"].includes(status);
    isGone = hasDied || el.classList.contains("jupyter-widgets-disconnected");
    onGone(isGone ? gone : "");
    if (isGone) for (const id of waiting.keys()) end(id, gone);
  };
  model.on("comm_live_update", () => setTimeout(check)); // once the output has its class
  const kernel = model.widget_manager?.kernel;
  kernel?.statusChanged?.connect((_, status) => check(status));
  kernel?.disposed?.connect(() => check("dead"));
  check();
  model.on("msg:custom", ({ id, answer, error }) => {
    const { resolve, reject } = waiting.get(id) ?? {};
    waiting.delete(id);
    if (resolve) error ? reject(new Error(error)) : resolve(answer);
  });
  const send = (request) => new Promise((resolve, reject) => {
    const id = `${Date.now()}-${(last += 1)}`;
    waiting.set(id, { resolve, reject });
    if (isGone) return end(id, gone);
    try {
      model.send({ id, ...request });
    } catch {
      end(id, silent);
    }
    if (request.what !== "rerun") free.then(() => setTimeout(end, 15000, id, silent));
  });
  const once = (request, text) => {
    const name = JSON.stringify(request);
    if (!known.has(name)) {
      const answer = text === undefined ? send(request) : Promise.resolve(text);
      known.set(name, answer);
      answer.catch(() => known.delete(name)); // so that it is requested again
    }
    return known.get(name);
  };
  const rerun = async (key, turn, memory) => {
    await send({ what: "story", key }); // reading on may take minutes, so first see that somebody answers
    const reading = send({ what: "rerun", key, turn, memory });
    free = Promise.allSettled([free, reading]);
    const entry = await reading;
    for (const name of known.keys()) if (JSON.parse(name).key === entry.key) known.delete(name);
    return entry;
  };
  return {
    catalog: model.get("catalog"),
    state: model.get("state"),
    drafts: (model.drafts ??= {}), // for whatever draws this model next, too
    story: (key) => once({ what: "story", key }, saved().stories[key]),
    detail: (key, turn) => once({ what: "detail", key, turn }, saved().details[key]?.[turn]),
    phrases: (key) => once({ what: "phrases", key }, saved().phrases[key]),
    search: (text) => send({ what: "search", text }),
    rerun: (policy) => (!isGone && model.get("can_rerun").includes(policy) ? rerun : null),
    save: (state) => {
      if (!state.key) return;
      model.set("state", { ...state });
      model.save_changes();
    },
  };
}

export default {
  render({ model, el }) {
    const inspector = make("div"), list = make("div");
    const gone = make("p", { class: "ma-base ma ma-live", role: "status", hidden: true });
    const box = make("details", { class: "ma-base ma ma-list" }, make("summary", {}, "All readings: scores, where the evidence was lost, table"), list);
    el.replaceChildren(gone, box, inspector);
    const source = fromKernel(model, el, (text) => {
      gone.textContent = text;
      gone.hidden = !text;
    });
    const view = mount(inspector, source);
    new ReadingsTable(list, view);
  },
};
