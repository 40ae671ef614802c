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

func newOutboxPair(t *testing.T) (o *outbox, ours *net.UnixConn, theirs *os.File) {
	t.Helper()
	ours, theirs, err := newControlSocketPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
	})
	return newUnstartedOutbox(ours), ours, theirs
}

func TestOutbox(t *testing.T) {
	o, ours, theirs := newOutboxPair(t)
	for i := range maxQueuedMessages {
		if err := o.enqueue(fmt.Appendln(nil, i), 0); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
	}
	if err := o.enqueue(nil, 0); !errors.Is(err, engine.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	if err := o.enqueue(nil, time.Millisecond); !errors.Is(err, engine.ErrFull) {
		t.Errorf("one too many, with a wait: %v", err)
	}
	o.close()
	if err := o.enqueue(nil, time.Hour); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	o.writeUntilClosedAndDrained()
	if err := ours.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(theirs)
	lines := strings.Fields(string(got))
	if err != nil || len(lines) != maxQueuedMessages || lines[maxQueuedMessages-1] != fmt.Sprint(maxQueuedMessages-1) {
		t.Errorf("written: %q, %v", got, err)
	}
}

func TestOutboxClosedByPeer(t *testing.T) {
	o, _, theirs := newOutboxPair(t)
	theirs.Close()
	_ = o.enqueue([]byte("x"), 0)
	o.writeUntilClosedAndDrained()
	if err := o.enqueue([]byte("x"), 0); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("put: %v", err)
	}
}

// TestOutboxUrgent checks that an urgent message overtakes queued ones.
func TestOutboxUrgent(t *testing.T) {
	o, _, theirs := newOutboxPair(t)
	for range 3 {
		if err := o.enqueue([]byte("b"), 0); err != nil {
			t.Fatal(err)
		}
	}
	o.enqueueUrgent([]byte("d"))
	go o.writeUntilClosedAndDrained()
	defer o.close()
	got := make([]byte, 4)
	if _, err := io.ReadFull(theirs, got); err != nil || string(got) != "dbbb" {
		t.Errorf("written: %q, %v", got, err)
	}
}
