package hub

import (
	"slices"
	"strings"
)

type command struct {
	name            string
	id              uint8 // index in commandsByID
	arity           int   // number of words, including the name; -n means n or more
	beforeAuth      bool  // allowed before authentication
	whileSubscribed bool  // allowed for RESP2 clients with subscriptions
	ignoresReplyOff bool  // replies even after CLIENT REPLY OFF
	// In a transaction, an immediate command runs at once, and a notInTransaction command fails. Others are queued.
	immediate, notInTransaction bool
	keys                        [3]int // the first and last argument that selects a cluster node, and the step
	run                         func(*commandBatch)

	subcommands map[string]*command // nil if there are none
	commandDoc
}

type commandDoc struct {
	group, since, summary string
	flags                 []string
}

var commands map[string]*command

// commandsByID lists all commands and subcommands by their IDs, which fit into one byte. ID 0 means no command.
var commandsByID = []*command{{name: "NULL"}}

func init() {
	commands = assignIDsAndMapByName(slices.Concat(connectionCommands(), pubsubCommands(), transactionCommands(), clusterCommands(), serverCommands(), misdirectedHTTPCommands())...)
}

func connectionDoc(since, summary string) commandDoc {
	return commandDoc{"connection", since, summary, []string{"noscript", "loading", "stale", "fast"}}
}

func pubsubDoc(since, summary string) commandDoc {
	return commandDoc{"pubsub", since, summary, []string{"pubsub", "noscript", "loading", "stale"}}
}

func serverDoc(since, summary string) commandDoc {
	return commandDoc{"server", since, summary, []string{"loading", "stale"}}
}

func transactionDoc(since, summary string) commandDoc {
	return commandDoc{"transactions", since, summary, []string{"noscript", "loading", "stale", "fast"}}
}

func clusterDoc(since, summary string) commandDoc {
	return commandDoc{"cluster", since, summary, []string{"loading", "stale"}}
}

var oneKey, allKeys = [3]int{1, 1, 1}, [3]int{1, -1, 1}

func connectionCommands() []*command {
	return []*command{
		&command{name: "auth", arity: -2, beforeAuth: true, notInTransaction: true, run: (*commandBatch).handleAuth, commandDoc: connectionDoc("1.0.0", "Authenticate to the server")},
		&command{name: "hello", arity: -1, beforeAuth: true, notInTransaction: true, run: (*commandBatch).handleHello, commandDoc: connectionDoc("6.0.0", "Handshake with the server")},
		&command{name: "quit", arity: -1, beforeAuth: true, whileSubscribed: true, immediate: true, run: (*commandBatch).handleQuit, commandDoc: connectionDoc("1.0.0", "Close the connection")},
		&command{name: "reset", arity: 1, beforeAuth: true, whileSubscribed: true, immediate: true, run: (*commandBatch).handleReset, commandDoc: connectionDoc("6.2.0", "Reset the connection")},
		&command{name: "ping", arity: -1, whileSubscribed: true, run: (*commandBatch).handlePing, commandDoc: connectionDoc("1.0.0", "Ping the server")},
		&command{name: "echo", arity: 2, run: func(b *commandBatch) { b.writeBulkBytes(b.args[1]) }, commandDoc: connectionDoc("1.0.0", "Echo the given string")},
		&command{name: "select", arity: 2, run: (*commandBatch).handleSelectOnlyDB0, commandDoc: connectionDoc("1.0.0", "Change the selected database")},
		&command{name: "client", arity: -2, subcommands: registerClientCommands(), commandDoc: connectionDoc("2.4.0", "A container for client connection commands")},
	}
}

