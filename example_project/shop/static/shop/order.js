// Keeps an order's status fresh. Without this module the page has a link (and a refresh) that does the same.

const POLL_EVERY = 1000;
const SLOWEST = 15000;

/** Ask for the status again and again until the order is final. */
async function follow(region) {
  let wait = POLL_EVERY;
  while (region.querySelector("[data-final]") === null) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    if (document.hidden || region.contains(document.activeElement)) {
      continue; // nobody looks, or somebody is about to press a button in it
    }
    try {
      const answer = await fetch(region.dataset.url, { headers: { Accept: "text/html" } });
      if (answer.redirected || answer.status === 404) {
        return; // logged out, or gone: the page's own link says so
      }
      if (!answer.ok) {
        throw new Error(String(answer.status));
      }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (page.body.textContent !== region.textContent) {
        region.replaceChildren(...page.body.childNodes);
      }
      wait = POLL_EVERY;
    } catch {
      wait = Math.min(wait * 2, SLOWEST);
    }
  }
}

for (const region of document.querySelectorAll("[data-follow]")) {
  follow(region);
}
