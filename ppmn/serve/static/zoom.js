// Zoom and pan the photo: wheel, pinch, drag, double click, keyboard, buttons.
import { byId } from "./status.js";
import { notify, onChange, state } from "./state.js";

const MAX_SCALE = 8;
const STEP = 1.5; // of a key or a button
const PAN = 0.15; // of the figure, by an arrow key
const [figure, stage] = ["figure", "stage"].map(byId);
const view = { scale: 1, x: 0, y: 0 }; // where the photo's corner is, in fractions of the figure
let drag = null; // {id, start, last, moved} of a pointer that is or was down
let pinch = null; // {distance, at} of two fingers
let shownImage = null;

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// From fractions of the photo to fractions of the figure.
export const inFigure = ([u, v]) => [u * view.scale + view.x, v * view.scale + view.y];

// Whether the pointer has just panned, so that its click means nothing.
export const hasPanned = () => Boolean(drag?.moved);

function setView(scale, x, y) {
  view.scale = clamp(scale, 1, MAX_SCALE);
  view.x = clamp(x, 1 - view.scale, 0);
  view.y = clamp(y, 1 - view.scale, 0);
  stage.style.transform = `translate(${100 * view.x}%, ${100 * view.y}%) scale(${view.scale})`;
  figure.classList.toggle("zoomed", view.scale > 1);
  byId("zoom-out").disabled = byId("zoom-reset").disabled = view.scale === 1;
  byId("zoom-in").disabled = view.scale === MAX_SCALE;
  notify("zoom");
}

const reset = () => setView(1, 0, 0);
const pan = (x, y) => setView(view.scale, view.x + x, view.y + y);

// Zoom so that a point, in fractions of the figure, stays where it is.
function zoomAt(factor, [u, v] = [0.5, 0.5]) {
  const scale = clamp(view.scale * factor, 1, MAX_SCALE);
  const ratio = scale / view.scale;
  setView(scale, u - (u - view.x) * ratio, v - (v - view.y) * ratio);
}

function place({ clientX, clientY }) {
  const area = figure.getBoundingClientRect();
  return [(clientX - area.left) / area.width, (clientY - area.top) / area.height];
}

stage.addEventListener("wheel", (event) => {
  if (view.scale === 1 && event.deltaY >= 0) return; // the page scrolls
  event.preventDefault();
  const pixels = event.deltaMode ? 30 * event.deltaY : event.deltaY; // lines or pixels
  zoomAt(Math.exp(-clamp(pixels, -200, 200) * (event.ctrlKey ? 0.01 : 0.002)), place(event));
}, { passive: false });
stage.addEventListener("dblclick", (event) => zoomAt(2, place(event)));

stage.addEventListener("pointerdown", (event) => {
  drag = { id: event.pointerId, start: place(event), last: place(event), moved: false };
});
document.addEventListener("pointermove", (event) => {
  if (drag?.id !== event.pointerId || !event.buttons || view.scale === 1 || pinch) return;
  const [x, y] = place(event);
  drag.moved = drag.moved || Math.hypot(x - drag.start[0], y - drag.start[1]) > 0.01;
  if (drag.moved) pan(x - drag.last[0], y - drag.last[1]);
  drag.last = [x, y];
});

function fingers([one, other]) {
  const [x, y] = [(one.clientX + other.clientX) / 2, (one.clientY + other.clientY) / 2];
  return { distance: Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY), at: place({ clientX: x, clientY: y }) };
}

stage.addEventListener("touchstart", (event) => {
  if (event.touches.length !== 2) return;
  event.preventDefault();
  pinch = fingers(event.touches);
}, { passive: false });
stage.addEventListener("touchmove", (event) => {
  if (!pinch || event.touches.length !== 2) return;
  event.preventDefault();
  const now = fingers(event.touches);
  zoomAt(now.distance / pinch.distance, now.at);
  pan(now.at[0] - pinch.at[0], now.at[1] - pinch.at[1]);
  if (drag) drag.moved = true;
  pinch = now;
}, { passive: false });
["touchend", "touchcancel"].forEach((kind) => stage.addEventListener(kind, () => {
  pinch = null;
}));

const ARROWS = { ArrowLeft: [PAN, 0], ArrowRight: [-PAN, 0], ArrowUp: [0, PAN], ArrowDown: [0, -PAN] };
figure.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return; // the browser's own zoom
  if (event.key === "+" || event.key === "=") zoomAt(STEP);
  else if (event.key === "-") zoomAt(1 / STEP);
  else if (event.key === "0") reset();
  else if (ARROWS[event.key] && view.scale > 1) pan(...ARROWS[event.key]);
  else return;
  event.preventDefault();
});
byId("zoom-in").addEventListener("click", () => zoomAt(STEP));
byId("zoom-out").addEventListener("click", () => zoomAt(1 / STEP));
byId("zoom-reset").addEventListener("click", reset);

onChange(() => {
  if (state.image === shownImage) return;
  shownImage = state.image;
  reset();
});
