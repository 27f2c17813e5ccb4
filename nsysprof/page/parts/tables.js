// Tables of a page: search, sort, fold and choose rows. Without it they are plain tables that show everything.
"use strict";
document.documentElement.classList.add("ready");

// What a reader looks at stands in the address (`#view=0-5000&range=step*`), so that it can be passed on.
const pageState = (() => {
  const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  let waiting = 0;
  addEventListener("hashchange", () => location.hash.includes("=") && location.reload());
  return {
    get: (name) => state.get(name) || "",
    set: (name, value) => {
      if (value) state.set(name, value);
      else state.delete(name);
      clearTimeout(waiting); // browsers allow a hundred changes in half a minute
      waiting = setTimeout(() => history.replaceState(null, "", `#${state}`), 300);
    },
  };
})();

(() => {
  const FOLDED_FROM = 60; // rows of a tree that begins folded
  const names = document.getElementById("op-names");
  const fullName = (row) => (row.dataset.n ? names.children[Number(row.dataset.n)].textContent : "");
  const number = (cell) => (cell ? Number(cell.dataset.v ?? NaN) : NaN);

  // Buttons that copy the rows shown, for a spreadsheet, or save them as CSV: numbers as they are, names in full.
  function sharing(table) {
    let tools = document.querySelector(`[data-for="${table.id}"]`);
    if (!tools) {
      tools = document.createElement("div");
      tools.className = "tools share";
      table.parentElement.before(tools);
    }
    const lines = () => [...table.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map((cell, at) => {
      if (!at && row.dataset.path) return row.dataset.path;
      return (!at && row.dataset.n && fullName(row)) || (cell.dataset.v ?? cell.textContent.trim());
    }));
    const quote = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const button = (label, title, action) => {
      const made = document.createElement("button");
      Object.assign(made, { type: "button", textContent: label, title });
      made.addEventListener("click", () => {
        action();
        made.textContent = "Done";
        setTimeout(() => (made.textContent = label), 1200);
      });
      tools.append(made);
    };
    button("Copy", "Copy these rows, for a spreadsheet", () => {
      const text = lines().map((row) => row.map((cell) => cell.replace(/\s+/g, " ")).join("\t")).join("\n");
      document.addEventListener("copy", (event) => {
        event.clipboardData.setData("text/plain", text);
        event.preventDefault();
      }, { once: true });
      document.execCommand("copy");
    });
    button("CSV", "Save these rows as a CSV file", () => {
      const link = document.createElement("a");
      const text = lines().map((row) => row.map(quote).join(",")).join("\n");
      link.href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
      link.download = `${(table.caption?.textContent || table.id.replace(/^t-/, "") || "table").replace(/[^\w.-]+/g, "-")}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  function grid(table) {
    const body = table.tBodies[0];
    const tree = table.classList.contains("tree");
    let rows = [...body.rows];
    const tools = document.querySelector(`[data-for="${table.id}"]`);
    const search = tools.querySelector("[data-search]");
    const count = tools.querySelector("[data-count]");
    const all = rows.length;
    const text = new Map(rows.map((row) => [row, (row.dataset.path || `${row.textContent} ${fullName(row)}`).toLowerCase()]));
    const byId = new Map(rows.map((row) => [row.dataset.id, row]));
    const up = (row) => (tree ? byId.get(row.dataset.parent) : undefined);
    const fold = (row) => row.querySelector(".fold");
    const open = (row) => !fold(row) || fold(row).getAttribute("aria-expanded") === "true";
    const setOpen = (row, is) => fold(row) && fold(row).setAttribute("aria-expanded", String(is));
    let among = null; // rows that a choice elsewhere leaves

    function refresh() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const hit = (row) => words.every((word) => text.get(row).includes(word)) && (!among || among.has(row.dataset.row));
      const shown = new Set();
      let hits = 0;
      for (const row of rows) {
        if (!hit(row)) continue;
        hits += 1;
        if (!tree || words.length) for (let at = row; at && !shown.has(at); at = up(at)) shown.add(at);
      }
      if (tree && !words.length) {
        for (const row of rows) if (!up(row) || (shown.has(up(row)) && open(up(row)))) shown.add(row);
      }
      for (const row of rows) row.hidden = !shown.has(row);
      count.textContent = words.length || among ? `${hits.toLocaleString("en")} of ${all.toLocaleString("en")}` : "";
      focusable();
    }

    function focusable(to) {
      const now = to || rows.find((row) => row.tabIndex === 0 && !row.hidden) || rows.find((row) => !row.hidden);
      for (const row of rows) if (row !== now) row.tabIndex = -1;
      if (now) now.tabIndex = 0;
      if (to) to.focus();
    }

    function sort(head) {
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "descending" : head.dataset.sort === "number";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const at = head.cellIndex;
      const key = new Map(rows.map((row) => [row, head.dataset.sort === "number" ? number(row.cells[at]) : row.cells[at].textContent]));
      const order = (one, other) => {
        const [a, b] = [key.get(one), key.get(other)];
        const less = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
        return down ? -less : less;
      };
      const inner = new Map();
      for (const row of rows) {
        const around = up(row);
        if (!inner.has(around)) inner.set(around, []);
        inner.get(around).push(row);
      }
      const sorted = [];
      const add = (around) => {
        for (const row of (inner.get(around) || []).sort(order)) {
          sorted.push(row);
          if (tree) add(row);
        }
      };
      add(undefined);
      rows = sorted;
      body.append(...rows);
      focusable();
    }

    for (const head of table.tHead.rows[0].cells) {
      if (!head.dataset.sort) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => sort(head));
    }

    function choose(row) {
      const same = row.classList.contains("chosen");
      for (const other of rows) other.classList.remove("chosen");
      if (!same) row.classList.add("chosen");
      if (!tree) return;
      pageState.set("range", same ? "" : row.dataset.path);
      const inside = new Set();
      for (const other of rows) {
        for (let at = other; at; at = up(at)) if (at === row) inside.add(other.dataset.id);
      }
      const detail = same ? null : { inside, path: row.dataset.path, start: Number(row.dataset.start), end: Number(row.dataset.end) };
      document.dispatchEvent(new CustomEvent("nsysprof-range", { detail }));
    }

    body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (event.target.closest(".fold")) {
        setOpen(row, !open(row));
        refresh();
      } else if (row && !String(getSelection())) {
        focusable(row);
        choose(row);
      }
    });
    body.addEventListener("keydown", (event) => {
      const row = event.target.closest("tr");
      if (event.target !== row) return;
      const visible = rows.filter((other) => !other.hidden);
      const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (move) focusable(visible[visible.indexOf(row) + move] || row);
      else if (event.key === "Enter" || event.key === " ") choose(row);
      else if (tree && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
        if (event.key === "ArrowLeft" && (!fold(row) || !open(row))) focusable(up(row) || row);
        else setOpen(row, event.key === "ArrowRight");
        refresh();
      } else return;
      event.preventDefault();
    });
    search.addEventListener("input", () => {
      pageState.set(table.id, search.value);
      refresh();
    });
    for (const [name, is] of [["expand", true], ["collapse", false]]) {
      const button = tools.querySelector(`[data-${name}]`);
      if (!button) continue;
      button.addEventListener("click", () => {
        rows.forEach((row) => setOpen(row, is));
        refresh();
      });
    }
    const reset = tools.querySelector("[data-reset]");
    if (reset) {
      document.addEventListener("nsysprof-range", (event) => {
        among = event.detail && event.detail.inside;
        reset.hidden = !among;
        refresh();
      });
      reset.addEventListener("click", () => {
        document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
        pageState.set("range", "");
        document.dispatchEvent(new CustomEvent("nsysprof-range", { detail: null }));
      });
    }
    if (tree && all > FOLDED_FROM) rows.forEach((row) => setOpen(row, false));
    search.value = pageState.get(table.id);
    refresh();
    restored.push(() => {
      const row = tree && rows.find((each) => each.dataset.path === pageState.get("range"));
      if (!row) return;
      for (let at = up(row); at; at = up(at)) setOpen(at, true);
      refresh();
      choose(row);
    });
  }

  const restored = []; // once all tables listen to each other
  document.querySelectorAll("table.grid").forEach(grid);
  document.querySelectorAll("table.grid, .wide>table.plain").forEach(sharing);
  for (const restore of restored) restore();

  document.getElementById("t-ops")?.addEventListener("pointerover", (event) => {
    const row = event.target.closest("tr[data-n]");
    if (row && !row.cells[0].title) row.cells[0].title = fullName(row);
  });
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details.pair").forEach((one) => (one.open = true));
  });
})();
