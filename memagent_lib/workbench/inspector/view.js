// The inspector's face, the same in JupyterLab (an anywidget) and in a page of its own. Text of documents and models only ever
// becomes text nodes. `mount(root, source)` draws; a source answers: catalog, story(key), detail(key, turn), phrases(key).

const FATES = { h: "held", a: "ahead", m: "missed", l: "lost", n: "none" };
const NAMES = { held: "in memory", ahead: "not read yet", missed: "read but never noted", lost: "noted and lost", none: "no memory" };
const FILTERS = ["all", "wrong", "lost after capture", "never captured", "cut by limit"];
const HELP = "← → turn · n p next or previous change · [ ] example · Home End";

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function option(value, text, chosen) {
  const node = make("option", { value }, text);
  node.selected = chosen;
  return node;
}

// Text with some stretches marked; spans are [start, end, class] in characters of the document, as Python counts them.
function marked(text, spans) {
  const letters = Array.from(text);
  const at = new Set([0, letters.length]);
  const inside = spans.filter(([start, end]) => start < letters.length && end > 0);
  inside.forEach(([start, end]) => at.add(Math.max(0, start)).add(Math.min(letters.length, end)));
  const edges = [...at].sort((a, b) => a - b);
  return edges.slice(0, -1).map((start, i) => {
    const classes = inside.filter(([a, b]) => a <= start && start < b).map((span) => span[2]);
    const piece = letters.slice(start, edges[i + 1]).join("");
    return classes.length ? make("mark", { class: classes.join(" ") }, piece) : document.createTextNode(piece);
  });
}

class Timeline {
  constructor(onTurn) {
    this.canvas = make("canvas", { class: "ma-time", tabindex: "0", role: "slider", "aria-label": "turn", "aria-valuemin": "0" });
    this.canvas.addEventListener("pointerdown", (event) => this.pick(event, onTurn));
    this.canvas.addEventListener("pointermove", (event) => event.buttons && this.pick(event, onTurn));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  pick(event, onTurn) {
    if (!this.story) return;
    const box = this.canvas.getBoundingClientRect();
    const turn = Math.floor(((event.clientX - box.left) / box.width) * this.story.fates.length);
    onTurn(Math.max(0, Math.min(this.story.fates.length - 1, turn)));
  }

  show(story, turn) {
    Object.assign(this, { story, turn });
    const fate = NAMES[FATES[story.fates[turn]]];
    for (const [name, value] of [["valuemax", story.fates.length - 1], ["valuenow", turn], ["valuetext", `turn ${turn}: ${fate}`]])
      this.canvas.setAttribute(`aria-${name}`, value);
    this.draw();
  }

  draw() {
    const { canvas, story } = this;
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!story || !width) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const colour = Object.fromEntries(Object.entries(FATES).map(([letter, name]) => [letter, style.getPropertyValue(`--${name}`).trim()]));
    pen.scale(ratio, ratio);
    const n = story.fates.length, pitch = width / n, gap = pitch > 3 ? 1 : 0, floor = height - 12;
    const most = story.tokens.reduce((a, b) => Math.max(a, b), 1);
    for (let i = 0; i < n; i++) {
      const tall = 5 + (floor - 8) * (story.tokens[i] / most);
      pen.fillStyle = colour[story.fates[i]];
      pen.fillRect(i * pitch, floor - tall, Math.max(0.7, pitch - gap), tall);
    }
    pen.fillStyle = style.color;
    for (const i of story.evidence) {
      const x = (i + 0.5) * pitch;
      pen.beginPath();
      pen.moveTo(x - 4, height - 1);
      pen.lineTo(x + 4, height - 1);
      pen.lineTo(x, height - 9);
      pen.fill();
    }
    pen.fillStyle = colour.l;
    for (const i of story.cut) pen.fillRect(i * pitch, 0, Math.max(2, pitch - gap), 3);
    pen.strokeStyle = style.color;
    pen.lineWidth = 2;
    pen.strokeRect(this.turn * pitch, 1, Math.max(3, pitch - gap), floor);
  }
}

