// The paper's Figure 5: how a phrase responds from round to round, and the pixels the next round looks at.
import { byId, changed, colour, done, onChange, say, shown, state } from "./state.js";
import { post } from "./api.js";
import { taps, unpack } from "./masks.js";
import { request } from "./ground.js";

let asked = null; // the grounding that the rounds were asked for

export const roundOf = (rounds) => Math.min(state.round ?? rounds.length - 1, rounds.length - 1);

// Rounds are asked for when they are first looked at; they belong to the phrases that were grounded.
export async function wantRounds() {
  const { grounding } = state;
  if (!grounding || grounding.rounds || asked === grounding) return;
  asked = grounding;
  say("Asking for the rounds …", "busy");
  try {
    const answer = await (await post(`/api/looks/${state.photo.id}/ground`, { ...request(grounding), rounds: true })).json();
    grounding.rounds = answer.rounds.map(({ maps, pixels }) => ({ maps: maps.map(unpack), pixels }));
    done();
    changed("rounds");
  } catch (error) {
    asked = null;
    say(error.message, "bad");
  }
}

// The phrase that is lit, or the first that was grounded.
function chosen() {
  const lit = shown().find((number) => state.phrases[number]?.seen);
  return lit ?? state.phrases.findIndex((phrase) => phrase.seen);
}

export function paintRound(canvas, photo) {
  const paint = canvas.getContext("2d"), { rounds } = state.grounding || {}, number = chosen();
  paint.clearRect(0, 0, canvas.width, canvas.height);
  byId("told").hidden = !rounds || number < 0;
  if (!rounds || number < 0) return;
  const step = roundOf(rounds), { index } = state.phrases[number].seen, { maps, pixels } = rounds[step];
  paint.filter = "grayscale(1) brightness(.5)";
  paint.drawImage(photo, 0, 0, canvas.width, canvas.height);
  paint.filter = "none";
  paint.drawImage(heat(maps[index], colour(number), canvas.width, canvas.height), 0, 0);
  const points = pixels[index] || [];
  points.forEach(([x, y]) => dot(paint, x * canvas.width / state.photo.width, y * canvas.height / state.photo.height));
  const next = points.length ? ` ${points.length} language-compatible pixels go into round ${step + 1}.` : " This is the last round.";
  byId("told").textContent = `H${step}, the response of “${state.phrases[number].text}” ${step ? `after round ${step}` : "before any round"}.${next}`;
}

function heat({ bytes, low, high }, [r, g, b], width, height) {
  const layer = new OffscreenCanvas(width, height), paint = layer.getContext("2d"), image = paint.createImageData(width, height);
  const { grid, covered } = state.photo, y = taps(height, covered[0], grid[0]), x = taps(width, covered[1], grid[1]);
  const cell = (i, j) => bytes[i * grid[1] + j];
  for (let i = 0, at = 0; i < height; i++) for (let j = 0; j < width; j++, at += 4) {
    const above = cell(y.before[i], x.before[j]) * (1 - x.part[j]) + cell(y.before[i], x.after[j]) * x.part[j];
    const below = cell(y.after[i], x.before[j]) * (1 - x.part[j]) + cell(y.after[i], x.after[j]) * x.part[j];
    const value = low + (high - low) * (above * (1 - y.part[i]) + below * y.part[i]) / 255;
    [image.data[at], image.data[at + 1], image.data[at + 2], image.data[at + 3]] = [r, g, b, 255 * value];
  }
  paint.putImageData(image, 0, 0);
  return layer;
}

function dot(paint, x, y) {
  paint.beginPath();
  paint.arc(x, y, Math.max(2, paint.canvas.width / 280), 0, 7);
  paint.fillStyle = "#fff";
  paint.strokeStyle = "#000";
  paint.lineWidth = 1;
  paint.fill();
  paint.stroke();
}

onChange(() => { if (state.view === "rounds") wantRounds(); });
