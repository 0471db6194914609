// A link holds the caption, the settings and the id of the photo in its fragment, which browsers do not send to servers.
// The id opens the photo on the same server only, as long as it is in the server's cache.
import { byId, showStatus } from "./status.js";
import { isPassing, onChange, state } from "./state.js";

const formatSpans = (spans) => spans.map(([start, end]) => `${start}-${end}`).join(",");
const parseSpans = (text, length) => (text || "").split(",").map((pair) => pair.split("-").map(Number))
  .filter(([start, end]) => Number.isInteger(start) && Number.isInteger(end) && start < end && end <= length);
const parseFraction = (text, fallback) => (text !== null && Number(text) >= 0 && Number(text) <= 1 ? Number(text) : fallback);

function fragment() {
  const { text, threshold, opacity, outline, view, spans, image } = state;
  const fields = { caption: text, threshold, opacity, outline: Number(outline), view };
  if (state.round !== null) fields.round = state.round;
  if (spans.added.length) fields.added = formatSpans(spans.added);
  if (spans.removed.length) fields.removed = formatSpans(spans.removed);
  if (image?.sample != null) fields.sample = state.about.samples[image.sample].name;
  else if (image?.id) fields.image = image.id;
  return `#${new URLSearchParams(fields)}`;
}

// Take the settings from the address; returns the caption, its edits, the number of the sample (-1 if there is none) and
// the id of the image (null if there is none).
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
  const image = fields.get("image");
  return { caption, added, removed, sample, image: /^[0-9a-f]{32}$/.test(image) ? image : null };
}

const CONTENT = "It holds the caption and the settings, and opens the photo as long as this server keeps it.";
let timer = 0;
onChange((what) => {
  if (isPassing(what)) return;
  clearTimeout(timer);
  timer = setTimeout(() => history.replaceState(null, "", fragment()), 150);
});

byId("link").addEventListener("click", async () => {
  history.replaceState(null, "", fragment());
  try {
    await navigator.clipboard.writeText(location.href);
    showStatus(`The link is copied. ${CONTENT}`);
  } catch {
    showStatus(`The link is the address of this page. ${CONTENT}`);
  }
});
