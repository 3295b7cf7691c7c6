// Reads bodies with the AI SDK's own parser and message reader: a JSON list of bodies in, a list of what it made of each out.
import { createRequire } from 'node:module';

const { parseJsonEventStream, uiMessageChunkSchema, readUIMessageStream } = createRequire(process.argv[2])('ai');

const bodies = JSON.parse(await new Response(process.stdin).text());
const read = [];
for (const body of bodies) {
  const bytes = new Blob([body]).stream();
  const chunks = [];
  const problems = [];
  const parsed = parseJsonEventStream({ stream: bytes, schema: uiMessageChunkSchema });
  for await (const one of parsed) {
    if (one.success) chunks.push(one.value);
    else problems.push(String(one.error));
  }
  const errors = [];
  let message = null;
  const again = new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  });
  const messages = readUIMessageStream({ stream: again, onError: (error) => errors.push(String(error)) });
  for await (const one of messages) message = one;
  read.push({ chunks, problems, errors, message });
}
console.log(JSON.stringify(read));
