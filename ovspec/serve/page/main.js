// The page: a chat, and what ovspec does behind it.

import { allChats, forget, forgetAll, isKept, keep, newChat } from "./chats.js";
import { draw } from "./charts.js";
import { clear, compare } from "./compare.js";
import { Answer, ask, connect, NeedsKey, Refused, server } from "./server.js";
import { addPictures, asSent, pictures, setPictures } from "./pictures.js";
import { load, store } from "./stored.js";
import { CAN_GO_ON, showFigures, showWords, turnOf } from "./turns.js";

const at = id => document.getElementById(id);
const FIELDS = ["system", "longest", "temperature", "draft-tokens", "shown"], SETTINGS = "ovspec-settings";
const answers = new WeakMap(); // of messages: how they were written
// Fields of the page by the server's names.
const BY_PARAM = {
  max_tokens: "longest", temperature: "temperature", num_assistant_tokens: "draft-tokens", verify: "verify",
  messages: "prompt", prompt: "prompt",
};
let chat = newChat(), stopper = null, editing = null, view = "chat", drawn = null;

// --- settings

function restore() {
  const saved = load(SETTINGS, {});
  for (const id of FIELDS) {
    if (id in saved) at(id)[at(id).type === "checkbox" ? "checked" : "value"] = saved[id];
    at(id).addEventListener("change", () => {
      storeSettings();
      if (id === "shown") showHow();
    });
  }
}

function storeSettings() {
  const values = FIELDS.map(name => [name, at(name).type === "checkbox" ? at(name).checked : at(name).value]);
  store(SETTINGS, Object.fromEntries(values));
}

const label = id => at(id).labels[0].firstChild.textContent.trim();

// Lead to the field that something is wrong with.
function leadTo(id) {
  if (at("settings").contains(at(id))) openPanel("settings", true);
  at(id).focus();
}

// What went wrong, in words of the page.
function inWords(error) {
  const id = error instanceof Refused ? BY_PARAM[error.param] : undefined;
  if (!id) return String(error.message || error);
  leadTo(id);
  return error.message.replace(new RegExp(`^${error.param}[^:= ]*[:=] ?`), `${label(id)}: `);
}

function number(id) {
  const field = at(id);
  if (!field.checkValidity()) {
    const most = field.max ? ` to ${field.max}` : "";
    leadTo(id);
    throw new Error(`${label(id)}: ${field.value || "no number"}; enter a number from ${field.min}${most}${field.step === "1" ? " without decimals" : ""}.`);
  }
  return field.value === "" ? undefined : Number(field.value);
}

function options() {
  const found = { max_tokens: number("longest"), temperature: number("temperature") };
  if (at("shown").checked) {
    found.verify = at("verify").value;
    found.num_assistant_tokens = number("draft-tokens");
  }
  return found;
}

function showHow() {
  const shown = at("shown").checked;
  at("how").hidden = !shown;
  at("tabs").hidden = !(shown && server.model && server.model.drafts);
  if (at("tabs").hidden) show("chat");
  showInsight(drawn);
  showChat();
}

function showInsight(answer) {
  drawn = answer;
  at("insight").hidden = !(answer && answer.steps.length && at("shown").checked);
  if (!at("insight").hidden) draw(answer, at);
}

function openPanel(id, open) {
  if (open && innerWidth < 800) openPanel(id === "chats" ? "settings" : "chats", false);
  at(id).hidden = !open;
  at(id + "-open").setAttribute("aria-expanded", String(open));
}

// --- the chat

const isRunning = () => stopper !== null;

// How far the last message ends below the view, in pixels.
function below() {
  const last = at("turns").lastElementChild;
  return last ? last.getBoundingClientRect().bottom - at("scroll").getBoundingClientRect().bottom : 0;
}

const atEnd = () => below() < 80;

function toEnd() { at("scroll").scrollTop += Math.max(0, below() + 8); }

function showChat() {
  const last = chat.messages.length - 1, hasTemplate = server.model && server.model.has_chat_template;
  at("turns").replaceChildren(...chat.messages.map((message, index) => turnOf(message, answers.get(message), at("shown").checked, isRunning() ? {} : {
    edit: message.role === "user" && (() => edit(index)),
    regenerate: message.role === "assistant" && index === last && (() => again()),
    goOn: index === last && CAN_GO_ON.includes(message.note) && hasTemplate && (() => goOn()),
  })));
}

