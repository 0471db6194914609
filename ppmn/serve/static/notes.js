// What there is to say about the caption, below it.
import { byId } from "./status.js";
import { isPassing, onChange, state } from "./state.js";

function showNotes() {
  const { captionError, grounding, text, warnings } = state;
  const changed = grounding && grounding.text !== text;
  const all = [...warnings, ...(grounding && !changed ? grounding.warnings : [])];
  const note = captionError || (changed ? "The caption has changed: press Find." : "");
  byId("note").textContent = note;
  byId("note").className = captionError ? "bad" : "quiet";
  byId("warnings").textContent = [...new Set(all)].join(" ");
}

onChange((what) => {
  if (!isPassing(what)) showNotes();
});
