// The link carries the caption and the settings in its fragment, which no server sees.
import { edits } from "./caption.js";
import { byId, onChange, say, state } from "./state.js";

const spans = (list) => list.map(([start, end]) => `${start}-${end}`).join(",");
const parsed = (text, most) => (text || "").split(",").map((pair) => pair.split("-").map(Number))
  .filter(([start, end]) => Number.isInteger(start) && Number.isInteger(end) && start < end && end <= most);
const share = (text, otherwise) => (text !== null && Number(text) >= 0 && Number(text) <= 1 ? Number(text) : otherwise);

export function fragment() {
  const fields = { caption: state.text, threshold: state.threshold, opacity: state.opacity, outline: Number(state.outline), view: state.view };
  if (state.round !== null) fields.round = state.round;
  if (edits.added.length) fields.added = spans(edits.added);
  if (edits.removed.length) fields.removed = spans(edits.removed);
  if (state.photo?.sample != null) fields.sample = state.about.samples[state.photo.sample].name;
  return `#${new URLSearchParams(fields)}`;
}

export function read() {
  const fields = new URLSearchParams(location.hash.slice(1)), round = fields.get("round");
  state.threshold = share(fields.get("threshold"), state.about.threshold);
  state.opacity = share(fields.get("opacity"), state.about.opacity);
  state.outline = fields.get("outline") !== "0";
  state.view = fields.get("view") === "rounds" ? "rounds" : "masks";
  state.round = round !== null && /^\d+$/.test(round) ? Number(round) : null;
  const sample = state.about.samples.findIndex(({ name }) => name === fields.get("sample"));
  const caption = fields.get("caption") || "", most = Array.from(caption).length;
  return { caption, added: parsed(fields.get("added"), most), removed: parsed(fields.get("removed"), most), sample };
}

let timer = 0;
onChange((what) => {
  if (what === "lit") return;
  clearTimeout(timer);
  timer = setTimeout(() => history.replaceState(null, "", fragment()), 150);
});

byId("link").addEventListener("click", async () => {
  history.replaceState(null, "", fragment());
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied. It holds the narrative and the settings, not your photo.");
  } catch {
    say("The address of this page is the link.");
  }
});
