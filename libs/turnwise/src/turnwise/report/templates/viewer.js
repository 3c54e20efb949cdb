"use strict";
(() => {
  const episodes = JSON.parse(document.getElementById("data").textContent);
  if (!episodes.length) return;
  const get = (id) => document.getElementById(id);
  const [viewer, choice, facts, more, conversation, info] =
    ["viewer", "choice", "facts", "more", "conversation", "info"].map(get);
  const LONG = 400;
  let tokens = [];
  let here = null;

  // Everything a model wrote goes through textContent: it is shown, never parsed.
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const fill = (element, text) => {
    const parts = text.split("\n");
    parts.forEach((part, index) => {
      if (index) {
        element.append(make("span", "break", "⏎"), "\n");
      }
      element.append(part);
    });
  };

  const chunkElements = (chunk) => {
    const result = [];
    chunk.texts.forEach((text, index) => {
      if (chunk.gap && index === chunk.gap[0]) {
        result.push(make("span", "gap", ` … ${chunk.gap[1].toLocaleString()} tokens left out … `));
      }
      if (!chunk.ids) {
        result.push(make("span", "", text));
        return;
      }
      const element = make("span", `token ${chunk.author}${chunk.trained ? " trained" : ""}`);
      if (text === "") element.append(make("span", "break", "·"));
      else fill(element, text);
      const logprob = chunk.logprobs ? chunk.logprobs[index] : null;
      if (logprob !== null && chunk.trained) {
        const surprise = Math.min(75, Math.round(-logprob * 22));
        element.style.setProperty("--surprise", surprise);
      }
      element.told = { id: chunk.ids[index], text, logprob, chunk };
      result.push(element);
    });
    return result;
  };

  const blockElement = (block) => {
    const element = make("div", `block ${block.author}`);
    const tokensOf = (chunks) => chunks.reduce((sum, chunk) => sum + chunk.count, 0);
    const count = tokensOf(block.chunks.filter((chunk) => chunk.author === block.author));
    let who = block.name;
    if (count) who += ` · ${count.toLocaleString()} tokens`;
    if (block.author === "policy" && count) who += block.trained ? ", trained" : ", not trained here";
    element.append(make("div", "who", who));
    const text = make("div", "text");
    block.chunks.forEach((chunk) => text.append(...chunkElements(chunk)));
    element.append(text);
    if (tokensOf(block.chunks) > LONG && block.author !== "policy") {
      element.classList.add("short");
      const all = make("button", "all", "Show all of it");
      all.type = "button";
      all.onclick = () => {
        element.classList.remove("short");
        all.remove();
      };
      element.append(all);
    }
    return element;
  };

  const forget = () => {
    if (here) here.classList.remove("here");
    here = null;
    info.hidden = true;
  };

  const tell = (element) => {
    forget();
    here = element;
    element.classList.add("here");
    const { id, text, logprob, chunk } = element.told;
    const lines = [`${JSON.stringify(text)} · id ${id}`];
    const name = chunk.author === "tool" ? "a tool or the environment" : `the ${chunk.author}`;
    lines.push(`by ${name}, ${chunk.trained ? "trained" : "not trained"}`);
    if (logprob !== null) {
      lines.push(`log-prob ${logprob.toFixed(3)}, probability ${(100 * Math.exp(logprob)).toPrecision(3)}%`);
    }
    info.textContent = lines.join("\n");
    info.hidden = false;
    const box = element.getBoundingClientRect();
    const room = document.documentElement.clientWidth - info.offsetWidth - 8;
    info.style.left = `${Math.max(8, Math.min(box.left, room))}px`;
    const above = box.top - info.offsetHeight - 8;
    info.style.top = `${above > 0 ? above : box.bottom + 8}px`;
  };

  const show = (index) => {
    forget();
    const episode = episodes[index];
    choice.value = index;
    facts.replaceChildren(
      ...episode.facts.map(([name, value]) => {
        const pair = make("div");
        pair.append(make("dt", "", name), make("dd", "", value));
        return pair;
      })
    );
    more.querySelector("pre").textContent = episode.more;
    const parts = episode.note ? [make("p", "note", episode.note)] : [];
    episode.segments.forEach((blocks, number) => {
      if (episode.segments.length > 1) {
        parts.push(make("div", "segment", `Segment ${number + 1} of ${episode.segments.length}`));
      }
      parts.push(...blocks.map(blockElement));
    });
    conversation.replaceChildren(...parts);
    tokens = [...conversation.querySelectorAll(".token")];
    get("previous").disabled = index === 0;
    get("next").disabled = index === episodes.length - 1;
  };

  const target = (event) => event.target.closest("#conversation .token");
  conversation.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse") return;
    const element = target(event);
    if (element) tell(element);
  });
  conversation.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") forget();
  });
  conversation.addEventListener("click", (event) => {
    const element = target(event);
    if (element) tell(element);
    else forget();
  });
  conversation.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") forget();
    if (!move || !tokens.length) return;
    event.preventDefault();
    const at = here ? tokens.indexOf(here) + move : 0;
    const next = tokens[Math.max(0, Math.min(tokens.length - 1, at))];
    next.scrollIntoView({ block: "nearest" });
    tell(next);
  });

  let group = null;
  episodes.forEach((episode, index) => {
    if (!group || group.label !== episode.when) {
      group = document.createElement("optgroup");
      group.label = episode.when;
      choice.append(group);
    }
    const option = make("option", "", episode.title);
    option.value = index;
    group.append(option);
  });
  choice.onchange = () => show(Number(choice.value));
  get("previous").onclick = () => show(Number(choice.value) - 1);
  get("next").onclick = () => show(Number(choice.value) + 1);
  get("shade").onchange = (event) => conversation.classList.toggle("shaded", event.target.checked);
  viewer.hidden = false;
  show(0);
})();
