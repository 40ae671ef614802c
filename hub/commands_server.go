package hub

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"
)

var processStart = time.Now()

func secondsSinceStart() uint32 { return uint32(time.Since(processStart) / time.Second) }

func (b *commandBatch) handleTime() {
	now := time.Now()
	b.writeArrayHeader(2)
	b.writeBulksAndInts(strconv.FormatInt(now.Unix(), 10), strconv.Itoa(now.Nanosecond()/1000))
}

var infoSections = []struct {
	name   string
	fields func(b *commandBatch) []any // alternating names and values
}{
	{"Server", func(b *commandBatch) []any {
		up := time.Since(processStart)
		return []any{"redis_version", redisVersion, "server_name", "myriad", "redis_mode", "standalone", "os", runtime.GOOS,
			"arch_bits", strconv.IntSize, "process_id", os.Getpid(),
			"uptime_in_seconds", int(up.Seconds()), "uptime_in_days", int(up.Hours() / 24)}
	}},
	{"Clients", func(b *commandBatch) []any {
		s := b.conn.Server().Stats()
		return []any{"connected_clients", s.Open, "maxclients", s.MaxConns, "blocked_clients", 0,
			"clients_over_high_water", s.Paused}
	}},
	{"Memory", func(b *commandBatch) []any {
		used := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(used)
		return []any{"used_memory", used[0].Value.Uint64(), "maxmemory", 0, "mem_clients_buffers", b.conn.Server().Stats().Buffered}
	}},
	{"Persistence", func(b *commandBatch) []any { return []any{"loading", 0} }},
	{"Stats", func(b *commandBatch) []any {
		s := b.conn.Server().Stats()
		return []any{"total_connections_received", s.Accepted, "total_commands_processed", b.hub.commandsRun.Load(),
			"total_net_input_bytes", s.BytesIn, "total_net_output_bytes", s.BytesOut, "rejected_connections", s.Refused.Total(),
			"pubsub_channels", b.hub.topics.count.Load(), "pubsub_patterns", b.hub.patterns.count.Load(), "pubsubshard_channels", b.hub.sharded.count.Load(),
			"pubsub_published", b.hub.published.Load(), "pubsub_delivered", b.hub.delivered.Load(),
			"messages_dropped", s.Dropped, "slow_clients_closed", s.Closed.SlowConsumer + s.Closed.Write + s.Closed.Budget}
	}},
	{"Replication", func(b *commandBatch) []any { return []any{"role", "master", "connected_slaves", 0} }},
	{"Cluster", func(b *commandBatch) []any { return []any{"cluster_enabled", 0} }},
	{"Keyspace", func(b *commandBatch) []any { return nil }},
}

func (b *commandBatch) handleInfo() {
	var text strings.Builder
	for _, s := range infoSections {
		name := strings.ToLower(s.name)
		if len(b.args) > 1 && !slices.ContainsFunc(b.args[1:], func(a []byte) bool {
			return equalsFold(a, name) || equalsFold(a, "default") || equalsFold(a, "all") || equalsFold(a, "everything")
		}) {
			continue
		}
		if text.Len() > 0 {
			text.WriteString("\r\n")
		}
		fmt.Fprintf(&text, "# %s\r\n", s.name)
		for fields := s.fields(b); len(fields) > 0; fields = fields[2:] {
			fmt.Fprintf(&text, "%s:%v\r\n", fields[0], fields[1])
		}
	}
	b.writeVerbatim(text.String())
}

func (b *commandBatch) handleConfigGet() {
	limits := b.conn.Server().Limits
	values := map[string]string{
		"maxclients": strconv.Itoa(b.conn.Server().Stats().MaxConns), "proto-max-bulk-len": strconv.Itoa(b.maxCommand),
		"timeout": strconv.Itoa(max(0, int(min(limits.IdleTimeout, 1<<62).Seconds()))),
		"save":    "", "appendonly": "no", "databases": "1", "maxmemory": "0",
	}
	requested := make(map[string]bool)
	for _, pattern := range b.args[2:] {
		g := compileGlob(string(appendLower(nil, pattern)))
		for name := range values {
			if g.matches(name) {
				requested[name] = true
			}
		}
	}
	b.writeMapHeader(len(requested))
	for _, name := range slices.Sorted(maps.Keys(requested)) {
		b.writeBulksAndInts(name, values[name])
	}
}

