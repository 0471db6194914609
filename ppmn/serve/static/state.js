// What the page knows, and who is told when it changes.
export const state = {
  about: null, // the server's model, palette, limits, samples
  photo: null, // {id, width, height, grid, covered, file, sample}
  text: "", // the caption as it is written
  phrases: [], // {start, end, text, seen}: in letters (code points) of the text; `seen` once it is grounded
  threshold: 0.5,
  opacity: 0.45,
  outline: true,
  view: "masks",
  round: null, // null: the last
  lit: [], // phrases under the pointer or the focus
  held: [], // phrases that stay lit
};

const listeners = [];
export const onChange = (listener) => listeners.push(listener);
export const beforeAll = (listener) => listeners.unshift(listener);
export function changed(what) {
  listeners.forEach((listener) => listener(what));
}

export const shown = () => (state.lit.length ? state.lit : state.held);
export function light(numbers) {
  if (numbers.join() === state.lit.join()) return;
  state.lit = numbers;
  changed("lit");
}
export function hold(numbers) {
  state.held = state.held.join() === numbers.join() ? [] : numbers;
  changed("lit");
}

export const byId = (id) => document.getElementById(id);
export const code = (number) => state.about.palette[number % state.about.palette.length];
export const colour = (number) => [1, 3, 5].map((at) => parseInt(code(number).slice(at, at + 2), 16));

export function say(sentence, kind = "") {
  byId("status").textContent = sentence;
  byId("status").className = kind;
}
// What was being done is done; what else was said meanwhile stays.
export function done() {
  if (byId("status").className === "busy") say("");
}
