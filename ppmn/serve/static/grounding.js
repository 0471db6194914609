// Ground the caption on the image, and keep the answer with the phrases it belongs to.
import { phrasesFound } from "./caption.js";
import { postForImage } from "./images.js";
import { decodeMap } from "./maps.js";
import { moveSpans, withoutBrackets } from "./spans.js";
import { showError, showStatus, withProgress } from "./status.js";
import { isWithheld, notify, onChange, state } from "./state.js";

let asked = { image: null, controller: new AbortController() }; // the last request

// The request for a grounding: the caption without brackets, and the phrases of the page.
export const groundRequest = ({ caption, spans }) => ({ caption, spans, masks: false });

async function groundPhrases(image, signal) {
  const { text, phrases } = state;
  const details = { text, caption: withoutBrackets(text), spans: phrases.map((phrase) => phrase.span) };
  const answer = await (await postForImage(image, "ground", groundRequest(details), signal)).json();
  if (signal.aborted || state.image !== image) return;
  takeResults(phrases, text, answer);
  state.grounding = { ...details, threshold: answer.threshold, warnings: answer.warnings };
  notify("grounding");
  showStatus(summary());
}

// The caption may have been edited meanwhile: phrases that are still there get their results.
function takeResults(phrases, text, answer) {
  const move = moveSpans(text, state.text);
  state.phrases.forEach((phrase) => delete phrase.result);
  phrases.forEach(({ start, end }, index) => {
    const [moved] = move([start, end]);
    const phrase = moved && state.phrases.find((other) => other.start === moved[0] && other.end === moved[1]);
    if (!phrase) return;
    const { map, presence, absent, foreign, score, instances } = answer.phrases[index];
    const objects = instances.map((found) => decodeMap(found.map));
    phrase.result = { index, presence, absent, foreign, score, map: decodeMap(map), objects };
    if (!phrase.chosen) phrase.hidden = isWithheld(phrase.result);
  });
}

function summary() {
  const results = state.phrases.flatMap(({ result }) => (result ? [result] : []));
  const absent = results.filter((result) => result.absent).length;
  const foreign = results.some((result) => result.foreign);
  const found = results.filter((result) => result.mask.area && !isWithheld(result)).length;
  const phrases = results.length === 1 ? "phrase" : "phrases";
  if (foreign) return `Found 0 of ${results.length} ${phrases}: the caption seems not to be English.`;
  const rest = absent ? ` ${absent} ${absent === 1 ? "is" : "are"} probably not in the image.` : "";
  return `Found ${found} of ${results.length} ${phrases}.${rest}`;
}

export async function find() {
  const { image, text } = state;
  if (!image) return showStatus("There is no photo yet: choose one.", "bad");
  if (!text.trim()) return showStatus("There is no caption yet: describe the photo.", "bad");
  asked.controller.abort();
  asked = { image, controller: new AbortController() };
  const { signal } = asked.controller;
  try {
    await withProgress("Finding the phrases …", async () => {
      await Promise.all([image.ready, phrasesFound()]);
      if (signal.aborted || state.image !== image) return;
      if (state.phrases.length) await groundPhrases(image, signal);
      else showStatus("No noun phrase was found: select words to mark one.", "bad");
    });
  } catch (error) {
    if (!signal.aborted && state.image === image) showError(error);
  }
}

onChange(() => {
  if (state.image !== asked.image) asked.controller.abort(); // nobody waits for the answer
});
