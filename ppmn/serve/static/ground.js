// Photo in, look; caption in, grounding: what is asked of the server, and what becomes of the answer.
import { ask, post } from "./api.js";
import { byId, changed, done, say, state } from "./state.js";
import { plain, settled } from "./caption.js";
import { unpack } from "./masks.js";
import { place } from "./stage.js";

// What a caption is grounded with: the text without brackets and the phrases as the page has them.
export const request = ({ caption, spans }) => ({ caption, spans, masks: false });

async function send(file) {
  const form = new FormData();
  form.append("photo", file, "photo");
  return (await ask("/api/looks", { method: "POST", body: form })).json();
}

export async function open(file, sample = null) {
  const most = state.about.limits.upload;
  if (file.size > most * 1e6) return say(`The photo has ${(file.size / 1e6).toFixed(1)} MB; the most is ${most}.`, "bad");
  say("Looking at the photo …", "busy");
  try {
    await show({ ...(await send(file)), file, sample });
    done();
  } catch (error) {
    say(error.message, "bad");
  }
}

// A photo that the server still keeps, after this page was loaded again.
export async function reopen(id) {
  const answer = await ask(`/api/looks/${id}`).catch(() => null);
  if (answer) await show({ ...(await answer.json()), file: null, sample: null });
}

async function show(photo) {
  const shown = await (await ask(`/api/looks/${photo.id}/photo`)).blob();
  state.photo = photo;
  state.grounding = null;
  state.phrases.forEach((phrase) => delete phrase.seen);
  [state.lit, state.held] = [[], []];
  sessionStorage.setItem("look", photo.id);
  await place(URL.createObjectURL(shown));
  byId("controls").hidden = byId("downloads").hidden = true;
  changed("photo");
}

// Where the server has let the photo go, it is sent once more.
export async function onLook(path, body) {
  try {
    return await post(`/api/looks/${state.photo.id}/${path}`, body);
  } catch (error) {
    if (error.status !== 404 || !state.photo.file) throw error;
    state.photo = { ...state.photo, ...(await send(state.photo.file)) };
    return post(`/api/looks/${state.photo.id}/${path}`, body);
  }
}

export async function ground() {
  if (!state.photo) return say("There is no photo yet: drop, paste or choose one.", "bad");
  if (!state.text.trim()) return say("There is no narrative yet: write what is on the photo.", "bad");
  byId("ground").disabled = true;
  say("Grounding …", "busy");
  try {
    await settled();
    if (!state.phrases.length) return say("No phrase is found: select words to mark one.", "bad");
    const asked = { caption: plain(state.text), spans: state.phrases.map((p) => p.span), text: state.text };
    const phrases = [...state.phrases];
    const answer = await (await onLook("ground", request(asked))).json();
    phrases.forEach((phrase, index) => {
      const { map, score, area, box } = answer.phrases[index];
      phrase.seen = { index, map: unpack(map), score, area, box };
    });
    state.grounding = { ...asked, threshold: answer.threshold };
    byId("controls").hidden = byId("downloads").hidden = false;
    changed("grounding");
    say(`${phrases.length} ${phrases.length === 1 ? "phrase" : "phrases"} grounded.`);
  } catch (error) {
    say(error.message, "bad");
  } finally {
    byId("ground").disabled = false;
  }
}
