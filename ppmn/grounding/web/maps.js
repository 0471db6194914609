// From response maps to masks: decode the wire format, upsample, threshold. ppmn/grounding/maps.py does the same in Python.
// A geometry is {map_size: [rows, columns], content_size: [rows, columns]}, a size is {width, height} in pixels.

// Responses of a map, row by row, from its 8-bit form.
export function decodeMap({ low, high, data }) {
  return Float32Array.from(atob(data), (byte) => low + ((high - low) * byte.charCodeAt(0)) / 255);
}

// For each pixel along an axis: the two map cells that it lies between, and the weight of the second.
function axis(length, content, cells) {
  const before = new Int32Array(length);
  const after = new Int32Array(length);
  const weight = new Float32Array(length);
  for (let i = 0; i < length; i++) {
    const position = Math.min(Math.max(((i + 0.5) * content) / length - 0.5, 0), cells - 1);
    before[i] = Math.floor(position);
    after[i] = Math.min(before[i] + 1, cells - 1);
    weight[i] = position - before[i];
  }
  return { before, after, weight };
}

function axes({ map_size, content_size }, { width, height }) {
  return { y: axis(height, content_size[0], map_size[0]), x: axis(width, content_size[1], map_size[1]) };
}

// Call visit(response, row, column) for every pixel of a box; bilinear between the centres of cells.
export function upsample(map, geometry, size, box, visit) {
  const columns = geometry.map_size[1];
  const { y, x } = axes(geometry, size);
  const line = new Float32Array(columns);
  for (let i = box.y; i < box.y + box.height; i++) {
    const above = y.before[i] * columns;
    const below = y.after[i] * columns;
    for (let j = 0; j < columns; j++) line[j] = map[above + j] * (1 - y.weight[i]) + map[below + j] * y.weight[i];
    for (let j = box.x; j < box.x + box.width; j++) {
      visit(line[x.before[j]] * (1 - x.weight[j]) + line[x.after[j]] * x.weight[j], i, j);
    }
  }
}

// The pixels that cells above the threshold can reach, as a box.
function reach(map, geometry, size, threshold) {
  const columns = geometry.map_size[1];
  let [top, left, bottom, right] = [Infinity, Infinity, -1, -1];
  map.forEach((response, index) => {
    if (response <= threshold) return;
    const row = Math.floor(index / columns);
    const column = index % columns;
    top = Math.min(top, row);
    bottom = Math.max(bottom, row);
    left = Math.min(left, column);
    right = Math.max(right, column);
  });
  if (bottom < 0) return { x: 0, y: 0, width: 0, height: 0 };
  const { y, x } = axes(geometry, size);
  const first = ({ after }, cell) => after.filter((other) => other < cell).length;
  const end = ({ before }, cell) => before.filter((other) => other <= cell).length;
  const box = { x: first(x, left), y: first(y, top) };
  return { ...box, width: end(x, right) - box.x, height: end(y, bottom) - box.y };
}

// A mask in its box: pixels are 0 outside, 1 inside, 2 on the outline; the score is the mean response inside.
export function maskOf(map, geometry, size, threshold) {
  const box = reach(map, geometry, size, threshold);
  const pixels = new Uint8Array(box.width * box.height);
  let area = 0;
  let total = 0;
  upsample(map, geometry, size, box, (response, i, j) => {
    if (response <= threshold) return;
    pixels[(i - box.y) * box.width + j - box.x] = 1;
    area += 1;
    total += response;
  });
  const mask = { ...box, pixels, area, score: area ? total / area : 0 };
  markOutline(mask, Math.max(1, Math.round(Math.max(size.width, size.height) / 500)));
  return mask;
}

