package clients

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
)

// client is a Redis client library behind a common interface. Calls are subscribe, psubscribe, unsubscribe and
// punsubscribe with one name; publish with a channel and a message, which returns the number of receivers; reset,
// which names and resets a connection and returns the reply and the remaining name; transaction, which publishes the
// remaining arguments to a channel with MULTI and EXEC; and any other command.
type client struct {
	t    testing.TB
	call func(words ...string) (string, error)
	// confirmed receives confirmations, messages the messages, each in order.
	confirmed, messages chan event
}

type event struct {
	Event                  string
	Pattern, Channel, Data []byte
}

func (e event) String() string {
	if e.Event == "pmessage" {
		return fmt.Sprintf("%q as %q: %q", e.Channel, e.Pattern, e.Data)
	}
	return fmt.Sprintf("%q: %q", e.Channel, e.Data)
}

const maxUnreadEvents = 10_000

func newClient(t testing.TB) *client {
	return &client{t: t, confirmed: make(chan event, maxUnreadEvents), messages: make(chan event, maxUnreadEvents)}
}

func (c *client) addEvent(e event) {
	to := c.confirmed
	if strings.HasSuffix(e.Event, "message") {
		to = c.messages
	}
	select {
	case to <- e:
	default:
		c.t.Errorf("a client has %d events that nobody read", maxUnreadEvents)
	}
}

func (c *client) mustCall(words ...string) string {
	c.t.Helper()
	value, err := c.call(words...)
	if err != nil {
		c.t.Fatalf("%q: %v", words, err)
	}
	return value
}

// callAndConfirm calls a subscription command and waits for its confirmation.
func (c *client) callAndConfirm(op, name string) {
	c.t.Helper()
	c.mustCall(op, name)
	for {
		e := testkit.Receive(c.t, c.confirmed, "the confirmation of "+op+" "+name)
		if e.Event == op && string(e.Channel) == name {
			return
		}
	}
}

func (c *client) publish(channel, message, receivers string) {
	c.t.Helper()
	testkit.WantEqual(c.t, c.mustCall("publish", channel, message), receivers, "receivers of a message to %s", channel)
}

func (c *client) expectMessage(want string) {
	c.t.Helper()
	if got := testkit.Receive(c.t, c.messages, "the message "+want); got.String() != want {
		c.t.Fatalf("the message is %s, want %s", got, want)
	}
}

type library struct {
	name      string
	cluster   bool // a cluster client
	newClient func(t testing.TB, url string, protocol int) *client
}

var libraries = []library{
	{"go-redis", false, newGoRedisClient},
	{"go-redis ClusterClient", true, newGoRedisClusterClient},
	{"redis-py RedisCluster", true, programClient("python/bin/python", "redis-py.py", "cluster")},
	{"redis-py", false, programClient("python/bin/python", "redis-py.py")},
	{"node-redis", false, programClient("node", "node-redis.cjs")},
	{"ioredis", false, programClient("node", "ioredis.cjs")},
}

// programClient returns a client in a program, on the PATH or in the folder with the clients.
func programClient(program, script string, more ...string) func(testing.TB, string, int) *client {
	return func(t testing.TB, url string, protocol int) *client {
		path := program
		if strings.Contains(program, "/") {
			path = filepath.Join(installDir(t), program)
		}
		return startClientProgram(t, append([]string{path, script, url, fmt.Sprint(protocol)}, more...)...)
	}
}

// forEachLibrary runs a test for each library and protocol version, with a server each.
func forEachLibrary(t *testing.T, users []string, test func(*testing.T, *server, func(url string) *client)) {
	for _, l := range libraries {
		for protocol := 2; protocol <= 3; protocol++ {
			t.Run(fmt.Sprintf("%s/RESP%d", l.name, protocol), func(t *testing.T) {
				if l.cluster && *against != "hub" {
					return // the server is not a cluster
				}
				t.Parallel()
				test(t, startServer(t, users...), func(url string) *client { return l.newClient(t, url, protocol) })
			})
		}
	}
}

func installDir(t testing.TB) string {
	dir := os.Getenv("MYRIAD_CLIENTS")
	if dir == "" {
		t.Skip("the clients are not there: run bash install FOLDER and set MYRIAD_CLIENTS=FOLDER")
	}
	return dir
}

