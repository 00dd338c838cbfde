// The script of the dashboard. Without it every page can be read and every change made. It
// writes times in the reader's zone, and follows what happens until it is paused.
(function () {
  "use strict";

  var day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
  var clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

  // written is an instant in the reader's zone, with its day when that is not today.
  function written(at) {
    var text = clock.format(at);
    return day.format(at) === day.format(new Date()) ? text : day.format(at) + ", " + text;
  }

  // local writes the times below a node in the reader's zone. The title keeps the exact instant.
  function local(node) {
    node.querySelectorAll("time[datetime]").forEach(function (t) {
      var at = new Date(t.dateTime);
      if (isNaN(at)) return;
      var text = written(at);
      if (t.textContent !== text) t.textContent = text;
    });
    node.querySelectorAll("option[data-at]").forEach(function (o) {
      var at = new Date(o.dataset.at), rest = o.textContent.indexOf(" · ");
      if (!isNaN(at) && rest > 0) o.textContent = written(at) + o.textContent.slice(rest);
    });
  }

  // change makes a node like another one, and leaves alone what is the same. So the focus, a
  // selection and an open part of the page stay where they are.
  function change(was, is) {
    if (was.nodeType !== is.nodeType || was.nodeName !== is.nodeName) {
      was.replaceWith(is);
      return;
    }
    if (was.nodeType !== Node.ELEMENT_NODE) {
      if (was.data !== is.data) was.data = is.data;
      return;
    }
    Array.from(was.attributes).forEach(function (a) {
      if (a.name !== "open" && !is.hasAttribute(a.name)) was.removeAttribute(a.name);
    });
    Array.from(is.attributes).forEach(function (a) {
      if (was.getAttribute(a.name) !== a.value) was.setAttribute(a.name, a.value);
    });
    var from = Array.from(was.childNodes), to = Array.from(is.childNodes);
    to.forEach(function (child, i) {
      if (i < from.length) change(from[i], child); else was.appendChild(child);
    });
    from.slice(to.length).forEach(function (child) { child.remove(); });
  }

  local(document);

  var place = document.body.dataset.live, page = document.getElementById("live");
  var button = document.getElementById("pause"), state = document.getElementById("state");
  if (!place || !page || !button || !state || !window.EventSource) return;
  var pulse = state.parentElement, source = null, paused = false, ended = false;

  function say(text, on) {
    if (state.textContent !== text) state.textContent = text;
    pulse.classList.toggle("on", on);
  }

  function stop() {
    if (source) source.close();
    source = null;
  }

  function follow() {
    stop();
    if (paused || ended || document.hidden) return;
    source = new EventSource(place);
    source.addEventListener("open", function () { say("Live", true); });
    source.addEventListener("view", function (e) {
      var next = new DOMParser().parseFromString("<div id=live>" + e.data + "</div>", "text/html");
      local(next);
      change(page, next.getElementById("live"));
      var asOf = document.querySelector("#as-of time");
      if (asOf && e.lastEventId) {
        asOf.dateTime = e.lastEventId;
        asOf.title = e.lastEventId.replace("T", " ").replace("Z", " UTC");
        local(asOf.parentElement);
      }
      say("Live", true);
    });
    source.addEventListener("end", function (e) {
      ended = true;
      stop();
      say(e.data, false);
      button.hidden = true;
    });
    source.addEventListener("fault", function (e) { say(e.data, false); });
    source.addEventListener("error", function () {
      say("Connecting again", false);
      if (source && source.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
    });
  }

  button.hidden = false;
  button.addEventListener("click", function () {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on" : "Pause";
    if (paused) { stop(); say("Paused", false); } else { say("Connecting", false); follow(); }
  });
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", function (e) { if (e.persisted) follow(); });
  follow();
})();
