// The same message without and with drafts, in turns.

import { Answer, ask } from "./server.js";
import { showFigures } from "./turns.js";

const PLAIN = { num_assistant_tokens: 0, verify: "dense" };

function rate(answers) {
  const seconds = answers.reduce((sum, answer) => sum + answer.seconds, 0);
  return answers.reduce((sum, answer) => sum + answer.tokens - 1, 0) / seconds;
}

// Leave nothing of it.
export function clear(at) {
  for (const id of ["plain", "speculative", "plain-figures", "speculative-figures", "verdict"]) at(id).replaceChildren();
}

// `onSpeculative(answer)` is called while the second side is written.
export async function compare(messages, options, signal, at, onSpeculative) {
  const sides = { plain: [], speculative: [] };
  clear(at);
  for (const side of ["plain", "speculative", "speculative", "plain"]) {
    const mine = side === "plain" ? { ...options, ...PLAIN } : options, answer = new Answer();
    sides[side].push(answer);
    await ask(messages, mine, signal, answer, () => {
      if (signal.aborted) return; // what had come by then
      at(side).textContent = answer.text;
      showFigures(at(side + "-figures"), answer);
      if (side === "speculative") onSpeculative(answer);
    });
  }
  const texts = new Set([...sides.plain, ...sides.speculative].map(answer => answer.text));
  const same = texts.size === 1 ? "The texts are the same." : "The texts differ.";
  if (Math.min(...sides.plain.map(answer => answer.tokens), ...sides.speculative.map(answer => answer.tokens)) < 2) return same;
  const plain = rate(sides.plain), drafted = rate(sides.speculative);
  return `${same} Behind the first token: plain ${plain.toFixed(1)} tokens/s, speculative ${drafted.toFixed(1)}, ${(drafted / plain).toFixed(2)} times as fast.`;
}
