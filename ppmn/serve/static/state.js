// The state of the page, and its listeners.
export const state = {
  about: null, // the server's model, palette, limits and samples
  image: null, // {file, sample, address, ready} and, once it is ready, {id, width, height, map_size, content_size}
  text: "", // the caption as it is written
  spans: { found: [], added: [], removed: [] }, // of phrases, in characters (code points) of the text
  phrases: [], // {start, end, span, text, hidden, chosen, result}; `chosen`: by the user; `result` once it is grounded
  grounding: null, // {caption, spans, text, threshold, warnings, rounds}: of the last request
  captionError: "", // what is wrong with the caption, such as a bracket that is not closed
  warnings: [], // why the phrases of the caption may be wrong
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
// Changes of what is shown, not of what there is.
export const isPassing = (what) => what === "highlight" || what === "zoom";

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

// Whether the mask is shown on request only, because it is probably wrong.
export const isWithheld = (result) => result.absent || result.foreign;
export const isShown = (phrase) => Boolean(phrase.result) && !phrase.hidden;
export const colorOf = (number) => state.about.palette[number % state.about.palette.length];
