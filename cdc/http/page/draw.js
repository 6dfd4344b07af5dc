// Everything drawn: the rivers between the cards, the sparklines, the throughput chart.
import { axis, compact } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

/** The charts grow with what is known, up to this. */
export const SPAN_S = 300;

export function shape(parent, name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

// Rivers

const beds = new Map();

/**
 * links: [{from, to: elements, rate: changes a second, dam: null | "bad" | "warn", beside: whether it is drawn only where they stand beside each other}].
 * The river is as wide as its rate has digits.
 * Where cards stand below each other, one trunk runs down beside them and each gets a branch.
 */
export function rivers(svg, links) {
  const frame = svg.getBoundingClientRect();
  const drawn = new Set();
  const place = (name, course, link) => {
    drawn.add(name);
    river(svg, name, course, link);
  };
  const below = links.filter((link) => !beside(link) && !link.beside);
  for (const link of links.filter(beside)) place(link.from.id + " " + link.to.id, across(link, frame), link);
  const branches = below.filter((link) => link.to.dataset.branch);
  for (const link of below) if (!branches.includes(link)) place(link.from.id + " " + link.to.id, down(link, frame), link);
  if (branches.length) {
    const rail = railOf(branches, frame);
    const open = branches.filter((link) => !link.dam);
    place("trunk", rail.trunk, { rate: Math.max(0, ...open.map((link) => link.rate)), dam: null });
    for (const link of branches) place(link.from.id + " " + link.to.id, rail.branch(link), link);
  }
  for (const [name, parts] of beds) {
    if (drawn.has(name)) continue;
    Object.values(parts).forEach((part) => part.remove());
    beds.delete(name);
  }
}

function river(svg, name, course, { rate, dam }) {
  if (!beds.has(name)) {
    beds.set(name, {
      bed: shape(svg, "path", { class: "bed" }),
      current: shape(svg, "path", { class: "current" }),
      dam: shape(svg, "g", {}),
    });
  }
  const parts = beds.get(name);
  const width = 7 + 3.2 * Math.log10(1 + rate);
  for (const path of [parts.bed, parts.current]) path.setAttribute("d", course.path);
  parts.bed.style.strokeWidth = width + "px";
  parts.current.style.strokeWidth = Math.max(3, width * 0.42) + "px";
  parts.current.setAttribute("class", "current " + (rate >= 0.5 && !dam ? "flows" : "still"));
  const period = Math.max(0.35, 2.2 - 0.42 * Math.log10(1 + rate)).toFixed(1) + "s";
  if (parts.current.style.animationDuration !== period) parts.current.style.animationDuration = period;
  parts.dam.setAttribute("class", "dam " + (dam ?? ""));
  parts.dam.replaceChildren();
  if (!dam) return;
  const { x, y } = course.middle;
  shape(parts.dam, "circle", { cx: x, cy: y, r: 11 });
  for (const turn of [-1, 1]) shape(parts.dam, "line", { x1: x - 4, y1: y - 4 * turn, x2: x + 4, y2: y + 4 * turn });
}

const box = (element) => element.getBoundingClientRect();
const beside = ({ from, to }) => box(to).left >= box(from).right;

function across({ from, to }, frame) {
  const [a, b] = [box(from), box(to)];
  const [x1, y1, x2, y2] = [a.right - frame.left, a.top + a.height / 2 - frame.top, b.left - frame.left, b.top + b.height / 2 - frame.top];
  const x = (x1 + x2) / 2;
  return { path: `M${x1} ${y1}C${x} ${y1} ${x} ${y2} ${x2} ${y2}`, middle: { x, y: (y1 + y2) / 2 } };
}

function down({ from, to }, frame) {
  const [a, b] = [box(from), box(to)];
  const [x1, y1, x2, y2] = [a.left + a.width / 2 - frame.left, a.bottom - frame.top, b.left + b.width / 2 - frame.left, b.top - frame.top];
  return { path: `M${x1} ${y1}L${x2} ${y2}`, middle: { x: (x1 + x2) / 2, y: (y1 + y2) / 2 } };
}

function railOf(branches, frame) {
  const source = box(branches[0].from);
  const cards = branches.map(({ to }) => box(to));
  const left = cards[0].left - frame.left;
  const x = left - 26;
  const [x1, y1] = [source.left - frame.left + Math.min(60, source.width / 2), source.bottom - frame.top];
  const turn = Math.min(20, (cards[0].top - frame.top - y1) / 2);
  const last = cards.at(-1).top + cards.at(-1).height / 2 - frame.top;
  return {
    trunk: { path: `M${x1} ${y1}C${x1} ${y1 + 2 * turn} ${x} ${y1} ${x} ${y1 + 2 * turn}L${x} ${last - 22}` },
    branch({ to }) {
      const card = box(to);
      const y = card.top + card.height / 2 - frame.top;
      return { path: `M${x} ${y - 24}C${x} ${y - 6} ${x + 8} ${y} ${left} ${y}`, middle: { x: left - 12, y: y - 1 } };
    },
  };
}

// Lines over time

/** points: [{at, value | null}] → {line, area} as path data; a null is a gap. */
function traces(points, oldest, x, y, floor) {
  const runs = [];
  let run = [];
  for (const point of points) {
    if (point.value == null || point.at < oldest) {
      if (run.length) runs.push(run);
      run = [];
    } else run.push(`${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`);
  }
  if (run.length) runs.push(run);
  const line = runs.map((r) => "M" + r.join("L")).join("");
  const area = runs.map((r) => `M${r[0].split(" ")[0]} ${floor}L${r.join("L")}L${r.at(-1).split(" ")[0]} ${floor}Z`).join("");
  return { line, area };
}

/** Lag in seconds over the last span_s; returns the highest. */
export function sparkline(svg, points, now, span_s) {
  const width = 200;
  const height = 46;
  const highest = Math.max(...points.map((point) => point.value ?? 0), 0);
  const top = Math.max(highest, 1);
  if (!svg.firstChild) {
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    shape(svg, "path", { class: "fill" });
    shape(svg, "path", { class: "edge" });
  }
  const { line, area } = traces(points, now - span_s, (at) => width * (1 - (now - at) / span_s), (v) => height - 2 - (height - 4) * (v / top), height);
  svg.children[0].setAttribute("d", area);
  svg.children[1].setAttribute("d", line);
  return highest;
}

/** series: [{name, colour: CSS variable | null for the captured area, points}]. Returns what the pointer needs. */
export function chart(svg, series, now, span_s) {
  const { width, height } = svg.getBoundingClientRect();
  const left = 46;
  const floor = height - 22;
  const highest = Math.max(0, ...series.flatMap((s) => s.points.map((point) => point.value ?? 0)));
  const { top, steps } = axis(highest);
  const x = (at) => left + (width - left - 6) * (1 - (now - at) / span_s);
  const y = (value) => floor - (floor - 10) * (value / top);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const picture = document.createDocumentFragment();
  for (let step = 0; step <= steps; step++) {
    const value = (top * step) / steps;
    shape(picture, "line", { class: "grid", x1: left, x2: width - 6, y1: y(value), y2: y(value) });
    shape(picture, "text", { x: left - 9, y: y(value) + 4, "text-anchor": "end" }).textContent = step ? compact(value) : "0";
  }
  const oldest = span_s / 60;
  for (let minutes = oldest; minutes >= 1; minutes -= width < 520 ? 2 : 1) {
    const first = minutes === oldest;
    shape(picture, "text", { x: x(now - minutes * 60), y: height - 4, "text-anchor": first ? "start" : "middle" }).textContent =
      `${minutes} min` + (first && width >= 520 ? " ago" : "");
  }
  shape(picture, "text", { x: width - 6, y: height - 4, "text-anchor": "end" }).textContent = "now";
  for (const { colour, points } of series) {
    const { line, area } = traces(points, now - span_s, x, y, floor);
    if (!colour) shape(picture, "path", { class: "area", d: area });
    const edge = shape(picture, "path", { class: colour ? "edge" : "edge captured", d: line });
    if (colour) edge.style.setProperty("--series", `var(${colour})`);
  }
  svg.replaceChildren(picture);
  return { x, left, floor, width };
}
