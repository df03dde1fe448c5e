// Carries out what a conversation asks of the TypeScript client, in Node.js and in a browser.

/** Clients by the names that conversations give them. */
const clients = new Map();

/** What a conversation sees of a value: bytes as their numbers. */
function seen(value) {
  return value instanceof Uint8Array ? { bytes: Array.from(value) } : (value ?? null);
}

async function follow(entity, { name, options, count }) {
  const events = [];
  for await (const event of entity.channel(name, options)) {
    events.push(event.type === "item" ? { ...event, item: seen(event.item) } : { ...event, count: event.count ?? null });
    if (events.length === count) {
      break;
    }
  }
  return { events };
}

async function answered(ostraca, request) {
  const { op, client: name } = request;
  if (op === "connect") {
    const { addresses, tokens } = request;
    let used = 0;
    const token = tokens.length === 1 ? tokens[0] : () => tokens[Math.min(used++, tokens.length - 1)];
    const { certificate } = request;
    const certificateHashes = certificate ? [certificate] : [];
    const options = certificate == null ? {} : { fetch: ostraca.webTransport({ certificateHashes }) };
    clients.set(name, new ostraca.Client(addresses, { token, ...options }));
    return {};
  }
  const entity = clients.get(name).entity(request.type, request.id);
  if (op === "follow") {
    return follow(entity, request);
  }
  const reply = await entity[op](request.method, request.args ?? undefined, request.options);
  return { value: seen(reply.value), version: reply.version };
}

/** The answer to a request, in JSON. */
export async function perform(ostraca, request) {
  try {
    return await answered(ostraca, request);
  } catch (error) {
    if (error instanceof ostraca.OstracaError) {
      return { error: { outcome: error.outcome ?? "", code: error.code, key: error.key ?? null } };
    }
    return { error: { outcome: "", code: String(error?.stack ?? error), key: null } };
  }
}
