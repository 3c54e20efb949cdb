"use strict";
// Tokens of an episode with who wrote them; used by the report's viewer and by the live page.
globalThis.turnwiseTokens = (() => {
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
      const trainer = chunk.trainer ? chunk.trainer[index] : null;
      const ratio = chunk.ratios ? chunk.ratios[index] : null;
      const clipped = Boolean(chunk.clipped) && chunk.clipped.includes(index);
      if (trainer !== null && logprob !== null) {
        // From 1e-5, which is rounding in float32, to 1.
        const gap = Math.max(0, 15 * (5 + Math.log10(Math.abs(trainer - logprob) || 1e-9)));
        element.style.setProperty("--apart", Math.min(75, Math.round(gap)));
      }
      if (ratio !== null) {
        element.style.setProperty("--moved", Math.min(75, Math.round(300 * Math.abs(Math.log(ratio || 1e-9)))));
      }
      if (clipped) element.classList.add("clipped");
      element.told = { id: chunk.ids[index], text, logprob, trainer, ratio, clipped, chunk };
      result.push(element);
    });
    return result;
  };

  // Tells about the token under the pointer, the finger or the arrow keys.
  const telling = (conversation, info) => {
    let here = null;

    const forget = () => {
      if (here) here.classList.remove("here");
      here = null;
      info.hidden = true;
    };

    const tell = (element) => {
      forget();
      here = element;
      element.classList.add("here");
      const { id, text, logprob, trainer, ratio, clipped, chunk } = element.told;
      const lines = [`${JSON.stringify(text)} · id ${id}`];
      const name = chunk.author === "tool" ? "a tool or the environment" : `the ${chunk.author}`;
      lines.push(`by ${name}, ${chunk.trained ? "trained" : "not trained"}`);
      if (logprob !== null) {
        lines.push(`log-prob ${logprob.toFixed(3)}, probability ${(100 * Math.exp(logprob)).toPrecision(3)}%`);
      }
      if (trainer !== null) lines.push(`trainer's log-prob ${trainer.toFixed(4)}`);
      if (ratio !== null) lines.push(`ratio ${ratio.toFixed(4)}${clipped ? ", clipped" : ""}`);
      if (chunk.advantage !== undefined) lines.push(`advantage ${chunk.advantage.toFixed(3)}`);
      info.textContent = lines.join("\n");
      info.hidden = false;
      const box = element.getBoundingClientRect();
      const room = document.documentElement.clientWidth - info.offsetWidth - 8;
      info.style.left = `${Math.max(8, Math.min(box.left, room))}px`;
      const above = box.top - info.offsetHeight - 8;
      info.style.top = `${above > 0 ? above : box.bottom + 8}px`;
    };

    const target = (event) => event.target.closest(".token");
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
      if (!move) return;
      const tokens = [...conversation.querySelectorAll(".token")];
      if (!tokens.length) return;
      event.preventDefault();
      const at = here ? tokens.indexOf(here) + move : 0;
      const next = tokens[Math.max(0, Math.min(tokens.length - 1, at))];
      next.scrollIntoView({ block: "nearest" });
      tell(next);
    });
    return forget;
  };

  return { make, chunkElements, telling };
})();