func (b *commandBatch) handleConfigHelp() {
	b.writeHelp("CONFIG",
		"GET <pattern> [<pattern> ...]", "    Return parameters matching the glob-like <pattern> and their values.")
}

func (b *commandBatch) handleCommandInfo() {
	if list, ok := b.commandsFromArgsOrReplyTooMany(); ok {
		b.writeCommandInfos(list)
	}
}

func (b *commandBatch) writeCommandInfos(list []*command) {
	b.writeArrayHeader(len(list))
	for _, c := range list {
		b.writeCommandInfo(c)
	}
}

// maxCommandNames limits the number of names in COMMAND INFO and COMMAND DOCS.
const maxCommandNames = 100

// commandsFromArgsOrReplyTooMany returns the commands that the arguments name. For an unknown name, the result contains
// nil. Without arguments, the method returns all commands. If there are too many names, it replies with an error, and
// ok is false.
func (b *commandBatch) commandsFromArgsOrReplyTooMany() (namedOrAll []*command, ok bool) {
	names := b.args[2:]
	if len(names) == 0 {
		return sortedCommands(commands), true
	}
	if len(names) > maxCommandNames {
		b.writeError(fmt.Sprintf("ERR %d names; at most %d are allowed", len(names), maxCommandNames))
		return nil, false
	}
	for _, name := range names {
		namedOrAll = append(namedOrAll, lookupCommand(commands, name))
	}
	return namedOrAll, true
}

func sortedCommands(byName map[string]*command) []*command {
	return slices.SortedFunc(maps.Values(byName), func(a, b *command) int { return cmp.Compare(a.name, b.name) })
}

func (b *commandBatch) writeCommandInfo(c *command) {
	if c == nil {
		b.writeNull()
		return
	}
	b.writeArrayHeader(10)
	b.writeBulksAndInts(c.name, c.arity)
	b.writeSetHeader(len(c.commandDoc.flags))
	for _, f := range c.commandDoc.flags {
		b.writeStatus(f)
	}
	b.writeBulksAndInts(c.keys[0], c.keys[1], c.keys[2])
	categories := aclCategories(c.name)
	b.writeSetHeader(len(categories))
	for _, category := range categories {
		b.writeStatus("@" + category)
	}
	b.writeSetHeader(0) // tips
	b.writeSetHeader(0) // key specifications
	if c.subcommands == nil {
		b.writeSetHeader(0)
		return
	}
	b.writeArrayHeader(len(c.subcommands))
	for _, sub := range sortedCommands(c.subcommands) {
		b.writeCommandInfo(sub)
	}
}

func aclCategories(commandName string) []string {
	for _, c := range commandNames {
		if c.name == commandName {
			return strings.Fields(c.categories)
		}
	}
	return nil
}

func (b *commandBatch) handleCommandDocs() {
	if list, ok := b.commandsFromArgsOrReplyTooMany(); ok {
		b.writeCommandDocs(slices.DeleteFunc(list, func(c *command) bool { return c == nil || c.summary == "" }))
	}
}

func (b *commandBatch) handleCommandHelp() {
	b.writeHelp("COMMAND",
		"(no subcommand)", "    Return details about all commands.",
		"COUNT", "    Return the total number of commands.",
		"DOCS [<command-name> ...]", "    Return documentation about commands.",
		"INFO [<command-name> ...]", "    Return details about commands.")
}

func (b *commandBatch) writeCommandDocs(list []*command) {
	b.writeMapHeader(len(list))
	for _, c := range list {
		fields := 3
		if c.subcommands != nil {
			fields++
		}
		b.writeBulk(c.name)
		b.writeMapHeader(fields)
		b.writeBulksAndInts("summary", c.summary, "since", c.since, "group", c.group)
		if c.subcommands != nil {
			b.writeBulk("subcommands")
			b.writeCommandDocs(sortedCommands(c.subcommands))
		}
	}
}
