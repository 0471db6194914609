// Files of the grounding as it is shown, made by the server.
import { postForImage } from "./images.js";
import { byId, showError, showStatus, withProgress } from "./status.js";
import { isShown, onChange, state } from "./state.js";

const CUTOUTS = "cutouts.zip";

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function download(name) {
  const { threshold, opacity, outline, grounding, image } = state;
  const phrases = state.phrases.filter(isShown);
  const numbers = phrases.map((phrase) => state.phrases.indexOf(phrase) + 1);
  if (!phrases.length) return showStatus("Nothing is shown: switch a phrase on.", "bad");
  const spans = phrases.map((phrase) => grounding.spans[phrase.result.index]);
  const file = name === CUTOUTS && phrases.length === 1 ? "cutout.png" : name; // one needs no archive
  try {
    await withProgress(`Making ${file} …`, async () => {
      const asked = { caption: grounding.caption, spans, numbers, threshold, opacity, outline, keep_absent: true };
      const response = await postForImage(image, `files/${file}`, asked);
      save(await response.blob(), file);
    });
    showStatus(`${file} is saved.`);
  } catch (error) {
    showError(error);
  }
}

byId("downloads").addEventListener("click", (event) => {
  const { file } = event.target.dataset;
  if (file) download(file);
});
onChange(() => {
  byId("downloads").hidden = !state.grounding;
});