function showChats() {
  at("chat-list").replaceChildren(...allChats().map(one => {
    const item = document.createElement("li"), open = document.createElement("button"), away = document.createElement("button");
    open.textContent = one.title;
    if (one.id === chat.id) open.setAttribute("aria-current", "true");
    open.onclick = () => { openChat(one); if (innerWidth < 800) openPanel("chats", false); };
    Object.assign(away, { className: "small", textContent: "Forget", onclick: () => { forget(one.id); if (one.id === chat.id) forgetOpen(); showChats(); } });
    away.setAttribute("aria-label", "Forget " + one.title);
    item.append(open, away);
    return item;
  }));
}

function openChat(one) {
  if (stopper) stopper.abort();
  chat = one;
  edit(null);
  showInsight(null);
  at("error").textContent = "";
  showChat();
  showChats();
  toEnd();
  at("prompt").focus();
}

// Forget all that was written here, and the instructions that stand in the settings.
function forgetEverything() {
  forgetAll();
  forgetOpen();
  clear(at);
  at("system").value = "";
  storeSettings();
  fill("");
  grow();
}

// Forget the open chat, whose answer may still be written.
function forgetOpen() {
  chat.forgotten = true;
  openChat(newChat());
}

function fill(text, urls = []) {
  at("prompt").value = text;
  setPictures(at("pictures"), urls);
}

function edit(index) {
  const leaves = index === null && editing !== null;
  editing = index;
  if (index !== null) fill(chat.messages[index].content, chat.messages[index].pictures);
  else if (leaves) fill("");
  at("prompt").placeholder = index === null ? "Write a message" : "What follows this message is replaced";
  grow();
  at("prompt").focus();
}

function asked(messages) {
  const system = at("system").value.trim(), sent = messages.map(asSent);
  return system && server.model.has_chat_template ? [{ role: "system", content: system }, ...sent] : sent;
}

// Let the model write the last message, which stands in the chat already.
async function write(message, more) {
  const mine = chat, answer = new Answer(), before = message.content, messages = asked(before ? mine.messages : mine.messages.slice(0, -1));
  delete message.note;
  answers.set(message, answer);
  showChat();
  const turn = at("turns").lastElementChild, words = turn.querySelector(".words"), figures = turn.querySelector(".figures");
  at("turns").setAttribute("aria-busy", "true"); // it is read aloud as a whole
  toEnd();
  let due = 0; // drawn once a frame: the whole answer is, and its tokens come faster
  const drawWords = () => {
    due = 0;
    if (mine !== chat) return;
    const follow = atEnd();
    showWords(words, message, before ? null : answer, at("shown").checked);
    if (at("shown").checked) showFigures(figures, answer);
    showInsight(answer);
    if (follow) toEnd();
  };
  try {
    await ask(messages, { ...options(), ...more }, stopper.signal, answer, () => {
      message.content = before + answer.text;
      due = due || requestAnimationFrame(drawWords);
    });
    const used = answer.usage ? answer.usage.prompt_tokens + answer.usage.completion_tokens : 0;
    if (answer.finish === "length") message.note = used >= server.model.max_model_len ? "context" : "length";
  } catch (error) {
    message.note = error.name === "AbortError" ? "stopped" : "failed";
    throw error;
  } finally {
    cancelAnimationFrame(due);
    drawWords();
    at("turns").removeAttribute("aria-busy");
    if (before) answers.delete(message); // its writers are known for a part only
    // What was said so far is the answer if its reader stopped it; a refused message leaves the chat.
    if (!message.content) mine.messages.pop();
    keep(mine);
  }
}

// Let the model answer these messages in the open chat; where nothing comes of it, the chat is as before, and what was
// sent stands in the box again.
async function answerTo(messages, sent = { content: "" }) {
  const mine = chat, before = mine.messages, message = { role: "assistant", content: "" };
  mine.messages = [...messages, message];
  try {
    await write(message, {});
  } catch (error) {
    if (!message.content) {
      mine.messages = before;
      keep(mine);
      if (!at("prompt").value) fill(sent.content, sent.pictures);
    }
    throw error;
  }
}

function again() { run(() => answerTo(chat.messages.slice(0, -1))); }

function goOn() {
  run(() => write(chat.messages[chat.messages.length - 1], { continue_final_message: true, add_generation_prompt: false }));
}

// --- running

