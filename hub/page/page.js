// The script of the page of a hub: a WebSocket that connects again by itself, what this page
// has subscribed to, and the messages that come. All that comes is shown as text.
(() => {
  const $ = (id) => document.getElementById(id);
  const maxRows = 500, maxShown = 2000; // rows; characters of a message
  const leastWait = 500, mostWait = 30000; // ms until the page connects again

  const number = (n) => n.toLocaleString("en-US");
  const clock = () => new Date().toLocaleTimeString("en-GB");
  function make(name, text, attributes = {}) {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    return e;
  }

  function say(text) {
    const said = $("_said");
    said.textContent = text;
    said.hidden = false;
    clearTimeout(say.timer);
    say.timer = setTimeout(() => { said.hidden = true; }, 8000);
  }

  function state(name, text) {
    $("state").className = name;
    $("state").textContent = text;
    root.dataset.state = name;
    $("leave").disabled = !wanted;
  }

  // --- The connection. ---

  const root = document.documentElement;
  const wants = new Map(); // what to be subscribed to, by key
  let socket = null, wanted = true, attempts = 0, timer = 0;

  function connect() {
    clearTimeout(timer);
    drop();
    state("", "connecting");
    const url = new URL("ws", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const ws = socket = new WebSocket(url, "myriad.hub.v1");
    ws.onopen = () => {
      state("open", "connected");
      if ($("token").value) send({ op: "auth", token: $("token").value, id: "auth" });
      for (const want of wants.values()) ask(want);
      setTimeout(() => { if (ws === socket) attempts = 0; }, 5000);
    };
    ws.onmessage = (e) => hear(JSON.parse(e.data));
    ws.onclose = (e) => {
      if (ws !== socket) return;
      socket = null;
      for (const want of wants.values()) want.is = false;
      showWants();
      if (e.code === 1008) wanted = false;
      if (!wanted) return state("lost", `closed${e.reason ? ": " + e.reason : ""}`);
      again();
    };
  }

  // again waits before it connects again: for a time that doubles, and of which a part is left
  // to chance, so that not all pages come back at one moment.
  function again() {
    const most = Math.min(mostWait, leastWait * 2 ** attempts++);
    const wait = most / 2 + Math.random() * most / 2;
    state("lost", `no connection; the next try is in ${(wait / 1000).toFixed(1)} s`);
    timer = setTimeout(connect, wait);
  }

  function drop() {
    const ws = socket;
    socket = null;
    if (ws) ws.close(1000);
    for (const want of wants.values()) want.is = false;
  }

  function leave(why) {
    clearTimeout(timer);
    wanted = false;
    drop();
    showWants();
    state("lost", why);
  }

  function send(message) {
    if (!socket || socket.readyState !== WebSocket.OPEN) return false;
    socket.send(JSON.stringify(message));
    return true;
  }

  function hear(m) {
    switch (m.op) {
      case "message": return received(m);
      case "subscribed": case "unsubscribed": {
        const want = wants.get(key("topic" in m ? "topic" : "pattern", m.topic ?? m.pattern));
        if (want) want.is = m.op === "subscribed";
        return showWants();
      }
      case "authenticated": return state("open", `connected as ${m.user}`);
      case "published": return say(`on its way to ${number(m.receivers)}`);
      case "error":
        if (m.id === "auth") return leave(m.error);
        for (const [id, want] of wants) if (want.id === m.id) wants.delete(id);
        showWants();
        return say(m.error);
    }
  }

  // --- Subscriptions. ---

  const key = (kind, name) => `${kind} ${name}`;
  const ask = (want) => send({ op: "subscribe", [want.kind]: want.name, id: want.id });
  let lastID = 0;

  function subscribe(kind, name) {
    const id = key(kind, name);
    if (!wants.has(id)) wants.set(id, { kind, name, id: ++lastID, is: false });
    ask(wants.get(id));
    showWants();
  }

  function unsubscribe(id) {
    const { kind, name } = wants.get(id);
    wants.delete(id);
    send({ op: "unsubscribe", [kind]: name });
    showWants();
  }

  function showWants() {
    $("subscribed").replaceChildren(...[...wants].map(([id, want]) => {
      const li = make("li", undefined, { class: want.is ? "" : "waiting" });
      const button = make("button", `${want.kind === "pattern" ? "pattern " : ""}${want.name} ✕`, { type: "button", "aria-label": `Unsubscribe from ${want.kind} ${want.name}` });
      button.onclick = () => unsubscribe(id);
      li.append(button);
      return li;
    }));
    $("subscriptions").textContent = number([...wants.values()].filter((want) => want.is).length);
  }

  // --- Messages. ---

  let all = 0, since = 0, hidden = 0, paused = false;
  let waiting = []; // rows that are not drawn yet, the newest last

  function received(m) {
    all++;
    since++;
    if (paused) { hidden++; return; }
    waiting.push([m, clock()]);
    if (waiting.length > maxRows) waiting.shift();
    if (waiting.length === 1) requestAnimationFrame(draw);
  }

  function draw() {
    const rows = waiting.map(([m, time]) => {
      const tr = make("tr"), data = m.base64 !== undefined ? `base64: ${m.base64}` : m.data ?? "";
      const text = data.length > maxShown ? `${data.slice(0, maxShown)}… (${number(data.length)} characters)` : data;
      tr.append(make("th", m.topic, { scope: "row", ...(m.pattern !== undefined ? { title: `by the pattern ${m.pattern}` } : {}) }), make("td", time), make("td", text));
      return tr;
    });
    waiting = [];
    const list = $("list");
    list.prepend(...rows.reverse());
    while (list.children.length > maxRows) list.lastChild.remove();
    showShown();
  }

  function showShown() {
    $("shown").textContent = paused ? `paused; ${number(hidden)} not shown` : `the newest ${number($("list").children.length)}, ${number(maxRows)} at the most`;
  }

  setInterval(() => {
    $("rate").textContent = number(since);
    $("received").textContent = number(all);
    since = 0;
    if (paused) showShown();
  }, 1000);

  // --- Topics. ---

  const wait = (ms) => new Promise((done) => { wake = done; setTimeout(done, ms); });
  let wake = () => {};
  const rows = new Map(); // of the table, by topic

  async function list() {
    for (let pause = 2000; ; await wait(pause)) {
      if (document.hidden || !wanted) continue;
      try {
        const url = new URL("topics", location.href);
        url.search = new URLSearchParams({ prefix: $("prefix").value, limit: 100 });
        const token = $("token").value;
        const answer = await fetch(url, { cache: "no-store", headers: token ? { Authorization: `Bearer ${token}` } : {}, signal: AbortSignal.timeout(10000) });
        const found = await answer.json();
        if (!answer.ok) throw new Error(found.error);
        showTopics(found);
        $("unlisted").textContent = "";
        pause = 2000;
      } catch (error) {
        $("unlisted").textContent = `The topics can't be listed: ${error.message}`;
        pause = Math.min(pause * 2, mostWait);
      }
    }
  }

  function showTopics({ topics, total }) {
    $("total").textContent = number(total);
    const names = new Set(topics.map((t) => t.topic)), table = $("listed");
    for (const [name, row] of rows) if (!names.has(name)) { row.remove(); rows.delete(name); }
    const still = table.contains(document.activeElement); // then rows keep their places
    topics.forEach(({ topic, subscribers }, i) => {
      let row = rows.get(topic);
      if (!row) {
        row = make("tr");
        const button = make("button", "Subscribe", { type: "button", "aria-label": `Subscribe to ${topic}` }), cell = make("td");
        button.onclick = () => subscribe("topic", topic);
        cell.append(button);
        row.append(make("th", topic, { scope: "row" }), make("td", "", { class: "figure" }), cell);
        rows.set(topic, row);
        table.append(row);
      }
      row.children[1].textContent = number(subscribers);
      if (!still && table.children[i] !== row) table.insertBefore(row, table.children[i]);
    });
  }

  // --- The beginning. ---

  addEventListener("DOMContentLoaded", () => {
    const on = (id, event, f) => $(id).addEventListener(event, (e) => { e.preventDefault(); f(); });
    on("connect", "submit", () => { wanted = true; attempts = 0; connect(); wake(); });
    on("leave", "click", () => leave("disconnected"));
    on("subscribe", "submit", () => { subscribe($("kind").value, $("name").value); $("name").value = ""; });
    on("publish", "submit", () => {
      if (!send({ op: "publish", topic: $("to").value, data: $("message").value })) say("not published: there is no connection");
      else $("message").value = "";
    });
    on("pause", "click", () => {
      paused = !paused;
      hidden = 0;
      $("pause").textContent = paused ? "Go on" : "Pause";
      $("pause").setAttribute("aria-pressed", paused);
      showShown();
    });
    on("clear", "click", () => { $("list").replaceChildren(); showShown(); });
    on("filter", "submit", () => wake());
    $("prefix").addEventListener("input", () => wake());
    $("message").addEventListener("keydown", (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) $("publish").requestSubmit(); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) wake(); });
    addEventListener("online", () => { if (wanted && !socket) connect(); });
    showShown();
    connect();
    list();
    root.dataset.ready = "yes";
  });
})();
