// Files of the grounding as it is shown, made by the server.
import { postForImage } from "./grounding.js";
import { byId, showError, showStatus, state } from "./state.js";

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

byId("downloads").addEventListener("click", async (event) => {
  const name = event.target.dataset.file;
  const phrases = state.phrases.filter((phrase) => phrase.result);
  if (!name) return;
  if (!phrases.length) return showStatus("Nothing is grounded yet.", "bad");
  showStatus(`Making ${name} …`, "busy");
  try {
    const { threshold, opacity, outline, grounding } = state;
    const spans = phrases.map((phrase) => grounding.spans[phrase.result.index]);
    const response = await postForImage(`files/${name}`, { caption: grounding.caption, spans, threshold, opacity, outline });
    save(await response.blob(), name);
    showStatus(`${name} is saved.`);
  } catch (error) {
    showError(error);
  }
});
