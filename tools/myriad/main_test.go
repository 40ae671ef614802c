package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// asMyriad makes the test binary be the command.
const asMyriad = "MYRIAD_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	fuzzes := slices.Contains(os.Args, "-test.fuzzworker") // started as a test, with this environment
	if os.Getenv(asMyriad) != "" && !fuzzes {
		main()
	}
	// What tests, and the commands in them, start of this program is the command. The race
	// detector would hold up each exit by a second.
	if err := errors.Join(os.Setenv(asMyriad, "1"), os.Setenv("GORACE", "atexit_sleep_ms=0")); err != nil {
		panic(err)
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

func (o outcome) output() string { return o.stdout + o.stderr }

// checkOutcome checks the exit code, and that the output contains all words.
func (o outcome) checkOutcome(t *testing.T, what string, code int, words ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("%s: exit code %d, want %d: %s", what, o.code, code, o.output())
	}
	for _, word := range words {
		if !strings.Contains(o.output(), word) {
			t.Errorf("%s does not say %q: %.3000s", what, word, o.output())
		}
	}
}

// invokeCommand runs a command line in this process.
func invokeCommand(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr testkit.Buffer
	code := runCommandLine(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// invokeLine runs a command line whose arguments have spaces between them.
func invokeLine(t *testing.T, line string) outcome {
	t.Helper()
	return invokeCommand(t, strings.Fields(line)...)
}

func newCommandProcess(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = os.Environ()
	cmd.Dir = t.TempDir()
	return cmd
}

func runToEnd(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr testkit.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	code := testkit.Start(t, cmd).WaitExitCode()
	return outcome{code, stdout.String(), stderr.String()}
}

// server is a command that serves: a process, or in this one.
type server struct {
	*testkit.Process // nil in this process
	addr, admin      string
	stdout, stderr   *testkit.Buffer
	stop             func() (code int) // ends the server in this process, and waits for a process
}

var (
	servingLine = regexp.MustCompile(`(?m)^myriad: serving \S+ (?:with plain net )?on (\S+)`)
	adminLine   = regexp.MustCompile(`(?m)^myriad: .*metrics.* on (http://[^/]+)`)
)

func (s *server) readAddrs() *server {
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
	s := &server{stdout: new(testkit.Buffer), stderr: new(testkit.Buffer)}
	ctx, cancel := context.WithCancel(context.Background())
	code, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		code = runCommandLine(ctx, strings.Fields(line), strings.NewReader(""), s.stdout, s.stderr)
	}()
	s.stop = func() int {
		cancel()
		<-done
		return code
	}
	t.Cleanup(func() { s.stop() })
	testkit.WaitFor(t, "the server's ready line", func() bool {
		select {
		case <-done:
			t.Fatalf("myriad %s ended: %s%s", line, s.stdout, s.stderr)
		default:
		}
		return servingLine.MatchString(s.stdout.String())
	})
	return s.readAddrs()
}

// startServer starts a process that serves on a free port.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	return startProcess(t, newCommandProcess(t, append(args, "--addr", "127.0.0.1:0")...))
}

// startProcess does so with a command that was prepared.
func startProcess(t *testing.T, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{stderr: new(testkit.Buffer)}
	if cmd.Stderr == nil {
		cmd.Stderr = s.stderr
	}
	s.Process = testkit.Start(t, cmd)
	s.stdout, s.stop = s.Output, s.WaitExitCode
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("standard error of %q: %s", cmd.Args, s.stderr)
		}
	})
	s.WaitForOutput(servingLine.String())
	return s.readAddrs()
}

func (s *server) checkStop(t *testing.T) {
	t.Helper()
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d; stderr: %s", code, s.stderr)
	}
}

func (s *server) signalAndWait(sig os.Signal) int {
	s.Signal(sig)
	return s.stop()
}

func (s *server) waitForError(t *testing.T, text string) {
	t.Helper()
	testkit.WaitForFunc(t, func() bool { return strings.Contains(s.stderr.String(), text) },
		func() string { return fmt.Sprintf("stderr has no %q: %s", text, s.stderr) })
}

// tryGet requests a page on a connection of its own.
func tryGet(url string) (status int, text string, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testkit.Timeout}
	answer, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(all), err
}

// httpGet is tryGet, which must succeed.
func httpGet(t *testing.T, url string) (status int, text string) {
	t.Helper()
	status, text, err := tryGet(url)
	testkit.RequireNoError(t, err)
	return status, text
}

// waitForPage waits until a page of the admin server matches expr. During an upgrade there may be
// no answer.
func (s *server) waitForPage(t *testing.T, path, expr string) {
	t.Helper()
	re, text := regexp.MustCompile(expr), ""
	testkit.WaitForFunc(t, func() (ok bool) {
		var err error
		_, text, err = tryGet(s.admin + path)
		return err == nil && re.MatchString(text)
	}, func() string { return fmt.Sprintf("%s has no %q: %.1000s", path, expr, text) })
}

func sendAndExpect(c *testkit.Conn, text, want string) {
	c.Send(text)
	c.Expect(want)
}
