// Clients of npm call a version on the embedded target: `node clients.mjs URL` prints one line of
// JSON a cell, {client, feature, error}. The model is tiny and random: a text is only counted, a
// schema or a tool that is asked for leaves it no choice.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const url = process.argv[2];
const messages = [{ role: "user", content: "Hello" }];
const Move = z.object({ turn: z.enum(["left", "right"]) });
const schema = {
  type: "object",
  properties: { turn: { type: "string", enum: ["left", "right"] } },
  required: ["turn"],
  additionalProperties: false,
};
const cells = [];

function cell(client, feature, check) {
  cells.push({ client, feature, check });
}

function checkTurn(value) {
  const move = typeof value === "string" ? JSON.parse(value) : value;
  assert.deepEqual(Object.keys(move), ["turn"]);
  assert.ok(["left", "right"].includes(move.turn));
}

// openai

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
const asked = { model: "support", messages, max_tokens: 150, seed: 3 };
const functionTool = { type: "function", function: { name: "move", parameters: schema } };

cell("npm openai, chat", "text", async () => {
  const reply = await openai.chat.completions.create({ ...asked, max_tokens: 8 });
  assert.equal(reply.usage.completion_tokens, 8);
  assert.equal(reply.choices[0].finish_reason, "length");
});

cell("npm openai, chat", "stream", async () => {
  const greedy = { ...asked, max_tokens: 8, temperature: 0 };
  const whole = await openai.chat.completions.create(greedy);
  let text = "";
  for await (const part of await openai.chat.completions.create({ ...greedy, stream: true })) {
    text += part.choices[0]?.delta.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
});

cell("npm openai, chat", "tools", async () => {
  const reply = await openai.chat.completions.create({
    ...asked,
    tools: [functionTool],
    tool_choice: "required",
  });
  const [call] = reply.choices[0].message.tool_calls;
  assert.equal(call.function.name, "move");
  checkTurn(call.function.arguments);
});

cell("npm openai, chat", "streamed tools", async () => {
  const stream = openai.chat.completions.stream({
    ...asked,
    tools: [functionTool],
    tool_choice: "required",
  });
  const reply = await stream.finalChatCompletion();
  checkTurn(reply.choices[0].message.tool_calls[0].function.arguments);
});

cell("npm openai, chat", "JSON schema", async () => {
  const format = { type: "json_schema", json_schema: { name: "move", schema, strict: true } };
  const reply = await openai.chat.completions.parse({ ...asked, response_format: format });
  checkTurn(reply.choices[0].message.content);
});

cell("npm openai, responses", "text", async () => {
  const reply = await openai.responses.create({
    model: "support",
    input: "Hello",
    max_output_tokens: 8,
  });
  assert.equal(reply.usage.output_tokens, 8);
  assert.ok(reply.output_text);
});

cell("npm openai, responses", "stream", async () => {
  const greedy = { model: "support", input: "Hello", max_output_tokens: 8, temperature: 0 };
  const whole = await openai.responses.create(greedy);
  let text = "";
  for await (const event of await openai.responses.create({ ...greedy, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
});

cell("npm openai, responses", "tools", async () => {
  const reply = await openai.responses.create({
    model: "support",
    input: "Hello",
    max_output_tokens: 150,
    tools: [{ type: "function", name: "move", parameters: schema, strict: false }],
    tool_choice: "required",
  });
  const call = reply.output.find((item) => item.type === "function_call");
  checkTurn(call.arguments);
});

cell("npm openai, responses", "JSON schema", async () => {
  const reply = await openai.responses.parse({
    model: "support",
    input: "Hello",
    max_output_tokens: 150,
    text: { format: { type: "json_schema", name: "move", schema, strict: true } },
  });
  checkTurn(reply.output_text);
});

cell("npm openai, embeddings", "text", async () => {
  const reply = await openai.embeddings.create({ model: "support", input: ["a", "b"] });
  assert.equal(reply.data.length, 2);
  const length = Math.hypot(...reply.data[0].embedding);
  assert.ok(Math.abs(length - 1) < 1e-3, `a vector of length ${length}`);
});

// Vercel's AI SDK

const sdkTools = { move: tool({ description: "Move", inputSchema: Move }) };

function sdk(client, model, features) {
  const common = { model, prompt: "Hello", maxRetries: 0 };
  const checks = {
    text: async () => {
      const reply = await generateText({ ...common, maxOutputTokens: 8 });
      assert.equal(reply.usage.outputTokens, 8);
      assert.ok(reply.text);
    },
    stream: async () => {
      const reply = streamText({ ...common, maxOutputTokens: 8 });
      let text = "";
      for await (const part of reply.textStream) text += part;
      assert.ok(text);
      assert.equal((await reply.usage).outputTokens, 8);
    },
    tools: async () => {
      const reply = await generateText({
        ...common,
        maxOutputTokens: 150,
        tools: sdkTools,
        toolChoice: "required",
      });
      checkTurn(reply.toolCalls[0].input);
    },
    "streamed tools": async () => {
      const reply = streamText({
        ...common,
        maxOutputTokens: 150,
        tools: sdkTools,
        toolChoice: "required",
      });
      checkTurn((await reply.toolCalls)[0].input);
    },
    "JSON schema": async () => {
      const reply = await generateObject({ ...common, maxOutputTokens: 150, schema: Move });
      checkTurn(reply.object);
    },
  };
  for (const feature of features) cell(client, feature, checks[feature]);
}

function vectors(client, model) {
  cell(client, "text", async () => {
    const reply = await embedMany({ model, values: ["a", "b"], maxRetries: 0 });
    assert.equal(reply.embeddings.length, 2);
  });
}

const all = ["text", "stream", "tools", "streamed tools", "JSON schema"];
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "any" });
const compatible = createOpenAICompatible({
  name: "thumbwheel",
  baseURL: `${url}/v1`,
  apiKey: "any",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" });
sdk("@ai-sdk/openai, responses", provider("support"), all);
sdk("@ai-sdk/openai, chat", provider.chat("support"), all);
vectors("@ai-sdk/openai, embeddings", provider.textEmbeddingModel("support"));
sdk("@ai-sdk/openai-compatible", compatible("support"), all);
vectors("@ai-sdk/openai-compatible, embeddings", compatible.textEmbeddingModel("support"));
sdk("@ai-sdk/anthropic", anthropic("support"), all);

for (const { client, feature, check } of cells) {
  let error = null;
  try {
    await check();
  } catch (problem) {
    error = `${problem.name}: ${problem.message} ${problem.responseBody ?? ""}`.slice(0, 2000);
  }
  console.log(JSON.stringify({ client, feature, error }));
}
