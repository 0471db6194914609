// The page: photos come in, settings are set, and everything else is told.
import { ask } from "./api.js";
import { edits, settled, write } from "./caption.js";
import "./downloads.js";
import { ground, open, reopen } from "./ground.js";
import { read } from "./link.js";
import { roundOf } from "./rounds.js";
import { byId, changed, onChange, say, state } from "./state.js";
import "./stage.js";

const file = byId("file");
document.querySelectorAll(".choose").forEach((button) => button.addEventListener("click", () => file.click()));
file.addEventListener("change", () => { if (file.files[0]) open(file.files[0]); file.value = ""; });
document.addEventListener("paste", (event) => {
  const pasted = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (!pasted) return;
  event.preventDefault();
  open(pasted);
});
["dragover", "dragleave", "drop"].forEach((kind) => document.addEventListener(kind, (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  document.body.classList.toggle("dragging", kind === "dragover");
  if (kind === "drop" && event.dataTransfer.files[0]) open(event.dataTransfer.files[0]);
}));

async function openSample(number) {
  const blob = await (await ask(`/api/samples/${number}`)).blob();
  if (!state.text.trim() || state.about.samples.some(({ caption }) => caption === state.text)) {
    edits.added = [];
    edits.removed = [];
    write(state.about.samples[number].caption);
  }
  await open(blob, number);
}

async function showSamples() {
  for (const [number, { name }] of state.about.samples.entries()) {
    const button = document.createElement("button"), picture = document.createElement("img");
    button.type = "button";
    picture.alt = `Sample: ${name}`;
    button.append(picture);
    button.addEventListener("click", () => openSample(number).catch((error) => say(error.message, "bad")));
    byId("samples").append(button);
    ask(`/api/samples/${number}`).then((answer) => answer.blob()).then((blob) => { picture.src = URL.createObjectURL(blob); });
  }
}

const controls = byId("controls");
controls.addEventListener("submit", (event) => event.preventDefault());
controls.addEventListener("input", (event) => {
  const { id, name, value, checked } = event.target;
  if (name === "view") state.view = value;
  else if (id === "outline") state.outline = checked;
  else state[id] = Number(value);
  changed(id || name);
});
byId("ground").addEventListener("click", ground);
byId("caption").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  ground();
});

// The controls say what the state is.
onChange((what) => {
  if (what === "lit") return;
  const rounds = state.grounding?.rounds;
  byId("threshold").value = state.threshold;
  byId("opacity").value = state.opacity;
  byId("outline").checked = state.outline;
  controls.elements.view.value = state.view;
  byId("round").max = rounds ? rounds.length - 1 : 0;
  byId("round").value = rounds ? roundOf(rounds) : 0;
  byId("round").setAttribute("aria-valuetext", `H${byId("round").value}`);
  const told = { threshold: state.threshold.toFixed(2), opacity: state.opacity.toFixed(2), round: rounds ? `H${roundOf(rounds)} of H${rounds.length - 1}` : "" };
  controls.querySelectorAll("output").forEach((output) => { output.textContent = told[output.htmlFor]; });
  controls.querySelectorAll(".of-masks").forEach((label) => { label.hidden = state.view !== "masks"; });
  controls.querySelectorAll(".of-rounds").forEach((label) => { label.hidden = state.view !== "rounds" || !rounds; });
  if (state.grounding && state.grounding.text !== state.text && what === "phrases") say("The narrative has changed: ground it again.");
});

async function start() {
  state.about = await (await ask("/api/about")).json();
  byId("model").textContent = `model ${state.about.model}`;
  const link = read();
  [edits.added, edits.removed] = [link.added, link.removed];
  state.text = link.caption; // the edits count in it already
  write(link.caption);
  showSamples();
  const kept = sessionStorage.getItem("look");
  if (link.sample >= 0) await openSample(link.sample);
  else if (kept) await reopen(kept);
  if (!state.photo || !link.caption || state.text !== link.caption) return; // nothing to bring back
  await settled();
  if (state.phrases.length) await ground();
}
start().catch((error) => say(error.message, "bad"));
