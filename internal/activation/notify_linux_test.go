package activation

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

func newFakeManager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestNotify(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@myriad-test-notify-%d", os.Getpid())} {
		m := newFakeManager(t, name)
		t.Setenv("NOTIFY_SOCKET", name)
		for _, state := range []string{"READY=1", "STOPPING=1\nSTATUS=so long", strings.Repeat("x", maxState)} {
			if sent, err := Notify(state); !sent || err != nil {
				t.Fatalf("%s: sent %v, %v", name, sent, err)
			}
			b := make([]byte, 2*maxState)
			if n, err := m.Read(b); string(b[:n]) != state || err != nil {
				t.Errorf("%s: got %q, %v; want %q", name, b[:n], err, state)
			}
		}
	}
}

func TestNotifyNobody(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if sent, err := Notify("READY=1"); sent || err != nil {
		t.Errorf("sent %v, %v; want neither", sent, err)
	}
}

func TestNotifyRefuses(t *testing.T) {
	for _, c := range []struct{ name, socket, state, says string }{
		{"no state", "/run/notify", "", "state is empty"},
		{"a long state", "/run/notify", strings.Repeat("x", maxState+1), "state has 4097 bytes; expected at most 4096"},
		{"a relative path", "notify", "READY=1", `NOTIFY_SOCKET is "notify"; expected an absolute path`},
		{"an empty name", "@", "READY=1", `NOTIFY_SOCKET is "@"`},
		{"a long path", "/" + strings.Repeat("x", 107), "READY=1", "NOTIFY_SOCKET has 108 bytes"},
	} {
		t.Setenv("NOTIFY_SOCKET", c.socket)
		if sent, err := Notify(c.state); sent || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: sent %v, %v; want an error that says %s", c.name, sent, err, c.says)
		}
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	if sent, err := Notify("READY=1"); sent || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("nobody there: sent %v, %v", sent, err)
	}
}

// TestNotifyWaits fills the queue of a manager that does not read, and checks the time limit.
func TestNotifyWaits(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	newFakeManager(t, name)
	for range 1 << 16 {
		if err := validateAndSendState(name, "READY=1", 10*time.Millisecond); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the queue was never full")
}
