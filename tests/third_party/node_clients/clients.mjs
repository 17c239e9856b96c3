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
const picture = "data:image/png;base64,aGk=";
const seeds = [5, 5, 6];
const cells = [];

function cell(client, feature, check) {
  cells.push({ client, feature, check });
}

function checkTurn(value) {
  const move = typeof value === "string" ? JSON.parse(value) : value;
  assert.deepEqual(Object.keys(move), ["turn"]);
  assert.ok(["left", "right"].includes(move.turn));
}

function checkSeeds(texts) {
  assert.equal(texts[0], texts[1]);
  assert.notEqual(texts[1], texts[2]);
}

// A part of a text at which to stop, without half of a character.
function partOf(text) {
  return Array.from(text).slice(2, 5).join("");
}

async function answers(ask) {
  const texts = [];
  for (const seed of seeds) texts.push(await ask(seed));
  return texts;
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

cell("npm openai, chat", "JSON", async () => {
  const format = { type: "json_object" };
  const reply = await openai.chat.completions.create({
    ...asked,
    max_tokens: 5,
    response_format: format,
  });
  assert.ok(reply.choices[0].message.content.startsWith("{"));
});

cell("npm openai, chat", "n", async () => {
  const reply = await openai.chat.completions.create({ ...asked, max_tokens: 8, n: 3 });
  assert.equal(new Set(reply.choices.map((choice) => choice.message.content)).size, 3);
});

cell("npm openai, chat", "stop", async () => {
  const greedy = { ...asked, max_tokens: 8, temperature: 0 };
  const whole = await openai.chat.completions.create(greedy);
  const stop = partOf(whole.choices[0].message.content);
  const [choice] = (await openai.chat.completions.create({ ...greedy, stop: [stop] })).choices;
  assert.ok(!choice.message.content.includes(stop));
  assert.equal(choice.finish_reason, "stop");
});

cell("npm openai, chat", "seed", async () => {
  const ask = async (seed) => {
    const reply = await openai.chat.completions.create({ ...asked, max_tokens: 8, seed });
    return reply.choices[0].message.content;
  };
  checkSeeds(await answers(ask));
});

cell("npm openai, chat", "log-probabilities", async () => {
  const reply = await openai.chat.completions.create({
    ...asked,
    max_tokens: 4,
    logprobs: true,
    top_logprobs: 2,
  });
  const { content } = reply.choices[0].logprobs;
  assert.deepEqual([content.length, content[0].top_logprobs.length], [4, 2]);
});

cell("npm openai, chat", "errors", async () => {
  const part = { type: "image_url", image_url: { url: picture } };
  const asking = openai.chat.completions.create({
    ...asked,
    messages: [{ role: "user", content: [part] }],
  });
  await assert.rejects(asking, (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.match(error.message, /text only/);
    return true;
  });
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

cell("npm openai, responses", "streamed tools", async () => {
  const stream = openai.responses.stream({
    model: "support",
    input: "Hello",
    max_output_tokens: 150,
    tools: [{ type: "function", name: "move", parameters: schema, strict: false }],
    tool_choice: "required",
  });
  const reply = await stream.finalResponse();
  checkTurn(reply.output.find((item) => item.type === "function_call").arguments);
});

cell("npm openai, responses", "JSON", async () => {
  const reply = await openai.responses.create({
    model: "support",
    input: "Hello",
    max_output_tokens: 16,
    text: { format: { type: "json_object" } },
  });
  assert.ok(reply.output_text.startsWith("{"));
});

cell("npm openai, responses", "log-probabilities", async () => {
  const reply = await openai.responses.create({
    model: "support",
    input: "Hello",
    max_output_tokens: 16,
    include: ["message.output_text.logprobs"],
    top_logprobs: 2,
  });
  assert.equal(reply.output[0].content[0].logprobs.length, 16);
});

cell("npm openai, responses", "errors", async () => {
  const asking = openai.responses.create({
    model: "support",
    input: "Hello",
    previous_response_id: "resp_1",
  });
  await assert.rejects(asking, (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.match(error.message, /previous_response_id/);
    return true;
  });
});

cell("npm openai, embeddings", "errors", async () => {
  const asking = openai.embeddings.create({ model: "support", input: "a", dimensions: 3 });
  await assert.rejects(asking, /dimensions/);
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
  const greedy = { ...common, maxOutputTokens: 16, temperature: 0 };
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
    JSON: async () => {
      // a random model may not come to the end of its object
      const text = await generateObject({ ...greedy, output: "no-schema" }).then(
        (reply) => JSON.stringify(reply.object),
        (error) => error.text,
      );
      assert.ok(text.startsWith("{"), text);
    },
    stop: async () => {
      const stop = partOf((await generateText(greedy)).text);
      const reply = await generateText({ ...greedy, stopSequences: [stop] });
      assert.ok(!reply.text.includes(stop));
      assert.equal(reply.finishReason, "stop");
    },
    seed: async () => {
      const ask = async (seed) =>
        (await generateText({ ...common, maxOutputTokens: 8, temperature: 1, seed })).text;
      checkSeeds(await answers(ask));
    },
    "log-probabilities": async () => {
      const reply = await generateText({ ...greedy, providerOptions: { openai: { logprobs: 2 } } });
      // of responses there is a list for each part of the answer
      const content = reply.providerMetadata.openai.logprobs.flat();
      assert.deepEqual([content.length, content[0].top_logprobs.length], [16, 2]);
    },
    errors: async () => {
      const part = { type: "image", image: picture, mediaType: "image/png" };
      const messages = [{ role: "user", content: [part] }];
      await assert.rejects(generateText({ model, messages, maxRetries: 0 }), (error) => {
        assert.equal(error.statusCode, 400);
        assert.match(error.responseBody, /text only/);
        return true;
      });
    },
  };
  for (const feature of features) cell(client, feature, checks[feature]);
}

// The client warns of a setting that its API has no field for.
function lack(client, model, setting, value) {
  cell(client, `lacks ${setting}`, async () => {
    const content = [{ type: "text", text: "Hello" }];
    const prompt = [{ role: "user", content }];
    const reply = await model.doGenerate({ prompt, maxOutputTokens: 8, [setting]: value });
    assert.ok(reply.warnings.some((warning) => warning.setting === setting));
  });
}

function vectors(client, model, providerOptions) {
  cell(client, "errors", async () => {
    const asking = embedMany({ model, values: ["a"], maxRetries: 0, providerOptions });
    await assert.rejects(asking, (error) => {
      assert.equal(error.statusCode, 400);
      assert.match(error.responseBody, /dimensions/);
      return true;
    });
  });
  cell(client, "text", async () => {
    const reply = await embedMany({ model, values: ["a", "b"], maxRetries: 0 });
    assert.equal(reply.embeddings.length, 2);
  });
}

const common = ["text", "stream", "tools", "streamed tools", "JSON schema", "errors"];
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "any" });
const compatible = createOpenAICompatible({
  name: "thumbwheel",
  baseURL: `${url}/v1`,
  apiKey: "any",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" });
const responses = provider("support");
sdk("@ai-sdk/openai, responses", responses, [...common, "JSON", "log-probabilities"]);
lack("@ai-sdk/openai, responses", responses, "seed", 5);
lack("@ai-sdk/openai, responses", responses, "stopSequences", ["x"]);
const chat = [...common, "JSON", "stop", "seed"];
sdk("@ai-sdk/openai, chat", provider.chat("support"), [...chat, "log-probabilities"]);
vectors("@ai-sdk/openai, embeddings", provider.textEmbeddingModel("support"), {
  openai: { dimensions: 3 },
});
sdk("@ai-sdk/openai-compatible", compatible("support"), chat);
vectors("@ai-sdk/openai-compatible, embeddings", compatible.textEmbeddingModel("support"), {
  "openai-compatible": { dimensions: 3 },
});
sdk("@ai-sdk/anthropic", anthropic("support"), [...common, "stop"]);
lack("@ai-sdk/anthropic", anthropic("support"), "seed", 5);
lack("@ai-sdk/anthropic", anthropic("support"), "responseFormat", { type: "json" });

for (const { client, feature, check } of cells) {
  let error = null;
  try {
    await check();
  } catch (problem) {
    error = `${problem.name}: ${problem.message} ${problem.responseBody ?? ""}`.slice(0, 2000);
  }
  console.log(JSON.stringify({ client, feature, error }));
}
