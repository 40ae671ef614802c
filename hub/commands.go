package hub

import "slices"

// command is a command of the Redis protocol, or a subcommand, whose name has a |.
type command struct {
	name    string
	number  uint16 // in numbered
	arity   int    // of words, its name's included; -n for n and more
	anybody bool   // is for clients, too, that have yet to say who they are
	always  bool   // is allowed for subscribers of version 2
	pushes  bool   // answers also when the client wants no replies, as messages do
	run     func(*turn)

	subcommands map[string]*command // nil if there are none
	about                           // for COMMAND
}

// about is what a client may ask of a command.
type about struct {
	group, since, summary string
	flags                 []string
}

// commands are all that the hub knows, by name.
var commands map[string]*command

// numbered are the commands and their subcommands by number, so that a client's last one takes
// few bytes. The first stands for none.
var numbered = []*command{{name: "NULL"}}

func init() {
	connection := func(since, summary string) about {
		return about{"connection", since, summary, []string{"noscript", "loading", "stale", "fast"}}
	}
	pubsub := func(since, summary string) about {
		return about{"pubsub", since, summary, []string{"pubsub", "noscript", "loading", "stale"}}
	}
	server := func(since, summary string) about {
		return about{"server", since, summary, []string{"loading", "stale"}}
	}
	commands = byName(
		&command{name: "auth", arity: -2, anybody: true, run: (*turn).auth, about: connection("1.0.0", "Authenticate to the server")},
		&command{name: "hello", arity: -1, anybody: true, run: (*turn).hello, about: connection("6.0.0", "Handshake with the server")},
		&command{name: "quit", arity: -1, anybody: true, always: true, run: (*turn).quit, about: connection("1.0.0", "Close the connection")},
		&command{name: "reset", arity: 1, anybody: true, always: true, run: (*turn).reset, about: connection("6.2.0", "Reset the connection")},
		&command{name: "ping", arity: -1, always: true, run: (*turn).ping, about: connection("1.0.0", "Ping the server")},
		&command{name: "echo", arity: 2, run: (*turn).echo, about: connection("1.0.0", "Echo the given string")},
		&command{name: "select", arity: 2, run: (*turn).selectDB, about: connection("1.0.0", "Change the selected database")},
		&command{name: "client", arity: -2, subcommands: clientCommands(), about: connection("2.4.0", "A container for client connection commands")},

		&command{name: "publish", arity: 3, run: func(t *turn) { t.publish(Topic) }, about: about{"pubsub", "2.0.0", "Post a message to a channel", []string{"pubsub", "loading", "stale", "fast"}}},
		&command{name: "subscribe", arity: -2, always: true, pushes: true, run: func(t *turn) { t.subscribe(Topic, "subscribe") },
			about: pubsub("2.0.0", "Listen for messages published to the given channels")},
		&command{name: "unsubscribe", arity: -1, always: true, pushes: true, run: func(t *turn) { t.unsubscribe(Topic, "unsubscribe") },
			about: pubsub("2.0.0", "Stop listening for messages posted to the given channels")},
		&command{name: "psubscribe", arity: -2, always: true, pushes: true, run: func(t *turn) { t.subscribe(Pattern, "psubscribe") },
			about: pubsub("2.0.0", "Listen for messages published to channels matching the given patterns")},
		&command{name: "punsubscribe", arity: -1, always: true, pushes: true, run: func(t *turn) { t.unsubscribe(Pattern, "punsubscribe") },
			about: pubsub("2.0.0", "Stop listening for messages posted to channels matching the given patterns")},
		// There are no shards here: what they are in a cluster is a name space of its own.
		&command{name: "spublish", arity: 3, run: func(t *turn) { t.publish(Sharded) }, about: pubsub("7.0.0", "Post a message to a shard channel")},
		&command{name: "ssubscribe", arity: -2, always: true, pushes: true, run: func(t *turn) { t.subscribe(Sharded, "ssubscribe") },
			about: pubsub("7.0.0", "Listen for messages published to the given shard channels")},
		&command{name: "sunsubscribe", arity: -1, always: true, pushes: true, run: func(t *turn) { t.unsubscribe(Sharded, "sunsubscribe") },
			about: pubsub("7.0.0", "Stop listening for messages posted to the given shard channels")},
		&command{name: "pubsub", arity: -2, about: pubsub("2.8.0", "A container for Pub/Sub commands"), subcommands: byName(
			&command{name: "pubsub|channels", arity: -2, run: func(t *turn) { t.channels(Topic) }, about: pubsub("2.8.0", "List active channels")},
			&command{name: "pubsub|shardchannels", arity: -2, run: func(t *turn) { t.channels(Sharded) }, about: pubsub("7.0.0", "List active shard channels")},
			&command{name: "pubsub|numsub", arity: -2, run: func(t *turn) { t.numsub(Topic) }, about: pubsub("2.8.0", "Get the count of subscribers for channels")},
			&command{name: "pubsub|shardnumsub", arity: -2, run: func(t *turn) { t.numsub(Sharded) }, about: pubsub("7.0.0", "Get the count of subscribers for shard channels")},
			&command{name: "pubsub|numpat", arity: 2, run: (*turn).pubsubNumpat, about: pubsub("2.8.0", "Get the count of unique patterns pattern subscriptions")},
			&command{name: "pubsub|help", arity: 2, run: (*turn).pubsubHelp, about: pubsub("6.2.0", "Show helpful text about the different subcommands")},
		)},

		&command{name: "info", arity: -1, run: (*turn).info, about: server("1.0.0", "Get information and statistics about the server")},
		&command{name: "time", arity: 1, run: (*turn).time, about: server("2.6.0", "Return the current server time")},
		&command{name: "command", arity: -1, run: (*turn).commandAll, about: server("2.8.13", "Get array of Redis command details"), subcommands: byName(
			&command{name: "command|count", arity: 2, run: (*turn).commandCount, about: server("2.8.13", "Get total number of Redis commands")},
			&command{name: "command|docs", arity: -2, run: (*turn).commandDocs, about: server("7.0.0", "Get array of specific Redis command documentation")},
			&command{name: "command|info", arity: -2, run: (*turn).commandInfo, about: server("2.8.13", "Get array of specific Redis command details")},
			&command{name: "command|help", arity: 2, run: (*turn).commandHelp, about: server("5.0.0", "Show helpful text about the different subcommands")},
		)},
		&command{name: "config", arity: -2, about: server("2.0.0", "A container for server configuration commands"), subcommands: byName(
			&command{name: "config|get", arity: -3, run: (*turn).configGet, about: server("2.0.0", "Get the values of configuration parameters")},
			&command{name: "config|help", arity: 2, run: (*turn).configHelp, about: server("5.0.0", "Show helpful text about the different subcommands")},
		)},
		&command{name: "acl", arity: -2, about: server("6.0.0", "A container for Access List Control commands"), subcommands: byName(
			&command{name: "acl|whoami", arity: 2, run: (*turn).whoami, about: server("6.0.0", "Return the name of the user associated to the current connection")},
		)},
		&command{name: "flushdb", arity: -1, run: (*turn).flushed, about: server("1.0.0", "Remove all keys from the current database")},
		&command{name: "flushall", arity: -1, run: (*turn).flushed, about: server("1.0.0", "Remove all keys from all databases")},

		// A browser that has been made to send a request to this port says these words of HTTP.
		&command{name: "post", arity: -1, anybody: true, always: true, run: (*turn).foreign},
		&command{name: "host:", arity: -1, anybody: true, always: true, run: (*turn).foreign},
	)
}

// byName makes an index of commands, or of subcommands by what is behind the |.
func byName(all ...*command) map[string]*command {
	m := make(map[string]*command, len(all))
	for _, c := range all {
		c.number = uint16(len(numbered))
		numbered = append(numbered, c)
		m[c.name[slices.Index([]byte(c.name), '|')+1:]] = c
	}
	return m
}

// longestName is that of any command.
const longestName = 16

// lookup finds a command by its name in any case, without an allocation.
func lookup(in map[string]*command, name []byte) *command {
	var lower [longestName]byte
	if len(name) > len(lower) {
		return nil
	}
	return in[string(appendLower(lower[:0], name))]
}

func appendLower(to, s []byte) []byte {
	for _, c := range s {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		to = append(to, c)
	}
	return to
}

// is says whether an argument is a word, given in lower case, in any case.
func is(arg []byte, word string) bool {
	if len(arg) != len(word) {
		return false
	}
	for i, c := range arg {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}
