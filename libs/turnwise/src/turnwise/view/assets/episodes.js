import { address, api, button, count, details, link, make, table } from "./parts.js";

const field = (type, name, label) => {
  const element = make("input");
  element.type = type;
  element.name = name;
  element.placeholder = label;
  element.setAttribute("aria-label", label);
  if (type === "number") element.step = "any";
  return element;
};

const choice = (name, label) => {
  const element = make("select");
  element.name = name;
  element.setAttribute("aria-label", label);
  return element;
};

const options = (element, names, first) => {
  const known = [...element.options].map((option) => option.value).join("\n");
  if (known === ["", ...names].join("\n")) return;
  const { value } = element;
  element.replaceChildren(...["", ...names].map((name) => {
    const option = make("option", "", name || first);
    option.value = name;
    return option;
  }));
  element.value = value;
};

const scoreText = (value) => (value === null ? "none" : Number(value.toFixed(4)).toString());

export const episodesView = async (root, parameters, signal) => {
  const run = parameters.get("run");
  const fields = [
    field("search", "text", "words in the conversation"), field("search", "task", "task"),
    field("search", "error", "words in the error"),
    choice("kind", "Kind"), choice("ending", "Ending"), choice("order", "Order"),
    field("number", "least_step", "step from"), field("number", "most_step", "step to"),
    field("number", "least_score", "score from"), field("number", "most_score", "score to"),
    field("number", "least_tokens", "tokens from"),
  ];
  const [, , , kind, ending, order] = fields;
  options(kind, ["train", "eval"], "training and evaluation");
  options(ending, parameters.get("ending") ? [parameters.get("ending")] : [], "every ending");
  options(order, parameters.get("order") ? [parameters.get("order")] : [], "newest");
  const parse = field("checkbox", "parse", "with parse errors");
  const ticked = make("label");
  ticked.append(parse, "with parse errors");
  fields.forEach((one) => { one.value = parameters.get(one.name) || ""; });
  parse.checked = parameters.get("parse") === "true";
  let start = Number(parameters.get("start")) || 0;

  const asked = () => {
    const found = { run };
    fields.forEach((one) => { if (one.value) found[one.name] = one.value; });
    if (parse.checked) found.parse = "true";
    if (start) found.start = start;
    return found;
  };
  let waiting = 0;
  let wanted = 0;
  let seen = "";
  const bar = make("form", "bar");
  bar.setAttribute("role", "search");
  bar.onsubmit = (event) => event.preventDefault();
  bar.append(...fields, ticked);
  bar.oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      start = 0;
      history.replaceState(null, "", address("episodes", asked()));
      refresh();
    }, 200);
  };
  const told = make("p", "note");
  told.id = "found";
  told.setAttribute("role", "status");
  const problems = make("ul", "gaps");
  const place = make("div");
  place.id = "episodes";
  const turn = (by) => { location.hash = address("episodes", { ...asked(), start: Math.max(0, start + by) }); };
  const [back, on] = [button("◀", () => turn(-100)), button("▶", () => turn(100))];
  back.setAttribute("aria-label", "Previous episodes");
  on.setAttribute("aria-label", "Next episodes");
  const pages = make("div", "bar");
  pages.append(back, on);
  root.append(make("h1", "", run), bar, told, problems, place, pages);

  const HEAD = ["task", "", "step", "kind", "kept as", "score", "spread", "ending", "tokens", "time", "parse errors", "gap"];
  const CLASSES = ["text", "text", "", "text", "text", "", "", "text", "", "", "", ""];
  const show = (found) => {
    options(ending, found.endings, "every ending");
    options(order, found.orders.filter((name) => name !== "newest"), "newest");
    const rows = found.rows.map((one) => [
      link(one.task_id || one.rollout_id, "episode", { run, line: one.line }), link("group", "group", { run, line: one.line }),
      count(one.step), one.kind, one.why.replaceAll("+", ", "), scoreText(one.score),
      one.spread < 0 ? "-" : scoreText(one.spread), one.ending, count(one.tokens), `${one.wall_s.toFixed(2)} s`,
      count(one.parse_errors), one.gap === null ? "-" : one.gap.toPrecision(2),
    ]);
    place.replaceChildren(table(HEAD, rows, { classes: CLASSES }));
    problems.hidden = !found.problems.length;
    problems.replaceChildren(...found.problems.map((text) => make("li", "", text)));
    back.disabled = start === 0;
    on.disabled = start + found.page >= found.found;
  };

  const refresh = async () => {
    const mine = ++wanted;
    const found = await api("episodes", asked(), signal);
    if (mine !== wanted) return true;
    const [read, size] = found.read;
    told.textContent = `${count(found.found)} of ${count(found.known)} episodes that the run kept whole` +
      (found.broken ? `, ${count(found.broken)} lines can't be read` : "") +
      (found.complete ? "." : `; still reading: ${size ? Math.floor((100 * read) / size) : 100} % of the file.`);
    const { rows, endings } = found;
    const text = JSON.stringify([rows, found.found, endings, found.problems]);
    if (text !== seen) show(found);
    seen = text;
    return !found.complete;
  };
  return refresh;
};

const messageBlock = (block) => {
  const element = make("div", `block ${block.author}`);
  element.append(make("div", "who", block.name), make("div", "text message", block.chunks.map((chunk) => chunk.texts.join("")).join("")));
  return element;
};

export const groupView = async (root, parameters, signal) => {
  const run = parameters.get("run");
  const found = await api("group", { run, line: parameters.get("line") }, signal);
  const when = found.kind === "eval" ? `evaluation after step ${found.step}` : `training step ${found.step}`;
  const same = details(`What is the same in all: ${found.common_messages} messages`, ...found.columns[0].messages.slice(0, found.common_messages).map(messageBlock));
  same.hidden = found.columns.length < 2 || !found.common_messages;
  const shared = same.hidden ? 0 : found.common_messages;
  const columns = make("div", "columns");
  found.columns.forEach((one) => {
    const column = make("div");
    const head = make("p");
    head.append(link(one.rollout_id, "episode", { run, line: one.line }));
    column.append(head, make("p", "note", `score ${scoreText(one.score)}, ${one.ending}, ${count(one.tokens)} tokens`),
      ...one.messages.slice(shared).map(messageBlock));
    if (one.messages.length <= shared) column.append(make("p", "note", "Nothing more."));
    columns.append(column);
  });
  const alike = found.columns.length > 1
    ? `${count(found.common_messages)} messages and the first ${count(found.common_tokens)} tokens are the same in all; below is what differs.`
    : "The run kept one rollout of this group.";
  root.append(make("h1", "", `${found.task_id}, ${when}`),
    make("p", "", `${found.kept} rollouts kept. ${alike}`), same, columns);
  return null;
};
