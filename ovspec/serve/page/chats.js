// Chats, kept in this browser: {id, title, messages: [{role, content, note}]}.

const PLACE = "ovspec-chats";
let chats = JSON.parse(localStorage.getItem(PLACE) || "[]");
let kept = true;

function save() {
  try {
    localStorage.setItem(PLACE, JSON.stringify(chats));
    kept = true;
  } catch {
    kept = false; // the browser's place is full, or it allows none
  }
}

// Whether the last change was kept; else it is gone when the page closes.
export const isKept = () => kept;
export const allChats = () => chats;

export function newChat() {
  return { id: crypto.randomUUID ? crypto.randomUUID() : String(Date.now() + Math.random()), title: "", messages: [] };
}

// Keep a chat as the newest one; one without messages is not kept.
export function keep(chat) {
  chats = chats.filter(other => other.id !== chat.id);
  if (chat.messages.length) {
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
  localStorage.removeItem(PLACE);
}
