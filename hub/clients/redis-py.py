"""Drives redis-py over standard input and output; client_test.go describes the protocol."""

import base64
import json
import sys
import threading
import time

import redis

url, protocol, cluster = sys.argv[1], int(sys.argv[2]), "cluster" in sys.argv
client = (redis.RedisCluster if cluster else redis.Redis).from_url(url, protocol=protocol)
pubsub = client.pubsub()
using = threading.Lock()  # guards pubsub
out = threading.Lock()


def say(**line):
    with out:
        print(json.dumps(line), flush=True)


def text(b):
    return base64.b64encode(b or b"").decode()


def decoded(value):
    """Converts a reply to str: redis-py decodes only some."""
    return value.decode() if isinstance(value, bytes) else str(value or "")


def listen():
    while True:
        message = None
        try:
            with using:
                if pubsub.subscribed and (pubsub.connection or not cluster):
                    message = pubsub.get_message(timeout=0.01)
                if message is None and cluster and pubsub.node_pubsub_mapping:
                    message = pubsub.get_sharded_message(timeout=0.01)
        except redis.ConnectionError:
            pass  # the server is gone; the next call reconnects and resubscribes
        if message is None:
            time.sleep(0.005)
            continue
        data = message["data"] if isinstance(message["data"], bytes) else b""
        say(event=message["type"], pattern=text(message["pattern"]), channel=text(message["channel"]), data=text(data))


def do(op, args):
    if op in ("subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe"):
        with using:
            getattr(pubsub, op)(*args)
    elif op == "publish":
        return str(client.publish(*args))
    elif op == "transaction":
        with client.pipeline(transaction=True) as p:
            for message in args[1:]:
                p.publish(args[0], message)
            return str(p.execute()).replace(",", "")
    elif op == "reset":
        with client.client() as one:
            one.client_setname("before")
            answer = one.execute_command("RESET")
            one.execute_command("HELLO", protocol)
            return f"{decoded(answer)} {decoded(one.client_getname())}"
    else:
        return client.execute_command(op, *args)


threading.Thread(target=listen, daemon=True).start()
for line in sys.stdin:
    op, *args = (base64.b64decode(word) for word in json.loads(line))
    try:
        say(value=decoded(do(op.decode(), args)))
    except (redis.RedisError, redis.exceptions.RedisClusterException) as e:
        say(error=str(e))
