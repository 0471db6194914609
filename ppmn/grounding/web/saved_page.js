// The saved page; page.py puts maps.js and labels.js before this script.

const data = JSON.parse(document.getElementById("data").textContent);
const [figure, image, canvas, caption, list] =
  ["figure", "image", "masks", "caption", "list"].map((id) => document.getElementById(id));
const painter = canvas.getContext("2d");
const colorOf = (number) => data.palette[(data.numbers[number] - 1) % data.palette.length];
image.src = data.image;
image.alt = data.caption;
[image.width, image.height] = [canvas.width, canvas.height] = [data.width, data.height];

const maps = data.phrases.map((phrase) => decodeMap(phrase.map));
const masks = maps.map((map, number) => maskOf(map, data, data, data.phrases[number].threshold));
const objects = data.phrases.map(({ instances, threshold }) => instances.map((map) => maskOf(decodeMap(map), data, data, threshold)));
const order = masks.map((_, number) => number).sort((a, b) => masks[b].area - masks[a].area); // large masks below
let allMasks = null; // painted once
let pinned = [];

function paint(highlighted) {
  const layer = painter.createImageData(data.width, data.height);
  if (highlighted.length) for (let at = 3; at < layer.data.length; at += 4) layer.data[at] = 165;
  const shown = order.filter((number) => !highlighted.length || highlighted.includes(number));
  groupEqual(masks, shown).forEach((group) => {
    const colors = group.map((number) => rgb(colorOf(number)));
    tint(layer, group.map((number) => masks[number]), colors, highlighted.length ? 0.25 : data.opacity, true);
  });
  shown.forEach((number) => outline(layer, objects[number], rgb(colorOf(number))));
  return layer;
}

function show(highlighted) {
  allMasks ??= paint([]);
  painter.putImageData(highlighted.length ? paint(highlighted) : allMasks, 0, 0);
  figure.classList.toggle("highlighting", highlighted.length > 0);
  markHighlighted(document, highlighted);
  spreadLabels([...figure.querySelectorAll(highlighted.length ? ".label.on" : ".label")], figure);
}

function react(target, numbers) {
  target.addEventListener("pointerenter", () => show(numbers));
  target.addEventListener("pointerleave", () => show(pinned));
  target.addEventListener("focus", () => show(numbers));
  target.addEventListener("blur", () => show(pinned));
  target.addEventListener("click", () => {
    pinned = pinned.join() === numbers.join() ? [] : numbers;
    show(pinned.length ? pinned : numbers);
  });
}

function showCaption() {
  const spans = data.phrases.map((phrase) => phrase.span);
  caption.textContent = "";
  captionPieces(data.caption, spans).forEach(({ text, end, numbers }) => {
    if (!numbers.length) return caption.append(text);
    const piece = element("span", { text, numbers, color: colorOf(numbers[0]) });
    piece.tabIndex = 0;
    piece.setAttribute("role", "button");
    numbers.filter((number) => spans[number][1] === end).forEach((number) => piece.append(element("sup", { text: data.numbers[number] })));
    react(piece, numbers);
    caption.append(piece);
  });
}

function showPhrase(phrase, number) {
  const row = document.createElement("li");
  const button = element("button", { numbers: [number], color: colorOf(number) });
  button.append(
    element("span", { className: "number", text: data.numbers[number] }),
    element("span", { text: phrase.text }),
    scoreNote({ ...phrase, calibrated: data.calibrated, count: objects[number].length }),
  );
  react(button, [number]);
  row.append(button);
  list.append(row);
  if (!masks[number].area) return;
  const point = labelPoint(maps[number], data, data, masks[number]);
  figure.append(label(number, phrase.text, point, colorOf(number), data.numbers[number]));
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    pinned = [];
    show(pinned);
  } else if ((event.key === "Enter" || event.key === " ") && event.target.closest("#caption [data-phrases]")) {
    event.preventDefault();
    event.target.click();
  }
});
figure.addEventListener("pointermove", (event) => {
  const area = canvas.getBoundingClientRect();
  const x = Math.floor(((event.clientX - area.left) / area.width) * data.width);
  const y = Math.floor(((event.clientY - area.top) / area.height) * data.height);
  const numbers = masks.flatMap((mask, number) => (covers(mask, x, y) ? [number] : []));
  show(numbers.length ? numbers : pinned);
});
figure.addEventListener("pointerleave", () => show(pinned));

document.getElementById("warnings").textContent = data.warnings.join(" ");
showCaption();
data.phrases.forEach(showPhrase);
show(pinned);
