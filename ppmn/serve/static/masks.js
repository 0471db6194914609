// From 8-bit maps at the network's stride to masks: the same bilinear step that the server takes.

export function unpack(map) {
  const bytes = Uint8Array.from(atob(map.data), (letter) => letter.charCodeAt(0));
  return { bytes, low: map.low, high: map.high };
}

// Of each pixel along an axis the two cells it lies between and how far it is from the first.
export function taps(size, covered, cells) {
  const before = new Int32Array(size), after = new Int32Array(size), part = new Float32Array(size);
  for (let i = 0; i < size; i++) {
    const at = Math.min(Math.max((i + 0.5) * covered / size - 0.5, 0), cells - 1);
    before[i] = Math.floor(at);
    after[i] = Math.min(before[i] + 1, cells - 1);
    part[i] = at - before[i];
  }
  return { before, after, part };
}

const first = (axis, cell) => { const at = axis.after.findIndex((a) => a >= cell); return at < 0 ? axis.after.length : at; };
const last = (axis, cell) => { const at = axis.before.findIndex((b) => b > cell); return at < 0 ? axis.before.length : at; };

// A row of the map between two rows of cells.
function between(bytes, columns, above, below, part, row) {
  for (let x = 0; x < columns; x++) row[x] = bytes[above * columns + x] * (1 - part) + bytes[below * columns + x] * part;
}

// The box of cells above the cut, in pixels.
function reach(bytes, [rows, columns], cut, y, x) {
  let top = rows, bottom = -1, left = columns, right = -1;
  for (let i = 0; i < bytes.length; i++) {
    if (bytes[i] <= cut) continue;
    const row = Math.floor(i / columns), column = i % columns;
    if (row < top) top = row;
    if (row > bottom) bottom = row;
    if (column < left) left = column;
    if (column > right) right = column;
  }
  if (bottom < 0) return { x: 0, y: 0, width: 0, height: 0 };
  const box = { x: first(x, left), y: first(y, top) };
  return { ...box, width: last(x, right) - box.x, height: last(y, bottom) - box.y };
}

// 1 inside, 2 at the edge; `area` in pixels, `score` the mean response inside.
export function maskOf({ bytes, low, high }, { grid, covered }, width, height, threshold) {
  const y = taps(height, covered[0], grid[0]), x = taps(width, covered[1], grid[1]);
  const range = high - low, cut = range > 0 ? (threshold - low) / range * 255 : low > threshold ? -1 : 255;
  const box = reach(bytes, grid, cut, y, x), pixels = new Uint8Array(box.width * box.height), row = new Float32Array(grid[1]);
  let area = 0, total = 0;
  for (let i = 0; i < box.height; i++) {
    between(bytes, grid[1], y.before[box.y + i], y.after[box.y + i], y.part[box.y + i], row);
    for (let j = 0; j < box.width; j++) {
      const at = box.x + j, value = row[x.before[at]] * (1 - x.part[at]) + row[x.after[at]] * x.part[at];
      if (value <= cut) continue;
      pixels[i * box.width + j] = 1;
      area++;
      total += value;
    }
  }
  return { ...box, pixels: edged(pixels, box, Math.max(1, Math.round(Math.max(width, height) / 500))), area,
    score: area ? low + range * total / area / 255 : 0 };
}

function edged(pixels, { width, height }, thick) {
  const inside = (i, j) => i >= 0 && j >= 0 && i < height && j < width && pixels[i * width + j];
  for (let i = 0; i < height; i++) for (let j = 0; j < width; j++) {
    if (!pixels[i * width + j]) continue;
    if (!inside(i - thick, j) || !inside(i + thick, j) || !inside(i, j - thick) || !inside(i, j + thick)) pixels[i * width + j] = 2;
  }
  return pixels;
}

export const covers = (mask, x, y) =>
  x >= mask.x && y >= mask.y && x < mask.x + mask.width && y < mask.y + mask.height &&
  mask.pixels[(y - mask.y) * mask.width + x - mask.x] > 0;

export function tint(image, mask, [r, g, b], opacity, outline) {
  const within = Math.round(255 * opacity);
  for (let i = 0; i < mask.height; i++) for (let j = 0, at = ((mask.y + i) * image.width + mask.x) * 4; j < mask.width; j++, at += 4) {
    const kind = mask.pixels[i * mask.width + j];
    if (!kind) continue;
    image.data[at] = r;
    image.data[at + 1] = g;
    image.data[at + 2] = b;
    image.data[at + 3] = kind === 2 && outline ? 255 : within;
  }
}

// Where a label stands: the cell of the mask whose surroundings respond most, as shares of the photo.
export function peak({ bytes }, { grid: [rows, columns], covered }, mask, width, height) {
  const reachOf = Math.max(1, Math.round(Math.min(...covered) / 10));
  let best = -1, found = [0.5, 0.5];
  for (let y = 0; y < Math.max(1, Math.floor(covered[0])); y++) for (let x = 0; x < Math.max(1, Math.floor(covered[1])); x++) {
    const u = Math.min((x + 0.5) / covered[1], 1), v = Math.min((y + 0.5) / covered[0], 1);
    if (!covers(mask, Math.floor(u * width), Math.floor(v * height))) continue;
    let sum = 0;
    for (let i = Math.max(0, y - reachOf); i <= Math.min(rows - 1, y + reachOf); i++)
      for (let j = Math.max(0, x - reachOf); j <= Math.min(columns - 1, x + reachOf); j++) sum += bytes[i * columns + j];
    if (sum > best) [best, found] = [sum, [u, v]];
  }
  return found;
}
