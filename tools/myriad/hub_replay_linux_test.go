package main

import (
	"bufio"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
)

// streamOf reads messages from a hub's stream of events behind an id, and calls f with each until it says
// that it is enough, or the connection ends.
func streamOf(t *testing.T, addr, last string, f func(id, event string) (more bool)) {
	t.Helper()
	c := dial(t, addr)
	defer c.Close()
	if last != "" {
		last = "Last-Event-ID: " + last + "\r\n"
	}
	fmt.Fprintf(c, "GET /events?topic=k.a HTTP/1.1\r\nHost: localhost\r\n%s\r\n", last)
	id := ""
	for lines := bufio.NewScanner(c); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "HTTP/") && !strings.Contains(line, "200"):
			t.Errorf("%s", line)
		case strings.HasPrefix(line, "id: "):
			id = strings.TrimPrefix(line, "id: ")
		case line == "" && id != "":
			if !f(id, "") {
				return
			}
			id = ""
		case strings.HasPrefix(line, "data: "):
			if !f(id, strings.TrimPrefix(line, "data: ")) {
				return
			}
			id = ""
		}
	}
}

// Of three hubs that keep messages by themselves one is killed. Its client goes on at another one, and
// has got, in all, each message once and in order.
func TestReplayKilled(t *testing.T) {
	const messages = 400
	secret := filepath.Join(t.TempDir(), "secret")
	rewrite(t, secret, "sesame")
	addrs := []string{testserver.FreeAddr(t), testserver.FreeAddr(t), testserver.FreeAddr(t)}
	var hubs []*server
	for i, addr := range addrs {
		hubs = append(hubs, startServer(t, "hub", "--admin", "127.0.0.1:0", "--node", fmt.Sprint("hub", i), "--cluster", addr, "--join", strings.Join(addrs, ","),
			"--cluster-secret", secret, "--replay", "k.*,other", "--replay-dir", t.TempDir()))
	}
	last := ""
	for _, h := range hubs {
		testkit.WaitFor(t, "the stream is read", func() bool {
			_, text := get(t, h.admin+"/hub")
			return strings.Contains(text, `"Ready": true`)
		})
	}
	streamOf(t, hubs[0].addr, "", func(id, _ string) bool {
		last = id
		return false
	})
	publisher := dial(t, hubs[0].addr)
	published := make(chan struct{}, messages)
	go func() {
		defer close(published)
		for n := range messages {
			fmt.Fprintf(publisher, "PUBLISH k.a %d\r\n", n)
			if !strings.HasPrefix(readLine(t, publisher), ":") {
				t.Errorf("message %d is refused", n)
			}
			published <- struct{}{}
			time.Sleep(time.Millisecond)
		}
	}()
	next := 0
	note := func(until int) func(id, event string) bool {
		return func(id, event string) bool {
			if event == "" {
				return true
			}
			if want := fmt.Sprintf(`{"op":"message","id":%q,"topic":"k.a","data":"%d"}`, id, next); event != want {
				t.Errorf("it says %s behind %s; expected %s", event, last, want)
				return false
			}
			next++
			last = id
			return next < until
		}
	}
	streamOf(t, hubs[1].addr, last, func(id, event string) bool {
		if next == messages/4 {
			hubs[1].Process.Kill() // the rest that it has sent comes still
		}
		return note(messages)(id, event)
	})
	if next <= messages/4 || next == messages || t.Failed() {
		t.Fatalf("the client was cut off behind %d messages; expected some, and not all", next)
	}
	cut := next
	for end := time.Now().Add(testkit.Timeout); next < messages && !t.Failed() && time.Now().Before(end); {
		streamOf(t, hubs[2].addr, last, note(messages))
	}
	if next != messages {
		t.Fatalf("it has got %d messages; expected %d", next, messages)
	}
	t.Logf("%d messages of the hub that was killed, %d of another one", cut, messages-cut)
	for range published {
	}
}
