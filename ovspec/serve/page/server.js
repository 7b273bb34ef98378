// The server: what it serves, and answers as they come.

export const server = { key: "", model: null };

function headers() {
  const made = { "Content-Type": "application/json" };
  if (server.key) made["Authorization"] = "Bearer " + server.key;
  return made;
}

export class NeedsKey extends Error {}

// What the server refuses, with the name that it has for the field.
export class Refused extends Error {
  constructor({ message, param }) {
    super(message);
    this.param = param;
  }
}

async function reach(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers() });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. See that it still runs, then send again.");
  }
  if (response.ok) return response;
  if (response.status === 401) {
    throw new NeedsKey(server.key ? "The server does not know this API key: enter another one." : "The server wants an API key: enter it above.");
  }
  const body = await response.json().catch(() => null);
  if (body && body.error) throw new Refused(body.error);
  throw new Error(`The server answered with status ${response.status}: look into its log.`);
}

// What the server serves; throws NeedsKey.
export async function connect() {
  server.model = (await (await reach("v1/models")).json()).data[0];
  return server.model;
}

async function* events(response) {
  const decoder = new TextDecoder(), reader = response.body.getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const body = JSON.parse(data);
      if (body.error) throw new Refused(body.error);
      yield body;
    }
  }
}

// One answer: its text by writer, what each step brought, and what it cost.
export class Answer {
  constructor() {
    Object.assign(this, { text: "", pieces: [], steps: [], share: [], blocks: null, metrics: null, usage: null, finish: null });
    this.asked = performance.now();
    this.first = this.last = 0;
  }

  take(event) {
    if (event.metrics) this.metrics = event.metrics;
    if (event.usage) this.usage = event.usage;
    const choice = event.choices[0];
    if (choice && choice.finish_reason) this.finish = choice.finish_reason;
    const origins = (choice && choice.token_origins) || [];
    if (!origins.length) return;
    this.last = performance.now();
    this.first = this.first || this.last;
    const step = { draft: 0, target: 0, corrected: 0 };
    for (const { text, origin } of origins) {
      this.text += text;
      this.pieces.push({ text, origin });
      step[origin] += 1;
    }
    this.steps.push(step);
    this.share.push(event.metrics.attention_density);
    this.blocks = event.blocks_read;
  }

  get tokens() { return this.usage ? this.usage.completion_tokens : this.pieces.length; }
  // Seconds behind the first token.
  get seconds() { return (this.last - this.first) / 1000; }

  // In words; `lossy` says whether the text may differ from the model's own.
  get figures() {
    if (!this.metrics) return { words: "", lossy: false };
    const spec = this.metrics.speculative_decoding, parts = [`${this.tokens} tokens`];
    if (this.tokens > 1 && this.seconds > 0) parts.push(`${((this.tokens - 1) / this.seconds).toFixed(1)} tokens/s`);
    if (this.first) parts.push(`first token after ${(this.first - this.asked).toFixed(0)} ms`);
    if (spec.num_spec_steps) {
      parts.push(`${spec.num_accepted_draft_tokens} of ${spec.num_draft_tokens} draft tokens accepted`);
      parts.push(`${spec.mean_acceptance_length.toFixed(2)} tokens a step with drafts`);
    }
    parts.push(`${(100 * this.metrics.attention_density).toFixed(0)}% of the context read`);
    return { words: parts.join(", "), lossy: this.metrics.is_lossy };
  }
}

// Ask for an answer to messages; `onEvent` is called whenever more of it is there.
export async function ask(messages, options, signal, answer, onEvent) {
  const body = {
    model: server.model.id, stream: true, stream_options: { include_usage: true }, return_token_origins: true,
    return_blocks_read: true, ...options,
  };
  const chats = server.model.has_chat_template;
  if (chats) body.messages = messages;
  else body.prompt = messages.map(message => message.content).join("");
  const response = await reach(chats ? "v1/chat/completions" : "v1/completions", { method: "POST", body: JSON.stringify(body), signal });
  for await (const event of events(response)) {
    answer.take(event);
    onEvent();
  }
}
