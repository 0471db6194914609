// Requests to the server: the token, retries when it is busy, errors as sentences.
import { byId, withProgress } from "./status.js";

const tokenInAddress = new URLSearchParams(location.search).get("token");
if (tokenInAddress) {
  sessionStorage.setItem("token", tokenInAddress);
  history.replaceState(null, "", location.pathname + location.hash); // so that copied links do not carry the token
}

export class RequestError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

function askForToken() {
  const dialog = byId("token-dialog");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    sessionStorage.setItem("token", byId("token").value);
    resolve();
  }, { once: true }));
}

async function send(path, options) {
  const token = sessionStorage.getItem("token");
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The server does not respond.");
  }
}

async function errorOf(response) {
  const { error } = await response.json().catch(() => ({}));
  const sentence = error || `The server returned status ${response.status}.`;
  const stop = /[.!?]$/.test(sentence) ? "" : ".";
  return new RequestError(response.status, sentence[0].toUpperCase() + sentence.slice(1) + stop);
}

export async function request(path, options = {}, attempts = 8) {
  const response = await send(path, options);
  if (response.ok) return response;
  if (response.status === 401 && byId("token-dialog")) {
    await askForToken();
    return request(path, options, attempts);
  }
  if (response.status === 503 && attempts > 1) {
    const seconds = Number(response.headers.get("Retry-After")) || 1;
    await withProgress(`The server is busy; trying again in ${seconds} s …`, () => sleep(seconds));
    return request(path, options, attempts - 1);
  }
  throw await errorOf(response);
}

export const post = (path, body, signal) =>
  request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
