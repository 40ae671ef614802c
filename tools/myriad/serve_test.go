package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
)

// FuzzServeFlags gives serve any flags: they describe a server, or they are an error
// that says what was expected.
func FuzzServeFlags(f *testing.F) {
	for _, seed := range []string{
		"--max-conns 5 --idle-timeout never --deny 10.0.0.0/8", "--heartbeat 1s --heartbeat-message x --heartbeat-missed 3",
		"--allow ::1 --trusted-proxy 192.0.2.0/24 --slow-consumer drop", "--idle-timeout -1s", "--addr systemd:web --network unix",
		"--app wait --wait 1ms --shed", "--tls-client-ca x", "--memory-limit 75%", "--deny 1.2.3.4/33", "--loops x",
		"--workers 2-1000 --workers-queue -1 --workers-target 1ms", "--workers adaptive --app pow --bits 5", "--workers 8-",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		for _, a := range args {
			if strings.Contains(a, "help") || strings.Contains(a, "-h") || strings.Contains(a, "tls-") || strings.Contains(a, "version") {
				return // of a file, or not what serve does
			}
		}
		flags := &serveFlags{}
		var srv *tcp.Server
		cmd := &cobra.Command{Use: "serve", SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs,
			RunE: func(cmd *cobra.Command, _ []string) (err error) {
				srv, err = flags.validateAndSetUp(cmd)
				return err
			}}
		cmd.SetFlagErrorFunc(toUsageErrorWithExpectation)
		flags.addFlags(cmd)
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		switch err := cmd.Execute(); {
		case err == nil && srv == nil:
			t.Errorf("%q: neither a server nor an error", line)
		case err != nil:
			if _, ok := errors.AsType[usageError](err); !ok || !strings.Contains(err.Error(), "expected") {
				t.Errorf("%q: the error %q, which is a %T; want a usageError that says what was expected", line, err, err)
			}
		}
	})
}

const secret = "0123456789abcdef"

// writeTokenFile writes the token to a file.
func writeTokenFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// postControl sends a control request to the admin server and expects success.
func (s *server) postControl(t *testing.T, what, token string) {
	t.Helper()
	if status, text := s.tryPostControl(t, what, token); status != http.StatusOK {
		t.Fatalf("%s: %d, %s", what, status, text)
	}
}

// tryPostControl sends a control request and returns the answer.
func (s *server) tryPostControl(t *testing.T, what, token string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequest("POST", s.admin+"/control/"+what, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(admin.ActionHeader, "1")
	r.Header.Set(admin.TokenHeader, token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return answer.StatusCode, string(all)
}

// checkAdminControl pauses, resumes and drains a server.
func checkAdminControl(t *testing.T, s *server, token string) {
	t.Helper()
	s.postControl(t, "pause", token)
	s.waitForPage(t, "/live", "Accepting is paused by an operator")
	c := dial(t, s.addr)
	io.WriteString(c, "hello\n")
	s.postControl(t, "resume", token)
	sendAndExpect(t, c, "", "hello\n")
	s.waitForPage(t, "/live", "serves 1 connections")
	s.postControl(t, "close?remote="+c.LocalAddr().String(), token)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection was not closed")
	}
	s.postControl(t, "drain", token)
}

// The admin server tells of the server, and lets who has the token control it: that of a
// file, or a random one that is printed.
func TestAdmin(t *testing.T) {
	s := serveLine(t, "serve --app lines --admin 127.0.0.1:0 --admin-control --memory-limit auto --flight-dir "+t.TempDir())
	c := dial(t, s.addr)
	sendAndExpect(t, c, "hello\n", "hello\n")
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ok", "/stats": `"Messages": 1`, "/metrics": "\nmyriad_messages_total 1\n",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
	} {
		if status, text := httpGet(t, s.admin+path); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("GET %s: %d, %.200q; want 200 and %q in it", path, status, text, want)
		}
	}
	c.Close()
	if said := s.stdout.String(); !strings.Contains(said, "myriad: memory limit ") {
		t.Errorf("stdout is %q; want the memory limit in it", said)
	}
	_, token, _ := strings.Cut(s.stdout.String(), "the token for --admin-control is ")
	token, _, _ = strings.Cut(token, "\n")
	if len(token) < admin.MinToken {
		t.Fatalf("the token is %q in %s", token, s.stdout)
	}
	s.waitForPage(t, "/stats", `"Open": 0`)
	checkAdminControl(t, s, token)
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d after the drain; stderr: %s", code, s.stderr)
	}
	s = serveLine(t, "serve --admin 127.0.0.1:0 --admin-control --admin-token-file "+writeTokenFile(t))
	s.postControl(t, "drain", secret)
}
