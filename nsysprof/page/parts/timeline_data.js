// What a timeline holds, read back from how `packing.py` packed it, and its times as texts.
"use strict";
const timelineData = (() => {
  // ---- reading

  async function unpack(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = new DataView(bytes.buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
    let at = 4 + size;
    const varints = (count) => {
      const out = new Float64Array(count);
      for (let i = 0; i < count; i++) {
        let [value, scale] = [0, 1];
        for (;;) {
          const byte = bytes[at++];
          value += (byte & 127) * scale;
          if (byte < 128) break;
          scale *= 128;
        }
        out[i] = value;
      }
      return out;
    };
    const piece = (count) => bytes.subarray(at, (at += count));
    for (const row of head.rows) {
      row.detail = row.levels.map((count) => ({ busy: piece(count), family: piece(count) }));
      const [start, length] = [varints(row.marks), varints(row.marks)];
      row.reach = new Float64Array(row.marks); // the latest end so far: sorted, also where marks overlap
      for (let i = 0; i < row.marks; i++) {
        if (i) start[i] += start[i - 1];
        length[i] += start[i];
        row.reach[i] = i ? Math.max(row.reach[i - 1], length[i]) : length[i];
      }
      [row.start, row.end] = [start, length];
      row.data = Array.from({ length: row.columns }, () => varints(row.marks));
    }
    return head;
  }

  // The first place in a sorted array whose value is above (or not below) a limit.
  function place(values, limit, above, from = 0) {
    let [low, high] = [from, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < limit || (above && values[middle] === limit)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // ---- numbers

  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

  function time(ns, digits = 3) {
    const [scale, unit] = UNITS.find(([each]) => Math.abs(ns) >= each) || UNITS[3];
    const value = ns / scale;
    if (unit === "ns") return `${Math.round(ns).toLocaleString("en")} ns`;
    const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
    return `${value.toLocaleString("en", { minimumFractionDigits: Math.max(digits - whole, 0), maximumFractionDigits: Math.max(digits - whole, 0) })} ${unit}`;
  }

  function bytes(size) {
    const power = Math.min(Math.floor(Math.log2(Math.max(size, 1)) / 10), 4);
    return power ? `${(size / 1024 ** power).toPrecision(3)} ${"KMGT"[power - 1]}iB` : `${size} B`;
  }

  function ticks(from, to, most) {
    const least = (to - from) / Math.max(most, 1);
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
    const step = Math.max([1, 2, 5, 10].map((each) => each * power).find((each) => each >= least), 1);
    const out = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) out.push(at);
    return [step, out];
  }

  function labelled(from, to, most) {
    const [step, at] = ticks(from, to, most);
    const relative = from > 0 && to - from < from / 1000;
    const base = relative ? at[0] || 0 : 0;
    const [scale, unit] = UNITS.find(([each]) => (relative ? to - from : to) >= each) || UNITS[3];
    const decimals = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
    const text = (ns) => `${relative ? "+" : ""}${((ns - base) / scale).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })} ${unit}`;
    return at.map((ns) => [ns, text(ns)]);
  }

  return { bytes, labelled, place, ticks, time, unpack };
})();
