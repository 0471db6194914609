// The image with its masks and labels.
import { label, markHighlighted, spreadLabels } from "./labels.js";
import { covers, labelPoint, maskOf, rgb, tint } from "./maps.js";
import { paintRound } from "./rounds.js";
import { byId, clearHighlight, colorOf, highlighted, notify, onChange, onChangeFirst, point, state, togglePin } from "./state.js";

const MAX_SIDE = 1024; // longer side of the canvas
const [figure, image, canvas] = ["figure", "image", "masks"].map(byId);
const painter = canvas.getContext("2d");
let allMasks = null; // painted, until a mask changes

// Show the image at an address, with the canvas over it.
export async function place(address) {
  image.src = address;
  await image.decode();
  const { width, height } = state.image;
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  canvas.width = image.width = Math.max(1, Math.round(width * scale));
  canvas.height = image.height = Math.max(1, Math.round(height * scale));
  figure.style.maxWidth = `calc(76vh * ${width / height})`;
  figure.hidden = false;
  byId("empty").hidden = true;
  byId("another").hidden = false;
}

// Masks change with the threshold and with a new grounding only.
function updateMasks() {
  allMasks = null;
  state.phrases.forEach(({ result }) => {
    if (!result || (result.threshold === state.threshold && result.width === canvas.width)) return;
    result.mask = maskOf(result.map, state.image, canvas, state.threshold);
    result.labelPoint = labelPoint(result.map, state.image, canvas, result.mask);
    [result.threshold, result.width] = [state.threshold, canvas.width];
  });
}

// Numbers of the phrases with a mask, large masks first.
const masked = () => state.phrases
  .flatMap((phrase, number) => (phrase.result?.mask?.area ? [number] : []))
  .sort((a, b) => state.phrases[b].result.mask.area - state.phrases[a].result.mask.area);

function paintMasks(shown) {
  const layer = painter.createImageData(canvas.width, canvas.height);
  if (shown.length) for (let at = 3; at < layer.data.length; at += 4) layer.data[at] = 160; // dim the rest
  masked()
    .filter((number) => !shown.length || shown.includes(number))
    .forEach((number) => tint(layer, state.phrases[number].result.mask, rgb(colorOf(number)), state.opacity, state.outline));
  return layer;
}

function draw() {
  const shown = highlighted();
  figure.classList.toggle("highlighting", shown.length > 0);
  figure.classList.toggle("rounds", state.view === "rounds");
  if (!state.image) return;
  if (state.view === "rounds") return paintRound(canvas, image);
  byId("round-note").hidden = true;
  if (!shown.length) allMasks ??= paintMasks([]);
  painter.putImageData(shown.length ? paintMasks(shown) : allMasks, 0, 0);
}

function showLabels() {
  const shown = highlighted();
  figure.querySelectorAll(".label").forEach((old) => old.remove());
  masked().forEach((number) => {
    const { text, result } = state.phrases[number];
    figure.append(label(number, text, result.labelPoint, colorOf(number)));
  });
  markHighlighted(figure, shown);
  spreadLabels([...figure.querySelectorAll(shown.length ? ".label.on" : ".label")], figure);
}

figure.addEventListener("pointermove", (event) => {
  if (state.view === "rounds") return;
  const area = canvas.getBoundingClientRect();
  const x = Math.floor(((event.clientX - area.left) / area.width) * canvas.width);
  const y = Math.floor(((event.clientY - area.top) / area.height) * canvas.height);
  point(state.phrases.flatMap(({ result }, number) => (result?.mask && covers(result.mask, x, y) ? [number] : [])));
});
figure.addEventListener("pointerleave", () => point([]));
figure.addEventListener("click", () => {
  if (state.pointed.length) togglePin(state.pointed);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  clearHighlight();
  notify("highlight");
});

onChangeFirst((what) => {
  if (what !== "highlight" && state.image) updateMasks(); // other listeners show scores of the masks
});
onChange(() => {
  draw();
  if (state.image) showLabels();
});
