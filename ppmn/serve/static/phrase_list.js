// The list of phrases: their scores, which of them are shown, and which masks are withheld.
import { removePhrase } from "./caption.js";
import { icon } from "./icons.js";
import { element, markHighlighted, scoreNote } from "./labels.js";
import { byId } from "./status.js";
import { colorOf, highlighted, isPassing, isShown, isWithheld, notify, onChange, point, state, togglePin } from "./state.js";
import { remember } from "./undo.js";

const list = byId("phrases");

function score({ result }) {
  if (!result?.mask) return element("span", { className: "score" });
  const { width, height } = byId("masks");
  const { calibrated } = state.about;
  const known = state.threshold === state.grounding?.threshold ? result.score : null; // only at the threshold of the answer
  const count = result.objectMasks.filter((mask) => mask.area).length;
  const fraction = result.mask.area / (width * height);
  return scoreNote({ ...result, score: calibrated ? known : result.mask.score, calibrated, fraction, count });
}

function phraseButton(phrase, number) {
  const button = element("button", { className: "phrase", numbers: [number], color: colorOf(number) });
  const text = element("span", { className: "text", text: phrase.text });
  button.type = "button";
  text.dir = "auto";
  button.append(element("span", { className: "number", text: number + 1 }), text, score(phrase));
  button.addEventListener("pointerenter", () => point([number]));
  button.addEventListener("pointerleave", () => point([]));
  button.addEventListener("focus", () => point([number]));
  button.addEventListener("blur", () => point([]));
  button.addEventListener("click", () => togglePin([number]));
  return button;
}

function iconButton(className, drawing, name, act) {
  const button = element("button", { className: `icon ${className}` });
  button.type = "button";
  button.title = name;
  button.setAttribute("aria-label", name);
  button.append(icon(drawing));
  button.addEventListener("click", act);
  return button;
}

function setHidden(what, isHidden) {
  remember(what);
  state.phrases.forEach((phrase, number) => {
    phrase.hidden = isHidden(phrase, number);
    phrase.chosen = phrase.hidden !== Boolean(phrase.result && isWithheld(phrase.result));
  });
  notify("visibility");
}

function switchButton(phrase, number) {
  const act = () => setHidden(`${phrase.hidden ? "shown" : "hidden"} “${phrase.text}”`, (other, n) =>
    (n === number ? !other.hidden : other.hidden));
  const button = iconButton("switch", phrase.hidden ? "eye-off" : "eye", `Show ${phrase.text}`, act);
  button.setAttribute("role", "switch");
  button.setAttribute("aria-checked", !phrase.hidden);
  return button;
}

// A second press shows all phrases again, except those whose masks are withheld.
function onlyButton(phrase, number) {
  const isOnly = !phrase.hidden && state.phrases.every((other, n) => n === number || !isShown(other));
  const act = () => setHidden(isOnly ? "shown all" : `only “${phrase.text}”`, (other, n) =>
    (isOnly ? n !== number && Boolean(other.result && isWithheld(other.result)) : n !== number));
  const button = iconButton("only", "only", `Only ${phrase.text}`, act);
  button.setAttribute("aria-pressed", isOnly);
  return button;
}

function row(phrase, number) {
  const made = element("li");
  made.classList.toggle("hidden-phrase", phrase.hidden);
  made.append(phraseButton(phrase, number));
  if (phrase.result) made.append(onlyButton(phrase, number), switchButton(phrase, number));
  made.append(iconButton("remove", "remove", `Remove ${phrase.text}`, () => removePhrase(number)));
  return made;
}

// The focus stays on the same button, or moves to that of the next phrase.
function showPhrases() {
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  const at = focused && [...list.children].indexOf(focused.closest("li"));
  byId("phrases-title").hidden = !state.phrases.length;
  byId("score-help").hidden = !state.grounding;
  list.replaceChildren(...state.phrases.map(row));
  if (!focused) return;
  const same = list.children[Math.min(at, state.phrases.length - 1)];
  (same ? same.querySelector(`.${focused.className.split(" ")[focused.classList.contains("icon") ? 1 : 0]}`) : byId("caption"))?.focus();
}

onChange((what) => {
  if (!isPassing(what)) showPhrases();
  markHighlighted(list, highlighted());
  list.querySelectorAll(".phrase").forEach((button, number) => button.setAttribute("aria-pressed", state.pinned.includes(number)));
});
