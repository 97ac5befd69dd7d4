// The data of a page that `strands-env watch` serves: the newest overview in events, the rest when it is looked at.

const LOST = "the watch has ended or cannot be reached: this is what it showed last";
const stream = new EventSource("events");
let onOverview = null, newest = null;
stream.addEventListener("message", (event) => { newest = JSON.parse(event.data); if (onOverview) onOverview(newest); });

async function ask(name) {
  const answer = await fetch(`part?${new URLSearchParams({ name })}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

function progressText({ live }) {
  const ended = live.finished ? "finished" : live.eta === null ? "" : `${clock(live.eta)} to go`;
  return [`${whole(live.done)}${live.total === null ? "" : ` of ${whole(live.total)}`} samples`, live.finished || !live.rate ? "" : `${short(live.rate)} a second`, ended,
    live.changed && `last change ${String(live.changed).slice(11, 19)} UTC`].filter(Boolean).join(", ");
}

const source = {
  overview: () => new Promise((resolve, reject) => {
    onOverview = resolve;
    if (newest) resolve(newest);
    stream.onerror = () => { if (stream.readyState === EventSource.CLOSED) reject(new Error("the watch refused: open its address anew")); };
  }),
  sample: (data, i, name) => ask(name),
  answers: (data, i, name) => ask(name),
  // Calls `redraw` when there is something new, in a page that is looked at; returns the line that says how far it is.
  follow: (data, redraw) => {
    const text = h("span", null, progressText(data)), line = h("span", { class: "live", "data-testid": "live" }, text);
    const lost = h("span", { class: "verdict bad", role: "alert", hidden: true }, LOST);
    let scrolled = 0;
    const show = () => {
      if (document.hidden || !newest) return;
      const still = 300 - (performance.now() - scrolled);
      if (still > 0) { setTimeout(show, still); return; } // nothing changes, and nothing stutters, under a moving list
      Object.assign(data, newest);
      newest = null;
      text.textContent = progressText(data);
      redraw();
    };
    newest = null;
    onOverview = () => requestAnimationFrame(show);
    document.addEventListener("scroll", () => { scrolled = performance.now(); }, { capture: true, passive: true });
    document.addEventListener("visibilitychange", show);
    stream.onopen = () => { lost.hidden = true; };
    stream.onerror = () => { lost.hidden = false; };
    line.append(lost);
    return line;
  },
};
