// The page: images and samples come in, the controls set the state, a link restores it.
import { request } from "./api.js";
import { edits, phrasesFound, write } from "./caption.js";
import "./downloads.js";
import "./figure.js";
import { ground, openImage, reopenImage } from "./grounding.js";
import { readLink } from "./link.js";
import "./phrase_list.js";
import { shownRound } from "./rounds.js";
import { byId, notify, onChange, showError, showStatus, state } from "./state.js";

const fileInput = byId("file");
document.querySelectorAll(".choose").forEach((button) => button.addEventListener("click", () => fileInput.click()));
fileInput.addEventListener("change", () => {
  if (fileInput.files[0]) openImage(fileInput.files[0]);
  fileInput.value = "";
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

async function openSample(number) {
  const blob = await sampleBlob(number);
  if (!state.text.trim() || state.about.samples.some(({ caption }) => caption === state.text)) {
    [edits.added, edits.removed] = [[], []];
    write(state.about.samples[number].caption);
  }
  await openImage(blob, number);
}

function showSamples() {
  state.about.samples.forEach(({ name }, number) => {
    const button = document.createElement("button");
    const thumbnail = document.createElement("img");
    button.type = "button";
    thumbnail.alt = `Sample: ${name}`;
    button.append(thumbnail);
    button.addEventListener("click", () => openSample(number).catch(showError));
    byId("samples").append(button);
    sampleBlob(number).then((blob) => {
      thumbnail.src = URL.createObjectURL(blob);
    });
  });
}

const controls = byId("controls");
controls.addEventListener("submit", (event) => event.preventDefault());
controls.addEventListener("input", (event) => {
  const { id, name, value, checked } = event.target;
  if (name === "view") state.view = value;
  else if (id === "outline") state.outline = checked;
  else state[id] = Number(value);
  notify(id || name);
});
byId("ground").addEventListener("click", ground);
byId("caption").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  ground();
});

function showControls() {
  const rounds = state.grounding?.rounds;
  const round = rounds ? shownRound(rounds) : 0;
  const last = rounds ? rounds.length - 1 : 0;
  byId("threshold").value = state.threshold;
  byId("opacity").value = state.opacity;
  byId("outline").checked = state.outline;
  controls.elements.view.value = state.view;
  byId("round").max = last;
  byId("round").value = round;
  byId("round").setAttribute("aria-valuetext", `H${round}`);
  const texts = { threshold: state.threshold.toFixed(2), opacity: state.opacity.toFixed(2), round: `H${round} of H${last}` };
  controls.querySelectorAll("output").forEach((output) => {
    output.textContent = texts[output.htmlFor];
  });
  controls.querySelectorAll(".of-masks").forEach((control) => {
    control.hidden = state.view !== "masks";
  });
  controls.querySelectorAll(".of-rounds").forEach((control) => {
    control.hidden = state.view !== "rounds" || !rounds;
  });
}

onChange((what) => {
  if (what !== "highlight") showControls();
  const changed = state.grounding && state.grounding.text !== state.text;
  if (changed && what === "phrases") showStatus("The caption has changed: ground it again.");
});

async function start() {
  state.about = await (await request("/api/about")).json();
  byId("model").textContent = `model ${state.about.model}`;
  const link = readLink();
  [edits.added, edits.removed] = [link.added, link.removed];
  state.text = link.caption; // the spans of the edits refer to it
  write(link.caption);
  showSamples();
  const lastImage = sessionStorage.getItem("image");
  if (link.sample >= 0) await openSample(link.sample);
  else if (lastImage) await reopenImage(lastImage);
  if (!state.image || !link.caption || state.text !== link.caption) return; // there is nothing to ground
  await phrasesFound();
  if (state.phrases.length) await ground();
}
start().catch(showError);
