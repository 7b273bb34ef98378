// How an answer was written, drawn with axes and numbers.

const LAST = 120; // steps that are shown
const LEFT = 34, BOTTOM = 18, TOP = 8;

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The frame of a chart: its size in pixels, so that letters keep theirs; axes; numbers on them; the width of a step.
function frame(svg, first, last, most, form) {
  const width = svg.clientWidth || 320, height = svg.clientHeight || 120;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const bottom = height - BOTTOM, y = value => bottom - (bottom - TOP) * value / most;
  const made = [0, most / 2, most].flatMap(value => [
    shape("line", { class: "axis", x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
    shape("text", { x: LEFT - 4, y: y(value) + 4, "text-anchor": "end" }, form(value)),
  ]);
  const count = last - first + 1, each = (width - LEFT) / Math.max(count, 24), end = LEFT + count * each;
  made.push(shape("text", { x: LEFT, y: height - 4 }, `step ${first}`));
  if (count > 4) made.push(shape("text", { x: end, y: height - 4, "text-anchor": "end" }, String(last)));
  return { made, each, y };
}

function drawSteps(svg, answer) {
  const steps = answer.steps.slice(-LAST), first = answer.steps.length - steps.length + 1;
  const most = 2 * Math.ceil(Math.max(2, ...steps.map(step => step.draft + step.target + step.corrected)) / 2);
  const { made, each, y } = frame(svg, first, answer.steps.length, most, String);
  steps.forEach((step, index) => {
    let below = 0;
    for (const kind of ["draft", "corrected", "target"]) {
      made.push(shape("rect", {
        x: LEFT + index * each, y: y(below + step[kind]), width: 0.85 * each, height: y(below) - y(below + step[kind]), style: `fill: var(--${kind})`,
      }));
      below += step[kind];
    }
  });
  svg.replaceChildren(...made);
  svg.setAttribute("aria-label", `${answer.tokens} tokens in ${answer.steps.length} steps`);
}

function drawShare(svg, answer) {
  const share = answer.share.slice(-LAST), first = answer.share.length - share.length + 1;
  const { made, each, y } = frame(svg, first, answer.share.length, 1, value => `${100 * value}%`);
  const points = share.map((value, index) => `${LEFT + (index + 0.5) * each},${y(value)}`).join(" ");
  made.push(shape("polyline", { points, fill: "none", "stroke-width": 2, style: "stroke: var(--accent)" }));
  svg.replaceChildren(...made);
  svg.setAttribute("aria-label", `at the end ${(100 * share[share.length - 1]).toFixed(0)}% of the context`);
}

// The context from left to right; the darker a block, the more layers and heads read it in the last step.
function drawBlocks(svg, words, blocks) {
  const width = svg.clientWidth || 320, shown = blocks || [1], each = width / shown.length;
  svg.setAttribute("viewBox", `0 0 ${width} 44`);
  svg.replaceChildren(
    ...shown.map((share, index) => shape("rect", {
      x: index * each, y: 0, width: each * (blocks ? 0.9 : 1), height: 24, style: `fill: var(--accent); fill-opacity: ${0.06 + 0.94 * share}`,
    })),
    shape("text", { x: 0, y: 40 }, "beginning"), shape("text", { x: width, y: 40, "text-anchor": "end" }, "end"),
  );
  words.textContent = blocks
    ? `Blocks of the context in the last step, the darker the more layers and heads read them: ${blocks.filter(share => share > 0).length} of ${blocks.length} by some`
    : "The last step read the whole context";
  svg.setAttribute("aria-label", words.textContent);
}

export function draw(answer, at) {
  drawSteps(at("steps"), answer);
  drawShare(at("share"), answer);
  drawBlocks(at("blocks"), at("blocks-text"), answer.blocks);
}
