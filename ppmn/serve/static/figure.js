// The image with its masks and labels.
import { label, markHighlighted, spreadLabels } from "./labels.js";
import { covers, groupEqual, labelPoint, maskOf, outline, rgb, tint } from "./maps.js";
import { paintRound } from "./rounds.js";
import { byId } from "./status.js";
import { clearHighlight, colorOf, highlighted, isPassing, isShown, isWithheld, notify, onChange, onChangeFirst, point, state, togglePin } from "./state.js";
import { hasPanned, inFigure } from "./zoom.js";

const MAX_SIDE = 1024; // longer side of the canvas
const [figure, stage, photo, canvas] = ["figure", "stage", "image", "masks"].map(byId);
const painter = canvas.getContext("2d");
let allMasks = null; // painted, until a mask changes

// Show the photo of the state, as soon as the browser has decoded it.
async function placePhoto() {
  const { image } = state;
  const address = image?.address || "";
  byId("another").hidden = !image;
  if (!image) return showFigure(false);
  if (photo.src === address) return;
  photo.src = address;
  const readable = await photo.decode().then(() => true, () => false);
  if (state.image !== image || photo.src !== address) return; // it was replaced meanwhile
  showFigure(readable);
  if (readable) setSize(image.width || photo.naturalWidth, image.height || photo.naturalHeight);
  notify("size");
}

function showFigure(visible) {
  figure.hidden = !visible;
  byId("empty").hidden = visible;
}

function setSize(width, height) {
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  canvas.width = photo.width = Math.max(1, Math.round(width * scale));
  canvas.height = photo.height = Math.max(1, Math.round(height * scale));
  figure.style.setProperty("--ratio", width / height);
}

// Masks change with the threshold and with a new grounding only.
function updateMasks() {
  allMasks = null;
  const size = `${canvas.width}x${canvas.height}`;
  state.phrases.forEach(({ result }) => {
    if (!result || (result.threshold === state.threshold && result.size === size)) return;
    result.mask = maskOf(result.map, state.image, canvas, state.threshold);
    result.objectMasks = result.objects.map((map) => maskOf(map, state.image, canvas, state.threshold));
    result.labelPoint = labelPoint(result.map, state.image, canvas, result.mask);
    [result.threshold, result.size] = [state.threshold, size];
  });
}

// Numbers of the phrases whose masks are painted, large masks first: the highlighted ones, or all that are switched on.
// A mask that is withheld is painted only if it is switched on.
function painted() {
  const shown = highlighted();
  const isPainted = (phrase, number) => (shown.length
    ? shown.includes(number) && (isShown(phrase) || !isWithheld(phrase.result))
    : isShown(phrase));
  return state.phrases
    .flatMap((phrase, number) => (phrase.result?.mask?.area && isPainted(phrase, number) ? [number] : []))
    .sort((a, b) => state.phrases[b].result.mask.area - state.phrases[a].result.mask.area);
}

function paintMasks() {
  const layer = painter.createImageData(canvas.width, canvas.height);
  const dims = highlighted().some((number) => state.phrases[number]?.result);
  if (dims) for (let at = 3; at < layer.data.length; at += 4) layer.data[at] = 160; // the rest
  const masks = state.phrases.map(({ result }) => result?.mask);
  groupEqual(masks, painted()).forEach((group) => {
    tint(layer, group.map((number) => masks[number]), group.map((number) => rgb(colorOf(number))), state.opacity, state.outline);
  });
  if (state.outline) painted().forEach((number) => outline(layer, state.phrases[number].result.objectMasks, rgb(colorOf(number))));
  return layer;
}

function draw() {
  const shown = highlighted();
  figure.classList.toggle("highlighting", shown.length > 0);
  figure.classList.toggle("rounds", state.view === "rounds");
  if (!state.image) return;
  if (state.view === "rounds") return paintRound(canvas, photo);
  byId("round-note").hidden = true;
  if (!shown.length) allMasks ??= paintMasks();
  painter.putImageData(shown.length ? paintMasks() : allMasks, 0, 0);
}

const isInside = ([u, v]) => u >= 0 && u <= 1 && v >= 0 && v <= 1;

function showLabels() {
  figure.querySelectorAll(".label").forEach((old) => old.remove());
  painted().forEach((number) => {
    const { text, result } = state.phrases[number];
    const at = inFigure(result.labelPoint);
    if (isInside(at)) figure.append(label(number, text, at, colorOf(number)));
  });
  markHighlighted(figure, highlighted());
  spreadLabels([...figure.querySelectorAll(".label")], figure);
}

function phrasesAt(event) {
  if (state.view === "rounds") return [];
  const area = canvas.getBoundingClientRect();
  const x = Math.floor(((event.clientX - area.left) / area.width) * canvas.width);
  const y = Math.floor(((event.clientY - area.top) / area.height) * canvas.height);
  return state.phrases.flatMap((phrase, number) => (isShown(phrase) && covers(phrase.result.mask, x, y) ? [number] : []));
}

stage.addEventListener("pointermove", (event) => {
  if (state.view !== "rounds") point(hasPanned() && event.buttons ? [] : phrasesAt(event));
});
stage.addEventListener("pointerleave", () => point([]));
stage.addEventListener("click", (event) => {
  const numbers = phrasesAt(event);
  if (numbers.length && !hasPanned()) togglePin(numbers);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  clearHighlight();
  notify("highlight");
});

onChangeFirst((what) => {
  if (!isPassing(what) && state.image) updateMasks(); // other listeners show scores of the masks
});
onChange((what) => {
  if (what === "image" || what === "undo") placePhoto();
  if (what !== "zoom") draw();
  if (state.image) showLabels();
});
