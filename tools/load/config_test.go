package load

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
)

func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string // "" for no error
	}{
		"defaults":           {func(c *Config) {}, ""},
		"no host":            {func(c *Config) { c.Target = ":9000" }, ""},
		"IPv6":               {func(c *Config) { c.Target, c.Sources = "[::1]:9000", addrs("::1") }, ""},
		"name":               {func(c *Config) { c.Target, c.Sources = "localhost:http", addrs("::1") }, ""},
		"largest":            {func(c *Config) { c.Size, c.Pipeline = MaxMessage, 64 }, ""},
		"one byte":           {func(c *Config) { c.Message = "x" }, ""},
		"messages":           {func(c *Config) { c.Messages = 1 }, ""},
		"answer":             {func(c *Config) { c.Message, c.Answer = "x", "y" }, ""},
		"HTTP":               {func(c *Config) { c.Match = matchHTTP }, ""},
		"answer and HTTP":    {func(c *Config) { c.Match, c.Message, c.Answer = matchHTTP, "x", "y" }, "--match is given together with --answer"},
		"HTTP on WebSockets": {func(c *Config) { c.Match, c.WebSocket = matchHTTP, &WebSocket{} }, "none or frames with --ws"},
		"long answer":        {func(c *Config) { c.Message, c.Answer = "x", strings.Repeat("x", MaxMessage+1) }, "--answer is 1048577 bytes; expected 1 to"},
		"answer to nothing":  {func(c *Config) { c.Answer = "y" }, "--answer is given without --message"},
		"no target":          {func(c *Config) { c.Target = "" }, "expected host:port"},
		"no port":            {func(c *Config) { c.Target = "localhost" }, "expected host:port"},
		"port 0":             {func(c *Config) { c.Target = "localhost:0" }, "expected host:port"},
		"connections":        {func(c *Config) { c.Connections = -1 }, "--connections is -1; expected 1 to"},
		"many connections":   {func(c *Config) { c.Connections = 1 << 30 }, "expected 1 to"},
		"rate":               {func(c *Config) { c.ConnectRate = -1 }, "--connect-rate is -1"},
		"no rate":            {func(c *Config) { c.Rate.Each = true }, "--message-rate is 0 messages a second; expected more than 0"},
		"Poisson, no rate":   {func(c *Config) { c.Rate.Poisson = true }, "--arrivals is given without --rate"},
		"large rate":         {func(c *Config) { c.Rate = Rate{PerSecond: 1, To: 1e9} }, "--rate is 1e+09 messages a second at the end"},
		"ahead of all":       {func(c *Config) { c.Ahead = 64 }, "--ahead is 64 of messages of 64 bytes; expected fewer"},
		"ahead, a template":  {func(c *Config) { c.Ahead, c.Message = 1, "\\{connection.uid}" }, "expected messages that follow each other"},
		"pipeline":           {func(c *Config) { c.Pipeline = 1025 }, "expected 1 to 1024"},
		"loops":              {func(c *Config) { c.Loops = -2 }, "--loops is -2"},
		"size":               {func(c *Config) { c.Size = 1 }, "expected 2 to 1048576"},
		"large":              {func(c *Config) { c.Size = MaxMessage + 1 }, "--size is 1048577; expected 2 to"},
		"message and size":   {func(c *Config) { c.Message, c.Size = "x", 1 }, "--size is given together with --message"},
		"bytes in flight":    {func(c *Config) { c.Size, c.Pipeline = MaxMessage, 65 }, "in flight on a connection"},
		"in flight":          {func(c *Config) { c.Connections, c.Pipeline = 1_000_000, 1000 }, "messages in flight"},
		"negative messages":  {func(c *Config) { c.Messages = -1 }, "--messages is -1"},
		"messages and time":  {func(c *Config) { c.Messages, c.Duration = 1, 1 }, "--messages is given together with --duration"},
		"messages, warm-up":  {func(c *Config) { c.Messages, c.Warmup = 1, 1 }, "--warmup is given together with --messages"},
		"negative time":      {func(c *Config) { c.HoldAfter = -1 }, "--hold-after is -1ns; expected 0s to"},
		"long time":          {func(c *Config) { c.Duration = 1 << 62 }, "--duration is"},
		"source not set":     {func(c *Config) { c.Sources = []netip.Addr{{}} }, "source address is not set"},
		"source's family":    {func(c *Config) { c.Sources = addrs("::1") }, "both to be IPv4"},
		"steady open loop":   {func(c *Config) { c.Rate.PerSecond, c.Steady = 1, true }, "--rate is given together with --steady"},
		"rate and flood":     {func(c *Config) { c.Rate.PerSecond, c.Flood = 1, true }, "--flood is given together with --rate"},
		"match and size":     {func(c *Config) { c.Match, c.Size = matchHTTP, 7 }, "--size is 7 beside a message"},
		"flood of answers":   {func(c *Config) { c.Flood, c.Match = true, "bytes:1" }, "expected none with --flood"},
		"no answers":         {func(c *Config) { c.Match = matchNone }, "a closed loop waits for answers"},
		"frames":             {func(c *Config) { c.Match = matchFrames }, "expected --ws with it"},
		"publish/subscribe":  {func(c *Config) { c.PubSub, c.Size = &PubSub{Protocol: "nats", Topics: 100}, MinPayload }, ""},
		"protocol":           {func(c *Config) { c.PubSub = &PubSub{Protocol: "x"} }, `--pubsub is "x"; expected redis or nats or ws`},
		"topics":             {func(c *Config) { c.PubSub = &PubSub{Protocol: "nats", Topics: 101} }, "--topics is 101; expected 1 to 100, the number of --connections"},
		"publishers":         {func(c *Config) { c.PubSub = &PubSub{Protocol: "nats", Publishers: 1025} }, "--publishers is 1025; expected 1 to 1024"},
		"pairs":              {func(c *Config) { c.Connections, c.PubSub = 300_000, &PubSub{Protocol: "nats", Publishers: 1000} }, "--publishers is 1000, of 300000 subscribers; expected at most"},
		"slow":               {func(c *Config) { c.PubSub = &PubSub{Protocol: "nats", Slow: -1} }, "--slow is -1; expected 0 to"},
		"short payload":      {func(c *Config) { c.PubSub, c.Size = &PubSub{Protocol: "nats"}, MinPayload-1 }, "--size is 47; expected 48 to 1048576 with --pubsub"},
		"publish, each":      {func(c *Config) { c.PubSub, c.Rate = &PubSub{Protocol: "nats"}, Rate{Each: true, Goal: Goal{Under: 1}} }, "--pubsub is given together with --message-rate"},
		"publish and think":  {func(c *Config) { c.PubSub, c.Think = &PubSub{Protocol: "nats"}, 1 }, "--pubsub is given together with --think"},
		"early and idle":     {func(c *Config) { c.Early, c.HoldAfter = true, time.Second }, "expected one of the two"},
		"late ramp":          {func(c *Config) { c.Ramp = Ramp{From: 101, Over: 1} }, "--ramp is from 101; expected 0 to 100"},
		"held, all": {func(c *Config) {
			*c = Config{Target: c.Target, Hold: true, Check: 1, Heartbeat: "ping\n", HeartbeatAnswer: "pong\n", Broadcast: "all\n"}
		}, ""},
		"held, most": {func(c *Config) {
			*c = Config{Target: c.Target, Hold: true, Check: 1 << 20, Heartbeat: strings.Repeat("x", MaxLine-1) + "\n"}
		}, ""},
		"held, too many":            {func(c *Config) { *c = Config{Target: c.Target, Hold: true, Check: 1<<20 + 1} }, "--check is 1048577; expected 1 to 1048576"},
		"held, negative":            {func(c *Config) { *c = Config{Target: c.Target, Hold: true, Check: -1} }, "--check is -1"},
		"held, not held":            {func(c *Config) { *c = Config{Target: c.Target, Check: 1} }, "--check is given without hold; expected both"},
		"held, broadcast, not held": {func(c *Config) { *c = Config{Target: c.Target, Broadcast: "all\n"} }, "--broadcast is given without hold;"},
		"held, no newline":          {func(c *Config) { *c = Config{Target: c.Target, Hold: true, Heartbeat: "ping"} }, `--heartbeat is "ping"; expected a line`},
		"held, two lines":           {func(c *Config) { *c = Config{Target: c.Target, Hold: true, Broadcast: "a\nb\n"} }, `--broadcast is "a\nb\n"`},
		"held, empty line":          {func(c *Config) { *c = Config{Target: c.Target, Hold: true, Broadcast: "\n"} }, "2 to 4096 bytes"},
		"held, long line": {func(c *Config) {
			*c = Config{Target: c.Target, Hold: true, Broadcast: strings.Repeat("x", MaxLine) + "\n"}
		}, "2 to 4096 bytes"},
		"held, answer to nothing": {func(c *Config) { *c = Config{Target: c.Target, Hold: true, HeartbeatAnswer: "pong\n"} }, "given without --heartbeat"},
		"held, the same":          {func(c *Config) { *c = Config{Target: c.Target, Hold: true, Heartbeat: "x\n", Broadcast: "x\n"} }, "expected two lines"},
		"held, WebSocket": {func(c *Config) {
			*c = Config{Target: c.Target, Hold: true, Heartbeat: "ping\n", WebSocket: &WebSocket{}}
		}, "together with --ws"},
		"held, lifetime": {func(c *Config) { *c = Config{Target: c.Target, Hold: true, Check: 1, Lifetime: time.Second} }, "together with --lifetime"},
		"held, early":    {func(c *Config) { *c = Config{Target: c.Target, Hold: true, Check: 1, Early: true} }, "together with --early"},
		"held, ramp": {func(c *Config) {
			*c = Config{Target: c.Target, Hold: true, Check: 1, Ramp: Ramp{To: 5, Over: time.Second}}
		}, ""},
		"unlimited patience": {func(c *Config) { c.Drain = maxTime + time.Second }, "--drain is"},
	} {
		c := Config{Target: "127.0.0.1:9000"}
		test.change(&c)
		err := c.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		}
	}
}

