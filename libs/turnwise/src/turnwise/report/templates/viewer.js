"use strict";
(() => {
  const episodes = JSON.parse(document.getElementById("data").textContent);
  if (!episodes.length) return;
  const get = (id) => document.getElementById(id);
  const [viewer, choice, facts, more, conversation, info] =
    ["viewer", "choice", "facts", "more", "conversation", "info"].map(get);
  const LONG = 400;
  const { make, chunkElements, telling } = globalThis.turnwiseTokens;
  const forget = telling(conversation, info);

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
    get("previous").disabled = index === 0;
    get("next").disabled = index === episodes.length - 1;
  };

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
