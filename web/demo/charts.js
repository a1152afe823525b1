// The table and chart parts of the page.
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["var(--first)", "var(--second)", "var(--third)"];
const HISTORY_MAX = 600;
/** In pixels: the picture is as wide as its place, so that its text has the size of the page's. */
const HEIGHT = 180;
const LEFT = 72;
const BOTTOM = HEIGHT - 22;
const TOP = 12;

/** Bytes with a unit. */
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let value = bytes;
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${value.toFixed(unit === 0 ? 0 : 1)} ${units[unit]}`;
}

/** Replaces the rows of a table. A cell is a text, or a number of bytes as `{ bytes }`. Narrow pages show a row as a list with the column's name. */
export function fill(table, rows) {
  const columns = [...table.tHead.rows[0].cells].map(({ textContent }) => textContent);
  const cell = (content, index) => {
    const element = document.createElement(index === 0 && table.id === "results" ? "th" : "td");
    if (element.tagName === "TH") element.scope = "row";
    const isNumber = typeof content !== "string";
    element.dataset.column = columns[index];
    element.className = isNumber ? "number" : index === 0 ? "name" : "";
    element.textContent = isNumber ? (typeof content === "number" ? content.toLocaleString() : size(content.bytes)) : content;
    return element;
  };
  const body = table.tBodies[0];
  body.replaceChildren(
    ...rows.map((row) => {
      const line = document.createElement("tr");
      line.append(...row.map(cell));
      return line;
    }),
  );
}

/** Lines of memory over time, one for each device. */
export class History {
  #samples = [];

  constructor(svg, legend) {
    this.svg = svg;
    this.legend = legend;
  }

  /** Adds the bytes of each device by name. */
  add(bytes) {
    this.#samples.push({ at: performance.now(), bytes });
    if (this.#samples.length > HISTORY_MAX) this.#samples.shift();
    this.#draw();
  }

  #draw() {
    const names = [...new Set(this.#samples.flatMap(({ bytes }) => Object.keys(bytes)))];
    const most = Math.max(1024, ...this.#samples.flatMap(({ bytes }) => Object.values(bytes)));
    const [first, last] = [this.#samples[0].at, this.#samples.at(-1).at];
    const width = Math.max(240, this.svg.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const right = width - 8;
    const x = (at) => LEFT + ((at - first) / Math.max(1, last - first)) * (right - LEFT);
    const y = (bytes) => BOTTOM - (bytes / most) * (BOTTOM - TOP);
    const lines = names.map((name, index) => {
      const points = this.#samples.map(({ at, bytes }) => `${x(at).toFixed(1)},${y(bytes[name] ?? 0).toFixed(1)}`);
      return element("polyline", { points: points.join(" "), stroke: COLOURS[index % COLOURS.length] });
    });
    const ticks = [0, 0.5, 1].flatMap((part) => [
      element("line", { class: "grid", x1: LEFT, x2: right, y1: y(most * part), y2: y(most * part) }),
      element("text", { x: LEFT - 6, y: y(most * part) + 4, "text-anchor": "end" }, size(most * part)),
    ]);
    const time = element("text", { x: right, y: HEIGHT - 5, "text-anchor": "end" }, `${((last - first) / 1000).toFixed(0)} s`);
    this.svg.replaceChildren(...ticks, ...lines, time, element("text", { x: LEFT, y: HEIGHT - 5 }, "0 s"));
    this.legend.replaceChildren(...names.map((name, index) => key(index, name)));
  }
}

function element(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function key(index, name) {
  const entry = document.createElement("span");
  entry.className = "entry";
  const square = document.createElement("span");
  square.className = "key";
  square.style.background = COLOURS[index % COLOURS.length];
  entry.append(square, name);
  return entry;
}