function markOutline(mask, thickness) {
  const { x, y, width, height, pixels } = mask;
  for (let i = y; i < y + height; i++) {
    for (let j = x; j < x + width; j++) {
      if (!covers(mask, j, i)) continue;
      const inner = covers(mask, j - thickness, i) && covers(mask, j + thickness, i) &&
        covers(mask, j, i - thickness) && covers(mask, j, i + thickness);
      if (!inner) pixels[(i - y) * width + j - x] = 2;
    }
  }
}

export function covers(mask, x, y) {
  return x >= mask.x && y >= mask.y && x < mask.x + mask.width && y < mask.y + mask.height &&
    mask.pixels[(y - mask.y) * mask.width + x - mask.x] > 0;
}

const EQUAL = 0.9; // IoU above which masks hide each other

function iou(one, other) {
  if (Math.min(one.area, other.area) < EQUAL * Math.max(one.area, other.area)) return 0; // it cannot be higher
  let both = 0;
  for (let i = one.y; i < one.y + one.height; i++)
    for (let j = one.x; j < one.x + one.width; j++) both += covers(one, j, i) && covers(other, j, i);
  return both / (one.area + other.area - both);
}

// Numbers of masks in groups: those that would hide each other are in the same group.
export function groupEqual(masks, numbers) {
  const groups = [];
  numbers.forEach((number) => {
    const group = groups.find(([first]) => iou(masks[first], masks[number]) > EQUAL);
    if (group) group.push(number);
    else groups.push([number]);
  });
  return groups;
}

// Paint masks over what is in the ImageData, each in its color; where they overlap, in stripes of their colors.
export function tint(image, masks, colors, opacity, outline) {
  const inner = Math.round(255 * opacity);
  const stripe = Math.max(4, Math.round(Math.max(image.width, image.height) / 80));
  masks.forEach((mask, number) => {
    for (let y = mask.y; y < mask.y + mask.height; y++) {
      for (let x = mask.x; x < mask.x + mask.width; x++) {
        const kind = mask.pixels[(y - mask.y) * mask.width + x - mask.x];
        if (!kind) continue;
        const turn = Math.floor((x + y) / stripe) % masks.length;
        if (turn !== number && covers(masks[turn], x, y)) continue;
        const at = (y * image.width + x) * 4;
        for (let channel = 0; channel < 3; channel++) image.data[at + channel] = colors[number][channel];
        image.data[at + 3] = kind === 2 && outline ? 255 : inner;
      }
    }
  });
}

// Paint the outlines of masks over what is in the ImageData: the objects of one phrase.
export function outline(image, masks, color) {
  masks.forEach((mask) => {
    mask.pixels.forEach((kind, index) => {
      if (kind !== 2) return;
      const at = ((mask.y + Math.floor(index / mask.width)) * image.width + mask.x + (index % mask.width)) * 4;
      image.data.set([...color, 255], at);
    });
  });
}

// Where a label goes: the cell inside the mask with the highest responses around it, in fractions of the image.
export function labelPoint(map, { map_size: [rows, columns], content_size }, { width, height }, mask) {
  const [contentRows, contentColumns] = content_size;
  const radius = Math.max(1, Math.round(Math.min(contentRows, contentColumns) / 10));
  let highest = -1;
  let point = [0.5, 0.5];
  for (let y = 0; y < Math.max(1, Math.floor(contentRows)); y++) {
    for (let x = 0; x < Math.max(1, Math.floor(contentColumns)); x++) {
      const u = Math.min((x + 0.5) / contentColumns, 1);
      const v = Math.min((y + 0.5) / contentRows, 1);
      if (!covers(mask, Math.floor(u * width), Math.floor(v * height))) continue;
      let sum = 0;
      for (let i = Math.max(0, y - radius); i <= Math.min(rows - 1, y + radius); i++)
        for (let j = Math.max(0, x - radius); j <= Math.min(columns - 1, x + radius); j++) sum += map[i * columns + j];
      if (sum > highest) [highest, point] = [sum, [u, v]];
    }
  }
  return point;
}

// "#56B4E9" as [86, 180, 233].
export const rgb = (code) => [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16));
