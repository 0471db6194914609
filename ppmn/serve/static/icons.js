// Small drawings on buttons.
const SPACE = "http://www.w3.org/2000/svg";
const EYE = "M1 8s2.6-4.7 7-4.7S15 8 15 8s-2.6 4.7-7 4.7S1 8 1 8zM8 6a2 2 0 1 0 0 4 2 2 0 0 0 0-4z";
const DRAWINGS = {
  eye: EYE,
  "eye-off": `${EYE}M2.5 13.5l11-11`,
  only: "M2 5V2h3M11 2h3v3M14 11v3h-3M5 14H2v-3M8 6a2 2 0 1 0 0 4 2 2 0 0 0 0-4z",
  remove: "M4 4l8 8M12 4l-8 8",
};

export function icon(name) {
  const drawing = document.createElementNS(SPACE, "svg");
  const path = document.createElementNS(SPACE, "path");
  drawing.setAttribute("viewBox", "0 0 16 16");
  drawing.setAttribute("aria-hidden", "true");
  path.setAttribute("d", DRAWINGS[name]);
  drawing.append(path);
  return drawing;
}
