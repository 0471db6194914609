// The photo with its masks and labels.
import { beforeAll, byId, changed, code, colour, hold, light, onChange, shown, state } from "./state.js";
import { covers, maskOf, peak, tint } from "./masks.js";
import { paintRound } from "./rounds.js";

const SIDE = 1024; // longer side of what is drawn
const [figure, photo, canvas] = ["stage", "photo", "masks"].map(byId);
const paint = canvas.getContext("2d");
let everything = null; // the picture of all masks, until something of it changes

// The photo's image is handed in as an address; the canvas is laid over it.
export async function place(address) {
  photo.src = address;
  await photo.decode();
  const { width, height } = state.photo, scale = Math.min(1, SIDE / Math.max(width, height));
  canvas.width = photo.width = Math.max(1, Math.round(width * scale));
  canvas.height = photo.height = Math.max(1, Math.round(height * scale));
  figure.style.maxWidth = `calc(76vh * ${width / height})`;
  figure.hidden = false;
  byId("empty").hidden = true;
  byId("other").hidden = false;
}

// Masks follow from the maps; only a threshold or another grounding changes them.
function form() {
  everything = null;
  state.phrases.forEach((phrase) => {
    const { seen } = phrase;
    if (!seen || seen.cut === state.threshold && seen.wide === canvas.width) return;
    seen.mask = maskOf(seen.map, state.photo, canvas.width, canvas.height, state.threshold);
    seen.at = peak(seen.map, state.photo, seen.mask, canvas.width, canvas.height);
    [seen.cut, seen.wide] = [state.threshold, canvas.width];
  });
}

const masked = () => state.phrases
  .flatMap((phrase, number) => (phrase.seen?.mask?.area ? [number] : []))
  .sort((a, b) => state.phrases[b].seen.mask.area - state.phrases[a].seen.mask.area);

function draw() {
  const lit = shown();
  figure.classList.toggle("lit", lit.length > 0);
  figure.classList.toggle("heat", state.view === "rounds");
  if (!state.photo) return;
  if (state.view === "rounds") return paintRound(canvas, photo);
  byId("told").hidden = true;
  if (lit.length || !everything) {
    const image = paint.createImageData(canvas.width, canvas.height);
    if (lit.length) for (let at = 3; at < image.data.length; at += 4) image.data[at] = 160;
    masked().filter((number) => !lit.length || lit.includes(number))
      .forEach((number) => tint(image, state.phrases[number].seen.mask, colour(number), state.opacity, state.outline));
    paint.putImageData(image, 0, 0);
    if (!lit.length) everything = image;
  } else paint.putImageData(everything, 0, 0);
}

function label() {
  const lit = shown();
  figure.querySelectorAll(".tag").forEach((tag) => tag.remove());
  masked().forEach((number) => {
    const tag = document.createElement("span"), words = document.createElement("b"), [x, y] = state.phrases[number].seen.at;
    tag.className = lit.includes(number) ? "tag on" : "tag";
    tag.dataset.of = number;
    tag.textContent = number + 1;
    words.textContent = ` ${state.phrases[number].text}`;
    tag.append(words);
    tag.style.setProperty("--c", code(number));
    tag.style.left = `${100 * x}%`;
    tag.style.top = `${100 * y}%`;
    figure.append(tag);
  });
  apart([...figure.querySelectorAll(lit.length ? ".tag.on" : ".tag")]);
}

// Labels stay within the photo and do not cover each other: each takes the nearest place that is free.
function apart(tags) {
  const edge = figure.getBoundingClientRect(), taken = [];
  tags.slice(0, 200).forEach((tag) => {
    const { left, top, width, height } = tag.getBoundingClientRect();
    const x = Math.min(Math.max(left, edge.left + 3), edge.right - width - 3), y = Math.min(Math.max(top, edge.top + 3), edge.bottom - height - 3);
    const places = [];
    for (let i = -8; i <= 8; i++) for (let j = -6; j <= 6; j++) places.push([x + j * (width + 2), y + i * (height + 2)]);
    places.sort(([a, b], [c, d]) => (a - x) ** 2 + (b - y) ** 2 - (c - x) ** 2 - (d - y) ** 2);
    const free = ([a, b]) => a >= edge.left && b >= edge.top && a + width <= edge.right && b + height <= edge.bottom &&
      !taken.some((other) => a < other.x + other.width && other.x < a + width && b < other.y + other.height && other.y < b + height);
    const [a, b] = places.find(free) || [x, y];
    tag.style.marginLeft = `${a - left}px`;
    tag.style.marginTop = `${b - top}px`;
    taken.push({ x: a, y: b, width, height });
  });
}

figure.addEventListener("pointermove", (event) => {
  if (state.view === "rounds") return;
  const area = canvas.getBoundingClientRect();
  const x = Math.floor((event.clientX - area.left) / area.width * canvas.width);
  const y = Math.floor((event.clientY - area.top) / area.height * canvas.height);
  light(state.phrases.flatMap((phrase, number) => (phrase.seen?.mask && covers(phrase.seen.mask, x, y) ? [number] : [])));
});
figure.addEventListener("pointerleave", () => light([]));
figure.addEventListener("click", () => { if (state.lit.length) hold(state.lit); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  [state.lit, state.held] = [[], []];
  changed("lit");
});

beforeAll((what) => { if (what !== "lit" && state.photo) form(); }); // others tell of the masks
onChange(() => {
  draw();
  if (state.photo) label();
});
