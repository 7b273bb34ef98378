// Messages of a chat as people read them.

import { copy, render } from "./markdown.js";

const NOTES = {
  length: "The answer was cut: it reached the longest answer that the settings allow.",
  context: "The answer was cut: the chat is as long as the model can read. Start a new chat, or edit an earlier message.",
  stopped: "You stopped this answer.",
  failed: "The answer ended early, see the error below.",
};
export const CAN_GO_ON = ["length", "stopped", "failed"];

function button(name, action) {
  const made = document.createElement("button");
  Object.assign(made, { className: "small", textContent: name, onclick: () => action(made) });
  return made;
}

function pieces(answer) {
  return answer.pieces.map(({ text, origin }) => {
    const made = document.createElement("span");
    Object.assign(made, { className: origin, textContent: text });
    return made;
  });
}

function pictureOf(url, index) {
  return Object.assign(document.createElement("img"), { src: url, alt: `Picture ${index + 1}` });
}

// The words of a message: an answer as markdown, or token by token by who wrote it.
export function showWords(words, message, answer, shown) {
  words.className = shown && answer ? "words written" : "words";
  if (shown && answer) words.replaceChildren(...pieces(answer));
  else if (message.role === "user") words.replaceChildren(...(message.pictures || []).map(pictureOf), message.content);
  else words.replaceChildren(render(message.content));
}

export function showFigures(place, answer) {
  const { words, lossy } = answer.figures, mark = document.createElement("span");
  Object.assign(mark, { className: "lossy", textContent: lossy ? " Lossy: may differ from the model's own text." : "" });
  place.replaceChildren(words, mark);
}

// A message; `actions` has edit, regenerate and goOn, each where the message can have it.
export function turnOf(message, answer, shown, actions) {
  const turn = document.createElement("article"), speaker = document.createElement("div"), words = document.createElement("div");
  const figures = document.createElement("div"), row = document.createElement("div");
  turn.className = "turn " + message.role;
  speaker.className = "speaker";
  speaker.textContent = message.role === "user" ? "You" : "Model";
  turn.setAttribute("aria-label", speaker.textContent);
  showWords(words, message, answer, shown);
  figures.className = "figures";
  if (shown && answer) showFigures(figures, answer);
  turn.append(speaker, words, figures);
  if (message.note) {
    const note = document.createElement("p");
    Object.assign(note, { className: "note", textContent: NOTES[message.note] + " " });
    if (actions.goOn) note.append(button("Go on", actions.goOn));
    turn.append(note);
  }
  row.append(button("Copy", made => copy(message.content, made)));
  if (actions.edit) row.append(button("Edit", actions.edit));
  if (actions.regenerate) row.append(button("Answer again", actions.regenerate));
  row.className = "row-of-turn";
  turn.append(row);
  return turn;
}
