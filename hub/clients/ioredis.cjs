// Drives ioredis over standard input and output; client_test.go describes the protocol.
const { Redis } = require('ioredis');
const readline = require('node:readline');

const [url, protocol] = process.argv.slice(2);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const text = (bytes) => Buffer.from(bytes).toString('base64');

const options = { protocol: Number(protocol), lazyConnect: true, retryStrategy: () => 20 };
const subscriber = new Redis(url, options);
const client = new Redis(url, options);
for (const c of [subscriber, client]) c.on('error', () => {}); // failing calls report errors

subscriber.on('messageBuffer', (channel, data) => say({ event: 'message', channel: text(channel), data: text(data) }));
subscriber.on('pmessageBuffer', (pattern, channel, data) =>
  say({ event: 'pmessage', pattern: text(pattern), channel: text(channel), data: text(data) }));

subscriber.on('smessageBuffer', (channel, data) => say({ event: 'smessage', channel: text(channel), data: text(data) }));

const confirming = (op) => (name) => subscriber[op](name).then(() => say({ event: op, channel: text(name) }));
const calls = {
  subscribe: confirming('subscribe'),
  psubscribe: confirming('psubscribe'),
  ssubscribe: confirming('ssubscribe'),
  unsubscribe: confirming('unsubscribe'),
  punsubscribe: confirming('punsubscribe'),
  publish: (name, data) => client.publish(name, data),
  transaction: async (name, ...messages) => {
    const transaction = client.multi();
    for (const data of messages) transaction.publish(name, data);
    return `[${(await transaction.exec()).map(([, count]) => count).join(' ')}]`;
  },
  reset: async () => {
    const one = client.duplicate();
    await one.client('SETNAME', 'before');
    const answer = await one.call('RESET');
    const name = await one.client('GETNAME');
    one.disconnect();
    return `${answer} ${name ?? ''}`;
  },
};

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [op, ...args] = JSON.parse(line).map((word) => Buffer.from(word, 'base64'));
    try {
      const call = calls[op] ?? ((...rest) => client.call(op.toString(), ...rest));
      say({ value: String(await call(...args)) });
    } catch (e) {
      say({ error: e.message });
    }
  }
  process.exit(0);
})();
