// Files of the grounding as it is shown, made by the server.
import { byId, say, state } from "./state.js";
import { onLook } from "./ground.js";

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

byId("downloads").addEventListener("click", async (event) => {
  const name = event.target.dataset.file, phrases = state.phrases.filter((phrase) => phrase.seen);
  if (!name) return;
  if (!phrases.length) return say("Nothing is grounded yet.", "bad");
  say(`Making ${name} …`, "busy");
  try {
    const { threshold, opacity, outline, grounding } = state;
    const spans = phrases.map((phrase) => grounding.spans[phrase.seen.index]);
    const answer = await onLook(`files/${name}`, { caption: grounding.caption, spans, threshold, opacity, outline });
    save(await answer.blob(), name);
    say(`${name} is saved.`);
  } catch (error) {
    say(error.message, "bad");
  }
});
