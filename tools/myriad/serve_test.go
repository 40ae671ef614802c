package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/testkit"
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
		"--workers 2-1000 --workers-queue -1 --workers-target 1ms", "--workers adaptive --app pow --bits 5", "--workers 8-", "-0", "-t", "--lops 2",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if regexp.MustCompile("-h|tls-|version").MatchString(line) {
			return // of a file, or not what serve does
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
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		switch err := cmd.Execute(); {
		case err == nil && srv == nil:
			t.Errorf("%q: neither a server nor an error", line)
		case err != nil:
			if _, ok := errors.AsType[usageError](err); !ok || !regexp.MustCompile("expected|did you mean|of wrk is").MatchString(err.Error()) {
				t.Errorf("%q: the error %q, which is a %T; want a usageError that says what was expected", line, err, err)
			}
		}
	})
}

const secret = "0123456789abcdef"

func writeTokenFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	testkit.RequireNoError(t, os.WriteFile(path, []byte(secret+"\n"), 0o600))
	return path
}

func (s *server) tryPostControl(t *testing.T, what, token string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequest("POST", s.admin+"/control/"+what, nil)
	testkit.RequireNoError(t, err)
	r.Header.Set(admin.ActionHeader, "1")
	r.Header.Set(admin.TokenHeader, token)
	answer, err := http.DefaultClient.Do(r)
	testkit.RequireNoError(t, err)
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	testkit.RequireNoError(t, err)
	return answer.StatusCode, string(all)
}

func checkAdminControl(t *testing.T, s *server, token string) {
	t.Helper()
	post := func(what string) {
		t.Helper()
		if status, text := s.tryPostControl(t, what, token); status != http.StatusOK {
			t.Fatalf("%s: %d, %s", what, status, text)
		}
	}
	post("pause")
	s.waitForPage(t, "/live", "Accepting is paused by an operator")
	c := testkit.Dial(t, s.addr)
	c.Send("hello\n")
	post("resume")
	c.Expect("hello\n")
	s.waitForPage(t, "/live", "serves 1 connections")
	post("close?remote=" + c.LocalAddr().String())
	c.ExpectClosed()
	post("drain")
}

// The admin server tells of the server, and lets who has the token control it, which is random
// here and printed.
func TestAdmin(t *testing.T) {
	s := serveLine(t, "serve --app lines --admin 127.0.0.1:0 --admin-control --memory-limit auto --flight-dir "+t.TempDir())
	c := testkit.Dial(t, s.addr)
	c.ExchangeLine("hello", "hello")
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ok", "/stats": `"Messages": 1`, "/metrics": "\nmyriad_messages_total 1\n",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
	} {
		if status, text := httpGet(t, s.admin+path); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("GET %s: %d, %.200q; want 200 and %q in it", path, status, text, want)
		}
	}
	c.Close()
	said := regexp.MustCompile(`(?s)myriad: memory limit .*the token for --admin-control is (\S{16,})\n`).FindStringSubmatch(s.stdout.String())
	if said == nil {
		t.Fatalf("stdout is %q; want the memory limit and a token in it", s.stdout)
	}
	s.waitForPage(t, "/stats", `"Open": 0`)
	checkAdminControl(t, s, said[1])
	s.checkStop(t)
}
