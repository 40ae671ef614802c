package hub_test

import (
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

var recordFlag = flag.Bool("record", false, "have redis-server answer all of testdata/redis again, and write the answers there")

// TestRedisServer checks the transcripts against redis-server.
func TestRedisServer(t *testing.T) {
	version, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		t.Skip("there is no redis-server; install Debian's package redis-server:", err)
	}
	if !strings.Contains(string(version), "v=7.0.") {
		t.Skipf("the transcripts are of version 7.0, this is %s", version)
	}
	forEachTranscript(t, func(t *testing.T, file string, s *transcript) {
		addr := startRedis(t, s.users)
		if *recordFlag {
			for _, c := range s.cases {
				c.recordReplies(t, addr)
			}
			if err := os.WriteFile(file, s.encode(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range s.cases {
			c.runAllModes(t, false, func(testing.TB) string { return addr })
		}
	})
}

func forEachTranscript(t *testing.T, do func(*testing.T, string, *transcript)) {
	files, err := filepath.Glob("testdata/redis/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			s, err := parseTranscript(file)
			if err != nil {
				t.Fatal(err)
			}
			do(t, file, s)
		})
	}
}

// runAllModes runs a case with both protocol versions in each write mode, each time on the server at address.
func (e *transcriptCase) runAllModes(t *testing.T, hub bool, address func(testing.TB) string) {
	for _, how := range []writeMode{whole, bytewise, pipelined} {
		if how == pipelined && !e.usesOneConn() {
			continue
		}
		for resp := 2; resp <= 3; resp++ {
			t.Run(e.name+"/"+string(how)+"/RESP"+strconv.Itoa(resp), func(t *testing.T) {
				e.runCase(t, address(t), resp, how, hub)
			})
		}
	}
}

// startRedis starts redis-server with users and returns its Unix socket. It stops with the test.
func startRedis(t *testing.T, users []string) string {
	dir := t.TempDir()
	socket, acl := filepath.Join(dir, "s"), filepath.Join(dir, "users.acl")
	if err := os.WriteFile(acl, []byte(strings.Join(users, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir, "--aclfile", acl)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	testkit.WaitFor(t, "redis-server listens", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return socket
}
