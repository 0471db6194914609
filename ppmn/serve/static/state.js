// The state of the page, and its listeners.
export const state = {
  about: null, // the server's model, palette, limits and samples
  image: null, // {id, width, height, map_size, content_size, file, sample}
  text: "", // the caption as it is written
  phrases: [], // {start, end, span, text, result}: in characters (code points) of the text; `result` once it is grounded
  grounding: null, // {caption, spans, text, threshold, rounds}: of the last request
  threshold: 0.5,
  opacity: 0.45,
  outline: true,
  view: "masks",
  round: null, // null: the last
  pointed: [], // phrases under the pointer or with the focus
  pinned: [], // phrases that stay highlighted
};

const listeners = [];
export const onChange = (listener) => listeners.push(listener);
export const onChangeFirst = (listener) => listeners.unshift(listener);
export function notify(what) {
  listeners.forEach((listener) => listener(what));
}

export const highlighted = () => (state.pointed.length ? state.pointed : state.pinned);
export function point(numbers) {
  if (numbers.join() === state.pointed.join()) return;
  state.pointed = numbers;
  notify("highlight");
}
export function togglePin(numbers) {
  state.pinned = state.pinned.join() === numbers.join() ? [] : numbers;
  notify("highlight");
}
export function clearHighlight() {
  [state.pointed, state.pinned] = [[], []];
}

export const byId = (id) => document.getElementById(id);
export const colorOf = (number) => state.about.palette[number % state.about.palette.length];

export function showStatus(sentence, kind = "") {
  byId("status").textContent = sentence;
  byId("status").className = kind;
}
export const showError = (error) => showStatus(error.message, "bad");
// Clear a busy message, and keep any other.
export function clearBusy() {
  if (byId("status").className === "busy") showStatus("");
}
