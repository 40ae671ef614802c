// Drives node-redis over standard input and output; client_test.go describes the protocol.
const redis = require('redis');
const readline = require('node:readline');

const [url, protocol] = process.argv.slice(2);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const text = (bytes) => Buffer.from(bytes).toString('base64');

const subscriber = redis.createClient({ url, RESP: Number(protocol), socket: { reconnectStrategy: 20 } });
const client = subscriber.duplicate();
for (const c of [subscriber, client]) c.on('error', () => {}); // failing calls report errors

const message = (data, channel) => say({ event: 'message', channel: text(channel), data: text(data) });
const matched = (pattern) => (data, channel) =>
  say({ event: 'pmessage', pattern: text(pattern), channel: text(channel), data: text(data) });
const confirmed = (event, name) => say({ event, channel: text(name) });

const calls = {
  // Listeners don't get their pattern, so each pattern has its own.
  subscribe: (name) => subscriber.subscribe(name.toString(), message, true).then(() => confirmed('subscribe', name)),
  psubscribe: (name) => subscriber.pSubscribe(name.toString(), matched(name), true).then(() => confirmed('psubscribe', name)),
  ssubscribe: (name) => subscriber.sSubscribe(name.toString(), message, true).then(() => confirmed('ssubscribe', name)),
  unsubscribe: (name) => subscriber.unsubscribe(name.toString()).then(() => confirmed('unsubscribe', name)),
  punsubscribe: (name) => subscriber.pUnsubscribe(name.toString()).then(() => confirmed('punsubscribe', name)),
  publish: (name, data) => client.publish(name, data),
  transaction: async (name, ...messages) => {
    const transaction = client.multi();
    for (const data of messages) transaction.publish(name, data);
    return `[${(await transaction.exec()).join(' ')}]`;
  },
  reset: async () => {
    const one = client.duplicate();
    await one.connect();
    await one.clientSetName('before');
    await one.reset(); // returns nothing and repeats HELLO
    const name = await one.clientGetName();
    await one.close();
    return `RESET ${name ?? ''}`;
  },
};

async function connect(c) {
  if (c.isOpen) return;
  // A single attempt, whose error is reported.
  const once = redis.createClient({ url, RESP: Number(protocol), socket: { reconnectStrategy: false } });
  once.on('error', () => {});
  await once.connect();
  await once.close();
  await c.connect();
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [op, ...args] = JSON.parse(line).map((word) => Buffer.from(word, 'base64'));
    try {
      await connect(subscriber);
      await connect(client);
      const call = calls[op] ?? ((...rest) => client.sendCommand([op.toString(), ...rest]));
      say({ value: String(await call(...args)) });
    } catch (e) {
      say({ error: e.message });
    }
  }
  process.exit(0);
})();
