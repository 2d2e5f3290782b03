// The checkout page: shows the session's state, sends the payer's choice, and leaves as the spec says.
"use strict";

const card = document.getElementById("checkout");
const here = window.location.pathname;
const TEXTS = {
  ready: "",
  processing: "Waiting for Solana…",
  succeeded: "Paid. Thank you.",
  canceled: "Cancelled.",
  expired: "This link has expired.",
  subscription_preparing: "The subscription plan is being prepared. This page updates by itself.",
  subscription_plan_failed: "The subscription plan could not be prepared. Ask the merchant.",
  build_limit_reached: "This link was tried too often. Ask the merchant for a new one.",
  too_close_to_expiry: "This link is about to expire. Ask the merchant for a new one.",
};
const POLL_MS = 1000;
let left = false;

function show(page) {
  const line = document.getElementById("state");
  line.textContent = TEXTS[page.state] || "";
  line.className = "state " + page.state;
  card.dataset.state = page.state;
  for (const button of document.querySelectorAll("button[data-action]")) {
    const action = button.dataset.action;
    if (action === "pay") button.hidden = page.state !== "ready";
    if (action === "cancel") button.hidden = !page.can_cancel;
    if (action === "confirm") button.disabled = !(page.state === "ready" || page.state === "processing");
    if (action === "finalize") button.disabled = page.final || !["ready", "processing", "succeeded"].includes(page.state);
    if (action === "fail") button.disabled = page.final || !["processing", "succeeded"].includes(page.state);
  }
}

function leave(page) {
  if (left || page.status === null) return;
  if (page.ui_mode === "popup") {
    left = true;
    if (window.opener) {
      const message = { type: "fianto.checkout", session_id: page.session_id, status: page.status };
      window.opener.postMessage(message, page.origin);
    }
    window.close();
  } else if (page.redirect_to !== null) {
    left = true;
    window.setTimeout(() => window.location.assign(page.redirect_to), page.redirect_after_ms);
  }
}

function update(page) {
  show(page);
  leave(page);
}

function refuse(text) {
  const line = document.getElementById("refusal");
  line.textContent = text;
  line.hidden = text === "";
}

async function refresh() {
  try {
    const answer = await fetch(here + "/state", { cache: "no-store" });
    if (answer.status === 404) window.location.reload();
    else if (answer.ok) update(await answer.json());
  } catch (error) {
    // The sandbox may be restarting: the next round asks again.
  }
  window.setTimeout(refresh, POLL_MS);
}

async function act(button) {
  button.disabled = true;
  refuse("");
  try {
    const answer = await fetch(here + "/" + button.dataset.action, { method: "POST" });
    const body = await answer.json();
    if (answer.ok) update(body);
    else refuse(body.message);
  } catch (error) {
    refuse("The sandbox does not answer.");
  }
  button.disabled = false;
}

for (const button of document.querySelectorAll("button[data-action]")) {
  button.addEventListener("click", () => act(button));
}
update(JSON.parse(card.dataset.page));
window.setTimeout(refresh, POLL_MS);