func TestRunChecksFirst(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"configuration": {Config{}, "expected host:port"},
		"model":         {Config{Target: "127.0.0.1:9000", Model: "magic"}, `"magic"; expected one of`},
		"descriptors":   {Config{Target: "127.0.0.1:9000", Connections: 64 << 20}, "RLIMIT_NOFILE"},
		"port":          {Config{Target: "127.0.0.1:nosuchport"}, "port of target"},
		"family":        {Config{Target: ":9000", Sources: addrs("::1")}, "both to be IPv4"},
	} {
		if name == "descriptors" && sock.CheckDescriptors(64<<20) == nil {
			continue // any number is allowed here
		}
		r, err := Run(t.Context(), test.cfg)
		if r != nil || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, %v, want an error with %q", name, r, err, test.want)
		}
	}
}

// TestDefaults fills configurations in: what is given excludes the default of what it excludes.
func TestDefaults(t *testing.T) {
	const all = `"connections":100,"connect_timeout":"10s","model":"goroutine","loops":1,`
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"none":       {Config{}, all + `"duration":"10s","pipeline":1,"drain":"5s","size":64,"interval":"1s"`},
		"messages":   {Config{Messages: 3}, all + `"messages":3,"pipeline":1,"drain":"5s","size":64,"interval":"1s"`},
		"message":    {Config{Message: "x"}, all + `"duration":"10s","pipeline":1,"drain":"5s","message":"x","interval":"1s"`},
		"HTTP":       {Config{Match: "http"}, all + `"duration":"10s","pipeline":1,"drain":"5s","message":"GET / HTTP/1.1\r\nHost: \r\n\r\n","match":"http","interval":"1s"`},
		"WebSocket":  {Config{WebSocket: &WebSocket{}}, all + `"duration":"10s","pipeline":1,"drain":"5s","size":64,"ws":"/","interval":"1s"`},
		"heartbeats": {Config{Hold: true, Heartbeat: "a\n"}, all + `"duration":"10s","pipeline":1,"drain":"5s","size":64,"hold":true,"heartbeat":"a\n","heartbeat_answer":"pong\n","interval":"1s"`},
		"PubSub":     {Config{PubSub: &PubSub{Protocol: "ws"}, Rate: Rate{PerSecond: 1}}, all + `"duration":"10s","rate":1,"pipeline":64,"drain":"5s","size":64,"ws":"/ws","pubsub":"ws","topics":1,"publishers":1,"all_publishers":1,"interval":"1s"`},
	} {
		test.cfg.Model = "goroutine"
		before := asJSON(test.cfg)
		if got, want := asJSON(test.cfg.filled()), "{"+test.want+"}"; got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
		if asJSON(test.cfg) != before {
			t.Errorf("%s: filling it in changed it", name)
		}
	}
}
