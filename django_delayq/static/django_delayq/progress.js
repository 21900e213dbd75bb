/* Keeps the progress of a bulk action up to date: fetches that part of the page again until it has ended. */
"use strict";
(function () {
    const EVERY = 1000, AFTER_ERROR = 5000;

    function isEnded(box) {
        return box.querySelector("[data-ended]") !== null;
    }

    async function refresh(box) {
        let wait = EVERY;
        if (!document.hidden) {
            try {
                const answer = await fetch(box.dataset.url, {credentials: "same-origin", cache: "no-store"});
                if (answer.redirected || answer.status === 403 || answer.status === 404) {
                    return; // logged out, or it is gone: a reload tells
                }
                if (answer.ok) {
                    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
                    const focused = box.contains(document.activeElement);
                    box.replaceChildren(...page.body.children);
                    if (focused) {
                        box.querySelector("button")?.focus();
                    }
                } else {
                    wait = AFTER_ERROR;
                }
            } catch {
                wait = AFTER_ERROR;
            }
        }
        if (!isEnded(box)) {
            setTimeout(refresh, wait, box);
        }
    }

    document.addEventListener("DOMContentLoaded", function () {
        const box = document.getElementById("delayq-progress");
        if (box && !isEnded(box)) {
            setTimeout(refresh, EVERY, box);
        }
    });
})();
