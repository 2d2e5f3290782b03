// The control page: every form and button is one request to a control address; then the page as it is now.
"use strict";

const notice = document.getElementById("notice");

function say(text, bad) {
  notice.textContent = text;
  notice.className = bad ? "refusal" : "state";
  notice.hidden = false;
}

async function send(path, body) {
  say("…", false);
  try {
    const answer = await fetch("/_sandbox" + path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const document_ = await answer.json();
    if (!answer.ok) {
      say(document_.message || "Refused.", true);
      return;
    }
    const shown = {};
    for (const name of ["app_id", "app_secret", "webhook_secret", "new_secret", "event_id", "expected", "canceled_deliveries"]) {
      if (name in document_) shown[name] = document_[name];
    }
    if (document_.application && document_.application.app_secret) shown.application = document_.application;
    if (Object.keys(shown).length) {
      sessionStorage.setItem("notice", JSON.stringify(shown, null, 2));
    }
    window.location.reload();
  } catch (error) {
    say("The sandbox does not answer.", true);
  }
}

function valueOf(field) {
  if (field.dataset.kind === "number") return Number(field.value);
  if (field.dataset.kind === "flag") return field.value === "true";
  return field.value;
}

for (const form of document.querySelectorAll("form[data-path]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const body = {};
    let path = form.dataset.path;
    for (const field of form.elements) {
      if (!field.name || field.value === "") continue;
      if (field.dataset.in === "path") path = path.replace("{" + field.name + "}", encodeURIComponent(field.value));
      else if (field.name.startsWith("set.")) (body.set = body.set || {})[field.name.slice(4)] = field.value;
      else body[field.name] = valueOf(field);
    }
    send(path, body);
  });
}
for (const button of document.querySelectorAll("button[data-path]")) {
  button.addEventListener("click", () => {
    if (button.dataset.ask && !window.confirm(button.dataset.ask)) return;
    send(button.dataset.path, JSON.parse(button.dataset.body || "{}"));
  });
}
for (const field of document.querySelectorAll("[data-change]")) {
  field.addEventListener("change", () => send(field.dataset.change, { [field.name]: valueOf(field) }));
}
const kept = sessionStorage.getItem("notice");
if (kept !== null) {
  sessionStorage.removeItem("notice");
  say(kept, false);
}
