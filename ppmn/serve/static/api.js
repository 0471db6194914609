// Requests to the server: the token, busy answers tried again, errors as sentences.
import { byId, say } from "./state.js";

const given = new URLSearchParams(location.search).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname + location.hash); // so that no copied link carries it
}

export class Problem extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

function askToken() {
  const dialog = byId("ask");
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    sessionStorage.setItem("token", byId("token").value);
    done();
  }, { once: true }));
}

export async function ask(path, options = {}, tries = 8) {
  const token = sessionStorage.getItem("token");
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401 && byId("ask")) {
    await askToken();
    return ask(path, options, tries);
  }
  if (answer.status === 503 && tries > 1) {
    const seconds = Number(answer.headers.get("Retry-After")) || 1;
    say(`The server is busy; trying again in ${seconds} s …`, "busy");
    await pause(seconds);
    return ask(path, options, tries - 1);
  }
  const told = await answer.json().catch(() => ({}));
  const sentence = told.error || `The server answered ${answer.status}.`;
  throw new Problem(answer.status, sentence[0].toUpperCase() + sentence.slice(1) + (/[.!?]$/.test(sentence) ? "" : "."));
}

export const post = (path, body, signal) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
