// Script of the hub's page: a WebSocket that reconnects, its subscriptions, and received messages. Everything
// received is shown as text.
(() => {
  const $ = (id) => document.getElementById(id);
  const maxRows = 500, maxShown = 2000; // rows; characters of a message
  const minReconnectDelay = 500, maxReconnectDelay = 30000; // ms

  const number = (n) => n.toLocaleString("en-US");
  const clock = () => new Date().toLocaleTimeString("en-GB");
  function newElement(name, text, attributes = {}) {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    return e;
  }

  function showNotice(text) {
    const said = $("_said");
    said.textContent = text;
    said.hidden = false;
    clearTimeout(showNotice.timer);
    showNotice.timer = setTimeout(() => { said.hidden = true; }, 8000);
  }

  function setState(name, text) {
    $("state").className = name;
    $("state").textContent = text;
    root.dataset.state = name;
    $("leave").disabled = !keepConnected;
  }

  // --- The connection. ---

  const root = document.documentElement;
  const subscriptions = new Map(); // desired ones, by key
  let socket = null, keepConnected = true, attempts = 0, timer = 0;

  function connect() {
    clearTimeout(timer);
    closeSocket();
    setState("", "connecting");
    const url = new URL("ws", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const ws = socket = new WebSocket(url, "myriad.hub.v1");
    ws.onopen = () => {
      setState("open", "connected");
      if ($("token").value) send({ op: "auth", token: $("token").value, id: "auth" });
      for (const want of subscriptions.values()) requestSubscription(want);
      setTimeout(() => { if (ws === socket) attempts = 0; }, 5000);
    };
    ws.onmessage = (e) => handleMessage(JSON.parse(e.data));
    ws.onclose = (e) => {
      if (ws !== socket) return;
      socket = null;
      for (const want of subscriptions.values()) want.is = false;
      showSubscriptions();
      if (e.code === 1008) keepConnected = false;
      if (!keepConnected) return setState("lost", `closed${e.reason ? ": " + e.reason : ""}`);
      scheduleReconnect();
    };
  }

  // scheduleReconnect reconnects after a delay that doubles each time, half of it random, so that pages don't all
  // return at once.
  function scheduleReconnect() {
    const most = Math.min(maxReconnectDelay, minReconnectDelay * 2 ** attempts++);
    const wait = most / 2 + Math.random() * most / 2;
    setState("lost", `not connected; next attempt in ${(wait / 1000).toFixed(1)} s`);
    timer = setTimeout(connect, wait);
  }

  function closeSocket() {
    const ws = socket;
    socket = null;
    if (ws) ws.close(1000);
    for (const want of subscriptions.values()) want.is = false;
  }

  function disconnect(why) {
    clearTimeout(timer);
    keepConnected = false;
    closeSocket();
    showSubscriptions();
    setState("lost", why);
  }

  function send(message) {
    if (!socket || socket.readyState !== WebSocket.OPEN) return false;
    socket.send(JSON.stringify(message));
    return true;
  }

  function handleMessage(m) {
    switch (m.op) {
      case "message": return addMessage(m);
      case "subscribed": case "unsubscribed": {
        const want = subscriptions.get(key("topic" in m ? "topic" : "pattern", m.topic ?? m.pattern));
        if (want) want.is = m.op === "subscribed";
        return showSubscriptions();
      }
      case "authenticated": return setState("open", `connected as ${m.user}`);
      case "published": return showNotice(`sent to ${number(m.receivers)} subscribers`);
      case "error":
        if (m.id === "auth") return disconnect(m.error);
        for (const [id, want] of subscriptions) if (want.id === m.id) subscriptions.delete(id);
        showSubscriptions();
        return showNotice(m.error);
    }
  }

  // --- Subscriptions. ---

  const key = (kind, name) => `${kind} ${name}`;
  const requestSubscription = (want) => send({ op: "subscribe", [want.kind]: want.name, id: want.id });
  let lastID = 0;

  function subscribe(kind, name) {
    const id = key(kind, name);
    if (!subscriptions.has(id)) subscriptions.set(id, { kind, name, id: ++lastID, is: false });
    requestSubscription(subscriptions.get(id));
    showSubscriptions();
  }

  function unsubscribe(id) {
    const { kind, name } = subscriptions.get(id);
    subscriptions.delete(id);
    send({ op: "unsubscribe", [kind]: name });
    showSubscriptions();
  }

  function showSubscriptions() {
    $("subscribed").replaceChildren(...[...subscriptions].map(([id, want]) => {
      const li = newElement("li", undefined, { class: want.is ? "" : "waiting" });
      const button = newElement("button", `${want.kind === "pattern" ? "pattern " : ""}${want.name} ✕`, { type: "button", "aria-label": `Unsubscribe from ${want.kind} ${want.name}` });
      button.onclick = () => unsubscribe(id);
      li.append(button);
      return li;
    }));
    $("subscriptions").textContent = number([...subscriptions.values()].filter((want) => want.is).length);
  }

  // --- Messages. ---

  let all = 0, since = 0, hidden = 0, paused = false;
  let waiting = []; // rows to draw, the newest last

  function addMessage(m) {
    all++;
    since++;
    if (paused) { hidden++; return; }
    waiting.push([m, clock()]);
    if (waiting.length > maxRows) waiting.shift();
    if (waiting.length === 1) requestAnimationFrame(drawMessages);
  }

  function drawMessages() {
    const rows = waiting.map(([m, time]) => {
      const tr = newElement("tr"), data = m.base64 !== undefined ? `base64: ${m.base64}` : m.data ?? "";
      const text = data.length > maxShown ? `${data.slice(0, maxShown)}… (${number(data.length)} characters)` : data;
      tr.append(newElement("th", m.topic, { scope: "row", ...(m.pattern !== undefined ? { title: `matched by ${m.pattern}` } : {}) }), newElement("td", time), newElement("td", text));
      return tr;
    });
    waiting = [];
    const list = $("list");
    list.prepend(...rows.reverse());
    while (list.children.length > maxRows) list.lastChild.remove();
    showMessageCount();
  }

  function showMessageCount() {
    $("shown").textContent = paused ? `paused; ${number(hidden)} not shown` : `newest ${number($("list").children.length)} of at most ${number(maxRows)}`;
  }

  setInterval(() => {
    $("rate").textContent = number(since);
    $("received").textContent = number(all);
    since = 0;
    if (paused) showMessageCount();
  }, 1000);

  // --- Topics. ---

  const wait = (ms) => new Promise((done) => { wake = done; setTimeout(done, ms); });
  let wake = () => {};
  const rows = new Map(); // table rows by topic

  async function pollTopics() {
    for (let pause = 2000; ; await wait(pause)) {
      if (document.hidden || !keepConnected) continue;
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
        $("unlisted").textContent = `Cannot list the topics: ${error.message}`;
        pause = Math.min(pause * 2, maxReconnectDelay);
      }
    }
  }

  function showTopics({ topics, total }) {
    $("total").textContent = number(total);
    const names = new Set(topics.map((t) => t.topic)), table = $("listed");
    for (const [name, row] of rows) if (!names.has(name)) { row.remove(); rows.delete(name); }
    const still = table.contains(document.activeElement); // don't move rows that have the focus
    topics.forEach(({ topic, subscribers }, i) => {
      let row = rows.get(topic);
      if (!row) {
        row = newElement("tr");
        const button = newElement("button", "Subscribe", { type: "button", "aria-label": `Subscribe to ${topic}` }), cell = newElement("td");
        button.onclick = () => subscribe("topic", topic);
        cell.append(button);
        row.append(newElement("th", topic, { scope: "row" }), newElement("td", "", { class: "figure" }), cell);
        rows.set(topic, row);
        table.append(row);
      }
      row.children[1].textContent = number(subscribers);
      if (!still && table.children[i] !== row) table.insertBefore(row, table.children[i]);
    });
  }

  // --- Start. ---

  addEventListener("DOMContentLoaded", () => {
    const on = (id, event, f) => $(id).addEventListener(event, (e) => { e.preventDefault(); f(); });
    on("connect", "submit", () => { keepConnected = true; attempts = 0; connect(); wake(); });
    on("leave", "click", () => disconnect("disconnected"));
    on("subscribe", "submit", () => { subscribe($("kind").value, $("name").value); $("name").value = ""; });
    on("publish", "submit", () => {
      if (!send({ op: "publish", topic: $("to").value, data: $("message").value })) showNotice("not published: not connected");
      else $("message").value = "";
    });
    on("pause", "click", () => {
      paused = !paused;
      hidden = 0;
      $("pause").textContent = paused ? "Resume" : "Pause";
      $("pause").setAttribute("aria-pressed", paused);
      showMessageCount();
    });
    on("clear", "click", () => { $("list").replaceChildren(); showMessageCount(); });
    on("filter", "submit", () => wake());
    $("prefix").addEventListener("input", () => wake());
    $("message").addEventListener("keydown", (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) $("publish").requestSubmit(); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) wake(); });
    addEventListener("online", () => { if (keepConnected && !socket) connect(); });
    showMessageCount();
    connect();
    pollTopics();
    root.dataset.ready = "yes";
  });
})();