async function run(work) {
  if (!server.model) await start(); // the server may run by now
  if (isRunning() || !server.model) return;
  at("error").textContent = "";
  stopper = new AbortController();
  at("send").hidden = true;
  at("stop").hidden = false;
  try {
    await work();
  } catch (error) {
    if (error instanceof NeedsKey) at("key-row").hidden = false;
    if (error.name !== "AbortError") at("error").textContent = inWords(error);
  } finally {
    stopper = null;
    at("send").hidden = false;
    at("stop").hidden = true;
    if (!isKept()) at("error").textContent += " This browser has no room left for chats: forget some, or this one is gone when the page closes.";
    const follow = atEnd();
    showChat();
    showChats();
    grow();
    if (follow) toEnd();
  }
}

function send() {
  const text = at("prompt").value.trim();
  if (!text || isRunning()) return;
  if (view === "chat") {
    run(() => {
      const kept = editing === null ? chat.messages : chat.messages.slice(0, editing);
      const sent = { role: "user", content: text, ...(pictures().length ? { pictures: pictures() } : {}) };
      fill("");
      edit(null);
      return answerTo([...kept, sent], sent);
    });
  } else {
    run(async () => {
      const found = { ...options(), seed: 1 };
      at("verdict").textContent = await compare(asked([{ role: "user", content: text, pictures: pictures() }]), found, stopper.signal, at, showInsight);
    });
  }
}

function grow() {
  at("prompt").style.height = "auto";
  at("prompt").style.height = at("prompt").scrollHeight + 2 + "px";
}

function show(name) {
  view = name;
  for (const one of ["chat", "compare"]) {
    at(one).hidden = one !== name;
    at("tab-" + one).setAttribute("aria-selected", String(one === name));
    at("tab-" + one).tabIndex = one === name ? 0 : -1;
  }
}

async function start() {
  at("error").textContent = "";
  try {
    const model = await connect();
    const modes = model.verify === "dense" ? ["dense"] : ["dense", "sparse", "commit"];
    at("about").textContent = model.id + (model.has_chat_template ? "" : ": no chat template, so it goes on with your text");
    at("about").title = `reads up to ${model.max_model_len} tokens`;
    at("verify").replaceChildren(...modes.map(name => new Option(name, name, false, name === model.verify)));
    at("system").parentElement.hidden = !model.has_chat_template;
    at("add-picture").hidden = !(model.has_chat_template && model.reads_pictures);
    at("key-row").hidden = true;
    showHow();
  } catch (error) {
    at("about").textContent = "not connected";
    at("key-row").hidden = !(error instanceof NeedsKey);
    at("error").textContent = String(error.message || error);
  }
}

restore();
for (const id of ["chats", "settings"]) at(id + "-open").onclick = () => openPanel(id, at(id).hidden);
for (const [id, other] of [["chat", "compare"], ["compare", "chat"]]) {
  at("tab-" + id).onclick = () => show(id);
  at("tab-" + id).onkeydown = event => {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") { show(other); at("tab-" + other).focus(); }
  };
}
at("send").onclick = send;
at("stop").onclick = () => stopper && stopper.abort();
at("new-chat").onclick = () => openChat(newChat());
at("forget-all").onclick = () => {
  if (at("forget-all").dataset.sure) forgetEverything();
  at("forget-all").dataset.sure = at("forget-all").dataset.sure ? "" : "yes";
  at("forget-all").textContent = at("forget-all").dataset.sure ? "Forget all: press again" : "Forget all chats and instructions";
};
at("key-row").onsubmit = event => { event.preventDefault(); server.key = at("key").value.trim(); start(); };
async function take(files) {
  at("error").textContent = "";
  try {
    await addPictures(at("pictures"), files);
  } catch (error) {
    at("error").textContent = error.message;
  }
}

at("add-picture").onclick = () => at("picture-file").click();
at("picture-file").onchange = async () => { await take([...at("picture-file").files]); at("picture-file").value = ""; };
at("prompt").addEventListener("paste", event => {
  const files = [...event.clipboardData.files].filter(file => file.type.startsWith("image/"));
  if (files.length && !at("add-picture").hidden) { event.preventDefault(); take(files); }
});
at("prompt").addEventListener("input", grow);
at("prompt").addEventListener("keydown", event => {
  if (event.isComposing || event.keyCode === 229) return; // an input method takes this key
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(); }
  if (event.key === "Escape" && editing !== null) edit(null);
});
addEventListener("resize", () => showInsight(drawn));
addEventListener("storage", showChats); // of another tab
showChats();
start();
at("prompt").focus();
