// What htmx leaves to the page: no poll in a hidden tab, open details stay open, a stale page says so, and people who
// listen to the page hear of a change at most once in ten seconds.
"use strict";

(() => {
  const QUIET_MS = 10000;
  const status = document.getElementById("tx-status");
  const say = document.getElementById("tx-say");
  let fresh = new Date();
  let pausedUntil = 0;
  let ended = false;
  let lastSaid = "";
  let saidAt = 0;
  let waiting = 0;

  const clock = (time) => time.toTimeString().slice(0, 8);

  function show(text, isStale) {
    status.textContent = text;
    status.classList.toggle("tx-stale", isStale);
  }

  function updated() {
    fresh = new Date();
    show(`${status.dataset.live} · ${clock(fresh)}`, false);
  }

  function stale() {
    show(`${status.dataset.stale} ${clock(fresh)}`, true);
  }

  function end() {
    ended = true;
    show(`${status.dataset.ended} `, true);
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = status.dataset.again;
    status.append(link);
  }

  function speak() {
    waiting = 0;
    const live = document.getElementById("tx-live");
    const text = live ? live.dataset.say : "";
    if (text === lastSaid) return;
    lastSaid = text;
    saidAt = Date.now();
    say.textContent = text;
  }

  // A details element that somebody has opened or closed keeps its state.
  htmx.registerExtension("console", {
    htmx_before_morph_attr: (element, detail) => !(detail.attrName === "open" && element.tagName === "DETAILS"),
  });

  document.addEventListener("htmx:before:request", (event) => {
    if (document.hidden || ended || Date.now() < pausedUntil) event.preventDefault();
  });

  document.addEventListener("htmx:after:request", (event) => {
    const response = event.detail.ctx.response;
    if (response.status < 400) updated();
    else if (response.status === 401 || response.status === 403 || response.status === 404) end();
    else {
      pausedUntil = Date.now() + 1000 * Number(response.headers.get("Retry-After") || 0);
      stale();
    }
  });

  document.addEventListener("htmx:error", stale);

  document.addEventListener("htmx:after:swap", () => {
    if (!waiting) waiting = setTimeout(speak, Math.max(0, saidAt + QUIET_MS - Date.now()));
  });

  const live = document.getElementById("tx-live");
  if (live && live.hasAttribute("data-hx-get")) {
    lastSaid = live.dataset.say || "";
    updated();
  }

  const all = document.getElementById("tx-pick-all");
  document.addEventListener("change", (event) => {
    if (event.target.id !== "tx-pick-all") return;
    for (const box of document.querySelectorAll("td.tx-pick input")) box.checked = event.target.checked;
  });
  if (all) all.hidden = false;
})();
