// The table and chart parts of the page.
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["var(--first)", "var(--second)", "var(--third)"];
const HISTORY_MAX = 600;

/** Bytes with a unit. */
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let value = bytes;
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${value.toFixed(unit === 0 ? 0 : 1)} ${units[unit]}`;
}

/** Replaces the rows of a table. A cell is a text, or a number of bytes as `{ bytes }`. */
export function fill(table, rows) {
  const cell = (content, index) => {
    const element = document.createElement(index === 0 && table.id === "results" ? "th" : "td");
    if (element.tagName === "TH") element.scope = "row";
    const isNumber = typeof content !== "string";
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
    const x = (at) => 60 + ((at - first) / Math.max(1, last - first)) * 530;
    const y = (bytes) => 140 - (bytes / most) * 125;
    const lines = names.map((name, index) => {
      const points = this.#samples.map(({ at, bytes }) => `${x(at).toFixed(1)},${y(bytes[name] ?? 0).toFixed(1)}`);
      return element("polyline", { points: points.join(" "), stroke: COLOURS[index % COLOURS.length] });
    });
    const ticks = [0, 0.5, 1].flatMap((part) => [
      element("line", { class: "grid", x1: 60, x2: 590, y1: y(most * part), y2: y(most * part) }),
      element("text", { x: 55, y: y(most * part) + 4, "text-anchor": "end" }, size(most * part)),
    ]);
    const time = element("text", { x: 590, y: 155, "text-anchor": "end" }, `${((last - first) / 1000).toFixed(0)} s`);
    this.svg.replaceChildren(...ticks, ...lines, time, element("text", { x: 60, y: 155 }, "0 s"));
    this.legend.replaceChildren(...names.flatMap((name, index) => [key(index), name]));
  }
}

function element(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function key(index) {
  const square = document.createElement("span");
  square.className = "key";
  square.style.background = COLOURS[index % COLOURS.length];
  return square;
}
