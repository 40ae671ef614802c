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
	"github.com/myriad-go/myriad/internal/testkit"
)

func newOutboxPair(t *testing.T) (o *outbox, ours *net.UnixConn, theirs *os.File) {
	t.Helper()
	ours, theirs, err := newControlSocketPair()
	testkit.RequireNoError(t, err)
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
	})
	return newUnstartedOutbox(ours), ours, theirs
}

func TestOutbox(t *testing.T) {
	o, ours, theirs := newOutboxPair(t)
	for i := range maxQueuedMessages {
		testkit.RequireNoError(t, o.enqueue(fmt.Appendln(nil, i), 0))
	}
	for _, wait := range []time.Duration{0, time.Millisecond} {
		if err := o.enqueue(nil, wait); !errors.Is(err, engine.ErrFull) {
			t.Errorf("one too many, with a wait of %v: %v", wait, err)
		}
	}
	o.enqueueUrgent([]byte("urgent\n")) // overtakes the others
	o.close()
	if err := o.enqueue(nil, time.Hour); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	o.writeUntilClosedAndDrained()
	testkit.RequireNoError(t, ours.CloseWrite())
	got, err := io.ReadAll(theirs)
	lines := strings.Fields(string(got))
	if err != nil || len(lines) != maxQueuedMessages+1 || lines[0] != "urgent" || lines[maxQueuedMessages] != fmt.Sprint(maxQueuedMessages-1) {
		t.Errorf("written: %q, %v", got, err)
	}

	o, _, theirs = newOutboxPair(t)
	theirs.Close()
	_ = o.enqueue([]byte("x"), 0)
	o.writeUntilClosedAndDrained()
	if err := o.enqueue([]byte("x"), 0); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("after the peer has closed: %v", err)
	}
}
