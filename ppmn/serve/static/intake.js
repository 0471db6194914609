// How photos come in: chosen, taken, dropped, pasted, or a sample with its caption.
import { request } from "./api.js";
import { write } from "./caption.js";
import { find } from "./grounding.js";
import { load, openImage } from "./images.js";
import { byId, showError } from "./status.js";
import { state } from "./state.js";
import { remember } from "./undo.js";

[["file", ".choose"], ["camera", ".take"]].forEach(([id, buttons]) => {
  const input = byId(id);
  document.querySelectorAll(buttons).forEach((button) => button.addEventListener("click", () => input.click()));
  input.addEventListener("change", () => {
    if (input.files[0]) openImage(input.files[0]);
    input.value = "";
  });
});
document.addEventListener("paste", (event) => {
  const pasted = [...event.clipboardData.files].find((file) => file.type.startsWith("image/"));
  if (!pasted) return;
  event.preventDefault();
  openImage(pasted);
});
["dragover", "dragleave", "drop"].forEach((kind) => document.addEventListener(kind, (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  document.body.classList.toggle("dragging", kind === "dragover");
  if (kind === "drop" && event.dataTransfer.files[0]) openImage(event.dataTransfer.files[0]);
}));

const sampleBlob = async (number) => (await request(`/api/samples/${number}`)).blob();

// A sample with the caption that is written; `step` as for `load`.
export async function openSample(number, blob = null, step = null) {
  const loaded = load(blob || (await sampleBlob(number)), number, step);
  await find();
  await loaded;
}

async function chooseSample(number) {
  const { name, caption } = state.about.samples[number];
  const blob = await sampleBlob(number);
  const step = remember(`sample “${name}”`);
  state.spans = { found: [], added: [], removed: [] };
  write(caption);
  await openSample(number, blob, step);
}

export function showSamples() {
  state.about.samples.forEach(({ name }, number) => {
    const button = document.createElement("button");
    const thumbnail = document.createElement("img");
    button.type = "button";
    thumbnail.alt = `Sample: ${name}`;
    button.append(thumbnail);
    button.addEventListener("click", () => chooseSample(number).catch(showError));
    byId("samples").append(button);
    sampleBlob(number).then((blob) => {
      thumbnail.src = URL.createObjectURL(blob);
    });
  });
}
