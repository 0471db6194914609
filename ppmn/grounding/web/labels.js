// Phrases in the caption and their labels on the image.

// Split a caption where phrases start and end: pieces of text with the numbers of the phrases that hold them.
// Spans count code points, as Python does, not UTF-16 units.
export function captionPieces(caption, spans) {
  const characters = Array.from(caption);
  const cuts = [...new Set([0, characters.length, ...spans.flat()])].sort((a, b) => a - b);
  return cuts.slice(1).map((end, index) => {
    const start = cuts[index];
    const numbers = spans.flatMap((span, number) => (span[0] <= start && end <= span[1] ? [number] : []));
    return { text: characters.slice(start, end).join(""), end, numbers };
  });
}

// An element with a class and a text; one that belongs to phrases gets their numbers and the color of the first.
export function element(name, { className = "", text = "", numbers, color } = {}) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  if (numbers) {
    made.dataset.phrases = numbers.join(" ");
    made.style.setProperty("--color", color);
  }
  return made;
}

// A label: the number of a phrase, and its text while it is highlighted.
export function label(number, text, [x, y], color, shown = number + 1) {
  const made = element("span", { className: "label", text: shown, numbers: [number], color });
  made.append(element("b", { text: ` ${text}` }));
  made.style.left = `${100 * x}%`;
  made.style.top = `${100 * y}%`;
  return made;
}

export function markHighlighted(parent, highlighted) {
  parent.querySelectorAll("[data-phrases]").forEach((item) => {
    const numbers = item.dataset.phrases.split(" ").map(Number);
    item.classList.toggle("on", numbers.some((number) => highlighted.includes(number)));
  });
}

// Keep labels inside the figure and apart from each other: each takes the nearest free place.
export function spreadLabels(labels, figure) {
  const frame = figure.getBoundingClientRect();
  const taken = [];
  labels.slice(0, 200).forEach((item) => {
    [item.style.marginLeft, item.style.marginTop] = ["0", "0"];
    const box = item.getBoundingClientRect();
    const [x, y] = nearestPlace(box, frame, taken);
    item.style.marginLeft = `${x - box.left}px`;
    item.style.marginTop = `${y - box.top}px`;
    taken.push({ x, y, width: box.width, height: box.height });
  });
}

function nearestPlace({ left, top, width, height }, frame, taken) {
  const x = Math.min(Math.max(left, frame.left + 3), frame.right - width - 3);
  const y = Math.min(Math.max(top, frame.top + 3), frame.bottom - height - 3);
  const places = [];
  for (let i = -8; i <= 8; i++) for (let j = -6; j <= 6; j++) places.push([x + j * (width + 2), y + i * (height + 2)]);
  const distance = ([u, v]) => (u - x) ** 2 + (v - y) ** 2;
  const overlaps = (u, v) => (other) =>
    u < other.x + other.width && other.x < u + width && v < other.y + other.height && other.y < v + height;
  const isFree = ([u, v]) =>
    u >= frame.left && v >= frame.top && u + width <= frame.right && v + height <= frame.bottom && !taken.some(overlaps(u, v));
  return places.sort((a, b) => distance(a) - distance(b)).find(isFree) || [x, y];
}

const SCORE_HELP = {
  true: "Score: the IoU that the mask is expected to have with the true one, from 0 to 1.",
  false: "Score: the mean response inside the mask, from 0 to 1. The higher it is, the surer the model is of the mask.",
};
const AREA_HELP = "Area: how much of the image the mask covers.";
const COUNT_HELP = "Objects: each is outlined.";

function explained(text, help, before, after) {
  const made = element("span");
  made.title = help;
  made.append(element("span", { className: "unseen", text: before }), text, element("span", { className: "unseen", text: after }));
  return made;
}

// "3 objects · 0.62 · 12.5 %": how many objects there are, the score, and the fraction of the image that the mask covers; all
// are explained on hover and for screen readers. Or a note why the mask is withheld. A score is null where it
// is not known.
export function scoreNote({ score, calibrated, fraction, presence, absent, foreign, count }) {
  const note = element("span", { className: "score" });
  if (foreign) {
    note.classList.add("absent");
    note.textContent = "not English";
    note.title = "The caption seems not to be English, so its masks cannot be relied on.";
  } else if (absent) {
    note.classList.add("absent");
    note.textContent = "probably not in the image";
    note.title = `The model gives a probability of ${Math.round(100 * presence)} % that it is in the image.`;
  } else if (!fraction) {
    note.textContent = "no mask";
    note.title = "No response is above the threshold.";
  } else {
    if (count > 1) note.append(explained(`${count} objects`, COUNT_HELP, ", ", ""), " · ");
    if (score != null) note.append(explained(score.toFixed(2), SCORE_HELP[Boolean(calibrated)], ", score ", ""), " · ");
    note.append(explained(`${(100 * fraction).toFixed(1)} %`, AREA_HELP, "", " of the image"));
  }
  return note;
}