func pubsubCommands() []*command {
	return []*command{
		&command{name: "publish", arity: 3, run: func(b *commandBatch) { b.handlePublish(Topic) }, commandDoc: commandDoc{"pubsub", "2.0.0", "Post a message to a channel", []string{"pubsub", "loading", "stale", "fast"}}},
		&command{name: "subscribe", arity: -2, whileSubscribed: true, ignoresReplyOff: true, notInTransaction: true, run: func(b *commandBatch) { b.handleSubscribe(Topic, "subscribe") },
			commandDoc: pubsubDoc("2.0.0", "Listen for messages published to the given channels")},
		&command{name: "unsubscribe", arity: -1, whileSubscribed: true, ignoresReplyOff: true, notInTransaction: true, run: func(b *commandBatch) { b.handleUnsubscribe(Topic, "unsubscribe") },
			commandDoc: pubsubDoc("2.0.0", "Stop listening for messages posted to the given channels")},
		&command{name: "psubscribe", arity: -2, whileSubscribed: true, ignoresReplyOff: true, notInTransaction: true, run: func(b *commandBatch) { b.handleSubscribe(Pattern, "psubscribe") },
			commandDoc: pubsubDoc("2.0.0", "Listen for messages published to channels matching the given patterns")},
		&command{name: "punsubscribe", arity: -1, whileSubscribed: true, ignoresReplyOff: true, notInTransaction: true, run: func(b *commandBatch) { b.handleUnsubscribe(Pattern, "punsubscribe") },
			commandDoc: pubsubDoc("2.0.0", "Stop listening for messages posted to channels matching the given patterns")},
		// There are no shards. Sharded topics are merely a separate name space.
		&command{name: "spublish", arity: 3, keys: oneKey, run: func(b *commandBatch) { b.handlePublish(Sharded) }, commandDoc: commandDoc{"pubsub", "7.0.0", "Post a message to a shard channel", []string{"pubsub", "loading", "stale", "fast"}}},
		&command{name: "ssubscribe", arity: -2, keys: allKeys, whileSubscribed: true, ignoresReplyOff: true, notInTransaction: true, run: func(b *commandBatch) { b.handleSubscribe(Sharded, "ssubscribe") },
			commandDoc: pubsubDoc("7.0.0", "Listen for messages published to the given shard channels")},
		&command{name: "sunsubscribe", arity: -1, keys: allKeys, whileSubscribed: true, ignoresReplyOff: true, notInTransaction: true, run: func(b *commandBatch) { b.handleUnsubscribe(Sharded, "sunsubscribe") },
			commandDoc: pubsubDoc("7.0.0", "Stop listening for messages posted to the given shard channels")},
		&command{name: "pubsub", arity: -2, commandDoc: pubsubDoc("2.8.0", "A container for Pub/Sub commands"), subcommands: assignIDsAndMapByName(
			&command{name: "pubsub|channels", arity: -2, run: func(b *commandBatch) { b.handlePubsubChannels(Topic) }, commandDoc: pubsubDoc("2.8.0", "List active channels")},
			&command{name: "pubsub|shardchannels", arity: -2, run: func(b *commandBatch) { b.handlePubsubChannels(Sharded) }, commandDoc: pubsubDoc("7.0.0", "List active shard channels")},
			&command{name: "pubsub|numsub", arity: -2, run: func(b *commandBatch) { b.handlePubsubNumsub(Topic) }, commandDoc: pubsubDoc("2.8.0", "Get the count of subscribers for channels")},
			&command{name: "pubsub|shardnumsub", arity: -2, run: func(b *commandBatch) { b.handlePubsubNumsub(Sharded) }, commandDoc: pubsubDoc("7.0.0", "Get the count of subscribers for shard channels")},
			&command{name: "pubsub|numpat", arity: 2, run: (*commandBatch).handleNumpatOnAllHubs, commandDoc: pubsubDoc("2.8.0", "Get the count of unique pattern subscriptions")},
			&command{name: "pubsub|help", arity: 2, run: (*commandBatch).handlePubsubHelp, commandDoc: pubsubDoc("6.2.0", "Show helpful text about the different subcommands")},
		)},
	}
}

func transactionCommands() []*command {
	return []*command{
		&command{name: "multi", arity: 1, immediate: true, run: (*commandBatch).handleMulti, commandDoc: transactionDoc("1.2.0", "Mark the start of a transaction block")},
		&command{name: "exec", arity: 1, immediate: true, run: (*commandBatch).handleExec, commandDoc: transactionDoc("1.2.0", "Execute all commands issued after MULTI")},
		&command{name: "discard", arity: 1, immediate: true, run: (*commandBatch).handleDiscard, commandDoc: transactionDoc("2.0.0", "Discard all commands issued after MULTI")},
		&command{name: "watch", arity: -2, keys: allKeys, immediate: true, run: (*commandBatch).handleWatchWithoutEffect, commandDoc: transactionDoc("2.2.0", "Accepted, without effect: there are no keys")},
		&command{name: "unwatch", arity: 1, run: (*commandBatch).writeOK, commandDoc: transactionDoc("2.2.0", "Accepted, without effect: there are no keys")},
	}
}

func clusterCommands() []*command {
	return []*command{
		&command{name: "cluster", arity: -2, commandDoc: clusterDoc("3.0.0", "A container for cluster commands"), subcommands: assignIDsAndMapByName(
			&command{name: "cluster|slots", arity: 2, run: (*commandBatch).handleClusterSlots, commandDoc: clusterDoc("3.0.0", "Get the nodes and their hash slots")},
			&command{name: "cluster|shards", arity: 2, run: (*commandBatch).handleClusterShards, commandDoc: clusterDoc("7.0.0", "Get the nodes and their hash slots")},
			&command{name: "cluster|nodes", arity: 2, run: (*commandBatch).handleClusterNodes, commandDoc: clusterDoc("3.0.0", "Get the nodes and their hash slots as text")},
			&command{name: "cluster|info", arity: 2, run: (*commandBatch).handleClusterInfo, commandDoc: clusterDoc("3.0.0", "Get the state of the cluster")},
			&command{name: "cluster|myid", arity: 2, run: func(b *commandBatch) { b.writeBulk(b.thisHubAsClusterNode().id) }, commandDoc: clusterDoc("3.0.0", "Get the ID of the node")},
			&command{name: "cluster|keyslot", arity: 3, run: func(b *commandBatch) { b.writeInt(clusterSlot(b.args[2])) }, commandDoc: clusterDoc("3.0.0", "Get the hash slot of a key")},
			&command{name: "cluster|countkeysinslot", arity: 3, run: func(b *commandBatch) { b.writeInt(0) }, commandDoc: clusterDoc("3.0.0", "Get the number of keys in a hash slot")},
		)},
		&command{name: "readonly", arity: 1, run: (*commandBatch).writeOK, commandDoc: clusterDoc("3.0.0", "Accepted, without effect")},
		&command{name: "readwrite", arity: 1, run: (*commandBatch).writeOK, commandDoc: clusterDoc("3.0.0", "Accepted, without effect")},
		&command{name: "asking", arity: 1, run: (*commandBatch).writeOK, commandDoc: clusterDoc("3.0.0", "Accepted, without effect")},
		&command{name: "role", arity: 1, run: (*commandBatch).handleRole, commandDoc: serverDoc("2.8.12", "Return the role of the instance")},
	}
}

