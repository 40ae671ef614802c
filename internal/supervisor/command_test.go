package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

func (a *fakeProcess) takeFrameKinds() (what string) {
	for len(a.frames) > 0 {
		what += string((<-a.frames)[:1])
	}
	return what
}

// TestCommands checks that a command reaches all workers, and that a restarted worker receives the
// current command, if there is one.
func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := startWithScripts(nil, []script{{serves: true, lifetime: time.Hour}, {serves: true, lifetime: time.Hour}, {serves: true}}, []script{{serves: true}})
		synctest.Wait()
		want := func(what string, worker int, kinds string) {
			t.Helper()
			synctest.Wait()
			if got := n.allProcesses()[worker].takeFrameKinds(); got != kinds {
				t.Errorf("%s was passed %q, want %q", what, got, kinds)
			}
		}
		testkit.ExpectNoError(t, s.PauseAccept(true))
		testkit.ExpectNoError(t, s.QueueCloseOfPeerConns(netip.MustParseAddrPort("192.0.2.1:80")))
		want("the first worker", 0, "px")
		want("the second worker", 1, "px")
		time.Sleep(time.Hour + time.Minute)
		want("the worker that was started again", 2, "p")
		s.PauseAccept(false)
		time.Sleep(time.Hour + time.Minute)
		want("a worker", 2, "r")
		want("a worker that was started again when nothing holds", 3, "")
		testkit.ExpectNoError(t, s.Stop(context.Background()))
		for _, err := range []error{s.PauseAccept(true), s.QueueCloseOfPeerConns(netip.MustParseAddrPort("192.0.2.1:80"))} {
			if !errors.Is(err, engine.ErrClosed) {
				t.Errorf("after the end: %v, want %v", err, engine.ErrClosed)
			}
		}
	})
}

type recordingEngine struct {
	engine.Engine
	calls []string
}

func (e *recordingEngine) PauseAccept(on bool) error {
	e.calls = append(e.calls, fmt.Sprint("hold ", on))
	return nil
}

func (e *recordingEngine) QueueCloseOfPeerConns(peer netip.AddrPort) error {
	e.calls = append(e.calls, "expel "+peer.String())
	return nil
}

func TestExecuteCommand(t *testing.T) {
	e := &recordingEngine{}
	for _, c := range []struct {
		frame []byte
		told  string
		err   string
	}{
		{encodePauseOrResumeAccept(true), "hold true", ""},
		{encodePauseOrResumeAccept(false), "hold false", ""},
		{encodeClosePeerConns(netip.MustParseAddrPort("192.0.2.1:80")), "expel 192.0.2.1:80", ""},
		{encodeFrame(kindExpel, []byte{1, 2}), "", "peer to expel is 0102; expected"},
	} {
		e.calls = nil
		frame, err := readFrameWithHeader(bytes.NewReader(c.frame))
		testkit.RequireNoError(t, err)
		err = executeOperatorCommand(e, frame[0], frame[frameHeaderSize:])
		if got := strings.Join(e.calls, ", "); got != c.told || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: the engine was told %q, %v; want %q, %s", c.frame, got, err, c.told, c.err)
		}
	}
}
