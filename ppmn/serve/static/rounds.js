// Figure 5 of the paper: the response of a phrase after each round, and the pixels that the next round attends to.
import { groundRequest } from "./grounding.js";
import { postForImage } from "./images.js";
import { decodeMap, rgb, upsample } from "./maps.js";
import { byId, showError, withProgress } from "./status.js";
import { colorOf, highlighted, notify, onChange, state } from "./state.js";

let requested = null; // the grounding whose rounds were requested

export const shownRound = (rounds) => Math.min(state.round ?? rounds.length - 1, rounds.length - 1);

// Rounds are requested when they are first shown.
async function requestRounds() {
  const { grounding, image } = state;
  if (!grounding || grounding.rounds || requested === grounding) return;
  requested = grounding;
  try {
    await withProgress("Loading the rounds …", async () => {
      const answer = await (await postForImage(image, "ground", { ...groundRequest(grounding), keep_rounds: true })).json();
      grounding.rounds = answer.rounds.map(({ maps, pixels }) => ({ maps: maps.map(decodeMap), pixels }));
    });
    if (state.grounding === grounding) notify("rounds");
  } catch (error) {
    requested = null;
    showError(error);
  }
}

// The highlighted phrase, or the first that is grounded.
function shownPhrase() {
  const number = highlighted().find((other) => state.phrases[other]?.result);
  return number ?? state.phrases.findIndex((phrase) => phrase.result);
}

export function paintRound(canvas, image) {
  const painter = canvas.getContext("2d");
  const rounds = state.grounding?.rounds;
  const number = shownPhrase();
  painter.clearRect(0, 0, canvas.width, canvas.height);
  byId("round-note").hidden = !rounds || number < 0;
  if (!rounds || number < 0) return;
  const step = shownRound(rounds);
  const { index } = state.phrases[number].result;
  const points = rounds[step].pixels[index] || [];
  painter.filter = "grayscale(1) brightness(.5)";
  painter.drawImage(image, 0, 0, canvas.width, canvas.height);
  painter.filter = "none";
  painter.drawImage(heatMap(rounds[step].maps[index], rgb(colorOf(number)), canvas), 0, 0);
  points.forEach(([x, y]) => dot(painter, (x * canvas.width) / state.image.width, (y * canvas.height) / state.image.height));
  byId("round-note").textContent = note(rounds, step, state.phrases[number].text, points.length);
}

// A model that points draws one more map after the last round, so no round attends to the pixels of the map before it.
const isDrawn = (rounds, step) => step > 0 && step === rounds.length - 1 && !rounds[step - 1].pixels.length;

function note(rounds, step, text, count) {
  const when = step ? `after round ${step}` : "before the first round";
  const map = isDrawn(rounds, step) ? `the drawn map of “${text}”` : `the response of “${text}” ${when}`;
  const next = count ? ` Round ${step + 1} attends to ${count} language-compatible pixels.` : "";
  return `H${step}, ${map}.${next}${step === rounds.length - 1 ? " This is the last map." : ""}`;
}

function heatMap(map, [red, green, blue], { width, height }) {
  const layer = new OffscreenCanvas(width, height);
  const painter = layer.getContext("2d");
  const image = painter.createImageData(width, height);
  let at = 0;
  upsample(map, state.image, { width, height }, { x: 0, y: 0, width, height }, (response) => {
    image.data[at] = red;
    image.data[at + 1] = green;
    image.data[at + 2] = blue;
    image.data[at + 3] = 255 * response;
    at += 4;
  });
  painter.putImageData(image, 0, 0);
  return layer;
}

function dot(painter, x, y) {
  painter.beginPath();
  painter.arc(x, y, Math.max(2, painter.canvas.width / 280), 0, 7);
  painter.fillStyle = "#fff";
  painter.strokeStyle = "#000";
  painter.lineWidth = 1;
  painter.fill();
  painter.stroke();
}

onChange(() => {
  if (state.view === "rounds") requestRounds();
});
