import { button, make, mayAsk, post, section, table } from "./parts.js";

const BUTTONS = [
  ["pause", "Pause"], ["resume", "Resume"], ["eval", "Evaluate"], ["save", "Save"], ["stop", "Stop"],
];

const field = (label) => {
  const element = make("input");
  element.type = "text";
  element.setAttribute("aria-label", label);
  element.placeholder = label;
  return element;
};

// What the run does now, and, where the server allows it, what may be asked of it.
export const statusBox = (run) => {
  const line = make("p", "note");
  const warnings = make("ul", "gaps");
  const answer = make("p");
  answer.setAttribute("role", "status");
  const place = make("div");
  const [commands, changes] = [make("div", "bar"), make("div", "bar")];
  const box = section("status", "Now", line, warnings, commands, changes, answer, place);
  box.hidden = true;
  let buttons = "";
  let drawn = "";

  const ask = async (command, values = {}) => {
    answer.className = "";
    answer.textContent = `${command} ...`;
    try {
      await post("control", { run }, { command, arguments: values });
      answer.textContent = `${command} was asked; the run answers within a few seconds.`;
    } catch (error) {
      answer.className = "bad";
      answer.textContent = error.message;
    }
  };

  const stop = () => {
    const sure = button("Stop", () => {
      if (sure.textContent === "Stop") {
        sure.textContent = "Stop for good?";
        return;
      }
      sure.textContent = "Stop";
      ask("stop");
    });
    sure.onblur = () => { sure.textContent = "Stop"; };
    return sure;
  };

  const build = (found) => {
    const text = JSON.stringify([found.commands, found.keys]);
    if (text === buttons) return;
    buttons = text;
    const allowed = (name) => mayAsk() && found.commands.includes(name);
    commands.replaceChildren(...BUTTONS.filter(([name]) => allowed(name)).map(([name, label]) => {
      const one = name === "stop" ? stop() : button(label, () => ask(name));
      one.dataset.command = name;
      return one;
    }));
    changes.replaceChildren();
    if (allowed("set")) {
      const [key, value] = [field("option"), field("value")];
      const known = make("datalist");
      known.id = "keys";
      known.append(...found.keys.map((name) => Object.assign(make("option"), { value: name })));
      key.setAttribute("list", "keys");
      const set = () => ask("set", { [key.value.trim()]: value.value.trim() });
      value.onkeydown = (event) => { if (event.key === "Enter") set(); };
      changes.append(key, known, value, button("Set", set));
    }
    if (allowed("drop")) {
      const task = field("task");
      const drop = () => ask("drop", { [task.value.trim()]: "" });
      task.onkeydown = (event) => { if (event.key === "Enter") drop(); };
      changes.append(task, button("Drop the task", drop));
    }
  };

  const show = (found) => {
    box.hidden = !found.headline;
    line.textContent = found.headline;
    warnings.hidden = !found.warnings.length;
    warnings.replaceChildren(...found.warnings.map((text) => make("li", "", text)));
    build(found);
    const text = JSON.stringify([found.tables, found.waiting]);
    if (text === drawn) return;
    drawn = text;
    const waiting = found.waiting.map((one) => make("p", "note", `${one}: not answered yet`));
    place.replaceChildren(...waiting, ...found.tables.flatMap(([title, head, rows]) =>
      [make("h3", "", title), table(head, rows, { classes: head.map(() => "text") })]));
  };

  return { box, show };
};
