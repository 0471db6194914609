// A link holds the caption and the settings in its fragment, which browsers do not send to servers.
import { edits } from "./caption.js";
import { byId, onChange, showStatus, state } from "./state.js";

const formatSpans = (spans) => spans.map(([start, end]) => `${start}-${end}`).join(",");
const parseSpans = (text, length) => (text || "").split(",").map((pair) => pair.split("-").map(Number))
  .filter(([start, end]) => Number.isInteger(start) && Number.isInteger(end) && start < end && end <= length);
const parseFraction = (text, fallback) => (text !== null && Number(text) >= 0 && Number(text) <= 1 ? Number(text) : fallback);

function fragment() {
  const { text, threshold, opacity, outline, view } = state;
  const fields = { caption: text, threshold, opacity, outline: Number(outline), view };
  if (state.round !== null) fields.round = state.round;
  if (edits.added.length) fields.added = formatSpans(edits.added);
  if (edits.removed.length) fields.removed = formatSpans(edits.removed);
  if (state.image?.sample != null) fields.sample = state.about.samples[state.image.sample].name;
  return `#${new URLSearchParams(fields)}`;
}

// Take the settings from the address; returns the caption, its edits and the number of the sample (-1 if there is none).
export function readLink() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const round = fields.get("round");
  state.threshold = parseFraction(fields.get("threshold"), state.about.threshold);
  state.opacity = parseFraction(fields.get("opacity"), state.about.opacity);
  state.outline = fields.get("outline") !== "0";
  state.view = fields.get("view") === "rounds" ? "rounds" : "masks";
  state.round = round !== null && /^\d+$/.test(round) ? Number(round) : null;
  const caption = fields.get("caption") || "";
  const [added, removed] = ["added", "removed"].map((name) => parseSpans(fields.get(name), Array.from(caption).length));
  const sample = state.about.samples.findIndex(({ name }) => name === fields.get("sample"));
  return { caption, added, removed, sample };
}

let timer = 0;
onChange((what) => {
  if (what === "highlight") return;
  clearTimeout(timer);
  timer = setTimeout(() => history.replaceState(null, "", fragment()), 150);
});

byId("link").addEventListener("click", async () => {
  history.replaceState(null, "", fragment());
  try {
    await navigator.clipboard.writeText(location.href);
    showStatus("The link is copied. It holds the caption and the settings, not your photo.");
  } catch {
    showStatus("The link is the address of this page.");
  }
});
