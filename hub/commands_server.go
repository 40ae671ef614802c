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

// started is when the process has, nearly.
var started = time.Now()

func (t *turn) time() {
	now := time.Now()
	t.array(2)
	t.bulk(strconv.FormatInt(now.Unix(), 10))
	t.bulk(strconv.Itoa(now.Nanosecond() / 1000))
}

// flushed answers FLUSHDB and FLUSHALL: no keys are kept.
func (t *turn) flushed() { t.ok() }

// sections are those of INFO, in its order.
var sections = []struct {
	name   string
	fields func(t *turn) []any // names, and values behind them
}{
	{"Server", func(t *turn) []any {
		up := time.Since(started)
		return []any{"redis_version", version, "server_name", "myriad", "redis_mode", "standalone", "os", runtime.GOOS,
			"arch_bits", strconv.IntSize, "process_id", os.Getpid(),
			"uptime_in_seconds", int(up.Seconds()), "uptime_in_days", int(up.Hours() / 24)}
	}},
	{"Clients", func(t *turn) []any {
		s := t.c.Server().Stats()
		return []any{"connected_clients", s.Open, "maxclients", s.MaxConns, "blocked_clients", 0,
			"clients_over_high_water", s.Paused}
	}},
	{"Memory", func(t *turn) []any {
		used := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(used)
		return []any{"used_memory", used[0].Value.Uint64(), "maxmemory", 0, "mem_clients_buffers", t.c.Server().Stats().Buffered}
	}},
	{"Persistence", func(t *turn) []any { return []any{"loading", 0} }},
	{"Stats", func(t *turn) []any {
		s := t.c.Server().Stats()
		return []any{"total_connections_received", s.Accepted, "total_commands_processed", t.h.ran.Load(),
			"total_net_input_bytes", s.BytesIn, "total_net_output_bytes", s.BytesOut, "rejected_connections", s.Refused.Total(),
			"pubsub_channels", t.h.topics.n.Load(), "pubsub_patterns", t.h.patterns.n.Load(), "pubsubshard_channels", t.h.shards.n.Load(),
			"pubsub_published", t.h.published.Load(), "pubsub_delivered", t.h.delivered.Load(),
			"messages_dropped", s.Dropped, "slow_clients_closed", s.Closed.SlowConsumer + s.Closed.Write + s.Closed.Budget}
	}},
	{"Replication", func(t *turn) []any { return []any{"role", "master", "connected_slaves", 0} }},
	{"Cluster", func(t *turn) []any { return []any{"cluster_enabled", 0} }},
	{"Keyspace", func(t *turn) []any { return nil }},
}

// info is INFO [section ...].
func (t *turn) info() {
	var b strings.Builder
	for _, s := range sections {
		name := strings.ToLower(s.name)
		if len(t.args) > 1 && !slices.ContainsFunc(t.args[1:], func(a []byte) bool {
			return is(a, name) || is(a, "default") || is(a, "all") || is(a, "everything")
		}) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		fmt.Fprintf(&b, "# %s\r\n", s.name)
		for fields := s.fields(t); len(fields) > 0; fields = fields[2:] {
			fmt.Fprintf(&b, "%s:%v\r\n", fields[0], fields[1])
		}
	}
	t.text(b.String())
}

// configGet knows what clients ask for.
func (t *turn) configGet() {
	limits := t.c.Server().Limits
	values := map[string]string{
		"maxclients": strconv.Itoa(t.c.Server().Stats().MaxConns), "proto-max-bulk-len": strconv.Itoa(t.message),
		"timeout": strconv.Itoa(max(0, int(min(limits.IdleTimeout, 1<<62).Seconds()))),
		"save":    "", "appendonly": "no", "databases": "1", "maxmemory": "0",
	}
	asked := make(map[string]bool)
	for _, pattern := range t.args[2:] {
		g := compileGlob(string(appendLower(nil, pattern)))
		for name := range values {
			asked[name] = asked[name] || g.matches(name)
		}
	}
	maps.DeleteFunc(asked, func(_ string, matched bool) bool { return !matched })
	t.dict(len(asked))
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		t.bulk(name)
		t.bulk(values[name])
	}
}

func (t *turn) configHelp() {
	t.help("CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"GET <pattern> [<pattern> ...]", "    Return parameters matching the glob-like <pattern> and their values.",
		"HELP", "    Prints this help.")
}

func (t *turn) commandCount() { t.integer(len(commands)) }

func (t *turn) commandAll() { t.commandList(sorted(commands)) }

func (t *turn) commandInfo() {
	if list, ok := t.asked(); ok {
		t.commandList(list)
	}
}

func (t *turn) commandList(list []*command) {
	t.array(len(list))
	for _, c := range list {
		t.commandTuple(c)
	}
}

// maxAsked is the most names that COMMAND INFO and COMMAND DOCS take: an answer is much longer
// than they are.
const maxAsked = 100

// asked are the commands whose names are given, nil for what is none, or all without names.
func (t *turn) asked() (list []*command, ok bool) {
	names := t.args[2:]
	if len(names) == 0 {
		return sorted(commands), true
	}
	if len(names) > maxAsked {
		t.error(fmt.Sprintf("ERR %d names, at most %d are allowed", len(names), maxAsked))
		return nil, false
	}
	for _, name := range names {
		list = append(list, lookup(commands, name))
	}
	return list, true
}

func sorted(m map[string]*command) []*command {
	return slices.SortedFunc(maps.Values(m), func(a, b *command) int { return cmp.Compare(a.name, b.name) })
}

// commandTuple is a command as COMMAND INFO has it.
func (t *turn) commandTuple(c *command) {
	if c == nil {
		t.null()
		return
	}
	t.array(10)
	t.bulk(c.name)
	t.integer(c.arity)
	t.set(len(c.about.flags))
	for _, f := range c.about.flags {
		t.status(f)
	}
	t.integer(0) // keys: the first, the last, and the step
	t.integer(0)
	t.integer(0)
	categories := categoriesOf(c.name)
	t.set(len(categories))
	for _, category := range categories {
		t.status("@" + category)
	}
	t.set(0) // tips
	t.set(0) // specifications of keys
	if c.subcommands == nil {
		t.set(0)
		return
	}
	t.array(len(c.subcommands))
	for _, sub := range sorted(c.subcommands) {
		t.commandTuple(sub)
	}
}

// categoriesOf are those of an ACL that a command is in.
func categoriesOf(name string) []string {
	for _, c := range commandNames {
		if c.name == name {
			return strings.Fields(c.categories)
		}
	}
	return nil
}

func (t *turn) commandDocs() {
	if list, ok := t.asked(); ok {
		t.docs(slices.DeleteFunc(list, func(c *command) bool { return c == nil || c.summary == "" }))
	}
}

func (t *turn) commandHelp() {
	t.help("COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"(no subcommand)", "    Return details about all commands.",
		"COUNT", "    Return the total number of commands.",
		"DOCS [<command-name> ...]", "    Return documentation about commands.",
		"INFO [<command-name> ...]", "    Return details about commands.",
		"HELP", "    Prints this help.")
}

func (t *turn) docs(list []*command) {
	t.dict(len(list))
	for _, c := range list {
		fields := 3
		if c.subcommands != nil {
			fields++
		}
		t.bulk(c.name)
		t.dict(fields)
		t.bulk("summary")
		t.bulk(c.summary)
		t.bulk("since")
		t.bulk(c.since)
		t.bulk("group")
		t.bulk(c.group)
		if c.subcommands != nil {
			t.bulk("subcommands")
			t.docs(sorted(c.subcommands))
		}
	}
}
