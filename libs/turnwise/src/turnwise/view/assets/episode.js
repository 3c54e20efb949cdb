import { api, button, count, details, link, make } from "./parts.js";

const { chunkElements, telling } = globalThis.turnwiseTokens;
const SHADES = [["", "no shade"], ["shaded", "shade by log-prob"], ["apart", "shade by engine-trainer gap"],
  ["moved", "shade by ratio"]];
const LINE = 23;
const LETTER = 7.9;

// Draws ranges of tokens when they come near the screen and drops them when they are far away.
const drawing = (run, line, signal, forget) => {
  const heightOf = (width, { characters, lines }) =>
    Math.max(1, Math.round(lines + (characters * LETTER) / width)) * LINE;
  const fill = async (element) => {
    const { segment, start, stop } = element.range;
    element.wanted = true;
    let found;
    try {
      found = await api("tokens", { run, line, segment, start, stop }, signal);
    } catch (error) {
      element.textContent = error.name === "AbortError" ? "" : error.message;
      return;
    }
    if (!element.wanted) return;
    element.replaceChildren(...found.chunks.flatMap(chunkElements));
    element.style.minHeight = "";
    element.filled = true;
  };
  const drop = (element) => {
    element.wanted = false;
    if (!element.filled) return;
    element.style.minHeight = `${element.clientHeight}px`;
    if (element.querySelector(".here")) forget();
    element.replaceChildren();
    element.filled = false;
  };
  const watch = new IntersectionObserver((seen) => seen.forEach((one) => {
    if (one.isIntersecting && !one.target.wanted) fill(one.target);
    if (!one.isIntersecting) drop(one.target);
  }), { rootMargin: "1200px 0px" });
  signal.addEventListener("abort", () => watch.disconnect());
  return (pieces) => {
    // The width is asked for once: each height that is set makes the next answer a layout.
    const width = pieces.length ? pieces[0][0].clientWidth || 800 : 800;
    pieces.forEach(([element, size]) => { element.style.minHeight = `${heightOf(width, size)}px`; });
    pieces.forEach(([element]) => watch.observe(element));
  };
};

// The calls of a turn as they were read; a broken one with its fault marked.
const callsOf = (calls) => {
  const broken = calls.filter((one) => one.said).length;
  const list = make("ul", "calls");
  calls.forEach((one) => {
    const item = make("li", one.said ? "bad" : "");
    const [before, fault, after] = one.parts;
    const code = make("code", "", before);
    if (fault !== undefined) code.append(make("mark", "", fault), after);
    if (one.left_out) code.append(` ... (${count(one.left_out)} characters left out)`);
    item.append(make("span", "note", [one.name, one.where].filter(Boolean).join(", ")), code);
    if (one.said) item.append(make("span", "said", one.said));
    list.append(item);
  });
  const whole = calls.length - broken;
  const title = [whole && `${whole} call${whole > 1 ? "s" : ""}`, broken && `${broken} that can't be read`];
  const element = details(title.filter(Boolean).join(", "), list);
  element.open = broken > 0;
  return element;
};

const blockOf = (block, segment, watched, calls) => {
  const element = make("div", `block ${block.author}`);
  let who = `${block.name} · ${count(block.count)} tokens`;
  if (block.author === "policy") who += block.trained ? ", trained" : ", not trained here";
  const text = make("div", "text");
  element.append(make("div", "who", who), text);
  const parts = block.pieces.length;
  const size = { characters: block.characters / parts, lines: block.lines / parts };
  block.pieces.forEach(([start, stop]) => {
    const piece = make("span", "piece");
    piece.range = { segment, start, stop };
    text.append(piece);
    watched.push([piece, size]);
  });
  if (calls[block.turn]) element.append(callsOf(calls[block.turn]));
  return element;
};

const plainBlock = (block) => {
  const element = make("div", `block ${block.author}`);
  const text = make("div", "text");
  text.append(...block.chunks.flatMap(chunkElements));
  element.append(make("div", "who", block.name), text);
  return element;
};

const factsOf = (found) => {
  const facts = make("dl");
  facts.id = "facts";
  found.facts.forEach(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    facts.append(pair);
  });
  return facts;
};