// startClientProgram starts a client in a program. It writes lines with a JSON array of a call's words in base64.
// It reads lines with {"value": ...}, {"error": ...}, or an event.
func startClientProgram(t testing.TB, args ...string) *client {
	c := newClient(t)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(installDir(t), "node_modules"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testkit.RequireNoError(t, err)
	out, err := cmd.StdoutPipe()
	testkit.RequireNoError(t, err)
	testkit.RequireNoError(t, cmd.Start())
	type answer struct {
		event
		Value, Error string
	}
	answers := make(chan answer, 1)
	go func() { // ends with the program at the latest
		defer close(answers)
		for lines := json.NewDecoder(bufio.NewReader(out)); ; {
			var a answer
			if err := lines.Decode(&a); err != nil {
				if err != io.EOF {
					t.Error(args, err)
				}
				return
			}
			if a.Event != "" {
				c.addEvent(a.event)
			} else {
				answers <- a
			}
		}
	}()
	t.Cleanup(func() {
		in.Close() // ends the program
		for range answers {
		}
		if err := cmd.Wait(); err != nil {
			t.Error(args, err)
		}
	})
	c.call = func(words ...string) (string, error) {
		raw := make([][]byte, len(words)) // JSON encodes them in base64
		for i, w := range words {
			raw[i] = []byte(w)
		}
		if err := json.NewEncoder(in).Encode(raw); err != nil {
			return "", err
		}
		a := testkit.Receive(t, answers, fmt.Sprintf("the answer to %q", words))
		if a.Error != "" {
			return "", errors.New(a.Error)
		}
		return a.Value, nil
	}
	return c
}

func newGoRedisClient(t testing.TB, url string, protocol int) *client {
	options, err := redis.ParseURL(url)
	testkit.RequireNoError(t, err)
	options.Protocol = protocol
	options.MaxRetries = -1 // show all errors
	return newGoRedisUniversalClient(t, redis.NewClient(options))
}

func newGoRedisClusterClient(t testing.TB, url string, protocol int) *client {
	options, err := redis.ParseClusterURL(url)
	testkit.RequireNoError(t, err)
	options.Protocol = protocol
	return newGoRedisUniversalClient(t, redis.NewClusterClient(options))
}

func newGoRedisUniversalClient(t testing.TB, r redis.UniversalClient) *client {
	c := newClient(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
	pubsub := r.Subscribe(ctx)
	heard := pubsub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(100*time.Millisecond), redis.WithChannelSize(maxUnreadEvents))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range heard {
			switch m := m.(type) {
			case *redis.Subscription:
				c.addEvent(event{Event: m.Kind, Channel: []byte(m.Channel)})
			case *redis.Message:
				kind := "message"
				if m.Pattern != "" {
					kind = "pmessage"
				}
				c.addEvent(event{Event: kind, Pattern: []byte(m.Pattern), Channel: []byte(m.Channel), Data: []byte(m.Payload)})
			}
		}
	}()
	t.Cleanup(func() {
		err := errors.Join(pubsub.Close(), r.Close())
		cancel()
		<-done
		testkit.ExpectNoError(t, err)
	})
	subscriptionCalls := map[string]func(context.Context, ...string) error{
		"subscribe": pubsub.Subscribe, "psubscribe": pubsub.PSubscribe, "ssubscribe": pubsub.SSubscribe,
		"unsubscribe": pubsub.Unsubscribe, "punsubscribe": pubsub.PUnsubscribe,
	}
	c.call = func(words ...string) (string, error) {
		op, args := words[0], words[1:]
		if subscription := subscriptionCalls[op]; subscription != nil {
			return "", subscription(ctx, args...)
		}
		switch op {
		case "transaction":
			replies, err := r.TxPipelined(ctx, func(p redis.Pipeliner) error {
				for _, message := range args[1:] {
					p.Publish(ctx, args[0], message)
				}
				return nil
			})
			counts := make([]int64, len(replies))
			for i, reply := range replies {
				counts[i] = reply.(*redis.IntCmd).Val()
			}
			return fmt.Sprint(counts), err
		case "reset":
			one := r.(*redis.Client).Conn()
			defer one.Close()
			err := one.ClientSetName(ctx, "before").Err()
			answer, err2 := one.Do(ctx, "RESET").Text()
			name, err3 := one.ClientGetName(ctx).Result()
			if err3 == redis.Nil {
				err3 = nil
			}
			return answer + " " + name, cmp.Or(err, err2, err3)
		default:
			all := make([]any, len(words))
			for i, w := range words {
				all[i] = w
			}
			value, err := r.Do(ctx, all...).Result()
			return fmt.Sprint(value), err
		}
	}
	return c
}

var against = flag.String("against", "hub", "the server: hub, which is built here, redis-server, or the address of one that runs")

type server struct {
	addr        string
	t           testing.TB
	args        []string
	stopProcess func() // nil for an external server
}

// startServer starts a server that stops with the test. users are lines of an ACL file; without any, everybody
// may do everything.
func startServer(t testing.TB, users ...string) *server {
	if *against != "hub" && *against != "redis-server" {
		if len(users) > 0 {
			t.Skip("the server of an address has its own users")
		}
		return &server{t: t, addr: *against}
	}
	s := &server{t: t, addr: testserver.FreeAddr(t)}
	dir := t.TempDir()
	file := filepath.Join(dir, "users")
	testkit.RequireNoError(t, os.WriteFile(file, []byte(strings.Join(users, "\n")+"\n"), 0o600))
	_, port, _ := net.SplitHostPort(s.addr)
	switch {
	case *against == "redis-server":
		s.args = []string{"redis-server", "--port", port, "--save", "", "--dir", dir, "--aclfile", file}
	case len(users) > 0:
		s.args = []string{hubBinary(t), "hub", "--addr", s.addr, "--users", file}
	default:
		s.args = []string{hubBinary(t), "hub", "--addr", s.addr}
	}
	s.startProcess()
	return s
}

func (s *server) startProcess() {
	s.t.Helper()
	p := testkit.Start(s.t, exec.Command(s.args[0], s.args[1:]...))
	s.stopProcess = sync.OnceFunc(func() {
		p.Signal(syscall.SIGTERM)
		testkit.WantEqual(s.t, p.WaitExitCode(), 0, "exit code of %s", strings.Join(s.args, " "))
	})
	s.t.Cleanup(s.stopProcess)
	testkit.WaitFor(s.t, "the server listens: "+strings.Join(s.args, " "), func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (s *server) url(user, password string) string {
	if user == "" && password == "" {
		return "redis://" + s.addr
	}
	return fmt.Sprintf("redis://%s:%s@%s", user, password, s.addr)
}

// hubBinary is built once.
func hubBinary(t testing.TB) string {
	path, err := buildMyriad()
	testkit.RequireNoError(t, err)
	return path
}

var buildMyriad = sync.OnceValues(func() (string, error) {
	return testserver.Build(buildDir, filepath.Join("..", ".."), "./tools/myriad")
})

var buildDir string

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if buildDir, err = os.MkdirTemp("", "clients"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(code)
}
