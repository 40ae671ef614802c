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
			c.publish("meeting", data, fmt.Sprint(len(all)))
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
		c.publish("news.sport", "x", "1")
		c.expectMessage(`"news.sport" as "news.*": "x"`)
		c.publish("hullo", "x", "0")
		c.callAndConfirm("punsubscribe", "news.*")
		c.publish("news.sport", "y", "0")
		c.publish("hello", "z", "1")
		c.expectMessage(`"hello" as "h[ae]llo": "z"`)
	})
}

// TestChannels checks UNSUBSCRIBE, transactions of PUBLISH, sharded channels and RESET.
func TestChannels(t *testing.T) {
	forEachLibrary(t, nil, func(t *testing.T, s *server, connect func(string) *client) {
		c := connect(s.url("", ""))
		c.callAndConfirm("subscribe", "stays")
		c.callAndConfirm("subscribe", "goes")
		c.publish("goes", "1", "1")
		c.expectMessage(`"goes": "1"`)
		c.callAndConfirm("unsubscribe", "goes")
		c.publish("goes", "2", "0")
		if strings.Contains(t.Name(), "RedisCluster") {
			t.Log("redis-py's RedisCluster has no transactions of PUBLISH")
		} else {
			testkit.WantEqual(t, c.mustCall("transaction", "stays", "3", "4"), "[1 1]", "replies of EXEC")
			c.expectMessage(`"stays": "3"`)
			c.expectMessage(`"stays": "4"`)
		}
		c.callAndConfirm("ssubscribe", "a")
		testkit.WantEqual(t, c.mustCall("spublish", "a", "5"), "1", "receivers of SPUBLISH")
		c.expectMessage(`"a": "5"`)
		if strings.Contains(t.Name(), "Cluster") {
			t.Log("a cluster client has no RESET of its own")
			return
		}
		testkit.WantEqual(t, c.mustCall("reset"), "RESET ", "reply to RESET, and the connection's name after it")
		if got := c.mustCall("ping"); got != "PONG" && got != "True" { // redis-py returns True
			t.Errorf("PING is answered with %q", got)
		}
	})
}

// TestRestart checks that libraries resubscribe after a server restart.
func TestRestart(t *testing.T) {
	forEachLibrary(t, nil, func(t *testing.T, s *server, connect func(string) *client) {
		if s.stopProcess == nil {
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
