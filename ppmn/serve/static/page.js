// The page: the controls set the state, a link restores it.
import { request } from "./api.js";
import { phrasesFound, write } from "./caption.js";
import "./downloads.js";
import "./figure.js";
import { find } from "./grounding.js";
import { reopenImage } from "./images.js";
import { openSample, showSamples } from "./intake.js";
import { readLink } from "./link.js";
import "./notes.js";
import "./phrase_list.js";
import { shownRound } from "./rounds.js";
import { byId, showError, showStatus } from "./status.js";
import { isPassing, notify, onChange, state } from "./state.js";

const controls = byId("controls");
controls.addEventListener("submit", (event) => event.preventDefault());
controls.addEventListener("input", (event) => {
  const { id, name, value, checked } = event.target;
  if (name === "view") state.view = value;
  else if (id === "outline") state.outline = checked;
  else state[id] = Number(value);
  notify(id || name);
});
byId("find").addEventListener("click", find);
byId("caption").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  find();
});

function showControls() {
  const rounds = state.grounding?.rounds;
  const round = rounds ? shownRound(rounds) : 0;
  const last = rounds ? rounds.length - 1 : 0;
  controls.hidden = !state.grounding;
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
  if (!isPassing(what)) showControls();
});

async function start() {
  state.about = await (await request("/api/about")).json();
  byId("model").textContent = `model ${state.about.model}`;
  byId("score-meaning").textContent = state.about.calibrated
    ? "the IoU that the mask is expected to have with the true one, at the model's own threshold"
    : "the mean response inside the mask";
  const { caption, added, removed, sample, image } = readLink();
  state.spans = { found: [], added, removed };
  state.text = caption; // the spans refer to it
  write(caption);
  showSamples();
  if (sample >= 0) return openSample(sample);
  if (!image) return;
  if (!(await reopenImage(image))) return showStatus("The photo of this link is not on the server any more: choose it again.", "bad");
  await phrasesFound();
  if (state.phrases.length) await find();
}
start().catch(showError);
