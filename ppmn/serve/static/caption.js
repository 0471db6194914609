// The narrative: phrases underlined while it is written, added by selecting words, removed by a click.
import { post } from "./api.js";
import { byId, changed, code, hold, light, onChange, say, shown, state } from "./state.js";

const WAIT = 250; // milliseconds without a key before the phrases are asked for
const [area, lines, list, mark, unmark] = ["caption", "lines", "phrases", "mark", "unmark"].map(byId);
const letters = (text) => Array.from(text); // the server counts code points, not UTF-16 units
let found = []; // [start, end] of phrases that the server found
export const edits = { added: [], removed: [] }; // [start, end] of phrases by hand
let entered = false; // before that, the caret says nothing
let complained = false; // of brackets, say, which the next letter may put right
let timer = 0, pending = Promise.resolve(), asking = null;

export const plain = (text) => (marked(text) ? text.replace(/[[\]]/g, "") : text);
const marked = (text) => /[[\]]/.test(text);
const same = (a) => (b) => a[0] === b[0] && a[1] === b[1];

// Places in the text with brackets, of places in the text without; and back.
function places(text) {
  const kept = [], before = [0];
  letters(text).forEach((letter, at) => {
    if (!marked(letter)) kept.push(at);
    before.push(kept.length);
  });
  return { raw: ([start, end]) => [kept[start], kept[end - 1] + 1], plain: (at) => before[at] };
}

