// Images: each is shown at once and encoded by the server meanwhile. Answers belong to the image they were asked for.
import { post, request } from "./api.js";
import { showError, showStatus, withProgress } from "./status.js";
import { clearHighlight, notify, state } from "./state.js";
import { goBack, remember } from "./undo.js";

async function upload(image) {
  const form = new FormData();
  form.append("image", image.file, "image");
  Object.assign(image, await (await request("/api/images", { method: "POST", body: form })).json());
}

async function fetchPreview(image) {
  const preview = await (await request(`/api/images/${image.id}/preview`)).blob();
  image.address = URL.createObjectURL(preview);
}

async function encode(image) {
  await upload(image);
  await fetchPreview(image); // upright and in a format that the browser reads
  if (state.image === image) notify("image");
}

function setImage(image) {
  state.image = image;
  state.grounding = null;
  state.phrases.forEach((phrase) => {
    delete phrase.result;
    phrase.hidden = phrase.chosen = false;
  });
  clearHighlight();
  notify("image");
}

export function openImage(file) {
  return load(file, null, remember("another photo"));
}

// `step` is undone if the server refuses the image; null if there is none.
export async function load(file, sample, step) {
  const limit = state.about.limits.upload_mb;
  if (file.size > limit * 1e6) {
    goBack(step);
    return showStatus(`The file has ${(file.size / 1e6).toFixed(1)} MB; the limit is ${limit} MB.`, "bad");
  }
  const image = { file, sample, address: URL.createObjectURL(file) };
  image.ready = withProgress("Encoding the photo …", () => encode(image));
  setImage(image);
  try {
    await image.ready;
  } catch (error) {
    if (state.image !== image) return;
    if (step) goBack(step);
    else setImage(null);
    showError(error);
  }
}

// An image that is in the server's cache; false if it is not there any more.
export async function reopenImage(id) {
  const response = await request(`/api/images/${id}`).catch(() => null);
  if (!response) return false;
  const image = { ...(await response.json()), file: null, sample: null, ready: Promise.resolve() };
  await fetchPreview(image);
  setImage(image);
  return true;
}

// If the image has left the server's cache, it is sent again.
export async function postForImage(image, path, body, signal) {
  try {
    return await post(`/api/images/${image.id}/${path}`, body, signal);
  } catch (error) {
    if (error.status !== 404 || !image.file) throw error;
    await upload(image);
    return post(`/api/images/${image.id}/${path}`, body, signal);
  }
}
