// The caption: phrases are underlined while it is written, added by selecting words, removed by a click.
import { post } from "./api.js";
import { captionPieces, element, markHighlighted } from "./labels.js";
import { moveSpans, plainSpans, withoutBrackets } from "./spans.js";
import { byId, clearHighlight, colorOf, highlighted, notify, onChange, point, showError, showStatus, state } from "./state.js";

const DELAY = 250; // milliseconds after the last key before the phrases are requested
const [area, underlines, add, remove] = ["caption", "underlines", "add", "remove"].map(byId);
const characters = (text) => Array.from(text); // the server counts code points, not UTF-16 units
const equals = (a) => (b) => a[0] === b[0] && a[1] === b[1];

export const edits = { added: [], removed: [] }; // spans that the user added and removed
let found = []; // spans that the server found
let focused = false; // until then, the caret means nothing
let showsError = false; // about brackets, for example; the next character may mend it
let timer = 0;
let pending = Promise.resolve();
let controller = null;

export function write(text) {
  const move = moveSpans(state.text, text);
  [found, edits.added, edits.removed] = [found, edits.added, edits.removed].map((spans) => spans.flatMap(move));
  state.phrases = state.phrases.flatMap((phrase) =>
    move([phrase.start, phrase.end]).map(([start, end]) => ({ ...phrase, start, end })));
  state.text = text;
  if (area.value !== text) area.value = text;
  updatePhrases();
  clearTimeout(timer);
  pending = new Promise((resolve) => {
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
    found = answer.phrases.filter((phrase) => !phrase.abstract).map((phrase) => toRaw(phrase.span));
    if (showsError) showStatus("");
    showsError = false;
    updatePhrases();
  } catch (error) {
    if (error.name === "AbortError" || text !== state.text) return;
    showsError = true;
    showError(error);
  }
}

// Phrases keep their results as long as their words stay the same.
function updatePhrases() {
  const chosen = [...found.filter((span) => !edits.removed.some(equals(span))), ...edits.added];
  const spans = chosen.filter((span, index) => chosen.findIndex(equals(span)) === index);
  const all = characters(state.text);
  const { toPlain } = plainSpans(state.text);
  const before = state.phrases;
  state.phrases = spans.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([start, end]) => ({
    start,
    end,
    span: toPlain([start, end]),
    text: withoutBrackets(all.slice(start, end).join("")),
    result: before.find((phrase) => phrase.start === start && phrase.end === end)?.result,
  }));
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
  const { start, end } = state.phrases[number];
  const span = [start, end];
  edits.added = edits.added.filter((other) => !equals(span)(other));
  if (found.some(equals(span))) edits.removed.push(span);
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
  edits.removed = edits.removed.filter((other) => !equals(span)(other));
  if (!found.some(equals(span))) edits.added.push(span);
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
onChange(() => markHighlighted(underlines, highlighted()));
