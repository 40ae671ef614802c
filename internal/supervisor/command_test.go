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
		if err := s.PauseAccept(true); err != nil {
			t.Error(err)
		}
		if err := s.QueueCloseOfPeerConns(netip.MustParseAddrPort("192.0.2.1:80")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for i, a := range n.allProcesses() {
			if got := a.takeFrameKinds(); got != "px" {
				t.Errorf("worker %d was passed %q, want px", i, got)
			}
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if got := n.allProcesses()[2].takeFrameKinds(); got != "p" {
			t.Errorf("the worker that was started again was passed %q, want p", got)
		}
		s.PauseAccept(false)
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if got := n.allProcesses()[2].takeFrameKinds(); got != "r" {
			t.Errorf("a worker was passed %q, want r", got)
		}
		if got := n.allProcesses()[3].takeFrameKinds(); got != "" {
			t.Errorf("a worker that was started again when nothing holds was passed %q", got)
		}
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
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

// TestExecuteCommand checks that commands reach the engine, and that malformed ones fail.
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
		{encodeClosePeerConns(netip.MustParseAddrPort("[2001:db8::1]:443")), "expel [2001:db8::1]:443", ""},
		{encodeFrame(kindExpel, []byte{1, 2}), "", "peer to expel is 0102; expected"},
	} {
		e.calls = nil
		frame, err := readFrameWithHeader(bytes.NewReader(c.frame))
		if err != nil {
			t.Fatalf("received %q, %v", frame, err)
		}
		err = executeOperatorCommand(e, frame[0], frame[frameHeaderSize:])
		if got := strings.Join(e.calls, ", "); got != c.told || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: the engine was told %q, %v; want %q, %s", c.frame, got, err, c.told, c.err)
		}
	}
}