// Where spans are after the text was changed; those that the change touched are gone.
export function mover(before, after) {
  const old = letters(before), now = letters(after), shorter = Math.min(old.length, now.length), shift = now.length - old.length;
  let head = 0, tail = 0;
  while (head < shorter && old[head] === now[head]) head++;
  while (tail < shorter - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail++;
  return ([start, end]) => (end <= head ? [[start, end]] : start >= old.length - tail ? [[start + shift, end + shift]] : []);
}

export function write(text) {
  const move = mover(state.text, text);
  [found, edits.added, edits.removed] = [found, edits.added, edits.removed].map((spans) => spans.flatMap(move));
  state.phrases = state.phrases.flatMap((phrase) => move([phrase.start, phrase.end]).map(([start, end]) => ({ ...phrase, start, end })));
  state.text = text;
  if (area.value !== text) area.value = text;
  collect();
  clearTimeout(timer);
  pending = new Promise((done) => { timer = setTimeout(() => find(text).then(done), WAIT); });
}

export const settled = async () => { let last; do { last = pending; await last; } while (last !== pending); };

async function find(text) {
  asking?.abort();
  asking = new AbortController();
  try {
    const answer = await (await post("/api/phrases", { caption: text }, asking.signal)).json();
    if (text !== state.text) return;
    const { raw } = places(text);
    found = answer.phrases.filter((phrase) => !phrase.empty).map((phrase) => raw(phrase.span));
    if (complained) say("");
    complained = false;
    collect();
  } catch (error) {
    if (error.name === "AbortError" || text !== state.text) return;
    complained = true;
    say(error.message, "bad");
  }
}

// The phrases as they now stand; what was grounded keeps its map as long as it is the same words.
function collect() {
  const chosen = [...found.filter((span) => !edits.removed.some(same(span))), ...edits.added];
  const spans = chosen.filter((span, at) => chosen.findIndex(same(span)) === at).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const all = letters(state.text), { plain: at } = places(state.text), known = state.phrases;
  state.phrases = spans.map(([start, end]) => ({
    start, end, span: [at(start), at(end)], text: plain(all.slice(start, end).join("")),
    seen: known.find((phrase) => phrase.start === start && phrase.end === end)?.seen,
  }));
  [state.lit, state.held] = [[], []];
  underline();
  offer();
  changed("phrases");
}

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function underline() {
  const all = letters(state.text), cuts = new Set([0, all.length]);
  state.phrases.forEach(({ start, end }) => cuts.add(start).add(end));
  const ends = [...cuts].sort((a, b) => a - b), pieces = [];
  ends.slice(1).forEach((end, k) => {
    const start = ends[k], text = all.slice(start, end).join("");
    const of = state.phrases.flatMap((phrase, number) => (phrase.start <= start && end <= phrase.end ? [number] : []));
    if (!of.length) return pieces.push(text);
    const piece = element("span", `s${of[0] % 4}`, text);
    piece.dataset.of = of.join(" ");
    piece.style.setProperty("--c", code(of[0]));
    pieces.push(piece);
  });
  lines.replaceChildren(...pieces, "\u200b");
}

function rows() {
  byId("listed").hidden = !state.phrases.length;
  list.replaceChildren(...state.phrases.map((phrase, number) => {
    const row = element("li", ""), button = element("button", "phrase"), remove = element("button", "remove", "×");
    button.type = remove.type = "button";
    button.dataset.of = number;
    button.style.setProperty("--c", code(number));
    const words = element("span", "text", phrase.text);
    words.dir = "auto";
    button.append(element("span", "number", number + 1), words, element("span", "score", score(phrase)));
    button.addEventListener("pointerenter", () => light([number]));
    button.addEventListener("pointerleave", () => light([]));
    button.addEventListener("focus", () => light([number]));
    button.addEventListener("blur", () => light([]));
    button.addEventListener("click", () => hold([number]));
    remove.setAttribute("aria-label", `Remove ${phrase.text}`);
    remove.addEventListener("click", () => { drop(number); list.querySelectorAll(".remove")[Math.min(number, state.phrases.length - 1)]?.focus(); });
    row.append(button, remove);
    return row;
  }));
}

function score({ seen }) {
  if (!seen?.mask) return "";
  const share = 100 * seen.mask.area / (byId("masks").width * byId("masks").height);
  return seen.mask.area ? `${seen.mask.score.toFixed(2)} · ${share.toFixed(1)} %` : "nowhere";
}

function drop(number) {
  const { start, end } = state.phrases[number], span = [start, end];
  edits.added = edits.added.filter((other) => !same(span)(other));
  if (found.some(same(span))) edits.removed.push(span);
  collect();
}

// The words that are selected, without the spaces and brackets around them.
function selected() {
  const from = letters(area.value.slice(0, area.selectionStart)).length;
  const words = letters(area.value.slice(area.selectionStart, area.selectionEnd));
  const edge = (letter) => /[\s[\]]/.test(letter), start = words.findIndex((letter) => !edge(letter));
  return start < 0 ? null : [from + start, from + words.length - [...words].reverse().findIndex((letter) => !edge(letter))];
}

const quoted = (text) => `“${text.length > 32 ? `${text.slice(0, 31)}…` : text}”`;
function offer() {
  const span = selected(), caret = letters(area.value.slice(0, area.selectionStart)).length;
  const here = state.phrases.findIndex((p) => (span ? same(span)([p.start, p.end]) : p.start <= caret && caret <= p.end));
  mark.hidden = !span || here >= 0;
  unmark.hidden = here < 0 || !entered;
  if (span) mark.textContent = `Add ${quoted(letters(area.value).slice(...span).join(""))}`;
  if (here >= 0) unmark.textContent = `Remove ${quoted(state.phrases[here].text)}`;
  unmark.dataset.of = here;
}

mark.addEventListener("click", () => {
  const span = selected();
  edits.removed = edits.removed.filter((other) => !same(span)(other));
  if (!found.some(same(span))) edits.added.push(span);
  collect();
});
unmark.addEventListener("click", () => drop(Number(unmark.dataset.of)));
document.addEventListener("selectionchange", offer);
area.addEventListener("focus", () => { entered = true; });
area.addEventListener("input", () => write(area.value));
area.addEventListener("pointermove", (event) => {
  const piece = document.elementsFromPoint(event.clientX, event.clientY).find((e) => e.dataset.of && lines.contains(e));
  light(piece ? piece.dataset.of.split(" ").map(Number) : []);
});
area.addEventListener("pointerleave", () => light([]));

onChange((what) => {
  if (what !== "lit") rows();
  const lit = shown();
  [...lines.querySelectorAll("[data-of]"), ...list.querySelectorAll("[data-of]")].forEach((e) =>
    e.classList.toggle("on", e.dataset.of.split(" ").some((number) => lit.includes(Number(number)))));
  list.querySelectorAll(".phrase").forEach((button, number) => button.setAttribute("aria-pressed", state.held.includes(number)));
});