class Side {
  constructor(view) {
    this.view = view;
    this.head = make("h4");
    this.timeline = new Timeline((turn) => view.go(turn));
    this.body = make("div", { class: "ma-detail", "aria-live": "polite" });
    this.origin = make("div");
    this.root = make("section", { class: "ma-reading" }, this.head, this.timeline.canvas, this.body, this.origin);
  }

  async show(key, turn) {
    const { source, entries } = this.view, entry = entries.get(key);
    const fresh = this.key !== key;
    this.key = key;
    if (fresh) {
      this.head.replaceChildren(
        `${entry.policy} `,
        make("b", { class: entry.right ? "ma-right" : "ma-wrong" }, entry.right ? "right" : "wrong"),
        " ", make("code", {}, entry.answer),
      );
      this.origin.replaceChildren(make("button", { onclick: () => this.trace(key) }, "Where did these words come from?"));
    }
    try {
      this.story = await source.story(key);
      if (this.key !== key) return;
      const at = Math.min(turn, this.story.fates.length - 1);
      this.timeline.show(this.story, at);
      this.wanted = at;
      const detail = await source.detail(key, at);
      if (this.key === key && this.wanted === at) this.fill(detail);
      for (const near of [at + 1, at - 1]) if (near >= 0 && near < this.story.fates.length) source.detail(key, near).catch(() => {});
    } catch (failure) {
      this.body.replaceChildren(make("p", { class: "ma-cut" }, failure.message));
    }
  }

  fill(d) {
    const [prompt, cached, reply] = d.tokens, fate = Object.keys(NAMES).find((name) => NAMES[name] === d.fate);
    const place = d.chunk ? ` ${d.chunk.index}` : "";
    const where = d.chunk ? ` characters ${d.chunk.start.toLocaleString()} to ${d.chunk.end.toLocaleString()} ·` : "";
    const facts = `${where} ${prompt} tokens in (${cached} cached), ${reply} out · ended by ${d.finish}${d.signal ? ` · ${d.signal}` : ""}`;
    const parts = [
      make("p", { class: "ma-turn-head" }, make("span", { class: `ma-dot ma-${fate}` }), `turn ${d.turn}: ${d.chunk ? "chunk" : d.kind}${place} `,
        make("small", { class: d.finish === "length" ? "ma-cut" : "" }, `${d.fate} ·${facts}`)),
    ];
    if (d.chunk) {
      const spans = [...d.evidence.map((span) => [...span, "ma-evidence"]), ...d.brought.map((span) => [...span, "ma-brought"])];
      parts.push(make("div", { class: "ma-chunk ma-scroll", tabindex: "0", "aria-label": "chunk" }, ...marked(d.chunk.text, spans)));
    }
    if (d.thinking) parts.push(make("details", {}, make("summary", {}, "thinking"), make("p", { class: "ma-chunk" }, d.thinking)));
    const said = d.changes.map(([text, change]) => (change === "same" ? text : make(change === "new" ? "ins" : "del", {}, text)));
    parts.push(make("div", { class: "ma-memory" }, make("small", {}, d.editable ? "memory " : "says "), ...said));
    if (d.editable && this.view.source.rerun) parts.push(this.editor(d));
    this.body.replaceChildren(...parts);
    this.body.dataset.turn = d.turn;
  }

  editor(d) {
    const text = make("textarea", { rows: 2, "aria-label": "memory to read on with" });
    text.value = d.after;
    const note = make("small");
    const button = make("button", {}, "Read on from here");
    button.addEventListener("click", async () => {
      button.disabled = true;
      note.textContent = " reading on…";
      try {
        this.view.took(await this.view.source.rerun(this.key, d.turn, text.value), d.turn + 1);
      } catch (failure) {
        note.textContent = ` ${failure.message}`;
      }
      button.disabled = false;
    });
    return make("details", { class: "ma-edit" }, make("summary", {}, "read on with another memory"), text, button, note);
  }

