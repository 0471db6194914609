// The caption: phrases are underlined while it is written, added by selecting words, removed by a click.
import { post } from "./api.js";
import { captionPieces, element, markHighlighted } from "./labels.js";
import { moveSpans, plainSpans, withoutBrackets } from "./spans.js";
import { byId } from "./status.js";
import { clearHighlight, colorOf, highlighted, notify, onChange, point, state } from "./state.js";
import { remember } from "./undo.js";

const DELAY = 250; // milliseconds after the last key before the phrases are requested
const [area, underlines, add, remove] = ["caption", "underlines", "add", "remove"].map(byId);
const characters = (text) => Array.from(text); // the server counts code points, not UTF-16 units
const equals = (a) => (b) => a[0] === b[0] && a[1] === b[1];

let focused = false; // until then, the caret means nothing
let timer = 0;
let pending = Promise.resolve();
let release = () => {}; // who waits for the phrases of an earlier text
let controller = null;

export function write(text) {
  const move = moveSpans(state.text, text);
  const { found, added, removed } = state.spans;
  state.spans = { found: found.flatMap(move), added: added.flatMap(move), removed: removed.flatMap(move) };
  state.phrases = state.phrases.flatMap((phrase) =>
    move([phrase.start, phrase.end]).map(([start, end]) => ({ ...phrase, start, end })));
  state.text = text;
  showText();
  updatePhrases();
  lookUp();
}

function showText() {
  if (area.value !== state.text) area.value = state.text;
}

function lookUp() {
  const { text } = state;
  clearTimeout(timer);
  release();
  pending = new Promise((resolve) => {
    release = resolve;
    timer = setTimeout(() => findPhrases(text).then(resolve), DELAY);
  });
}

// Wait until the phrases of the last version of the text are there.
export async function phrasesFound() {
  let last;
  do {
    last = pending;
    await last;
  } while (last !== pending);
}

async function findPhrases(text) {
  controller?.abort();
  controller = new AbortController();
  try {
    const answer = await (await post("/api/phrases", { caption: text }, controller.signal)).json();
    if (text !== state.text) return;
    const { toRaw } = plainSpans(text);
    const found = answer.phrases.filter((phrase) => !phrase.abstract).map((phrase) => toRaw(phrase.span));
    state.spans = { ...state.spans, found };
    [state.warnings, state.captionError] = [answer.warnings, ""];
    updatePhrases();
  } catch (error) {
    if (error.name === "AbortError" || text !== state.text) return;
    state.captionError = error.message;
    notify("caption");
  }
}

// Phrases keep their results as long as their words stay the same.
function updatePhrases() {
  const { found, added, removed } = state.spans;
  const chosen = [...found.filter((span) => !removed.some(equals(span))), ...added];
  const spans = chosen.filter((span, index) => chosen.findIndex(equals(span)) === index);
  const all = characters(state.text);
  const { toPlain } = plainSpans(state.text);
  const before = state.phrases;
  state.phrases = spans.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([start, end]) => {
    const { result, hidden = false, chosen = false } = before.find((phrase) => phrase.start === start && phrase.end === end) || {};
    const text = withoutBrackets(all.slice(start, end).join(""));
    return { start, end, span: toPlain([start, end]), text, hidden, chosen, result };
  });
  clearHighlight();
  showUnderlines();
  updateButtons();
  notify("phrases");
}

function showUnderlines() {
  const pieces = captionPieces(state.text, state.phrases.map(({ start, end }) => [start, end]));
  const nodes = pieces.map(({ text, numbers }) => (numbers.length
    ? element("span", { className: `style${numbers[0] % 4}`, text, numbers, color: colorOf(numbers[0]) })
    : text));
  underlines.replaceChildren(...nodes, "\u200b");
}

export function removePhrase(number) {
  const { start, end, text } = state.phrases[number];
  const span = [start, end];
  const { found, added, removed } = state.spans;
  remember(`removed ${quote(text)}`);
  state.spans = {
    found,
    added: added.filter((other) => !equals(span)(other)),
    removed: found.some(equals(span)) ? [...removed, span] : removed,
  };
  updatePhrases();
}

// The selected words as a span, without the spaces and brackets around them.
function selectedSpan() {
  const start = characters(area.value.slice(0, area.selectionStart)).length;
  const words = characters(area.value.slice(area.selectionStart, area.selectionEnd));
  const isWord = (character) => !/[\s[\]]/.test(character);
  const first = words.findIndex(isWord);
  return first < 0 ? null : [start + first, start + words.findLastIndex(isWord) + 1];
}

const quote = (text) => `“${text.length > 32 ? `${text.slice(0, 31)}…` : text}”`;

function updateButtons() {
  const span = selectedSpan();
  const caret = characters(area.value.slice(0, area.selectionStart)).length;
  const isHere = ({ start, end }) => (span ? equals(span)([start, end]) : start <= caret && caret <= end);
  const number = state.phrases.findIndex(isHere);
  add.hidden = !span || number >= 0;
  remove.hidden = number < 0 || !focused;
  if (span) add.textContent = `Add ${quote(characters(area.value).slice(...span).join(""))}`;
  if (number >= 0) remove.textContent = `Remove ${quote(state.phrases[number].text)}`;
  remove.dataset.number = number;
}

add.addEventListener("click", () => {
  const span = selectedSpan();
  const { found, added, removed } = state.spans;
  remember(`added ${quote(characters(area.value).slice(...span).join(""))}`);
  state.spans = {
    found,
    added: found.some(equals(span)) ? added : [...added, span],
    removed: removed.filter((other) => !equals(span)(other)),
  };
  updatePhrases();
});
remove.addEventListener("click", () => removePhrase(Number(remove.dataset.number)));
document.addEventListener("selectionchange", updateButtons);
area.addEventListener("focus", () => {
  focused = true;
});
area.addEventListener("input", () => write(area.value));
area.addEventListener("pointermove", (event) => {
  const under = document.elementsFromPoint(event.clientX, event.clientY);
  const piece = under.find((item) => item.dataset.phrases && underlines.contains(item));
  point(piece ? piece.dataset.phrases.split(" ").map(Number) : []);
});
area.addEventListener("pointerleave", () => point([]));
onChange((what) => {
  if (what === "undo") {
    showText();
    showUnderlines();
    updateButtons();
    lookUp();
  }
  markHighlighted(underlines, highlighted());
});
