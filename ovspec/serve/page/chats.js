// Chats, kept in this browser: {id, title, messages: [{role, content, pictures, note}]}.

import { load, store } from "./stored.js";

const PLACE = "ovspec-chats";
let chats = load(PLACE, []);
let kept = true;

function save() { kept = store(PLACE, chats); }

// Another tab has changed them: what it wrote must not be written over, nor what it forgot be kept again.
addEventListener("storage", event => { if (event.key === PLACE) chats = load(PLACE, []); });

// Whether the last change was kept; else it is gone when the page closes.
export const isKept = () => kept;
export const allChats = () => chats;

export function newChat() {
  return { id: crypto.randomUUID ? crypto.randomUUID() : String(Date.now() + Math.random()), title: "", messages: [] };
}

// Keep a chat as the newest one; one that is forgotten, or has no messages, is not kept.
export function keep(chat) {
  chats = chats.filter(other => other.id !== chat.id);
  if (chat.messages.length && !chat.forgotten) {
    chat.title = chat.messages[0].content.slice(0, 60);
    chats.unshift(chat);
  }
  save();
}

export function forget(id) {
  chats = chats.filter(chat => chat.id !== id);
  save();
}

export function forgetAll() {
  chats = [];
  save();
}
