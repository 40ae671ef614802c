package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// newPair is an outbox, and both ends of its control socket.
func newPair(t *testing.T) (o *outbox, ours *net.UnixConn, theirs *os.File) {
	t.Helper()
	ours, theirs, err := controlPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
	})
	return newOutbox(ours), ours, theirs
}

func TestOutbox(t *testing.T) {
	o, ours, theirs := newPair(t)
	for i := range maxWaiting {
		if err := o.put(fmt.Appendln(nil, i), 0); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
	}
	if err := o.put(nil, 0); !errors.Is(err, engine.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	if err := o.put(nil, time.Millisecond); !errors.Is(err, engine.ErrFull) {
		t.Errorf("one too many, with a wait: %v", err)
	}
	o.close()
	if err := o.put(nil, time.Hour); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	o.write()
	if err := ours.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(theirs)
	lines := strings.Fields(string(got))
	if err != nil || len(lines) != maxWaiting || lines[maxWaiting-1] != fmt.Sprint(maxWaiting-1) {
		t.Errorf("written: %q, %v", got, err)
	}
}

// What can't be written ends the outbox.
func TestOutboxClosedByPeer(t *testing.T) {
	o, _, theirs := newPair(t)
	theirs.Close()
	for range 2 {
		if err := o.put([]byte("x"), 0); err != nil {
			t.Fatal(err)
		}
	}
	o.write()
	if err := o.put([]byte("x"), 0); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("put: %v", err)
	}
}

// An order is written before the broadcasts that wait.
func TestOutboxUrgent(t *testing.T) {
	o, _, theirs := newPair(t)
	for range 3 {
		if err := o.put([]byte("b"), 0); err != nil {
			t.Fatal(err)
		}
	}
	o.putUrgent([]byte("d"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.write()
	}()
	got := make([]byte, 4)
	if _, err := io.ReadFull(theirs, got); err != nil || string(got) != "dbbb" {
		t.Errorf("written: %q, %v", got, err)
	}
	o.close()
	<-done
}
