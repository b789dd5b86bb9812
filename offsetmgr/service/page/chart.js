// Lines of lag: a small one for a row of a table, and one with axes.

import { now } from "./api.js";
import { clock, count } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 96;
const HEIGHT = 18;

/** Draw a row's last lags into a cell; a gap where one is not known. */
export function sparkline(cell, row) {
  let path = cell.querySelector("path");
  if (path === null) {
    const svg = document.createElementNS(SVG, "svg");
    path = document.createElementNS(SVG, "path");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("class", "sparkline");
    svg.setAttribute("role", "img");
    svg.append(path);
    cell.append(svg);
  }
  const points = row.lag_points;
  path.setAttribute("d", line(points));
  const known = points.filter((each) => each !== null);
  const ends = known.length ? `${count(known[0])} to ${count(known.at(-1))}` : "not known";
  path.parentNode.setAttribute("aria-label", `lag lately: ${ends}`);
}

function line(points) {
  const most = Math.max(1, ...points);
  const step = WIDTH / Math.max(1, points.length - 1);
  let pen = "M";
  return points.map((each, index) => {
    if (each === null) {
      pen = "M";
      return "";
    }
    const y = HEIGHT - 1 - (each / most) * (HEIGHT - 2);
    const part = `${pen}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
    return part;
  }).join("");
}

/** The lag of a group over time, from the moment somebody looks. */
export class LagChart {
  #times = [];
  #lags = [];
  #plot = null;
  #root;
  #resized = new ResizeObserver(() => this.#plot?.setSize(this.#size()));

  constructor(root) {
    this.#root = root;
    this.#resized.observe(root);
  }

  /** Begin with lags of the past, `stepS` seconds apart, the last one now. */
  begin(lags, stepS) {
    const last = now();
    this.#times = lags.map((_, index) => last - (lags.length - 1 - index) * stepS);
    this.#lags = [...lags];
    this.#show();
  }

  add(lag) {
    this.#times.push(now());
    this.#lags.push(lag);
    if (this.#times.length > 720) {
      this.#times.shift();
      this.#lags.shift();
    }
    this.#show();
  }

  close() {
    this.#resized.disconnect();
    this.#plot?.destroy();
  }

  async #show() {
    if (this.#times.length < 2) {
      return;
    }
    const data = [this.#times, this.#lags];
    if (this.#plot === null) {
      const { default: UPlot } = await import("./vendor/uPlot.esm.js");
      this.#plot ??= new UPlot(this.#options(), data, this.#root);
    }
    this.#plot.setData(data);
  }

  #size() {
    return { width: this.#root.clientWidth, height: 96 };
  }

  #options() {
    const style = getComputedStyle(this.#root);
    const axis = {
      stroke: () => style.color,
      grid: { stroke: () => style.borderColor, width: 1 },
      ticks: { show: false },
      font: `11px ${style.fontFamily}`,
    };
    return {
      ...this.#size(),
      cursor: { y: false, drag: { x: false } },
      legend: { show: false },
      scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.05)] } },
      series: [{}, { stroke: () => style.accentColor, width: 1.5, points: { show: false } }],
      axes: [
        { ...axis, size: 24, space: 90, values: (_, all) => all.map((each) => clock(each)) },
        { ...axis, size: 70, space: 30, values: (_, all) => all.map((each) => count(each)) },
      ],
    };
  }
}
