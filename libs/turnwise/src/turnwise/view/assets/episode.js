import { api, button, count, link, make } from "./parts.js";

const { chunkElements, telling } = globalThis.turnwiseTokens;
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

const blockOf = (block, segment, watched) => {
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
  const shade = make("input");
  shade.type = "checkbox";
  shade.onchange = () => conversation.classList.toggle("shaded", shade.checked);
  const label = make("label");
  label.append(shade, "shade by log-prob");
  const raw = make("a", "", "as JSON");
  raw.href = `/api/raw?${new URLSearchParams({ run, line })}`;
  const copy = button("copy JSON", async () => {
    await navigator.clipboard.writeText(await (await fetch(raw.href)).text());
    copy.textContent = "copied";
  });
  bar.append(label, raw, copy);
  return bar;
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
    barOf(found, run, line, conversation), factsOf(found), info, legend, conversation);
  const watched = [];
  found.segments.forEach((segment, number) => {
    if (found.segments.length > 1) {
      const weight = `${(100 * segment.weight).toFixed(1)} % of the trained tokens`;
      conversation.append(make("div", "segment",
        `Segment ${number + 1} of ${found.segments.length}, ${count(segment.tokens)} tokens, ${weight}`));
    }
    conversation.append(...segment.blocks.map((block) => blockOf(block, number, watched)));
  });
  conversation.append(...found.messages.map(plainBlock));
  if (!found.segments.length) conversation.prepend(make("p", "note", "No tokens are known of this episode."));
  drawing(run, line, signal, forget)(watched);
  return null;
};
