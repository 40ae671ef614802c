package clients

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func requireProgram(t *testing.T, name, pkg string) {
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("there is no %s: install Debian's package %s", name, pkg)
	}
}

func (s *server) redisTool(name string, args ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(s.addr)
	return exec.CommandContext(timeoutContext(s.t), name, append([]string{"-h", host, "-p", port}, args...)...)
}

func timeoutContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
	t.Cleanup(cancel)
	return ctx
}

// runRedisCLI runs redis-cli and returns its standard output and standard error.
func (s *server) runRedisCLI(in string, args ...string) (out, errors string) {
	cmd := s.redisTool("redis-cli", args...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &o, &e
	if err := cmd.Run(); err != nil {
		s.t.Errorf("redis-cli %q: %v: %s%s", args, err, o.String(), e.String())
	}
	return o.String(), e.String()
}

func TestRedisCLI(t *testing.T) {
	requireProgram(t, "redis-cli", "redis-tools")
	s := startServer(t)
	const many = 20_000
	stream := strings.Repeat(testkit.RESPCommand("PUBLISH", "pipe", "x"), many)
	for _, c := range []struct {
		args []string
		in   string
		want string // prefix of the output
	}{
		{args: []string{"ping"}, want: "PONG\n"},
		{args: []string{"-3", "ping"}, want: "PONG\n"},
		{args: []string{"pubsub", "numsub", "nobody"}, want: "nobody\n0\n"},
		{args: []string{"config", "get", "save"}, want: "save\n\n"},
		{args: []string{"--no-raw", "client", "getname"}, want: "(nil)\n"},
		{args: []string{"info", "server"}, want: "# Server\r\n"},
		{in: "PING\nECHO \"a b\"\nPUBLISH nobody x\n", want: "PONG\na b\n0\n"},
		{args: []string{"-x", "publish", "nobody"}, in: "all of the input", want: "0\n"},
		{args: []string{"--pipe"}, in: stream, want: fmt.Sprintf("All data transferred. Waiting for the last reply...\nLast reply received from server.\nerrors: 0, replies: %d\n", many)},
	} {
		if out, errors := s.runRedisCLI(c.in, c.args...); !strings.HasPrefix(out, c.want) || errors != "" {
			t.Errorf("redis-cli %q with the input %.100q says %q%q, want %q", c.args, c.in, out, errors, c.want)
		}
	}
}

// TestRedisCLISubscribe subscribes with one redis-cli and publishes with another.
func TestRedisCLISubscribe(t *testing.T) {
	requireProgram(t, "redis-cli", "redis-tools")
	s := startServer(t)
	for _, flags := range [][]string{{}, {"-3"}} {
		for _, c := range []struct{ subscribe, confirmed, message string }{
			{"subscribe a b", "subscribe a 1 subscribe b 2", "message b hello"},
			{"psubscribe b*", "psubscribe b* 1", "pmessage b* b hello"},
			{"ssubscribe b", "ssubscribe b 1", "smessage b hello"},
		} {
			t.Run(strings.Join(append(flags, c.subscribe), " "), func(t *testing.T) {
				p := testkit.Start(t, s.redisTool("redis-cli", append(flags, strings.Fields(c.subscribe)...)...))
				said := "^" + regexp.QuoteMeta(strings.ReplaceAll(c.confirmed, " ", "\n")+"\n")
				p.WaitForOutput(said + "$")
				publish := "publish"
				if strings.HasPrefix(c.message, "smessage") {
					publish = "spublish"
				}
				if out, _ := s.runRedisCLI("", append(flags, publish, "b", "hello")...); out != "1\n" {
					t.Errorf("%s says %q", publish, out)
				}
				p.WaitForOutput(said + regexp.QuoteMeta(strings.ReplaceAll(c.message, " ", "\n")+"\n") + "$")
			})
		}
	}
}

func TestRedisCLIUsers(t *testing.T) {
	requireProgram(t, "redis-cli", "redis-tools")
	s := startServer(t, "user default on >first resetchannels &news:* +@all", "user alice on >secret resetchannels &news:* +@all")
	const insecure = "Warning: Using a password with '-a' or '-u' option on the command line interface may not be safe.\n"
	const failed = "AUTH failed: WRONGPASS invalid username-password pair or user is disabled.\n"
	for _, c := range []struct{ args, out, errors string }{
		{"-a first ping", "PONG\n", insecure},
		{"-a first --no-auth-warning ping", "PONG\n", ""},
		{"--user alice --pass secret publish other x", "NOPERM ", insecure},
		{"--user alice --pass wrong ping", "NOAUTH Authentication required.\n", insecure + failed},
		{"ping", "NOAUTH Authentication required.\n", ""},
		{"auth alice secret", "OK\n", ""},
	} {
		out, errors := s.runRedisCLI("", strings.Fields(c.args)...)
		if !strings.HasPrefix(out, c.out) || errors != c.errors {
			t.Errorf("redis-cli %s says %q and %q, want %q and %q", c.args, out, errors, c.out, c.errors)
		}
	}
}

// TestNetcat sends inline commands, as people type them.
func TestNetcat(t *testing.T) {
	requireProgram(t, "nc", "netcat-openbsd")
	s := startServer(t)
	host, port, _ := net.SplitHostPort(s.addr)
	cmd := exec.CommandContext(timeoutContext(t), "nc", host, port)
	cmd.Stdin = strings.NewReader("PING\nPUBLISH a \"b c\"\nSUBSCRIBE a\nPING\nQUIT\n")
	out, err := cmd.Output() // exits when the server closes
	const want = "+PONG\r\n:0\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n+OK\r\n"
	if err != nil || string(out) != want {
		t.Errorf("nc says %q, %v; want %q", out, err, want)
	}
}

func TestRedisBenchmark(t *testing.T) {
	requireProgram(t, "redis-benchmark", "redis-tools")
	s := startServer(t)
	for args, rows := range map[string]int{
		"-t ping_inline,ping_mbulk -n 10000 -q -3":            2,
		"-n 10000 -q -P 16 publish ch msg":                    1,
		"-n 10000 -q -c 200 -r 1000 publish __rand_int__ msg": 1,
	} {
		out, err := s.redisTool("redis-benchmark", strings.Fields(args)...).CombinedOutput()
		if err != nil || strings.Count(string(out), "requests per second, p50=") != rows || bytes.Contains(out, []byte("WARN")) || bytes.Contains(out, []byte("rror")) {
			t.Errorf("redis-benchmark %s: %v\n%s", args, err, out)
		}
	}
}
