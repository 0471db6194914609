// Spans of a caption, [start, end] in characters: with and without brackets, before and after an edit.

const isBracket = (character) => character === "[" || character === "]";

export const withoutBrackets = (text) => text.replace(/[[\]]/g, "");

// Convert spans between the text with brackets (raw) and the text without (plain).
export function plainSpans(text) {
  const rawOf = [];
  const plainOf = [0];
  Array.from(text).forEach((character, index) => {
    if (!isBracket(character)) rawOf.push(index);
    plainOf.push(rawOf.length);
  });
  return {
    toRaw: ([start, end]) => [rawOf[start], rawOf[end - 1] + 1],
    toPlain: ([start, end]) => [plainOf[start], plainOf[end]],
  };
}

// A function for flatMap that moves spans after an edit of the text, and drops those that the edit touched.
export function moveSpans(before, after) {
  const [old, now] = [Array.from(before), Array.from(after)];
  const shorter = Math.min(old.length, now.length);
  const shift = now.length - old.length;
  let head = 0;
  let tail = 0;
  while (head < shorter && old[head] === now[head]) head++;
  while (tail < shorter - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail++;
  return ([start, end]) => {
    if (end <= head) return [[start, end]];
    return start >= old.length - tail ? [[start + shift, end + shift]] : [];
  };
}
