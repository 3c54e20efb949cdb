import { Trouble, link, make } from "./parts.js";
import { compareView, listView, runView } from "./runs.js";
import { episodesView, groupView } from "./episodes.js";
import { episodeView } from "./episode.js";

// A view is called with its place and parameters; it returns what brings it up to date, or null
// where nothing changes. That returns true while there is more to read at once.
const VIEWS = {
  runs: listView, run: runView, compare: compareView,
  episodes: episodesView, group: groupView, episode: episodeView,
};
const EVERY_MS = 2000;
const [trail, trouble, place] = ["trail", "trouble", "view"].map((id) => document.getElementById(id));
let stop = new AbortController();

const tell = (error) => {
  if (error.name === "AbortError") return;
  if (!(error instanceof Trouble)) console.error(error);
  trouble.textContent = error.message;
  trouble.hidden = false;
};

const breadcrumbs = (name, parameters) => {
  const run = parameters.get("run");
  const parts = [link("Runs", "runs", {})];
  if (run && name !== "compare" && name !== "runs") parts.push(link(run, "run", { run }));
  if (["episodes", "group", "episode"].includes(name)) parts.push(link("Episodes", "episodes", { run }));
  if (["group", "episode", "compare"].includes(name)) parts.push(make("span", "", name));
  parts[parts.length - 1].setAttribute("aria-current", "page");
  trail.replaceChildren(...parts);
  document.title = [name === "runs" ? "" : name, run || ""].filter(Boolean).join(": ") || "Runs";
};

const open = async () => {
  stop.abort();
  stop = new AbortController();
  const { signal } = stop;
  const [asked, query] = location.hash.slice(1).split("?");
  const name = Object.hasOwn(VIEWS, asked) ? asked : "runs";
  const parameters = new URLSearchParams(query || "");
  breadcrumbs(name, parameters);
  trouble.hidden = true;
  document.getElementById("info").hidden = true;
  const root = make("div");
  place.replaceChildren(root);
  let refresh = null;
  try {
    refresh = await VIEWS[name](root, parameters, signal);
  } catch (error) {
    tell(error);
  }
  while (refresh && !signal.aborted) {
    let more = false;
    try {
      more = document.hidden ? false : await refresh();
      if (!signal.aborted) trouble.hidden = true;
    } catch (error) {
      tell(error);
    }
    await new Promise((resolve) => setTimeout(resolve, more ? 30 : EVERY_MS));
  }
};

addEventListener("hashchange", open);
open();
