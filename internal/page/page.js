"use strict";
// The script of a page: it draws the charts from the data beside them, and has a live page
// follow its server. All else the server has written.
(() => {
  const root = document.documentElement;
  const charts = new Map(); // what is drawn, by the figure's ID

  // --- How values are written: as unit.go does. ---

  const sizes = {
    seconds: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
    bytes: [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
  };

  const three = (v) => String(Number(v.toPrecision(3)));
  const count = (v) => Math.abs(v) < 999.5 ? three(v)
    : v.toLocaleString("en-US", { maximumFractionDigits: 0 });

  function sized(v, sizes) {
    const least = sizes[sizes.length - 1];
    if (v === 0) return "0 " + least[1];
    const [of, name] = sizes.find(([of]) => Math.abs(v) >= of * 0.9995) || least;
    return count(v / of) + " " + name;
  }

  function percentile(x) {
    if (x < 1) return "";
    const digits = Math.min(Math.max(0, Math.ceil(Math.log10(x) - 1)), 9);
    return Number((100 * (1 - 1 / x)).toFixed(digits)) + " %";
  }

  function clock(v) {
    const sign = v < 0 ? "-" : "", t = Math.abs(Math.round(v * 10));
    const pad = (n) => String(n).padStart(2, "0");
    const seconds = pad(Math.floor(t / 10) % 60) + (t % 10 ? "." + t % 10 : "");
    const minutes = Math.floor(t / 600);
    return sign + (minutes < 60 ? minutes + ":" + seconds
      : Math.floor(minutes / 60) + ":" + pad(minutes % 60) + ":" + seconds);
  }

  function format(unit, v) {
    if (v == null || !Number.isFinite(v)) return "";
    switch (unit) {
      case "seconds": case "bytes": return sized(v, sizes[unit]);
      case "share": return count(v * 100) + " %";
      case "percentile": return percentile(v);
      case "clock": return clock(v);
    }
    return count(v);
  }

  // tick writes a value beside an axis, where there is less room.
  function tick(unit, v) {
    if (unit !== "") return format(unit, v);
    const [of, name] = [[1e9, "G"], [1e6, "M"], [1e4, "K"]].find(([of]) => Math.abs(v) >= of) || [1, ""];
    return name === "K" ? count(v / 1e3) + name : count(v / of) + name;
  }

  // --- Axes. ---

  // steps are those of a logarithmic axis: 1, 2, 5, 10; for bytes 1, 2, 4, 8.
  function steps(unit, from, to) {
    const all = [];
    if (unit === "bytes") {
      for (let e = Math.floor(Math.log2(from)); 2 ** e <= to * 1.0001; e++) all.push(2 ** e);
      return all.filter((v) => v >= from * 0.9999);
    }
    for (let e = Math.floor(Math.log10(from)); 10 ** e <= to * 1.0001; e++) {
      for (const m of [1, 2, 5]) all.push(Number(m + "e" + e));
    }
    return all.filter((v) => v >= from * 0.9999 && v <= to * 1.0001);
  }

  // thinned leaves about as many steps as there is room for.
  function thinned(unit, all, most) {
    if (all.length <= most) return all;
    if (unit === "bytes") {
      const every = [2, 5, 10, 20].find((n) => all.length / n <= most) || 40;
      return all.filter((v) => Math.round(Math.log2(v)) % every === 0);
    }
    const tens = all.filter((v) => String(v / 10 ** Math.round(Math.log10(v))).startsWith("1") && Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9);
    const every = Math.ceil(tens.length / most);
    return tens.filter((_, i) => i % every === 0);
  }

  function logRange(unit) {
    return (u, low, high) => {
      if (low == null || !(low > 0)) return [1, 10];
      if (unit === "percentile") return [low, Math.max(high, low * 10)];
      const all = steps(unit, low / 10, high * 10);
      const from = all.findLast((v) => v <= low), to = all.find((v) => v >= high);
      return from < to ? [from, to] : [from / 2, to * 2];
    };
  }

  // linearRange has an axis of amounts begin at 0, so that lengths can be compared.
  function linearRange(u, low, high) {
    if (low == null) return [0, 1];
    if (low === 0 && high === 0) return [0, 1];
    return [Math.min(0, low * 1.05), Math.max(0, high * 1.05)];
  }

  const binary = Array.from({ length: 50 }, (_, i) => 2 ** i);
  const sixty = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

  function color(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  function axis(a, vertical) {
    const made = {
      stroke: color("soft"), font: `12px ${getComputedStyle(document.body).fontFamily}`, labelFont: "12px",
      grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1, size: 5 }, gap: 6,
      values: (u, all) => all.map((v) => tick(a.unit, v)),
    };
    made.widest = 0; // of its labels, in pixels
    made.size = (u, values) => {
      if (values) {
        u.ctx.save();
        u.ctx.font = made.font;
        made.widest = Math.ceil(Math.max(...values.map((v) => u.ctx.measureText(v).width)));
        u.ctx.restore();
      }
      if (!vertical) return 34;
      return values ? made.widest + 14 : 40;
    };
    if (a.log) {
      made.splits = (u, i, from, to) => {
        const room = (vertical ? u.height : u.width) / (vertical ? 34 : 78);
        if (a.unit === "percentile") {
          return thinned("", [2, ...steps("", 10, to).filter((v) => Math.abs(Math.log10(v) % 1) < 1e-9)], room).filter((v) => v >= from);
        }
        return thinned(a.unit, steps(a.unit, from, to), room);
      };
      made.filter = (u, all) => all;
    } else {
      made.space = vertical ? 40 : 70;
      if (a.unit === "bytes") made.incrs = binary;
      if (a.unit === "clock") made.incrs = sixty;
    }
    return made;
  }

  // --- Charts. ---

  // columns are the data as uPlot has it: one X, and a Y for each series.
  function columns(data) {
    let x = [];
    const tables = data.series.map((s) => [x = s.x || x, s.y]);
    if (tables.length === 0) return [[]];
    if (data.series.every((s, i) => i === 0 || !s.x)) return [x, ...tables.map((t) => t[1])];
    return uPlot.join(tables, tables.map(() => [0, 2])); // 2: a gap stays one between the points of others
  }

  // near finds the point of a series that is nearest to the cursor: where series have
  // their own X, most have none at a given place.
  function near(u, series, at) {
    const y = u.data[series];
    if (y[at] !== undefined) return at;
    for (let d = 1; d < y.length; d++) {
      if (y[at - d] !== undefined && at >= d) return at - d;
      if (at + d < y.length && y[at + d] !== undefined) return at + d;
    }
    return at;
  }

  // alone are the points of a series that have no line to another: each gets a mark, or
  // nothing of it would be seen.
  function alone(u, series) {
    const all = u.data[series].map((y, i) => [y, i]).filter(([y]) => y !== undefined);
    const gap = (at) => at < 0 || at >= all.length || all[at][0] === null;
    return all.filter(([y], at) => y !== null && gap(at - 1) && gap(at + 1)).map(([, i]) => i);
  }

  const dashes = { published: [7, 5], second: [10, 6] };
  const height = () => innerWidth < 640 ? 240 : 300;

  function options(data, width) {
    // Of few curves the second has gaps: where it coincides with another both are seen.
    const gaps = data.series.length <= 3 && !data.series.some((s) => s.dashed);
    const series = data.series.map((s, i) => ({
      label: s.name, stroke: color("c" + i % 8), width: 2,
      dash: s.dashed ? dashes.published : gaps && i === 1 ? dashes.second : i >= 8 ? [2, 2 + Math.floor(i / 8)] : undefined,
      points: { show: Boolean(s.points), filter: s.points ? undefined : alone, size: 7, fill: color("card"), width: 2 },
      value: (u, v) => format(data.y.unit, v) || " ",
    }));
    const x = axis(data.x, false), vertical = (a) => a.log ? { distr: 3, range: logRange(a.unit) } : { range: linearRange };
    const axes = [x, axis(data.y, true)];
    return {
      width, height: height(), padding: [10, () => Math.max(14, x.widest / 2 + 2), 0, 4], // half of the last label is beyond its axis
      scales: {
        x: data.x.log ? { time: false, distr: 3, range: logRange(data.x.unit) } : { time: false },
        y: vertical(data.y),
      },
      axes,
      series: [{ label: data.x.label, value: (u, v) => format(data.x.unit, v) || " " }, ...series],
      cursor: {
        dataIdx: near, points: { size: 7 }, drag: { x: true, y: false },
        sync: data.x.unit === "clock" ? { key: "clock", setSeries: false, scales: ["x", null] } : undefined,
      },
      legend: { markers: { width: 0, fill: "transparent", stroke: "transparent" } },
    };
  }

  // Chart is what is drawn in a figure.
  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.place = figure.querySelector(".plot");
      this.read(figure);
      this.draw();
      figure.querySelector("details").addEventListener("toggle", () => this.list());
    }

    // read takes the data from a figure, and says whether its shape is what it was.
    read(figure) {
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.columns = columns(this.data);
      const shape = JSON.stringify(this.data, (key, value) => key === "x" && Array.isArray(value) || key === "y" && Array.isArray(value) ? 0 : value);
      const same = shape === this.shape;
      this.shape = shape;
      return same;
    }

    draw(width) {
      const off = new Set((this.plot?.series || []).filter((s, i) => i > 0 && !s.show).map((s) => s.label));
      this.plot?.destroy();
      const made = options(this.data, width || this.place.clientWidth || 600);
      for (const s of made.series) if (off.has(s.label)) s.show = false;
      this.plot = new uPlot(made, this.columns, this.place);
      this.plot.root.querySelectorAll(".u-legend tr").forEach((row, i) => {
        if (i === 0) return row.querySelector(".u-marker")?.remove();
        const marker = row.querySelector(".u-marker"), s = made.series[i];
        marker.style.borderTop = `3px ${s.dash ? s.dash[0] > 2 ? "dashed" : "dotted" : "solid"} ${s.stroke}`;
        const name = row.querySelector("th");
        name.title = "show or hide";
        name.tabIndex = 0;
        name.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); name.click(); } });
      });
    }

    // update takes what a live page has fetched; a reader's zoom stays.
    update(figure) {
      if (!this.read(figure)) return this.draw(), this.list();
      const { min, max } = this.plot.scales.x, x = this.plot.data[0];
      const zoomed = x.length > 1 && (min > x[0] || max < x[x.length - 1]);
      this.plot.setData(this.columns, !zoomed);
      if (zoomed) this.plot.redraw();
      this.list();
    }

    resize() {
      const width = this.place.clientWidth;
      if (width > 0 && (width !== this.plot.width || height() !== this.plot.height)) this.plot.setSize({ width, height: height() });
    }

    // list writes the figures as a table, if somebody looks.
    list() {
      const details = this.figure.querySelector("details");
      if (!details.open) return;
      const most = 500, [x, ...ys] = this.columns, table = document.createElement("table");
      const row = (cells, name, where) => {
        const tr = where.insertRow();
        cells.forEach((text, i) => {
          const cell = document.createElement(name === "th" || i === 0 ? "th" : "td");
          if (cell.tagName === "TH") cell.scope = name === "th" ? "col" : "row";
          if (i > 0) cell.className = "figure";
          cell.textContent = text;
          tr.append(cell);
        });
      };
      row([this.data.x.label, ...this.data.series.map((s) => s.name)], "th", table.createTHead());
      const body = table.createTBody();
      x.slice(0, most).forEach((v, i) => row([format(this.data.x.unit, v), ...ys.map((y, j) => format(this.data.y.unit, y[i]))], "td", body));
      const box = details.querySelector(".box");
      box.replaceChildren(table);
      if (x.length > most) {
        const note = document.createElement("p");
        note.className = "note";
        note.textContent = `These are the first ${most} of ${count(x.length)} lines.`;
        box.append(note);
      }
    }
  }

  function drawAll() {
    for (const [id, chart] of charts) if (!chart.figure.isConnected) { seen.unobserve(chart.place); chart.plot.destroy(); charts.delete(id); }
    for (const figure of document.querySelectorAll("figure[id]")) {
      if (charts.has(figure.id)) continue;
      charts.set(figure.id, new Chart(figure));
      seen.observe(charts.get(figure.id).place);
    }
  }
  const redrawAll = (width) => charts.forEach((chart) => chart.draw(width));
  const seen = new ResizeObserver(() => { if (!printing) charts.forEach((chart) => chart.resize()); });

  // --- Paper. ---

  const probe = document.createElement("span");
  let printing = false;

  // On paper all is light, and charts are as wide as the paper.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; printing = true; myriadTheme.show("light"); redrawAll(640); });
  addEventListener("afterprint", () => { printing = false; myriadTheme.show(before); redrawAll(); });

  // --- Live. ---

  // morph makes an element what a new one is, and leaves alone what is equal, so that
  // selections, scrolled boxes and opened lists stay.
  function morph(old, now) {
    if (old.isEqualNode(now)) return;
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName || old.id !== now.id) return old.replaceWith(now);
    if (old.nodeType !== Node.ELEMENT_NODE) { old.nodeValue = now.nodeValue; return; }
    const chart = charts.get(old.id);
    if (chart && chart.figure === old) return morphFigure(chart, now);
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "disabled") old.removeAttribute(name);
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const have = [...old.childNodes], want = [...now.childNodes];
    want.forEach((child, i) => i < have.length ? morph(have[i], child) : old.append(child));
    have.slice(want.length).forEach((child) => child.remove());
  }

  function morphFigure(chart, now) {
    const own = ".plot, details, script", old = chart.figure;
    const data = now.querySelector("script"), was = old.querySelector("script");
    if (data.textContent !== was.textContent) { was.textContent = data.textContent; chart.update(old); }
    const rest = (f) => [...f.children].filter((c) => !c.matches(own));
    const have = rest(old), want = rest(now);
    want.forEach((child, i) => i < have.length ? morph(have[i], child) : have.length ? old.querySelector("details").before(child) : 0);
    have.slice(want.length).forEach((child) => child.remove());
    chart.place.setAttribute("aria-label", now.querySelector(".plot").getAttribute("aria-label"));
  }

  function update(html) {
    const now = new DOMParser().parseFromString(`<div id="_page">${html}</div>`, "text/html").getElementById("_page");
    morph(document.getElementById("_page"), now);
    drawAll();
  }

  const wait = (ms) => new Promise((done) => { wake = done; setTimeout(done, ms); });
  let wake = () => {};

  async function follow(state) {
    const every = Number(state.dataset.every), most = 30000;
    const time = () => new Date().toLocaleTimeString("en-GB");
    let pause = every, heard = time();
    for (;;) {
      await wait(pause);
      if (document.hidden) continue;
      try {
        const answer = await fetch(state.dataset.url, { cache: "no-store", signal: AbortSignal.timeout(10000) });
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        update(await answer.text());
        pause = every;
        heard = time();
        state.className = "";
        state.textContent = `live, ${heard}`;
      } catch (error) {
        pause = Math.max(every, Math.min(pause * 2, most));
        state.className = "lost";
        state.textContent = `no answer since ${heard} (${error.message}); the next try is in ${Math.round(pause / 100) / 10} s`;
      }
    }
  }

  // The token of a server that asks for one is known to this page alone, until it goes.
  let token = "";
  const post = (url, slow) => fetch(url, {
    method: "POST", headers: { "Myriad-Action": "1", ...(token ? { "Myriad-Token": token } : {}) }, signal: AbortSignal.timeout(slow ? 120000 : 10000),
  });

  // askToken asks for it, because of what the server said, and says whether it was given.
  function askToken(why) {
    const dialog = document.createElement("dialog");
    dialog.innerHTML = `<form><p id="why"></p><input type="password" autocomplete="off" aria-label="Token"><p class="actions"><button id="give">Go on</button><button id="leave" type="button">Cancel</button></p></form>`;
    dialog.querySelector("#why").textContent = `The token of the server: ${why}.`;
    const input = dialog.querySelector("input");
    document.body.append(dialog);
    dialog.showModal();
    return new Promise((done) => {
      const end = (given) => { token = given.trim(); dialog.remove(); done(token !== ""); };
      dialog.querySelector("form").addEventListener("submit", (e) => { e.preventDefault(); end(input.value); });
      dialog.querySelector("#leave").addEventListener("click", () => end(""));
      dialog.addEventListener("cancel", () => end(""));
    });
  }

  async function act(button) {
    const said = document.getElementById("_said");
    if (button.dataset.confirm && !confirm(button.dataset.confirm)) return;
    const { post: url, token: needed, slow } = button.dataset, none = new Error("no token was given");
    button.disabled = true;
    try {
      if (needed && !token && !await askToken("it is asked for once")) throw none;
      let answer = await post(url, slow);
      while (needed && answer.status === 401) {
        if (!await askToken((await answer.text()).trim())) throw none;
        answer = await post(url, slow);
      }
      const text = (await answer.text()).trim().slice(0, 300);
      said.textContent = (answer.ok ? "" : `refused, ${answer.status}: `) + (text || "done");
    } catch (error) {
      said.textContent = `not done: ${error.message}`;
    }
    button.disabled = false;
    said.hidden = false;
    clearTimeout(act.timer);
    act.timer = setTimeout(() => { said.hidden = true; }, 8000);
    wake();
  }

  // --- The beginning. ---

  addEventListener("DOMContentLoaded", () => {
    probe.hidden = true;
    document.body.append(probe);
    myriadTheme.changed = () => redrawAll();
    document.addEventListener("click", (e) => { const b = e.target.closest("button[data-post]"); if (b) act(b); });
    drawAll();
    const state = document.getElementById("_state");
    if (state) {
      document.addEventListener("visibilitychange", () => { if (!document.hidden) wake(); });
      follow(state);
    }
    root.dataset.ready = "yes";
  });

  window.myriadPage = { charts, format, update };
})();