func serverCommands() []*command {
	return []*command{
		&command{name: "info", arity: -1, run: (*commandBatch).handleInfo, commandDoc: serverDoc("1.0.0", "Get information and statistics about the server")},
		&command{name: "time", arity: 1, run: (*commandBatch).handleTime, commandDoc: serverDoc("2.6.0", "Return the current server time")},
		&command{name: "command", arity: -1, run: func(b *commandBatch) { b.writeCommandInfos(sortedCommands(commands)) }, commandDoc: serverDoc("2.8.13", "Get array of Redis command details"), subcommands: assignIDsAndMapByName(
			&command{name: "command|count", arity: 2, run: func(b *commandBatch) { b.writeInt(len(commands)) }, commandDoc: serverDoc("2.8.13", "Get total number of Redis commands")},
			&command{name: "command|docs", arity: -2, run: (*commandBatch).handleCommandDocs, commandDoc: serverDoc("7.0.0", "Get array of specific Redis command documentation")},
			&command{name: "command|info", arity: -2, run: (*commandBatch).handleCommandInfo, commandDoc: serverDoc("2.8.13", "Get array of specific Redis command details")},
			&command{name: "command|help", arity: 2, run: (*commandBatch).handleCommandHelp, commandDoc: serverDoc("5.0.0", "Show helpful text about the different subcommands")},
		)},
		&command{name: "config", arity: -2, commandDoc: serverDoc("2.0.0", "A container for server configuration commands"), subcommands: assignIDsAndMapByName(
			&command{name: "config|get", arity: -3, run: (*commandBatch).handleConfigGet, commandDoc: serverDoc("2.0.0", "Get the values of configuration parameters")},
			&command{name: "config|help", arity: 2, run: (*commandBatch).handleConfigHelp, commandDoc: serverDoc("5.0.0", "Show helpful text about the different subcommands")},
		)},
		&command{name: "acl", arity: -2, commandDoc: serverDoc("6.0.0", "A container for Access List Control commands"), subcommands: assignIDsAndMapByName(
			&command{name: "acl|whoami", arity: 2, run: func(b *commandBatch) { b.writeBulk(b.user.name) }, commandDoc: serverDoc("6.0.0", "Return the name of the user associated with the current connection")},
		)},
		&command{name: "flushdb", arity: -1, run: (*commandBatch).writeOK, commandDoc: serverDoc("1.0.0", "Remove all keys from the current database")},
		&command{name: "flushall", arity: -1, run: (*commandBatch).writeOK, commandDoc: serverDoc("1.0.0", "Remove all keys from all databases")},
	}
}

// misdirectedHTTPCommands returns commands for HTTP requests that arrive on a Redis connection. Lines of such requests
// begin with POST or Host:, which the hub reads as the names of commands. As in Redis, these commands close the
// connection.
func misdirectedHTTPCommands() []*command {
	return []*command{
		&command{name: "post", arity: -1, beforeAuth: true, whileSubscribed: true, immediate: true, run: (*commandBatch).closeUnexpectedHTTP},
		&command{name: "host:", arity: -1, beforeAuth: true, whileSubscribed: true, immediate: true, run: (*commandBatch).closeUnexpectedHTTP},
	}
}

func assignIDsAndMapByName(list ...*command) (byNameOrSubcommand map[string]*command) {
	m := make(map[string]*command, len(list))
	for _, c := range list {
		c.id = uint8(len(commandsByID))
		commandsByID = append(commandsByID, c)
		m[c.name[slices.Index([]byte(c.name), '|')+1:]] = c
	}
	return m
}

const maxCommandNameBytes = 16

func lookupCommand(byLowerName map[string]*command, name []byte) *command {
	var lower [maxCommandNameBytes]byte
	if len(name) > len(lower) {
		return nil
	}
	return byLowerName[string(appendLower(lower[:0], name))]
}

func appendLower(dst, text []byte) []byte {
	for _, c := range text {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		dst = append(dst, c)
	}
	return dst
}

// equalsFold reports whether arg equals lowerWord, ignoring the case of ASCII letters. lowerWord must be lower-case.
func equalsFold(arg []byte, lowerWord string) bool {
	return len(arg) == len(lowerWord) && strings.EqualFold(string(arg), lowerWord)
}
