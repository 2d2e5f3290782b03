// The payer's portal: one button, one request, then the page as it is now.
"use strict";

for (const button of document.querySelectorAll("button[data-path]")) {
  button.addEventListener("click", async () => {
    button.disabled = true;
    const line = document.getElementById("refusal");
    try {
      const answer = await fetch(button.dataset.path, { method: "POST" });
      if (answer.ok) {
        window.location.reload();
        return;
      }
      line.textContent = (await answer.json()).message;
    } catch (error) {
      line.textContent = "The sandbox does not answer.";
    }
    line.hidden = false;
    button.disabled = false;
  });
}
