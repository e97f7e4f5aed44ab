// Keeps the page current: sections come by server-sent events and are merged
// into what is there, so that focus, scroll position and opened details stay;
// times are written in the viewer's zone; holds count down by the server's
// clock. Without this script the page is complete, in UTC, and stands still.
(() => {
  "use strict";
  const body = document.body;
  let ahead = Number(body.dataset.now || Date.now()) - Date.now(); // server's clock less ours
  const now = () => Date.now() + ahead;

  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "your time zone";
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

  function length(seconds) {
    const s = Math.max(0, Math.round(seconds));
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " min";
    const minutes = Math.floor(s / 60) % 60;
    if (s < 172800) return Math.floor(s / 3600) + " h" + (minutes ? " " + minutes + " min" : "");
    return Math.floor(s / 86400) + " days";
  }

  function set(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function writeTime(t) {
    const at = new Date(t.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const past = (now() - at.getTime()) / 1000;
    const today = at.toDateString() === new Date(now()).toDateString();
    switch (t.dataset.how) {
      case "for": set(t, "for " + length(past)); break;
      case "ago": set(t, past < 5 ? "now" : past < 3600 * 20 ? length(past) + " ago" : day.format(at)); break;
      case "clock": set(t, today ? clock.format(at) : day.format(at) + ", " + clock.format(at)); break;
      default: set(t, full.format(at));
    }
    if (t.dataset.how !== "full") t.title = full.format(at);
  }

  function tick(root) {
    root.querySelectorAll("time[data-how]").forEach(writeTime);
    root.querySelectorAll("[data-countdown]").forEach((e) => {
      const left = Math.ceil((Number(e.dataset.countdown) - now()) / 1000);
      set(e, left > 0 ? "in " + (left < 60 ? left + " s" : Math.floor(left / 60) + ":" + String(left % 60).padStart(2, "0")) : "any moment");
    });
    root.querySelectorAll("progress[data-from]").forEach((p) => {
      const from = Number(p.dataset.from), to = Number(p.dataset.to);
      p.value = Math.min(Math.max(0, now() - from), to - from);
    });
  }

  // merge makes the children of have those of want, keeping elements with the
  // same id, or the same place and name, so that what the viewer did to them stays.
  const written = "time, [data-countdown]"; // texts that tick writes
  function merge(have, want, fresh) {
    const byID = new Map();
    for (const c of have.children) if (c.id) byID.set(c.id, c);
    let at = have.firstChild;
    for (const w of Array.from(want.childNodes)) {
      let h = null;
      if (w.nodeType === 1 && w.id) h = byID.get(w.id) || null;
      else if (at && at.nodeType === w.nodeType && at.nodeName === w.nodeName && !(at.id)) h = at;
      if (!h) {
        const added = document.importNode(w, true);
        if (fresh && added.nodeType === 1 && added.id) added.classList.add("fresh");
        have.insertBefore(added, at);
        continue;
      }
      if (h === at) at = at.nextSibling;
      else have.insertBefore(h, at);
      if (h.nodeType !== 1) {
        if (h.nodeValue !== w.nodeValue) h.nodeValue = w.nodeValue;
        continue;
      }
      for (const a of Array.from(h.attributes)) if (!w.hasAttribute(a.name) && a.name !== "open" && a.name !== "title") h.removeAttribute(a.name);
      for (const a of w.attributes) if (a.name !== "value" && h.getAttribute(a.name) !== a.value) h.setAttribute(a.name, a.value);
      if (!h.matches(written)) merge(h, w, fresh);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  const seen = new Set();
  function section({ id, html }) {
    const have = document.getElementById(id);
    if (!have) return;
    const want = document.createElement("template");
    want.innerHTML = html;
    const focused = document.activeElement;
    merge(have, want.content, seen.has(id));
    // An element that changed its place has lost the focus on the way.
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    seen.add(id);
    tick(have);
  }

  const state = document.querySelector("[data-live-state]");
  function live(on) {
    if (!state) return;
    const word = on ? "live" : "reconnecting…";
    state.dataset.liveState = on ? "on" : "off";
    set(state.querySelector("[data-live-word]"), word);
  }

  if (body.dataset.live && window.EventSource) {
    const source = new EventSource(body.dataset.live);
    source.addEventListener("open", () => live(true));
    source.addEventListener("error", () => {
      live(false);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
    });
    source.addEventListener("beat", (e) => { ahead = Number(e.data) - Date.now(); });
    source.addEventListener("section", (e) => section(JSON.parse(e.data)));
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (e) => { if (e.persisted) location.reload(); });
  }

  document.querySelectorAll("[data-zone]").forEach((e) => set(e, zone.replaceAll("_", " ")));
  tick(document);
  setInterval(() => tick(document), 500);
})();