  async trace(key) {
    this.origin.replaceChildren(make("small", {}, "looking…"));
    try {
      const { phrases, all } = await this.view.source.phrases(key);
      const turn = (at) => (at === null ? "held to the end" : make("button", { onclick: () => this.view.go(at) }, `turn ${at}`));
      const rows = phrases.map((p) => make("tr", {}, make("td", {}, p.text), make("td", {}, turn(p.brought)), make("td", {}, turn(p.dropped)),
        make("td", {}, `${p.start.toLocaleString()}–${p.end.toLocaleString()}`)));
      const names = ["words", "brought in", "dropped", "characters"].map((name) => make("th", {}, name));
      const rest = all > phrases.length ? make("p", {}, make("small", {}, `the first ${phrases.length} of ${all} phrases`)) : null;
      this.origin.replaceChildren(make("div", { class: "ma-scroll" }, make("table", {}, make("tr", {}, ...names), ...rows)), ...(rest ? [rest] : []));
    } catch (failure) {
      this.origin.replaceChildren(make("small", { class: "ma-cut" }, failure.message));
    }
  }
}

class View {
  constructor(root, source) {
    this.root = root;
    this.source = source;
    this.entries = new Map(source.catalog.map((entry) => [entry.key, entry]));
    this.state = { left: "", right: "", filter: "all", example: "", turn: 0, ...source.state };
    this.selects = Object.fromEntries(["left", "right", "filter", "example"].map((name) => [name, make("select")]));
    for (const [name, select] of Object.entries(this.selects)) select.addEventListener("change", () => this.set({ [name]: select.value }));
    this.count = make("small");
    this.question = make("p", { class: "ma-question" });
    this.about = make("p", { class: "ma-facts" });
    this.sides = [new Side(this), new Side(this)];
    const { left, right, filter, example } = this.selects;
    const bar = make("div", { class: "ma-bar" }, make("label", {}, "policy ", left), make("label", {}, "beside ", right),
      make("label", {}, "show ", filter), make("label", {}, "example ", example), this.count);
    const legend = make("p", { class: "ma-legend" },
      ...Object.entries(NAMES).map(([fate, name]) => make("span", {}, make("span", { class: `ma-dot ma-${fate}` }), name)),
      make("span", {}, make("mark", { class: "ma-evidence" }, "evidence"), " ", make("mark", { class: "ma-brought" }, "taken into memory"), " ",
        make("ins", {}, "new"), " ", make("del", {}, "gone")), make("span", {}, "▲ evidence stands here; height: tokens of the reply"), make("span", {}, HELP));
    const columns = make("div", { class: "ma-columns" }, ...this.sides.map((side) => side.root));
    this.box = make("div", { class: "ma ma-inspector", tabindex: "0", role: "application", "aria-label": "memory inspector" },
      bar, this.question, this.about, columns, legend);
    this.box.addEventListener("keydown", (event) => this.key(event));
    root.replaceChildren(this.box);
    this.set({});
  }

  policies() {
    return [...new Set([...this.entries.values()].map((entry) => entry.policy))];
  }

  of(policy, example) {
    return [...this.entries.values()].find((entry) => entry.policy === policy && entry.example === example);
  }

  listed() {
    const { left, filter } = this.state;
    return [...this.entries.values()].filter((e) => e.policy === left && (filter === "all" || e.faults.includes(filter)));
  }

  // The one way to change what is shown.
  set(change) {
    Object.assign(this.state, change);
    const { state, selects } = this, policies = this.policies();
    if (!policies.length) return this.box.replaceChildren(make("p", {}, "no readings"));
    if (!policies.includes(state.left)) state.left = policies[0];
    const listed = this.listed();
    if (!listed.some((entry) => entry.example === state.example))
      Object.assign(state, { example: listed[0]?.example ?? "", turn: state.example ? 0 : state.turn });
    selects.left.replaceChildren(...policies.map((p) => option(p, p, p === state.left)));
    selects.right.replaceChildren(option("", "nothing", !state.right), ...policies.filter((p) => p !== state.left).map((p) => option(p, p, p === state.right)));
    selects.filter.replaceChildren(...FILTERS.map((f) => option(f, f, f === state.filter)));
    selects.example.replaceChildren(...listed.map((e) => option(e.example, `${e.right ? "✓" : "✗"} ${e.example}`, e.example === state.example)));
    this.count.textContent = `${listed.length} reading${listed.length === 1 ? "" : "s"}`;
    const shown = [this.of(state.left, state.example), this.of(state.right, state.example)];
    if (state.filter !== "all" && !listed.length) shown[0] = shown[1] = undefined;
    this.question.textContent = shown[0]?.question ?? `no reading of ${state.left} is ${state.filter}`;
    this.about.textContent = shown[0] ? `${shown[0].example} · ${shown[0].turns} turns · accepted: ${shown[0].accepted.join(" | ")}` : "";
    this.sides.forEach((side, i) => {
      side.root.hidden = !shown[i];
      if (shown[i]) side.show(shown[i].key, state.turn);
    });
    this.source.save?.(state);
  }

