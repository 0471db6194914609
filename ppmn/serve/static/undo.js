// Undo: what the page held before each step.
import { byId, showStatus } from "./status.js";
import { clearHighlight, notify, state } from "./state.js";

const MAX_STEPS = 50;
const steps = [];
const button = byId("undo");

function showButton() {
  const last = steps.at(-1);
  button.hidden = !last;
  if (!last) return;
  button.title = `Undo: ${last.what}`;
  button.setAttribute("aria-label", button.title);
}

// Keep what the page holds now; `what` names the step that comes.
export function remember(what) {
  const { image, text, spans, phrases, grounding } = state;
  const step = { what, held: { image, text, spans: { ...spans }, phrases: phrases.map((phrase) => ({ ...phrase })), grounding } };
  steps.push(step);
  if (steps.length > MAX_STEPS) steps.shift();
  showButton();
  return step;
}

// Back to what there was before a step.
export function goBack(step) {
  if (!steps.includes(step)) return;
  steps.splice(steps.indexOf(step));
  Object.assign(state, step.held);
  clearHighlight();
  showButton();
  notify("undo");
}

function undo() {
  const step = steps.at(-1);
  if (!step) return;
  const hadFocus = document.activeElement === button;
  goBack(step);
  showStatus(`Undone: ${step.what}.`);
  if (hadFocus && button.hidden) byId("caption").focus();
}

button.addEventListener("click", undo);
document.addEventListener("keydown", (event) => {
  const isUndo = event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey) && !event.shiftKey;
  if (!isUndo || event.target.closest("textarea, input:not([type=range], [type=radio], [type=checkbox])")) return;
  event.preventDefault();
  undo();
});
