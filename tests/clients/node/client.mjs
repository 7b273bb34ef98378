// The npm package ai against a running server: text, a stream, an object, a call of a tool.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, name] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "ovspec", baseURL, supportsStructuredOutputs: true });
const asked = {
  model: provider(name),
  prompt: "Once upon a time, there was a little girl named Lily.",
  temperature: 0,
  maxOutputTokens: 60,
};
const trip = z.strictObject({ city: z.enum(["Rome", "Oslo"]), days: z.number().int().min(1).max(9) });

const { text } = await generateText(asked);
let streamed = "";
for await (const piece of streamText(asked).textStream) streamed += piece;
const { object } = await generateObject({ ...asked, schema: trip });
const { toolCalls } = await generateText({
  ...asked,
  tools: { trip: tool({ description: "Plan a trip", inputSchema: trip }) },
  toolChoice: "required",
});
console.log(JSON.stringify({ text, streamed, object, calls: toolCalls.map((call) => call.input) }));
