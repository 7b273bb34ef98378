// Markdown as elements: what chat models write. Text becomes text nodes, so no answer can put code into the page.

const BLOCKS = [
  [/^(#{1,6})\s+(.*)$/, heading],
  [/^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/, () => document.createElement("hr")],
];
const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^*\s][^*]*?)\*|~~(.+?)~~|\[([^\]]+)\]\((https?:\/\/[^\s)]+|mailto:[^\s)]+)\)/g;
const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

export function render(text) {
  const lines = text.split("\n"), made = document.createDocumentFragment();
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    if (!line.trim()) { at += 1; continue; }
    const known = BLOCKS.find(([pattern]) => pattern.test(line));
    if (known) { made.append(known[1](line.match(known[0]))); at += 1; continue; }
    const reader = /^\s*(```|~~~)/.test(line) ? code : ITEM.test(line) ? list : /^\s*>/.test(line) ? quote
      : line.includes("|") && /^\s*\|?[\s:|-]*-[\s:|-]*$/.test(lines[at + 1] || "") && lines[at + 1].includes("|") ? table : paragraph;
    const [element, next] = reader(lines, at);
    made.append(element);
    at = next;
  }
  return made;
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function inline(text) {
  const made = document.createDocumentFragment();
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    made.append(text.slice(end, found.index));
    end = found.index + found[0].length;
    const [, , code, bold, bold2, italic, struck, label, address] = found;
    if (code) made.append(element("code", code));
    else if (bold || bold2) made.append(element("strong", inline(bold || bold2)));
    else if (italic) made.append(element("em", inline(italic)));
    else if (struck) made.append(element("del", inline(struck)));
    else {
      const link = element("a", label);
      Object.assign(link, { href: address, target: "_blank", rel: "noopener noreferrer" });
      made.append(link);
    }
  }
  made.append(text.slice(end));
  return made;
}

function heading([, marks, text]) {
  return element("h" + Math.min(6, marks.length + 2), inline(text));
}

// A block of code, which may not be closed yet.
function code(lines, at) {
  const [, indent, fence, language] = lines[at].match(/^(\s*)(`{3,}|~{3,})\s*(\S*)/);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end += 1;
  const text = lines.slice(at + 1, end).map(line => (line.startsWith(indent) ? line.slice(indent.length) : line)).join("\n");
  const button = element("button", "Copy code");
  Object.assign(button, { className: "small", onclick: () => copy(text, button) });
  const made = element("div", element("div", language, button), element("pre", element("code", text)));
  made.className = "code";
  return [made, end + 1];
}

function list(lines, at) {
  const [, indent, mark] = lines[at].match(ITEM), ordered = /\d/.test(mark);
  const made = element(ordered ? "ol" : "ul");
  if (ordered) made.start = parseInt(mark, 10);
  while (at < lines.length) {
    const found = lines[at].match(ITEM);
    if (!found || found[1].length < indent.length || /\d/.test(found[2]) !== ordered) break;
    const inner = [];
    for (at += 1; at < lines.length; at += 1) {
      const deeper = lines[at].match(/^\s*/)[0].length > indent.length;
      const blank = !lines[at].trim() && /^\s/.test(lines[at + 1] || "") && (lines[at + 1].match(/^\s*/)[0].length > indent.length);
      if (!(deeper && lines[at].trim()) && !blank) break;
      inner.push(lines[at]);
    }
    const cut = Math.min(...inner.filter(line => line.trim()).map(line => line.match(/^\s*/)[0].length));
    made.append(element("li", inline(found[3]), render(inner.map(line => line.slice(cut)).join("\n"))));
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] || "")) at += 1;
  }
  return [made, at];
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && /^\s*>/.test(lines[end])) end += 1;
  return [element("blockquote", render(lines.slice(at, end).map(line => line.replace(/^\s*> ?/, "")).join("\n"))), end];
}

function table(lines, at) {
  const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());
  const row = (line, name) => element("tr", ...cells(line).map(cell => element(name, inline(cell))));
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  return [element("table", row(lines[at], "th"), ...lines.slice(at + 2, end).map(line => row(line, "td"))), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !/^\s*(```|~~~|>|#{1,6}\s)/.test(lines[end]) && !ITEM.test(lines[end])) end += 1;
  const made = element("p");
  lines.slice(at, end).forEach((line, index) => made.append(...(index ? [element("br")] : []), inline(line.trim())));
  return [made, end];
}

// Copy a text, and say so on the button; pages that are not of this machine have no clipboard, so text is selected there.
export async function copy(text, button) {
  const before = button.textContent;
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else {
    const field = element("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}
