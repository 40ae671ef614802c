package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// asMyriad makes the test binary be the command.
const asMyriad = "MYRIAD_TEST_AS_COMMAND"

// patience is how long a command may take, and what is waited for: only a failure takes
// it, and a machine that others keep busy takes a multiple of the seconds of a free one.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	fuzzes := slices.Contains(os.Args, "-test.fuzzworker") // started as a test, with this environment
	if os.Getenv(asMyriad) != "" && !fuzzes {
		main()
	}
	// What tests, and the commands in them, start of this program is the command. The race
	// detector would hold up each exit by a second.
	for name, value := range map[string]string{asMyriad: "1", "GORACE": "atexit_sleep_ms=0"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// skipIfShort leaves a test that takes seconds out of short runs.
func skipIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
}

// outcome is how a command ended.
type outcome struct {
	code           int
	stdout, stderr string
}

// output is what the command printed.
func (o outcome) output() string { return o.stdout + o.stderr }

// invokeCommand runs a command line in this process.
func invokeCommand(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr lockedBuffer
	code := runCommandLine(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// invokeLine runs a command line whose arguments have spaces between them.
func invokeLine(t *testing.T, line string) outcome {
	t.Helper()
	return invokeCommand(t, strings.Fields(line)...)
}

// newCommandProcess is the command as a process, ended when the test ends.
func newCommandProcess(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = os.Environ()
	cmd.Dir = t.TempDir()
	return cmd
}

// runToEnd runs a process to its end.
func runToEnd(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// server is a command that serves: a process, or in this one.
type server struct {
	*exec.Cmd      // nil in this process
	addr, admin    string
	stdout, stderr *lockedBuffer
	stop           func() (code int)
}

var (
	servingLine = regexp.MustCompile(`(?m)^myriad: serving \S+ (?:with plain net )?on (\S+)`)
	adminLine   = regexp.MustCompile(`(?m)^myriad: .*metrics.* on (http://[^/]+)`)
)

func (s *server) waitUntilServing(t *testing.T, ended func() bool) *server {
	t.Helper()
	testkit.WaitFor(t, "the server's ready line", func() bool {
		if ended() {
			t.Fatalf("it ended: %s%s", s.stdout, s.stderr)
		}
		return servingLine.MatchString(s.stdout.String())
	})
	s.addr = servingLine.FindStringSubmatch(s.stdout.String())[1]
	if found := adminLine.FindStringSubmatch(s.stdout.String()); found != nil {
		s.admin = found[1]
	}
	return s
}

// serveLine runs a serving command in this process, on a free port unless the line has an address,
// and stops it with the test.
func serveLine(t *testing.T, line string) *server {
	t.Helper()
	if !strings.Contains(line, "--addr") {
		line += " --addr 127.0.0.1:0"
	}
	return serveArgs(t, strings.Fields(line)...)
}

// serveArgs is serveLine for arguments that may have spaces in them.
func serveArgs(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{stdout: &lockedBuffer{}, stderr: &lockedBuffer{}}
	ctx, cancel := context.WithCancel(context.Background())
	code, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		code = runCommandLine(ctx, args, strings.NewReader(""), s.stdout, s.stderr)
	}()
	s.stop = func() int {
		cancel()
		<-done
		return code
	}
	t.Cleanup(func() { s.stop() })
	return s.waitUntilServing(t, func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// startServer starts a process that serves on a free port.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	return startProcess(t, newCommandProcess(t, append(args, "--addr", "127.0.0.1:0")...))
}

// startProcess does so with a command that was prepared.
func startProcess(t *testing.T, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{Cmd: cmd, stdout: &lockedBuffer{}, stderr: &lockedBuffer{}}
	s.Stdout = s.stdout
	if s.Stderr == nil {
		s.Stderr = s.stderr
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Wait() // the exit code says what it returned
	}()
	s.stop = func() int {
		<-ended
		return s.ProcessState.ExitCode()
	}
	t.Cleanup(func() {
		s.Process.Kill()
		<-ended
	})
	return s.waitUntilServing(t, func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// signalAndWait sends a signal to the process, waits for it and returns the exit code.
func (s *server) signalAndWait(t *testing.T, sig os.Signal) int {
	t.Helper()
	if err := s.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	return s.stop()
}

// dial connects to a server.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// waitForPage waits until a page of the admin server matches expr. During an upgrade there may be
// no answer.
func (s *server) waitForPage(t *testing.T, path, expr string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	var text []byte
	testkit.WaitForFunc(t, func() bool {
		answer, err := client.Get(s.admin + path)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err = io.ReadAll(answer.Body)
		return err == nil && regexp.MustCompile(expr).Match(text)
	}, func() string { return fmt.Sprintf("%s has no %q: %.1000s", path, expr, text) })
}

func failOnError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sendAndExpect sends text and checks the answer.
func sendAndExpect(t *testing.T, c net.Conn, text, want string) {
	t.Helper()
	io.WriteString(c, text)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("%q is answered with %q, %v; want %q", text, got[:n], err, want)
	}
}

// lockedBuffer is a buffer that a command writes while the test reads.
type lockedBuffer = testkit.Buffer

// wrongUses are command lines, a subcommand's together, and what the error says; {x} is a
// file with no report, scenario, certificate or message in it, {no} is none, {d} is a
// directory, and {t} a target that refuses connections: what gets that far ends with 1.
const wrongUses = `
frobnicate                                  = "frobnicate"; expected one of agent, bench, doctor, hold, hub, load, offer, park, plain, plan, report, serve
help frobnicate                             = "frobnicate"
version x                                   = unexpected argument "x"; expected myriad version
serv                                        = "serv"; expected one of

serve --model threads                       = "threads"
serve --model epol                          = "epol"; expected
serve --app ftp                             = expected one of echo, lines, sha, sink, http, wait, pow
serve --max-conns -1                        = --max-conns is -1; expected 0
serve --sndbuf -1                           = --sndbuf is -1; expected 0
serve --max-conns many                      = "many"; expected a value of type int
serve --max-conns 1000000000                = RLIMIT_NOFILE
serve --loops -2                            = --loops is -2
serve --loops 100000                        = --loops is 100000
serve --max-conns-per-source -1             = --max-conns-per-source is -1; expected 0
serve --idle-timeout soon                   = --idle-timeout is "soon"; expected a duration such as 1.5s, or never
serve --idle-timeout -1s                    = --idle-timeout is -1s
serve --drain -1s                           = --drain is -1s
serve --deny 10.0.0.0/33                    = --deny is "10.0.0.0/33"; expected a network such as 10.0.0.0/8
serve --slow-consumer wait                  = --slow-consumer is "wait"; expected close or drop
serve --heartbeat 1ms                       = --heartbeat is 1ms; expected
serve --heartbeat -1s                       = --heartbeat is -1s
serve --heartbeat-missed 3                  = need --heartbeat; expected it, too
serve --tls-cert cert.pem                   = only one of --tls-cert and --tls-key is given; expected both
serve --tls-client-ca ca.pem                = --tls-client-ca is given without a certificate
serve --tls-cert {no} --tls-key {no}        = no such file
serve --tls-cert {x} --tls-key {x}          = {x}
serve --memory-limit half                   = --memory-limit is "half"; expected auto
serve --memory-limit 101%                   = --memory-limit is "101%"; expected auto or 1% to 100%
serve --network udp                         = "udp"
serve --network unix --addr {no}            = {no}
serve --network unix --processes 2          = unix
serve --admin nonsense                      = --admin is "nonsense"; expected HOST:PORT
serve --admin 127.0.0.1:99999               = --admin is "127.0.0.1:99999"; expected HOST:PORT
serve --addr 127.0.0.1:http-but-not         = --addr is "127.0.0.1:http-but-not"; expected HOST:PORT
serve --addr 127.0.0.1                      = expected HOST:PORT
serve --addr :::1                           = expected HOST:PORT
serve --admin-control                       = --admin-control is given without --admin; expected both
serve --admin 127.0.0.1:0 --admin-token-file x = --admin-token-file is given without --admin-control; expected both
serve --admin 127.0.0.1:0 --admin-control --admin-token-file {no} = no such file
serve --admin 127.0.0.1:0 --admin-control --admin-token-file {x} = expected a token of at least 16
serve --flight-lag 1s                       = with --flight-dir
serve --flight-dir {d} --flight-lag -1s     = --flight-lag is -1s; expected more than 0
serve --flight-dir {d} --flight-lag 1h --addr 127.0.0.1:0 = --flight-dir
serve --flight-dir {x} --addr 127.0.0.1:0   = --flight-dir
serve --processes -1                        = --processes is -1
serve --processes 99999                     = --processes is 99999
serve extra                                 = unexpected argument "extra"; expected myriad serve
serve --app wait --wait -1s                 = --wait is -1s; expected 0s to
serve --app wait --wait 2m                  = --wait is 2m0s; expected 0s to
serve --app pow --bits 33                   = --bits is 33; expected 0 to 32
serve --app pow --bits -1                   = --bits is -1
serve --bits 3                              = with --app echo; expected it with --app pow
serve --app pow --wait 1s                   = expected it with --app wait
serve --app lines --shed                    = expected it with --app wait or pow
serve --stall 1s                            = expected it with --app stall
serve --log-every 3                         = expected it with --app log
serve --app log --log-every 0               = --log-every is 0; expected 1 or more
serve --app log --log-format xml            = --log-format is "xml"; expected text or json
serve --app stall --stall 2s                = --stall and --stall-every are stalls
serve --app stall --stall-capacity -1       = --stall-capacity is a capacity
serve --app stall --processes 2             = --processes is 2 with --app stall; expected 0
serve --workers many                        = --workers is "many"; expected a number such as 128, MIN-MAX such as 2-1000, or adaptive
serve --workers 3-2                         = --workers 3-2: Max is 2 with a Min of 3; expected 3 to
serve --workers 2000000                     = --workers 2000000: Max is 2000000
serve --workers 2000000 --processes 2       = --workers 2000000: Max is 2000000
serve --workers 8 --workers-target 1ms      = expected it with --workers adaptive or MIN-MAX
serve --workers adaptive --workers-target 1ns = --workers-target is 1ns; expected 0
serve --workers 8 --workers-queue -2        = --workers-queue is -2; expected 0
serve --workers-queue 5                     = need --workers; expected it, too

hub --addr :6379                            = --addr is ":6379", which lets any client read and publish everything; expected --users, a loopback address, or --insecure
hub --addr 127.0.0.1:0 --tls-addr :1 --tls-cert {x} --tls-key {x} = {x}
hub --tls-addr 127.0.0.1:1                  = --tls-addr is given without a certificate
hub --addr systemd:web                      = expected --users
hub --users {no}                            = --users: open
hub --users {x}                             = expected user NAME RULES...
hub --publish-rate -1                       = --publish-rate is -1; expected 0
hub --last-values -1                        = --last-values is -1; expected 0
hub --last-value-bytes 10                   = --last-value-bytes is 10 without --last-values
hub --heartbeat 1ms                         = --heartbeat is 1ms; expected
hub --max-name 100000                       = --max-name is 100000; expected 0 (the default) to 65536
hub --max-message -1                        = --max-message is -1
hub --model threads                         = "threads"
hub --nats nats://a --cluster 127.0.0.1:0   = --nats and --cluster are both given; expected one
hub --join 127.0.0.1:1                      = --join is given without --cluster
hub --nats-ca {x}                           = --nats-ca is given without --nats
hub --node a                                = --node is given without --nats or --cluster
hub --replay a                              = --replay is given without --nats or --cluster
hub --nats nats://a --replay-bytes 1        = --replay-bytes is given without --replay
hub --nats nats://a --replay a*             = --replay has "a*"; expected a name, or a prefix that ends with
hub --nats nats://a --replay a --replay-bytes 1 = --replay-bytes is 1; expected at least 1049700
hub --nats nats://a --replay a --replay-age 1ms = --replay-age is 1ms; expected at least 1s
hub --nats nats://a --replay a --replay-dir d = --replay-dir needs --cluster
hub --cluster 127.0.0.1:0 --replay a        = --replay with --cluster needs --replay-dir DIRECTORY
hub --cluster 127.0.0.1:0                   = --cluster is given without a secret; expected --cluster-secret FILE, or MYRIAD_CLUSTER_SECRET
hub --cluster 127.0.0.1:0 --cluster-secret {no} = --cluster-secret: open
hub --cluster nowhere --cluster-secret {x}  = --cluster is "nowhere"; expected
hub --cluster 127.0.0.1:0 --join nowhere --cluster-secret {x} = --join is "nowhere"; expected
hub --cluster-cert {x}                      = --cluster-cert is given without --cluster
hub --cluster 127.0.0.1:0 --cluster-secret {x} --cluster-ca {x} = only some of --cluster-cert, --cluster-key and --cluster-ca are given; expected all three
hub --nats @{no}                            = --nats: open
hub --nats ,                                = --nats is ","; expected URLs such as nats://host:4222
hub --nats nats://a --nats-ca {x}           = no certificate in {x}
hub --nats nats://a --cluster-subjects -1   = MaxSubjects is -1; expected 0 (the default) or more
hub extra                                   = unexpected argument "extra"; expected myriad hub

load                                        = no target is given; expected HOST:PORT or unix:PATH
load nonsense                               = expected HOST:PORT
load 127.0.0.1:99999                        = 99999
load ftp://a:1/                             = ftp
load -H a:b {t}                             = --header is given without a WebSocket; expected it with --ws
load -c -5 {t}                              = "-5"; expected a whole number above 0
load -c 60000000 {t}                        = RLIMIT_NOFILE
load --duration soon {t}                    = "soon"; expected
load --rate 1 --flood {t}                   = --flood is given together with --rate; expected one of the two
load --topics 2 {t}                         = --topics is given without --pubsub; expected both
load --ramp 0:10:1s -c 11 {t}               = --ramp is to 10, and --connections 11; expected the same
load -em a\q {t}                            = --message: "\\q"; expected one of \n
load -e -m a --answer \{message.uid} {t}    = --answer is "\\{message.uid}", which has an expression; expected none
load --answer x --http {t}                  = --match is given together with --answer
load --tls --tls-ca {x} {t}                 = expected a PEM file
load --tls-insecure --tls-ca x {t}          = expected one of the two
load --latency-percentiles 101 {t}          = --latency-percentiles is "101"; expected percentiles above 0
load --src ::1 {t}                          = ::1
load --loops 100000 {t}                     = 100000
load -f {no} {t}                            = {no}
load -f {d} {t}                             = --message-file
load --out {no}/x {t}                       = --out: open {no}
load --html {no}/x {t}                      = --html: open {no}
load --csv {no}/x {t}                       = --csv: open {no}
load --out {d}/a --html {d}/a {t}           = which another output also uses; expected different files
load --csv {d}/a --html {d}/a {t}           = which another output also uses; expected different files
load --metrics nonsense {t}                 = --metrics is "nonsense"; expected HOST:PORT
load --expect joy>1 {t}                     = --expect: expectation "joy>1": name "joy"; expected one of
load --config {no}                          = --config: open
load --config {d}                           = is a directory
load --config - {t}                         = EOF; expected an object
load --config /dev/zero {t}                 = which is too large; expected at most 4194304 bytes

hold                                        = no target is given
hold nowhere                                = expected HOST:PORT
hold --duration -1s {t}                     = --duration is "-1s"; expected a time above 0
hold --duration 31d {t}                     = expected 0s to 720h
hold -m ping {t}                            = -m; expected a flag
hold --rate 10 {t}                          = --rate; expected a flag
hold --check --lifetime 1s {t}              = --lifetime; expected a flag
hold --close politely {t}                   = expected fin or rst
hold --check=2M {t}                         = expected 1 to 1048576
hold --heartbeat-answer pong {t}            = --heartbeat-answer is given without --heartbeat

load --agents 0 {t}                         = --agents is "0"; expected a number of agents, 1 to 64, or local: and a number
load --agents 65 {t}                        = --agents is "65"; expected a number of agents, 1 to 64
load --agents local: {t}                    = --agents is "local:"; expected
load --agents-wait 1s {t}                   = --agents-wait is given without --agents; expected both
load --nats nats://a {t}                    = --nats is given without --agents; expected both
load --agents 2 --nats a:1 {t}              = --nats is "a:1"; expected URLs such as nats://host:4222
load --agents 2 --nats @{no} {t}            = --nats: open {no}: no such file
load --agents 2 --agents-addr x {t}         = --agents-addr is "x"; expected HOST:PORT
load --agents 2 --agents-addr :4222 {t}     = the NATS server at :4222 is not on loopback, and anyone who reaches it could control agents; expected a secret
load --agents 2 --nats nats://10.0.0.1 {t}  = there are no credentials for NATS at nats://10.0.0.1, which is not on loopback
load --agents 2 --agents-cert x {t}         = only one of --agents-cert and --agents-key is given; expected both
load --agents 2 --agents-cert {no} --agents-key {no} {t} = --agents-cert: open {no}: no such file
load --agents 2 --nats nats://a --agents-key x {t} = --agents-cert or --agents-key is given with --nats, whose server has its own
load --agents local:2 --agents-cert x {t}   = --agents-cert is given with --agents local:2
load --agents 2 --nats nats://a --agents-addr :1 {t} = --nats and --agents-addr are given; expected one of the two
load --agents 2 --nats-ca {x} {t}           = --nats-creds or --nats-ca is given without --nats
load --agents 2 --nats tls://a --nats-ca {x} {t} = {x}
load --agents 2 --nats nats://a --nats-creds {no} {t} = --nats-creds: stat {no}: no such file
load --agents local:2 --nats nats://a {t}   = --nats is given with --agents local:2
load --agents 2 --agents-secret {no} {t}    = --agents-secret: open {no}: no such file
load --agents 2 --agents-secret /dev/null {t} = --agents-secret is /dev/null, with 0 bytes; expected 1 to
load --agents 2 --src 127.0.0.2 {t}         = --src is given for several generators; expected none
load --agents 3 -c 2 {t}                    = --connections is 2; expected 3 or more, one for each generator
hold --agents 3 -n 2 {t}                    = --connections is 2; expected 3 or more, one for each generator
agent x                                     = unexpected argument "x"; expected myriad agent [flags]
agent --nats 127.0.0.1                      = --nats is "127.0.0.1"; expected URLs
agent --nats nats://10.0.0.1:4222           = --nats: there are no credentials for NATS at nats://10.0.0.1:4222, which is not on loopback; expected a secret (MYRIAD_AGENTS_SECRET)
agent --allow here                          = --allow is "here"; expected an address, a network such as 10.0.0.0/8, or unix:PATH
agent --src here                            = --src is "here"; expected an IP address of this machine
agent --max-connections 0                   = --max-connections is "0"; expected
agent --keep {no}                           = --keep is "{no}"; expected an existing directory

report                                      = FILE
report {no}                                 = {no}: no such file
report {x}                                  = {x}: it is neither of a bench nor of a load; expected the report.json of a bench
report {d}                                  = {d} has no report.json; expected the report.json of a bench, or its directory

doctor now                                  = unexpected argument "now"; expected myriad doctor [flags]
doctor --fix                                = -n is missing; expected the number of connections to prepare the machine for, such as -n 100k
doctor --print sysctl                       = -n is missing; expected the number of connections
doctor --yes -n 10                          = --yes is given without --fix; expected both
doctor -n 10 --fix --json                   = --fix and --json are given; expected one of the two
doctor -n 10 --print sysctl --fix           = --fix and --print are given; expected one of the two
doctor -n 10 --print sysctl --json          = --json and --print are given; expected one of the two
doctor -n 10 --print nix                    = --print is "nix"; expected sysctl or systemd or docker or kubernetes or limits
doctor -n 0                                 = --connections is "0"; expected a whole number above 0, such as 500, 20k or 1.5M
doctor -n 10 --side middle                  = --side is "middle"; expected server or client or both
doctor -n 10 --target localhost:1           = --target is "localhost:1"; expected an IP address and a port, such as 10.0.0.7:9000
doctor -n 10 --src here                     = --src is "here"; expected an IP address of this machine
doctor -n 10G                               = Plan.Connections is 10,000,000,000; expected 1 to
doctor -n 10 --model fast                   = Plan.Model is "fast"; expected

plain --app ftp                             = "ftp"; expected echo, lines, sink, http, wait, pow, sha or ws
plain --app ws                              = app ws, which a server on package net doesn't have
plain --buffer 511                          = --buffer is 511; expected 512 to 1048576
plain --design frob                         = frob
plain --addr 127.0.0.1:99999                = expected HOST:PORT
plain --tls-cert {x}                        = expected both
plain --heartbeat 1ms                       = a heartbeat every 1ms; expected
plain --app http --admin 127.0.0.1:0        = an address for metrics with http
park -n 0                                   = -n is 0; expected 1 to
offer --pool ants                           = --pool is "ants"; expected one of channel, naive, ours
offer --pool ours --rate -1                 = --rate is -1; expected 0 (a closed loop) to 100000000

bench                                       = no scenario given; expected one of quick,
bench quick quick                           = two scenarios are named "quick"; expected distinct names
bench quick all                             = two scenarios are named "quick"
bench show                                  = accepts 1 arg
bench list x                                = unexpected argument "x"
bench list --scale tiny                     = has no scale "tiny"; expected one of small, full
bench {no}.toml                             = {no}.toml
bench {x}.toml                              = {x}.toml
bench quick --out x.json                    = --out is "x.json"; expected a directory
bench quick --out {x}                       = {x} is a file, or below one; expected an empty directory
bench quick --scale -1                      = quick has no scale "-1"
bench quick --rounds 0                      = --rounds is "0"; expected a whole number above 0
bench quick --duration 0s                   = --duration is "0s"; expected a time above 0
bench quick --duration 1ms                  = load for 1ms; expected 100ms to
bench quick -n 0                            = --connections-max is "0"; expected a whole number above 0
bench quick --only [                        = --only is "["
bench quick --only nothing                  = matches no run
bench quick --subject mine                  = --subject: subject "mine" has no name
bench peers --subject x:ftp=y               = app "ftp"; expected echo, lines, sink, http, wait, pow, sha or ws
bench overload --peers {no}                 = go build -C tools/peers
bench quick --peers {x}                     = --peers is given for quick; expected it with overload or peers
bench soak --duration 1s                    = expected 4s to

plan                                        = --measure and --from: neither is given; expected one of the two
plan --measure --from {x}                   = both are given
plan --measure --subject nope               = --subject is "nope"; expected with --measure one of epoll and uring
plan --measure --free 100%                  = --free is 100 %; expected 0 to 95
plan --measure --check                      = expected it with --from
plan --from {x} --out a                     = --out is given without --measure
plan --from {x} --within 5%                 = --within is given without --check
plan --from {x}                             = {x}: it is neither of a bench nor of a load
plan --from {d}                             = has no report.json
plan --from {x} -n 0                        = --connections is "0"
plan --from {x} --rate often                = --rate is "often"; expected a number
plan --from {x} --free most                 = expected a percentage
`

// unknownFlags are command lines with flags that are none, and what is said to each.
const unknownFlags = `
serve --max-con 1                           = unknown flag: --max-con; did you mean --max-conns?
load --connection 5 127.0.0.1:1             = unknown flag: --connection; did you mean --connections?
load --conections=5 127.0.0.1:1             = unknown flag: --conections; did you mean --connections?
load --latency 127.0.0.1:1                  = unknown flag: --latency; did you mean --latency-marker?
load -d 2s http://127.0.0.1:1               = unknown shorthand flag: 'd' in -d; -d of wrk is -T, --duration here: measure for this TIME
load -duration 2s 127.0.0.1:1               = unknown shorthand flag: 'd' in -duration; did you mean --duration?
load -t 1 http://127.0.0.1:1                = -t of wrk is -w, --loops here: run N event loops
load -n 100 http://127.0.0.1:1              = -n of hey and ab is --messages here: exchange N messages on each connection
load -z 2s http://127.0.0.1:1               = -z of hey is -T, --duration here
load -k http://127.0.0.1:1                  = expected a flag that "myriad load --help" lists
hold -c 10 127.0.0.1:1                      = -c of wrk is -n, --connections here
serve --adr 127.0.0.1:0                     = unknown flag: --adr; did you mean --addr?
doctor --connection 5                       = did you mean --connections?
bench --round 1                             = did you mean --rounds?
plan -c 5                                   = -c of wrk is -n, --connections here
serve --nonsense                            = unknown flag: --nonsense; expected a flag that "myriad serve --help" lists
hub --processes 2                           = unknown flag: --processes; expected a flag that "myriad hub --help" lists
load --pipline 3 127.0.0.1:1                        = unknown flag: --pipline; did you mean --pipeline?
`

// TestWrongUse has wrong command lines end with 2 and say what was expected. For a flag that is none it is the one that
// was meant: the nearest, or the one that does what a short flag of wrk, hey or ab does.
func TestWrongUse(t *testing.T) {
	x := t.TempDir() + "/x"
	if err := os.WriteFile(x, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	fill := strings.NewReplacer("{x}", x, "{no}", dir+"/none/none", "{d}", dir, "{t}", "127.0.0.1:1")
	for text := range strings.Lines(wrongUses) {
		line, says, found := strings.Cut(strings.TrimSpace(text), " = ")
		if !found {
			continue
		}
		got := invokeLine(t, fill.Replace(line))
		if got.code != 2 || !strings.HasPrefix(got.stderr, "myriad: ") || !strings.Contains(got.stderr, fill.Replace(says)) {
			t.Errorf("myriad %s: exit code %d, stderr %q; want 2 and %q", line, got.code, got.stderr, says)
		}
		if strings.Contains(got.output(), "report in ") {
			t.Errorf("myriad %s: it says where a report is that there is not", line)
		}
	}
	for text := range strings.Lines(unknownFlags) {
		line, says, found := strings.Cut(strings.TrimSpace(text), " = ")
		if !found {
			continue
		}
		if got := invokeLine(t, line); got.code != 2 || !strings.HasPrefix(got.stderr, "myriad: unknown ") || !strings.Contains(got.stderr, says) {
			t.Errorf("myriad %s: exit code %d, stderr %q; want 2 and %q", line, got.code, got.stderr, says)
		}
	}
	if got := invokeCommand(t, append([]string{"report"}, make([]string, maxReportFiles+1)...)...); got.code != 2 || !strings.Contains(got.stderr, "65 files; expected at most 64") {
		t.Errorf("too many files: exit code %d, stderr %q", got.code, got.stderr)
	}
}

// What fails without being called wrongly ends with 1.
func TestFailures(t *testing.T) {
	s := serveLine(t, "serve --app lines")
	for line, says := range map[string]string{
		"load -c 1 127.0.0.1:1":                                "connection refused",
		"hold -n 1 127.0.0.1:1":                                "connection refused",
		"load -c 1 http://127.0.0.1:1/":                        "connection refused",
		"serve --addr systemd":                                 "LISTEN_FDS",
		"serve --addr " + s.addr:                               "listens on " + s.addr + ": end it, or choose another address with --addr",
		"load -c 1 --messages 1 --expect answered>1 " + s.addr: "1 of 1 expectations not met",
	} {
		if got := invokeLine(t, line); got.code != 1 || !strings.Contains(got.stderr, says) {
			t.Errorf("myriad %s: exit code %d, stderr %q; want 1 and %q", line, got.code, got.stderr, says)
		}
	}
}

// The help has what it has to, in this order.
func TestHelp(t *testing.T) {
	for line, says := range map[string][]string{
		"--help":          {"agent", "bench", "doctor", "offer", "park", "serve"},
		"agent --help":    {"Examples:", "\nCoordinator:\n", "--nats URL", "--secret FILE", "\nWork:\n", "--allow ADDRESS"},
		"hub --help":      {"--max-message", "(default 1048576)", "--users", "--write-timeout", "(default 1m0s)"},
		"serve --help":    {"Applications:\n  echo", "--model"},
		"bench --help":    {"bench list", "--peers", "--subject"},
		"help bench":      {"--scale"},
		"plain --help":    {"--app"},
		"--version":       {"go1."},
		"version":         {"go1."},
		"bench list":      {"quick       2 minutes"},
		"bench show idle": {`name = "idle"`},
		"load --help": {
			"Usage:\n  myriad load", "Examples:\n  myriad load -c 10000 --connect-rate=2000 --duration=60s -m $'ping\\n' 127.0.0.1:9000\n",
			"\nConnections:\n", "--connections N", "\nTraffic:\n", "--message-rate N", "\nMessages:\n", "--ws PATH", "\nAnswers:\n", "--match RULE",
			"\nEncryption:\n", "\nResults:\n", "--out FILE", "\ntcpkali:\n", "--ssl is --tls",
		},
	} {
		got := invokeLine(t, line)
		rest := got.stdout
		for _, part := range says {
			_, after, found := strings.Cut(rest, part)
			if got.code != 0 || !found {
				t.Fatalf("myriad %s: exit code %d, does not say %q behind what came before:\n%s", line, got.code, part, got.stdout)
			}
			rest = after
		}
	}
}