const barOf = (found, run, line, conversation) => {
  const bar = make("div", "bar");
  if (found.before !== null) bar.append(link("◀ before", "episode", { run, line: found.before }));
  if (found.after !== null) bar.append(link("after ▶", "episode", { run, line: found.after }));
  bar.append(link(`group of ${found.siblings}`, "group", { run, line }));
  const shade = make("select");
  shade.setAttribute("aria-label", "Shade the tokens");
  const known = found.facts.some(([name]) => name === "advantage");
  SHADES.slice(0, known ? 4 : 2).forEach(([value, text]) => {
    const option = make("option", "", text);
    option.value = value;
    shade.append(option);
  });
  shade.onchange = () => {
    conversation.classList.remove(...SHADES.map(([value]) => value).filter(Boolean));
    if (shade.value) conversation.classList.add(shade.value);
  };
  const raw = make("a", "", "as JSON");
  raw.href = `/api/raw?${new URLSearchParams({ run, line })}`;
  const copying = (label, text) => {
    const copy = button(label, async () => {
      await navigator.clipboard.writeText(await text());
      copy.textContent = "copied";
    });
    return copy;
  };
  bar.append(shade, raw, copying("copy JSON", async () => (await fetch(raw.href)).text()));
  if (found.replay) {
    const again = details("play it again", make("code", "", found.replay),
      copying("copy replay command", async () => found.replay));
    again.id = "again";
    bar.append(again);
  }
  return bar;
};

// Segments under each other: what one shares with an earlier one is pale, what is trained stands out.
const lanesOf = (found, conversation) => {
  const longest = Math.max(...found.lanes.map((lane) => lane.tokens), 1);
  const list = make("ol", "lanes");
  found.lanes.forEach((lane, number) => {
    const item = make("li");
    const go = button("", () => {
      conversation.querySelectorAll(".segment")[number].scrollIntoView();
    });
    const bar = make("span", "lane");
    bar.style.width = `${(100 * lane.tokens) / longest}%`;
    lane.parts.forEach(([author, trained, start, stop]) => {
      const part = make("span", `part ${author}${trained ? " trained" : ""}`);
      part.style.left = `${(100 * start) / lane.tokens}%`;
      part.style.width = `${(100 * (stop - start)) / lane.tokens}%`;
      bar.append(part);
    });
    const shared = make("span", "shared");
    shared.style.width = `${(100 * lane.shared) / lane.tokens}%`;
    if (lane.shared) bar.append(shared);
    let told = `Segment ${number + 1}: ${count(lane.tokens)} tokens`;
    told += lane.parent === null ? ", nothing in common with those before"
      : `, the first ${count(lane.shared)} as in segment ${lane.parent + 1}`;
    go.append(make("span", "note", number ? told : `Segment 1: ${count(lane.tokens)} tokens`), bar);
    item.append(go);
    list.append(item);
  });
  const more = found.segments.length - found.lanes.length;
  const notes = found.rewrites.map((text) => make("li", "", `History is shown otherwise ${text}`));
  const told = make("ul");
  told.append(...notes);
  if (more > 0 && found.lanes.length) told.append(make("li", "", `${more} further segments are not drawn.`));
  const box = make("div");
  if (found.lanes.length) box.append(details(`How its ${found.segments.length} segments belong together`, list));
  if (box.firstChild) box.firstChild.open = true;
  if (told.firstChild) box.append(told);
  return box;
};

export const episodeView = async (root, parameters, signal) => {
  const [run, line] = [parameters.get("run"), parameters.get("line")];
  const found = await api("episode", { run, line }, signal);
  const conversation = make("div");
  conversation.id = "conversation";
  conversation.tabIndex = 0;
  const forget = telling(conversation, document.getElementById("info"));
  const info = make("details");
  info.append(make("summary", "", "What else is known of it"), make("pre", "", found.info));
  const when = found.kind === "eval" ? `evaluation after step ${found.step}` : `training step ${found.step}`;
  const legend = make("ul", "legend");
  [["system", "System"], ["user", "User"], ["tool", "Tool"], ["template", "Template"], ["policy", "Policy"],
    ["policy trained", "trained"]].forEach(([author, name]) => {
    const item = make("li");
    item.append(make("span", `token ${author}`, name));
    legend.append(item);
  });
  root.append(make("h1", "", `${found.task_id}, ${when}: ${found.why.replaceAll("+", ", ")}`),
    barOf(found, run, line, conversation), factsOf(found), lanesOf(found, conversation), info, legend, conversation);
  const watched = [];
  found.segments.forEach((segment, number) => {
    if (found.segments.length > 1) {
      const weight = `${(100 * segment.weight).toFixed(1)} % of the trained tokens`;
      conversation.append(make("div", "segment",
        `Segment ${number + 1} of ${found.segments.length}, ${count(segment.tokens)} tokens, ${weight}`));
    }
    conversation.append(...segment.blocks.map((block) => blockOf(block, number, watched, found.calls)));
  });
  conversation.append(...found.messages.map(plainBlock));
  if (!found.segments.length) conversation.prepend(make("p", "note", "No tokens are known of this episode."));
  drawing(run, line, signal, forget)(watched);
  return null;
};
