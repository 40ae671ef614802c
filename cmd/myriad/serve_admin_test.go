package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/admin"
	"github.com/myriad-go/myriad/internal/await"
)

func TestAdminToken(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const secret = "0123456789abcdef"
	for _, c := range []struct {
		flags adminFlags
		token string
		wrong string
	}{
		{adminFlags{addr: ":0"}, "", ""},
		{adminFlags{addr: ":0", control: true, tokenFile: file("good", secret+"\n")}, secret, ""},
		{adminFlags{addr: ":0", control: true, tokenFile: file("short", "secret")}, "", "16 or more"},
		{adminFlags{addr: ":0", control: true, tokenFile: filepath.Join(dir, "none")}, "", "no such file"},
		{adminFlags{control: true}, "", "expected it with --admin"},
		{adminFlags{addr: ":0", tokenFile: "x"}, "", "expected it with that"},
	} {
		var out bytes.Buffer
		token, err := c.flags.token(&out)
		if _, usage := errors.AsType[usageError](err); token != c.token || usage != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%+v: %q, %v; want %q, %q", c.flags, token, err, c.token, c.wrong)
		}
		if out.Len() > 0 {
			t.Errorf("%+v: it printed %q", c.flags, out.String())
		}
	}
	var first, second bytes.Buffer
	random := adminFlags{addr: ":0", control: true}
	a, _ := random.token(&first)
	b, _ := random.token(&second)
	if a == b || len(a) < admin.MinToken || strings.Count(first.String(), a) != 1 {
		t.Errorf("random tokens are %q and %q, and it printed %q", a, b, first.String())
	}
}

// order gives an order to the admin server.
func (s *server) order(t *testing.T, what, token string) {
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
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d, %s", what, answer.StatusCode, text)
	}
}

// TestAdminControl pauses and resumes a server, and drains it, with and without worker
// processes.
func TestAdminControl(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	const secret = "0123456789abcdef"
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"alone": nil, "processes": {"--processes", "2"}} {
		t.Run(name, func(t *testing.T) {
			if args != nil && len(myriad.Models()) < 2 {
				t.Skip("worker processes need Linux")
			}
			s := startServer(t, append([]string{"serve", "--app", "lines", "--admin", "127.0.0.1:0", "--admin-control", "--admin-token-file", path}, args...)...)
			give := func(what string) {
				t.Helper()
				s.order(t, what, secret)
			}
			shows := func(what string) {
				t.Helper()
				await.True(t, "the page with "+what, func() bool {
					answer, err := http.Get(s.admin + "/live")
					if err != nil {
						t.Fatal(err)
					}
					defer answer.Body.Close()
					text, _ := io.ReadAll(answer.Body)
					return strings.Contains(string(text), what)
				})
			}
			give("pause")
			shows("an operator has paused that")
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			io.WriteString(c, "hello\n")
			give("resume")
			if _, err := io.ReadFull(c, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
			shows("serves 1 connections")
			give("close?remote=" + c.LocalAddr().String())
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("the connection was not closed")
			}
			give("drain")
			if err := s.Wait(); err != nil {
				t.Errorf("after the drain: %v; stderr: %s", err, s.stderr)
			}
		})
	}
}
