// The line that says what happens. While something runs its progress is shown; other sentences wait until it ends.
export const byId = (id) => document.getElementById(id);

const running = []; // sentences, the last started last
let message = { sentence: "", kind: "" };

function show() {
  const { sentence, kind } = running.length ? { sentence: running.at(-1).sentence, kind: "busy" } : message;
  const line = byId("status");
  if (line.textContent !== sentence) line.textContent = sentence;
  line.className = kind;
}

export function showStatus(sentence, kind = "") {
  message = { sentence, kind };
  show();
}

export const showError = (error) => showStatus(error.message, "bad");

// The result of `work`; the sentence is shown until it ends.
export async function withProgress(sentence, work) {
  const task = { sentence };
  running.push(task);
  message = { sentence: "", kind: "" };
  show();
  try {
    return await work();
  } finally {
    running.splice(running.indexOf(task), 1);
    show();
  }
}
