// The list of phrases with their scores.
import { removePhrase } from "./caption.js";
import { element, markHighlighted, scoreText } from "./labels.js";
import { byId, colorOf, highlighted, onChange, point, state, togglePin } from "./state.js";

const list = byId("phrases");

function score({ result }) {
  if (!result?.mask) return "";
  return scoreText(result.mask.score, result.mask.area / (byId("masks").width * byId("masks").height));
}

function phraseButton(phrase, number) {
  const button = element("button", { className: "phrase", numbers: [number], color: colorOf(number) });
  const text = element("span", { className: "text", text: phrase.text });
  button.type = "button";
  text.dir = "auto";
  button.append(
    element("span", { className: "number", text: number + 1 }),
    text,
    element("span", { className: "score", text: score(phrase) }),
  );
  button.addEventListener("pointerenter", () => point([number]));
  button.addEventListener("pointerleave", () => point([]));
  button.addEventListener("focus", () => point([number]));
  button.addEventListener("blur", () => point([]));
  button.addEventListener("click", () => togglePin([number]));
  return button;
}

function removeButton(phrase, number) {
  const button = element("button", { className: "remove", text: "×" });
  button.type = "button";
  button.setAttribute("aria-label", `Remove ${phrase.text}`);
  button.addEventListener("click", () => {
    removePhrase(number);
    list.querySelectorAll(".remove")[Math.min(number, state.phrases.length - 1)]?.focus();
  });
  return button;
}

function showPhrases() {
  byId("phrases-title").hidden = !state.phrases.length;
  list.replaceChildren(...state.phrases.map((phrase, number) => {
    const row = element("li");
    row.append(phraseButton(phrase, number), removeButton(phrase, number));
    return row;
  }));
}

onChange((what) => {
  if (what !== "highlight") showPhrases();
  markHighlighted(list, highlighted());
  list.querySelectorAll(".phrase").forEach((button, number) => button.setAttribute("aria-pressed", state.pinned.includes(number)));
});
