package clients

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestEachOther has the clients of all libraries and protocol versions subscribe to one channel and publish to
// each other.
func TestEachOther(t *testing.T) {
	s := startServer(t)
	var all []*client
	for _, l := range libraries {
		if l.cluster && *against != "hub" {
			continue
		}
		for protocol := 2; protocol <= 3; protocol++ {
			all = append(all, l.newClient(t, s.url("", ""), protocol))
		}
	}
	for _, c := range all {
		c.callAndConfirm("subscribe", "meeting")
	}
	var payload bytes.Buffer // every byte, longer than one read
	for i := range 100_000 {
		payload.WriteByte(byte(i))
	}
	for i, c := range all {
		for _, data := range []string{fmt.Sprint("from ", i), "", "\r\n", payload.String()} {
			if n := c.mustCall("publish", "meeting", data); n != fmt.Sprint(len(all)) {
				t.Errorf("client %d has reached %s subscribers of %d", i, n, len(all))
			}
			for _, to := range all {
				to.expectMessage(fmt.Sprintf("%q: %q", "meeting", data))
			}
		}
	}
}

func TestPatterns(t *testing.T) {
	forEachLibrary(t, nil, func(t *testing.T, s *server, connect func(string) *client) {
		c := connect(s.url("", ""))
		c.callAndConfirm("psubscribe", "news.*")
		c.callAndConfirm("psubscribe", "h[ae]llo")
		for channel, receivers := range map[string]string{"news.sport": "1", "news.": "1", "news": "0", "hallo": "1", "hullo": "0"} {
			if n := c.mustCall("publish", channel, "x"); n != receivers {
				t.Errorf("%s has %s receivers, want %s", channel, n, receivers)
			} else if n == "1" {
				pattern := "h[ae]llo"
				if strings.HasPrefix(channel, "news") {
					pattern = "news.*"
				}
				c.expectMessage(fmt.Sprintf("%q as %q: %q", channel, pattern, "x"))
			}
		}
		c.callAndConfirm("punsubscribe", "news.*")
		if n := c.mustCall("publish", "news.sport", "y"); n != "0" {
			t.Error("after PUNSUBSCRIBE a message has receivers:", n)
		}
		c.mustCall("publish", "hello", "z")
		c.expectMessage(`"hello" as "h[ae]llo": "z"`)
	})
}

// TestTransactions publishes with MULTI and EXEC.
func TestTransactions(t *testing.T) {
	forEachLibrary(t, nil, func(t *testing.T, s *server, connect func(string) *client) {
		if strings.Contains(t.Name(), "RedisCluster") {
			t.Log("redis-py's RedisCluster has no transactions of PUBLISH")
			return
		}
		c := connect(s.url("", ""))
		c.callAndConfirm("subscribe", "a")
		if got := c.mustCall("transaction", "a", "1", "2", "3"); got != "[1 1 1]" {
			t.Errorf("EXEC replies %s, want a receiver of each message", got)
		}
		for _, message := range []string{"1", "2", "3"} {
			c.expectMessage(fmt.Sprintf("%q: %q", "a", message))
		}
	})
}

func TestSharded(t *testing.T) {
	forEachLibrary(t, nil, func(t *testing.T, s *server, connect func(string) *client) {
		c := connect(s.url("", ""))
		c.callAndConfirm("ssubscribe", "a")
		for _, message := range []string{"1", "2"} {
			if n := c.mustCall("spublish", "a", message); n != "1" {
				t.Errorf("SPUBLISH has %s receivers, want 1", n)
			}
			c.expectMessage(fmt.Sprintf("%q: %q", "a", message))
		}
	})
}

func TestUnsubscribe(t *testing.T) {
	forEachLibrary(t, nil, func(t *testing.T, s *server, connect func(string) *client) {
		c := connect(s.url("", ""))
		c.callAndConfirm("subscribe", "stays")
		c.callAndConfirm("subscribe", "goes")
		c.mustCall("publish", "goes", "1")
		c.expectMessage(`"goes": "1"`)
		c.callAndConfirm("unsubscribe", "goes")
		if n := c.mustCall("publish", "goes", "2"); n != "0" {
			t.Error("after UNSUBSCRIBE a message has receivers:", n)
		}
		c.mustCall("publish", "stays", "3")
		c.expectMessage(`"stays": "3"`)
	})
}

// TestRestart checks that libraries resubscribe after a server restart.
func TestRestart(t *testing.T) {
	forEachLibrary(t, nil, func(t *testing.T, s *server, connect func(string) *client) {
		if s.cmd == nil {
			t.Skip("the server of an address is not ours to restart")
		}
		c := connect(s.url("", ""))
		c.callAndConfirm("subscribe", "a")
		c.callAndConfirm("psubscribe", "b*")
		s.stopProcess()
		s.startProcess()
		for _, channel := range []string{"a", "b"} {
			testkit.WaitFor(t, "a subscriber of "+channel+" is back", func() bool {
				n, err := c.call("publish", channel, "again")
				return err == nil && n == "1"
			})
		}
		c.expectMessage(`"a": "again"`)
		c.expectMessage(`"b" as "b*": "again"`)
	})
}

func TestReset(t *testing.T) {
	forEachLibrary(t, nil, func(t *testing.T, s *server, connect func(string) *client) {
		c := connect(s.url("", ""))
		if strings.Contains(t.Name(), "Cluster") {
			t.Log("a cluster client has no RESET of its own")
			return
		}
		if got := c.mustCall("reset"); got != "RESET " {
			t.Errorf("after RESET a connection has answered %q, want no name", got)
		}
		if got := c.mustCall("ping"); got != "PONG" && got != "True" { // redis-py returns True
			t.Errorf("PING is answered with %q", got)
		}
	})
}

func TestUsers(t *testing.T) {
	users := []string{
		"user default off",
		"user alice on >secret resetchannels &news:* +@all",
	}
	forEachLibrary(t, users, func(t *testing.T, s *server, connect func(string) *client) {
		if strings.Contains(t.Name(), "Cluster") {
			t.Log("a cluster client fails to find the cluster, in words of its own")
			return
		}
		for url, want := range map[string]string{
			s.url("alice", "wrong"):  "WRONGPASS|invalid username-password pair",
			s.url("nobody", "wrong"): "WRONGPASS|invalid username-password pair",
			s.url("", ""):            "NOAUTH|Authentication required|without any password|must be called with the client already authenticated",
		} {
			if _, err := connect(url).call("publish", "news:a", "x"); err == nil {
				t.Error(url, "may publish")
			} else if !containsAny(err.Error(), want) {
				t.Errorf("%s is told %q, want %s", url, err, want)
			}
		}
		alice := connect(s.url("alice", "secret"))
		alice.callAndConfirm("subscribe", "news:a")
		alice.mustCall("publish", "news:a", "x")
		alice.expectMessage(`"news:a": "x"`)
		if _, err := alice.call("publish", "other", "x"); err == nil || !containsAny(err.Error(), "NOPERM|no permissions") {
			t.Error("publishing to a channel of others has the error", err)
		}
	})
}

func containsAny(s, alternatives string) bool {
	for a := range strings.SplitSeq(alternatives, "|") {
		if strings.Contains(s, a) {
			return true
		}
	}
	return false
}
