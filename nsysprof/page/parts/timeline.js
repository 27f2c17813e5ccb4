// The timeline: lanes on a canvas, drawn at the level of detail that the pixels can show; the overview is uPlot's.
"use strict";
(() => {
  const HEIGHT = { ops: 34, ranges: 20, calls: 14, others: 14, gaps: 14, waits: 26, memory: 34, metric: 24 };
  const [HEADING, AXIS, GAP, RIGHT, FOLDED] = [21, 24, 3, 10, 4];
  const SETTLED = 350; // ms after which a view that no longer moves folds the lanes that are empty in it
  const FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif';
  const [INK, FAINT, RULE, IDLE, ACCENT, MEMORY] = ["#1a1a1a", "#595959", "#e2e2e2", "#d0d0d0", "#0127bb", "#8a8f99"];
  const [WAITING, OTHER, FOUND] = ["#b03a0c", "#9aa0aa", "#d0006f"];
  const GPU_COLOURS = ["#0127bb", "#c44916", "#179c83", "#8055c1"];
  const NOTHING = 255;
  const { bytes, labelled, place, ticks, time, unpack } = timelineData;

  function dark(colour) {
    const part = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2] <= 0.179;
  }

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // ---- the timeline

  class Timeline {
    constructor(figure, head) {
      Object.assign(this, { figure, head, rows: head.rows, length: head.length });
      this.named = head.gpus.length > 0; // the only timeline of its page: the address keeps its view
      const kept = this.named ? pageState.get("view").split("-").map(Number) : [];
      const [from, to] = kept.length === 2 && kept[0] < kept[1] ? kept : head.first || [0, head.length];
      this.view = { from, to };
      this.folded = new Set();
      this.found = null; // of what is searched: for each row the marks
      this.colours = head.groups.map(([, colour]) => colour);
      this.letters = this.colours.map((colour) => (dark(colour) ? "#fff" : "#000"));
      this.draws = 0;
      this.drawn = { ms: 0, boxes: 0 };
      this.current = null; // the mark with its facts shown: {row, at}
      this.makeParts();
      this.listen();
      this.resize();
    }

    makeParts() {
      const controls = element("div", "controls");
      const button = (label, title, action) => {
        const made = element("button", "", label);
        made.type = "button";
        made.title = title;
        if (label.length < 2) made.setAttribute("aria-label", title);
        made.addEventListener("click", action);
        controls.append(made);
      };
      button("+", "Zoom in", () => this.zoom(0.5));
      button("−", "Zoom out", () => this.zoom(2));
      button("◀", "Earlier", () => this.pan(-0.3));
      button("▶", "Later", () => this.pan(0.3));
      button("All", "The whole time", () => this.show(0, this.length));
      for (const [name, from, to] of this.head.views) {
        const short = name.length > 64 ? `${name.slice(0, 63)}…` : name;
        button(this.head.gpus.length ? `Close up: ${short}` : short, `Show ${name}`, () => this.show(from, to));
      }
      const search = element("input");
      Object.assign(search, { type: "search", placeholder: "Find in the timeline", spellcheck: false });
      search.setAttribute("aria-label", "Find in the timeline: Enter goes to the next match");
      search.addEventListener("input", () => this.search(search.value));
      search.addEventListener("keydown", (event) => event.key === "Enter" && this.next(event.shiftKey ? -1 : 1));
      this.hits = element("span", "count");
      this.hits.setAttribute("aria-live", "polite");
      controls.append(search, this.hits);
      this.where = element("span", "where");
      controls.append(this.where);
      this.plate = element("div", "plate");
      this.overview = element("div", "overview");
      this.canvas = element("canvas", "lanes");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-label", "Timeline: plus and minus zoom, arrows move, N and P go from mark to mark, up and down change the lane, Home shows all");
      this.tip = element("div", "tip");
      this.tip.hidden = true;
      this.tip.setAttribute("aria-live", "polite");
      this.plate.append(this.overview, this.canvas, this.tip);
      const legend = element("div", "legend");
      const used = new Set();
      for (const row of this.rows) if (row.kind === "ops") for (const name of new Set(row.data[0])) used.add(this.head.names[name][4]);
      for (const [name, colour] of new Map([...[...used].sort((a, b) => a - b).map((group) => this.head.groups[group]), ...(this.head.waits || [])])) {
        const [entry, swatch] = [element("span", ""), element("i", "swatch")];
        swatch.style.background = colour;
        entry.append(swatch, name);
        legend.append(entry);
      }
      const hint = element("p", "hint", "Drag to move. Click the timeline, then use the wheel to zoom (or Ctrl + wheel). Double-click an item to fit it to the view. Keys: + and − zoom, ← and → move, Home shows all, N and P go to the next and previous mark, ↑ and ↓ change the lane. If ops are narrower than a pixel, the height of a bar is the busy share of the stream, and the colour is the kind of op that ran longest.");
      this.figure.querySelector("figcaption").after(controls, this.plate, legend, hint);
    }

    // Lanes in which the view has nothing are folded to a line, once the view has settled.
    fold() {
      clearTimeout(this.settling);
      this.settling = setTimeout(() => {
        const empty = this.rows.filter((row) => {
          const [low, high] = this.visible(row);
          return low >= high;
        });
        if (this.dragging || (empty.length === this.folded.size && empty.every((row) => this.folded.has(row)))) return;
        this.folded = new Set(empty.length < this.rows.length ? empty : []);
        this.size();
      }, SETTLED);
    }

    layout() {
      let y = AXIS;
      let group = null;
      this.headings = [];
      let label = null;
      for (const row of this.rows) {
        if (row.group !== group) {
          this.headings.push([row.group, y]);
          [group, label] = [row.group, null];
          y += HEADING;
        }
        const folded = this.folded.has(row);
        row.named = row.label !== label && !folded;
        if (!folded) label = row.label;
        [row.y, row.height] = [y, folded ? FOLDED : HEIGHT[row.kind]];
        y += row.height + GAP;
      }
      this.height = y + 4;
    }

    resize() {
      const width = this.plate.clientWidth;
      if (!width || width === this.width) return;
      this.width = width;
      this.left = width < 640 ? 92 : 212;
      this.inner = width - this.left - RIGHT;
      this.makeOverview();
      this.size();
    }

    size() {
      this.layout();
      this.ratio = Math.min(devicePixelRatio || 1, 2);
      this.canvas.width = Math.round(this.width * this.ratio);
      this.canvas.height = Math.round(this.height * this.ratio);
      this.canvas.style.height = `${this.height}px`;
      this.draw();
    }

    makeOverview() {
      const { gpus } = this.head;
      if (!gpus.length) return;
      this.plot?.destroy();
      const columns = gpus[0].busy.length;
      const x = Array.from({ length: columns }, (_, i) => ((i + 0.5) * this.length) / columns);
      const axis = { font: `11px ${FONT}`, stroke: FAINT, ticks: { show: false } };
      this.plot = new uPlot(
        {
          width: this.width,
          height: 92,
          padding: [8, RIGHT, 0, 0],
          legend: { show: false },
          cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
          select: { over: true },
          scales: { x: { time: false, range: [0, this.length] }, y: { range: [0, 100] } },
          axes: [
            { ...axis, size: 24, grid: { show: false }, splits: () => ticks(0, this.length, this.inner / 110)[1], values: () => labelled(0, this.length, this.inner / 110).map(([, text]) => text) },
            { ...axis, size: this.left, grid: { stroke: RULE }, splits: () => [0, 50, 100], values: () => (this.left > 100 ? ["", "GPU busy 50 %", "100 %"] : ["", "50 %", "100 %"]) },
          ],
          series: [{}, ...gpus.map((gpu, i) => ({
            label: gpu.label,
            stroke: GPU_COLOURS[i % GPU_COLOURS.length],
            width: 1,
            fill: gpus.length === 1 ? "rgba(1,39,187,.18)" : undefined,
            points: { show: false },
          }))],
          hooks: {
            setSelect: [(plot) => {
              const { left, width } = plot.select;
              if (this.selecting || width < 2) return;
              this.show(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
            }],
          },
        },
        [x, ...gpus.map((gpu) => gpu.busy)],
        this.overview,
      );
      this.overview.setAttribute("aria-hidden", "true");
    }

    // ---- moving

    show(from, to) {
      const least = Math.min(50, this.length);
      const size = Math.min(Math.max(to - from, least), this.length);
      const begin = Math.min(Math.max((from + to - size) / 2, 0), this.length - size);
      this.view = { from: begin, to: begin + size };
      this.moved = true;
      this.redraw();
    }

    zoom(factor, around = (this.view.from + this.view.to) / 2) {
      const { from, to } = this.view;
      const size = Math.min(Math.max((to - from) * factor, Math.min(50, this.length)), this.length);
      const share = (around - from) / (to - from);
      const begin = Math.min(Math.max(around - share * size, 0), this.length - size);
      this.view = { from: begin, to: begin + size };
      this.moved = true;
      this.redraw();
    }

    pan(share) {
      const by = share * (this.view.to - this.view.from);
      this.show(this.view.from + by, this.view.to + by);
    }

    redraw() {
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => {
        this.waiting = 0;
        this.draw();
      });
    }

    x(ns) {
      return this.left + ((ns - this.view.from) / (this.view.to - this.view.from)) * this.inner;
    }

    ns(x) {
      return this.view.from + ((x - this.left) / this.inner) * (this.view.to - this.view.from);
    }

    // ---- drawing

    draw() {
      const began = performance.now();
      const pen = (this.pen = this.canvas.getContext("2d"));
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      pen.clearRect(0, 0, this.width, this.height);
      pen.font = `12px ${FONT}`;
      pen.textBaseline = "middle";
      this.boxes = 0;
      this.drawAxis(pen);
      pen.save();
      pen.beginPath();
      pen.rect(this.left, 0, this.inner, this.height);
      pen.clip();
      for (const row of this.rows) {
        if (row.kind === "ops") this.drawOps(pen, row);
        else if (row.kind === "memory" || row.kind === "metric") this.drawSteps(pen, row);
        else this.drawMarks(pen, row);
      }
      this.drawFound(pen);
      this.drawCurrent(pen);
      pen.restore();
      this.drawLabels(pen);
      const { from, to } = this.view;
      const shown = to - from >= this.length ? `all ${time(this.length)}` : `${time(to - from)} from ${time(from, 7)}`;
      this.where.textContent = `Shown: ${shown}`;
      this.select();
      this.fold();
      if (this.named && this.moved) pageState.set("view", `${Math.round(from)}-${Math.round(to)}`);
      this.draws += 1;
      this.drawn = { ms: performance.now() - began, boxes: this.boxes };
    }

    select() {
      if (!this.plot) return;
      const { from, to } = this.view;
      const all = to - from >= this.length;
      const [left, right] = [from, to].map((ns) => (ns / this.length) * this.inner);
      this.selecting = true;
      this.plot.setSelect({ left, width: all ? 0 : Math.max(right - left, 2), top: 0, height: this.plot.over.clientHeight }, false);
      this.selecting = false;
    }

    drawAxis(pen) {
      const { from, to } = this.view;
      pen.textAlign = "center";
      for (const [ns, text] of labelled(from, to, this.inner / 105)) {
        const x = this.x(ns);
        pen.fillStyle = RULE;
        pen.fillRect(x, AXIS - 4, 1, this.height);
        pen.fillStyle = FAINT;
        const half = pen.measureText(text).width / 2;
        pen.fillText(text, Math.min(Math.max(x, this.left + half), this.width - half - 2), AXIS - 13);
      }
      pen.textAlign = "left";
    }

    drawLabels(pen) {
      for (const [name, y] of this.headings) {
        pen.fillStyle = INK;
        pen.font = `600 12px ${FONT}`;
        pen.fillText(this.fit(pen, name, this.width - 20), 10, y + HEADING / 2 + 1);
      }
      pen.font = `12px ${FONT}`;
      pen.fillStyle = FAINT;
      for (const row of this.rows) {
        if (!row.named) continue;
        pen.fillText(this.fitEnds(pen, row.label, this.left - 18), 10, row.y + row.height / 2);
      }
    }

    fit(pen, text, width) {
      if (width < 14) return "";
      if (pen.measureText(text).width <= width) return text;
      let [low, high] = [0, text.length];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
        else high = middle - 1;
      }
      return low > 1 ? `${text.slice(0, low)}…` : "";
    }

    // Labels of lanes differ at their end as often as at their beginning: what is cut out is the middle.
    fitEnds(pen, text, width) {
      if (pen.measureText(text).width <= width) return text;
      for (let left = text.length - 1; left > 2; left--) {
        const short = `${text.slice(0, Math.floor(left / 2))}…${text.slice(text.length - Math.ceil(left / 2))}`;
        if (pen.measureText(short).width <= width) return short;
      }
      return "";
    }

    visible(row) {
      const low = place(row.reach, this.view.from, true);
      return [low, place(row.start, this.view.to, false, low)];
    }

    level(row) {
      // the coarsest level with a column per pixel
      const share = (this.view.to - this.view.from) / this.length;
      for (let at = row.detail.length - 1; at >= 0; at--) if (row.detail[at].busy.length * share >= this.inner) return row.detail[at];
      return null;
    }

    drawOps(pen, row) {
      const [low, high] = this.visible(row);
      const many = 2 * (high - low) > this.inner || row.marks < row.of;
      const level = many ? this.level(row) : null;
      if (level) return this.drawLevel(pen, row, level);
      if (row.marks < row.of && row.detail.length) this.drawColumns(pen, row, row.detail[0]); // behind: all of them
      const { data: [names], start, end } = row;
      const kinds = this.head.names;
      let [colour, edge] = ["", -1];
      for (let i = low; i < high; i++) {
        const left = Math.max(this.x(start[i]), this.left - 2);
        const right = Math.min(this.x(end[i]), this.left + this.inner + 2);
        if (right <= edge) continue; // its pixel is taken
        const family = kinds[names[i]][4];
        if (colour !== this.colours[family]) pen.fillStyle = colour = this.colours[family];
        const width = Math.max(right - left, 0.6);
        pen.fillRect(left, row.y, width > 4 ? width - 0.6 : width, row.height);
        this.boxes += 1;
        edge = Math.max(left + 0.35, right - 0.65);
        if (width > 34) {
          pen.fillStyle = this.letters[family];
          pen.fillText(this.fit(pen, this.called(names[i]), width - 8), left + 4, row.y + row.height / 2);
          colour = "";
        }
      }
    }

    called(name) {
      const [text, family, , cause] = this.head.names[name];
      return this.head.families[family] === "other" ? text : cause;
    }

    // Of a level: one bar per pixel, as high as the row is busy there, in the colour of the longest family.
    drawLevel(pen, row, { busy, family }) {
      const scale = busy.length / this.length;
      let colour = "";
      for (let x = 0; x < this.inner; x++) {
        const first = Math.floor(this.ns(this.left + x) * scale);
        const last = Math.min(Math.max(Math.ceil(this.ns(this.left + x + 1) * scale), first + 1), busy.length);
        let [sum, most, which] = [0, 0, NOTHING];
        for (let at = first; at < last; at++) {
          sum += busy[at];
          if (busy[at] > most) [most, which] = [busy[at], family[at]];
        }
        if (!sum) continue;
        const height = Math.max((sum / (last - first) / 255) * row.height, 2);
        if (colour !== this.colours[which]) pen.fillStyle = colour = this.colours[which];
        pen.fillRect(this.left + x, row.y + row.height - height, 1, height);
        this.boxes += 1;
      }
    }

    // Columns wider than a pixel, pale: where not every op is held one by one.
    drawColumns(pen, row, { busy, family }) {
      const step = this.length / busy.length;
      pen.globalAlpha = 0.3;
      for (let at = Math.floor(this.view.from / step); at < Math.min(Math.ceil(this.view.to / step), busy.length); at++) {
        if (!busy[at]) continue;
        const [x, height] = [this.x(at * step), (busy[at] / 255) * row.height];
        pen.fillStyle = this.colours[family[at]];
        pen.fillRect(x, row.y + row.height - height, this.x((at + 1) * step) - x, height);
        this.boxes += 1;
      }
      pen.globalAlpha = 1;
    }

    colour(row, at) {
      if (row.kind === "calls") return INK;
      if (row.kind === "others") return this.head.calls[row.data[0][at]][1] ? WAITING : OTHER;
      if (row.kind === "gaps") return IDLE;
      if (row.kind === "waits") return this.head.waits[row.data[0][at]][1];
      return this.head.tints[this.head.paths[2][row.data[0][at]]];
    }

    drawMarks(pen, row) {
      const [low, high] = this.visible(row);
      const [{ start, end }, pixel] = [row, (this.view.to - this.view.from) / this.inner];
      let some = null; // short ones that begin within a pixel and a half, as one box
      const drawn = (colour, left, width) => {
        pen.fillStyle = colour;
        pen.fillRect(left, row.y, width, row.height);
        this.boxes += 1;
      };
      const drawSome = () => some && drawn(some.colour, some.left, Math.max(some.right - some.left, 0.8));
      for (let i = low; i < high; i++) {
        const left = Math.max(this.x(start[i]), this.left - 2);
        const right = Math.min(this.x(end[i]), this.left + this.inner + 2);
        if (end[i] - start[i] < 1.5 * pixel) {
          if (some && left < some.left + 1.5) {
            some.right = Math.max(some.right, Math.min(right, some.left + 1.5));
            continue;
          }
          drawSome();
          some = { colour: this.colour(row, i), left, right };
          continue;
        }
        drawSome();
        some = null;
        const width = Math.max(right - left, 0.8);
        drawn(this.colour(row, i), left, width > 4 ? width - 0.8 : width);
        if (["ranges", "waits", "others"].includes(row.kind) && width > 26) {
          pen.fillStyle = row.kind !== "ranges" && dark(this.colour(row, i)) ? "#fff" : INK;
          pen.fillText(this.fit(pen, this.title(row, i), width - 8), left + 4, row.y + row.height / 2 + 0.5);
        }
        if (row.kind === "waits" && row.data[0][i]) this.shade(pen, this.colour(row, i), left, width, row);
      }
      drawSome();
    }

    // Bytes that are live, as high as they are many.
    drawSteps(pen, row) {
      const [low, high] = this.visible(row);
      const most = (row.most ||= row.kind === "metric" ? 100 : row.data[0].reduce((one, other) => Math.max(one, other), 1));
      pen.fillStyle = MEMORY;
      for (let i = low; i < high; i++) {
        const [left, right] = [Math.max(this.x(row.start[i]), this.left), Math.min(this.x(row.end[i]), this.left + this.inner)];
        const height = (row.data[0][i] / most) * row.height;
        pen.fillRect(left, row.y + row.height - height, Math.max(right - left, 0.8), height);
        this.boxes += 1;
      }
    }

    // What a mark is called: a range by its name, a wait by its culprit.
    title(row, at) {
      if (row.kind === "others") return this.head.calls[row.data[0][at]][0];
      if (row.kind === "waits") return this.head.waitTexts[row.data[1][at]] || this.head.waits[row.data[0][at]][0];
      return this.head.pathNames[this.head.paths[1][row.data[0][at]]];
    }

    // A wait is drawn over all rows below it.
    shade(pen, colour, left, width, row) {
      pen.globalAlpha = 0.16;
      pen.fillStyle = colour;
      pen.fillRect(left, row.y + row.height, width, this.height - row.y - row.height);
      pen.globalAlpha = 1;
    }

    // What is searched has a stroke above each mark; marks that share a pixel share it.
    drawFound(pen) {
      if (!this.found) return;
      pen.fillStyle = FOUND;
      for (const row of this.rows) {
        let edge = -1;
        const [low, high] = this.visible(row);
        for (let i = low; i < high; i++) {
          const left = this.x(row.start[i]);
          if (!this.found.has(row) || !this.found.get(row)(i) || left <= edge) continue;
          const width = Math.max(this.x(row.end[i]) - left, 2);
          pen.fillRect(left, row.y - 2, width, 3);
          edge = left + width;
        }
      }
    }

    drawCurrent(pen) {
      if (!this.current) return;
      const { row, at } = this.current;
      const left = this.x(row.start[at]);
      const width = Math.max(this.x(row.end[at]) - left, 2);
      pen.strokeStyle = INK;
      pen.lineWidth = 2;
      pen.strokeRect(left - 1, row.y - 1, width + 2, row.height + 2);
      if (row.kind !== "ops" || !row.data[2][at]) return;
      const launched = this.x(row.start[at] - (row.data[2][at] - 1));
      if (launched < this.left) return;
      pen.strokeStyle = ACCENT;
      pen.lineWidth = 1;
      pen.setLineDash([4, 3]);
      pen.beginPath();
      pen.moveTo(launched, AXIS - 4);
      pen.lineTo(launched, row.y + row.height);
      pen.lineTo(left, row.y + row.height);
      pen.stroke();
      pen.setLineDash([]);
    }

    // ---- searching

    // What a mark is found by, for each code of its first column.
    texts(row) {
      const { names, pathNames, paths, calls, waitTexts } = this.head;
      if (row.kind === "ops") return names.map(([text, family, , cause]) => `${text} ${this.head.families[family]} ${cause}`);
      if (row.kind === "ranges") return paths[1].map((name) => pathNames[name]);
      if (row.kind === "others") return calls.map(([text]) => text);
      return row.kind === "waits" ? [] : null;
    }

    search(text) {
      const words = text.toLowerCase().split(/\s+/).filter(Boolean);
      this.found = null;
      let count = 0;
      if (words.length) {
        this.found = new Map();
        for (const row of this.rows) {
          const texts = this.texts(row);
          if (!texts) continue;
          const all = (each) => words.every((word) => each.toLowerCase().includes(word));
          const hit = texts.map(all);
          const is = row.kind === "waits" ? (at) => all(this.title(row, at)) : (at) => hit[row.data[0][at]];
          this.found.set(row, is);
          for (let at = 0; at < row.marks; at++) count += is(at) ? 1 : 0;
        }
      }
      this.hits.textContent = words.length ? `${count.toLocaleString("en")} found${count ? ", Enter: next" : ""}` : "";
      this.tell(null);
    }

    // The next mark that was searched, in the order of time.
    next(by) {
      if (!this.found) return;
      const now = this.current ? this.current.row.start[this.current.at] : this.view.from - by;
      let best = null;
      for (const [row, is] of this.found) {
        for (let at = 0; at < row.marks; at++) {
          const off = (row.start[at] - now) * by;
          if (!is(at) || off < 0 || (best && off >= best.off)) continue;
          if (off === 0 && this.current && (row !== this.current.row || at === this.current.at)) continue;
          best = { row, at, off };
        }
      }
      if (best) this.goTo(best.row, best.at);
    }

    // ---- facts

    find(x, y) {
      const row = this.rows.find((each) => y >= each.y - GAP / 2 && y < each.y + each.height + GAP / 2);
      if (!row || x < this.left || !row.marks) return null;
      const [ns, near] = [this.ns(x), (3 * (this.view.to - this.view.from)) / this.inner];
      const first = place(row.reach, ns - near, false);
      let best = null;
      for (let at = first; at < row.marks && row.start[at] <= ns + near && at < first + 4000; at++) {
        const off = Math.max(row.start[at] - ns, ns - row.end[at], 0);
        if (off <= near && (!best || off <= best.off)) best = { row, at, off };
      }
      return best;
    }

    path(code) {
      const [parent, name] = this.head.paths;
      const parts = [];
      for (let at = code; at >= 0 && parts.length < 60; at = parent[at]) parts.unshift(this.head.pathNames[name[at]].replaceAll("/", "\\/"));
      return parts.join("/");
    }

    facts({ row, at }) {
      const when = `${time(row.end[at] - row.start[at])}, from ${time(row.start[at], 7)}`;
      const value = (column) => row.data[column][at];
      if (row.kind === "ops") {
        const [text, family, unit, cause] = this.head.names[value(0)];
        const kind = this.head.families[family];
        const facts = [text, ["family", unit === "unknown" ? kind : `${kind}, ${unit}`], ["time", when], ["stream", row.label]];
        if (cause !== kind) facts.splice(2, 0, ["does", cause]);
        if (value(1)) facts.push(["range", this.path(value(1) - 1)]);
        else if (this.head.pathNames.length) facts.push(["range", "none"]);
        if (row.data.length > 3 && value(3)) facts.push(["captured in", this.path(value(3) - 1)]);
        if (value(2)) facts.push(["launched", `${time(value(2) - 1)} before its start`]);
        return facts;
      }
      if (row.kind === "ranges") {
        const own = [["path", this.path(value(0))], ["time", when], ["lane", row.label]];
        return [this.title(row, at), ...own, ["launches", value(1).toLocaleString("en")], ["kernels", value(2).toLocaleString("en")], ["busy", time(value(3))]];
      }
      if (row.kind === "waits") return [this.title(row, at), [value(0) ? "cause" : "is", this.head.waits[value(0)][0]], ["time", when]];
      if (row.kind === "gaps") return [this.head.gaps[value(0)], ["time", when]];
      if (row.kind === "others") return [this.title(row, at), ["is", this.head.calls[value(0)][1] ? "a call that waits for the GPU" : "a CUDA call"], ["time", when]];
      if (row.kind === "metric") return [`${value(0)} %`, ["time", when]];
      if (row.kind === "memory") return [`${bytes(value(0))} allocated`, ["time", when], ["at most", bytes(row.most)]];
      return ["Host call that launched work", ["time", when], ...(value(0) > 1 ? [["ops", value(0).toLocaleString("en")]] : [])];
    }

    tell(found, x) {
      this.current = found;
      this.tip.hidden = !found;
      if (found) {
        const [title, ...facts] = this.facts(found);
        this.tip.replaceChildren(element("b", "", title), ...facts.map(([name, text]) => {
          const line = element("div");
          line.append(element("span", "", `${name}: `), text);
          return line;
        }));
        const top = this.canvas.offsetTop;
        this.tip.style.left = `${Math.max(4, Math.min(x + 14, this.width - this.tip.offsetWidth - 4))}px`;
        this.tip.style.top = `${top + found.row.y + found.row.height + 6}px`;
      }
      this.redraw();
    }

    step(by) {
      const row = this.current?.row || this.rows.find((each) => each.kind === "ops" && each.marks) || this.rows.find((each) => each.marks);
      if (!row) return;
      const at = this.current ? Math.min(Math.max(this.current.at + by, 0), row.marks - 1) : Math.min(this.visible(row)[0], row.marks - 1);
      this.goTo(row, at);
    }

    lane(by) {
      const rows = this.rows.filter((each) => each.marks);
      const now = rows.indexOf(this.current?.row);
      const row = rows[now < 0 ? 0 : Math.min(Math.max(now + by, 0), rows.length - 1)];
      if (row) this.goTo(row, Math.min(this.visible(row)[0], row.marks - 1));
    }

    goTo(row, at) {
      const [{ from, to }, middle] = [this.view, (row.start[at] + row.end[at]) / 2];
      if (row.end[at] < from || row.start[at] > to) this.show(middle - (to - from) / 2, middle + (to - from) / 2);
      this.tell({ row, at }, Math.min(Math.max(this.x(middle), this.left), this.width));
    }

    // ---- events

    listen() {
      const canvas = this.canvas;
      let drag = null;
      const spot = (event) => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      canvas.addEventListener("pointerdown", (event) => {
        canvas.focus({ preventScroll: true });
        drag = { x: event.clientX, view: { ...this.view } };
        this.dragging = true;
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        const [x, y] = spot(event);
        if (!drag) return this.tell(this.find(x, y), x);
        const by = ((drag.x - event.clientX) / this.inner) * (drag.view.to - drag.view.from);
        if (Math.abs(drag.x - event.clientX) > 2) this.tell(null);
        this.show(drag.view.from + by, drag.view.to + by);
      });
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => {
        drag = null;
        this.dragging = false;
        this.fold();
      });
      canvas.addEventListener("pointerleave", () => drag || this.tell(null));
      canvas.addEventListener("dblclick", (event) => {
        const found = this.find(...spot(event));
        if (!found) return;
        const { row, at } = found;
        const margin = (row.end[at] - row.start[at]) * 0.1;
        this.show(row.start[at] - margin, row.end[at] + margin);
      });
      canvas.addEventListener("wheel", (event) => {
        if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        const step = event.deltaMode ? 40 : 1;
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(((event.deltaX || event.deltaY) * step) / 1500);
        else this.zoom(Math.exp((event.deltaY * step) / 450), this.ns(spot(event)[0]));
      }, { passive: false });
      const keys = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
        ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2),
        ArrowUp: () => this.lane(-1), ArrowDown: () => this.lane(1),
        n: () => this.step(1), p: () => this.step(-1),
        Home: () => this.show(0, this.length), Escape: () => this.tell(null),
      };
      canvas.addEventListener("keydown", (event) => {
        const action = !event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key];
        if (!action) return;
        event.preventDefault();
        action();
      });
      canvas.addEventListener("blur", () => this.tell(null));
      new ResizeObserver(() => this.resize()).observe(this.plate);
      if (!this.head.gpus.length) return;
      document.addEventListener("nsysprof-range", ({ detail }) => {
        if (!detail) return this.show(...(this.head.first || [0, this.length]));
        const [from, to] = [detail.start - this.head.origin, detail.end - this.head.origin];
        const margin = (to - from) * 0.05;
        this.show(from - margin, to + margin);
      });
    }
  }

  async function start(figure) {
    const source = figure.querySelector("script");
    try {
      figure.timeline = new Timeline(figure, await unpack(source.textContent.trim()));
    } catch (error) {
      figure.querySelector("figcaption").after(element("p", "note", `The timeline cannot be drawn: ${error.message}`));
    }
  }

  document.querySelectorAll("[data-timeline]").forEach(start);
})();