  go(turn) {
    const last = this.sides[0].story ? this.sides[0].story.fates.length - 1 : 0;
    this.set({ turn: Math.max(0, Math.min(last, turn)) });
  }

  took(entry, turn) {
    this.entries.set(entry.key, entry);
    this.sides[1].key = undefined;
    this.set({ right: entry.policy, turn });
  }

  change(step) {
    const { fates, evidence } = this.sides[0].story;
    const events = new Set(evidence);
    for (let i = 1; i < fates.length; i++) if (fates[i] !== fates[i - 1]) events.add(i);
    const places = [...events].sort((a, b) => a - b), { turn } = this.state;
    return (step > 0 ? places.find((i) => i > turn) : places.reverse().find((i) => i < turn)) ?? turn;
  }

  key(event) {
    if (["TEXTAREA", "SELECT", "INPUT"].includes(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const { turn, example } = this.state, listed = this.listed(), at = listed.findIndex((entry) => entry.example === example);
    const moves = {
      ArrowRight: () => this.go(turn + 1), ArrowLeft: () => this.go(turn - 1), j: () => this.go(turn + 1), k: () => this.go(turn - 1),
      Home: () => this.go(0), End: () => this.go(Infinity), n: () => this.go(this.change(1)), p: () => this.go(this.change(-1)),
      "]": () => at + 1 < listed.length && this.set({ example: listed[at + 1].example, turn: 0 }),
      "[": () => at > 0 && this.set({ example: listed[at - 1].example, turn: 0 }),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  }
}

export function mount(root, source) {
  return new View(root, source);
}

// A page of its own: everything is in `data`; what had no room is said where somebody looks for it.
export function embedded(data) {
  const found = async (table, key, what) => {
    if (table[key] === undefined) throw new Error(`${what} of this reading had no room in this page (${data.room}); inspector.show() has it`);
    return table[key];
  };
  return {
    catalog: data.catalog,
    state: data.state,
    story: (key) => found(data.stories, key, "The timeline"),
    detail: async (key, turn) => (await found(data.details, key, "The texts"))[turn],
    phrases: (key) => found(data.phrases, key, "The origin of the words"),
  };
}

// The widget: asks the kernel, and remembers what it was told.
function asking(model) {
  const waiting = new Map(), known = new Map();
  let last = 0;
  model.on("msg:custom", ({ id, answer, error }) => {
    const { resolve, reject } = waiting.get(id) ?? {};
    waiting.delete(id);
    if (resolve) error ? reject(new Error(error)) : resolve(answer);
  });
  const ask = (request) => new Promise((resolve, reject) => {
    const id = `${Date.now()}-${(last += 1)}`;
    waiting.set(id, { resolve, reject });
    model.send({ id, ...request });
    if (request.what !== "rerun")
      setTimeout(() => waiting.delete(id) && reject(new Error("the kernel does not answer; run the cell again")), 15000);
  });
  const once = (request) => {
    const name = JSON.stringify(request);
    if (!known.has(name)) {
      const asked = ask(request);
      known.set(name, asked);
      asked.catch(() => known.delete(name));
    }
    return known.get(name);
  };
  return {
    catalog: model.get("catalog"),
    state: model.get("state"),
    story: (key) => once({ what: "story", key }),
    detail: (key, turn) => once({ what: "detail", key, turn }),
    phrases: (key) => once({ what: "phrases", key }),
    rerun: model.get("can_rerun")
      ? async (key, turn, memory) => {
          const entry = await ask({ what: "rerun", key, turn, memory });
          for (const name of known.keys()) if (JSON.parse(name).key === entry.key) known.delete(name);
          return entry;
        }
      : null,
    save: (state) => {
      model.set("state", { ...state });
      model.save_changes();
    },
  };
}

export default {
  render({ model, el }) {
    mount(el, asking(model));
  },
};
