// Encode an image, then ground captions on it: requests to the server, and what the page does with the results.
import { post, request } from "./api.js";
import { phrasesFound } from "./caption.js";
import { place } from "./figure.js";
import { decodeMap } from "./maps.js";
import { withoutBrackets } from "./spans.js";
import { byId, clearBusy, clearHighlight, notify, showError, showStatus, state } from "./state.js";

// The request for a grounding: the caption without brackets, and the phrases of the page.
export const groundRequest = ({ caption, spans }) => ({ caption, spans, masks: false });

async function upload(file) {
  const form = new FormData();
  form.append("image", file, "image");
  return (await request("/api/images", { method: "POST", body: form })).json();
}

export async function openImage(file, sample = null) {
  const limit = state.about.limits.upload_mb;
  if (file.size > limit * 1e6) {
    return showStatus(`The file has ${(file.size / 1e6).toFixed(1)} MB; the limit is ${limit} MB.`, "bad");
  }
  showStatus("Encoding the photo …", "busy");
  try {
    await showImage({ ...(await upload(file)), file, sample });
    clearBusy();
  } catch (error) {
    showError(error);
  }
}

// After a reload, an image that is still in the server's cache.
export async function reopenImage(id) {
  const response = await request(`/api/images/${id}`).catch(() => null);
  if (response) await showImage({ ...(await response.json()), file: null, sample: null });
}

async function showImage(image) {
  const preview = await (await request(`/api/images/${image.id}/preview`)).blob();
  state.image = image;
  state.grounding = null;
  state.phrases.forEach((phrase) => delete phrase.result);
  clearHighlight();
  sessionStorage.setItem("image", image.id);
  await place(URL.createObjectURL(preview));
  byId("controls").hidden = byId("downloads").hidden = true;
  notify("image");
}

// If the image has left the server's cache, it is sent again.
export async function postForImage(path, body) {
  try {
    return await post(`/api/images/${state.image.id}/${path}`, body);
  } catch (error) {
    if (error.status !== 404 || !state.image.file) throw error;
    state.image = { ...state.image, ...(await upload(state.image.file)) };
    return post(`/api/images/${state.image.id}/${path}`, body);
  }
}

async function groundPhrases(phrases) {
  const details = { caption: withoutBrackets(state.text), spans: phrases.map((phrase) => phrase.span), text: state.text };
  const answer = await (await postForImage("ground", groundRequest(details))).json();
  phrases.forEach((phrase, index) => {
    phrase.result = { index, map: decodeMap(answer.phrases[index].map) };
  });
  state.grounding = { ...details, threshold: answer.threshold };
  byId("controls").hidden = byId("downloads").hidden = false;
  notify("grounding");
  showStatus(`${phrases.length} ${phrases.length === 1 ? "phrase" : "phrases"} grounded.`);
}

export async function ground() {
  if (!state.image) return showStatus("There is no photo yet: drop, paste or choose one.", "bad");
  if (!state.text.trim()) return showStatus("There is no caption yet: describe the photo.", "bad");
  byId("ground").disabled = true;
  showStatus("Grounding …", "busy");
  try {
    await phrasesFound();
    if (state.phrases.length) await groundPhrases([...state.phrases]);
    else showStatus("No noun phrase was found: select words to mark one.", "bad");
  } catch (error) {
    showError(error);
  } finally {
    byId("ground").disabled = false;
  }
}
