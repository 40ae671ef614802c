package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// patience is how long a test waits for a message.
const patience = 2 * testkit.Timeout

func newTestControlPair(t *testing.T) (old, next controlSocket) {
	t.Helper()
	pair, err := sock.NewFDSocketpair()
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { closeFiles(pair[:]) })
	return controlSocket{pair[0]}, controlSocket{pair[1]}
}

func newTestSuccessor(old controlSocket) *Successor {
	return &Successor{controlSocket: old, replyTimeout: patience, exited: make(chan struct{})}
}

func wantErrorSaying(t *testing.T, when string, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v; want an error that says %q", when, err, says)
	}
}

// TestVersions checks that each side rejects another protocol version.
func TestVersions(t *testing.T) {
	old, next := newTestControlPair(t)
	testkit.RequireNoError(t, old.sendMessage(kindHello, Hello{Version: 99}))
	err := (&Predecessor{controlSocket: next}).receiveHelloAndListeners()
	wantErrorSaying(t, "the new process", err, "version 99")
	s := newTestSuccessor(old)
	_, err = s.WaitReady(context.Background())
	wantErrorSaying(t, "the old process hears", err, "version 99")
	old, next = newTestControlPair(t)
	testkit.RequireNoError(t, next.sendMessage(kindReady, Ready{Version: 98}))
	s = newTestSuccessor(old)
	_, err = s.WaitReady(context.Background())
	wantErrorSaying(t, "the old process says", err, "version 98")
}

func TestParts(t *testing.T) {
	for _, n := range []int{0, sock.MaxFDsPerMessage, sock.MaxFDsPerMessage + 1, maxDescriptors, maxDescriptors + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			testkit.AcquireDescriptorsOrSkip(t, n+10)
			old, next := newTestControlPair(t)
			sent := make(chan error, 1)
			go func() { sent <- old.sendMessage(kindChannels, n, slices.Repeat([]*os.File{old.file}, n)...) }()
			said := 0
			files, err := next.readExpectedMessage(context.Background(), kindChannels, &said, patience)
			switch {
			case n > maxDescriptors && err == nil:
				t.Errorf("%d descriptors are taken; want at most %d", n, maxDescriptors)
			case n <= maxDescriptors && (err != nil || said != n || len(files) != n):
				t.Errorf("%d descriptors have come, said to be %d, %v; want %d", len(files), said, err, n)
			}
			closeFiles(files)
			next.file.Close()
			<-sent // fails if the other side has closed
		})
	}
}

// TestUnexpectedMessages distinguishes an unexpected kind, an abort and a closed socket.
func TestUnexpectedMessages(t *testing.T) {
	old, next := newTestControlPair(t)
	for word, says := range map[string]string{
		"nonsense": `received message "nonsense"; expected "channels"`, kindAbort: errAborted.Error(),
	} {
		testkit.RequireNoError(t, old.sendMessage(word, struct{}{}))
		_, err := next.readExpectedMessage(context.Background(), kindChannels, new(int), patience)
		wantErrorSaying(t, word, err, says)
	}
	old.file.Close()
	_, err := next.readExpectedMessage(context.Background(), kindChannels, new(int), patience)
	wantErrorSaying(t, "at the end", err, io.EOF.Error())
}

// TestOpenChannels checks that every pair of loops has a channel, or each loop has one if the numbers
// are equal or too large.
func TestOpenChannels(t *testing.T) {
	for _, c := range []struct{ from, to, pairs int }{{1, 1, 1}, {4, 4, 4}, {2, 4, 8}, {4, 2, 8}, {2, 3, 6}, {1, 4, 4}, {64, 65, 65}} {
		old, next := newTestControlPair(t)
		s := newTestSuccessor(old)
		theirs := make(chan []*os.File, 1)
		go func() {
			files, _ := next.readExpectedMessage(context.Background(), kindChannels, new(Channels), patience)
			_ = next.sendMessage(kindTaking, struct{}{})
			theirs <- files
		}()
		ours, err := s.SendChannelsAndAwaitTakeOver(t.Context(), c.from, c.to, nil, nil)
		testkit.RequireNoError(t, err)
		pairs := make(map[[2]int]bool)
		files := <-theirs
		for i, f := range ours {
			_, err := f.Write([]byte{byte(i)})
			testkit.RequireNoError(t, err)
		}
		for k, f := range files {
			var p [1]byte
			_, err := f.Read(p[:])
			testkit.RequireNoError(t, err)
			pairs[[2]int{int(p[0]) % c.from, k % c.to}] = true
		}
		closeFiles(ours)
		closeFiles(files)
		if len(pairs) != c.pairs || len(files) != c.pairs {
			t.Errorf("%d to %d: %d channels join %d pairs, want %d", c.from, c.to, len(files), len(pairs), c.pairs)
		}
	}
}

// TestWaitReplyCancelled checks that waitReply returns when ctx ends, at any moment, and that the next
// reply is received all the same.
func TestWaitReplyCancelled(t *testing.T) {
	old, next := newTestControlPair(t)
	s := newTestSuccessor(old)
	for i := range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		var busy sync.WaitGroup
		if i%2 == 0 {
			cancel()
		} else {
			busy.Go(cancel)
		}
		ended := make(chan error, 1)
		go func() { ended <- s.waitReply(ctx, kindReady, new(Ready)) }()
		if err := testkit.Receive(t, ended, "an answer is not waited for any more"); !errors.Is(err, context.Canceled) {
			t.Fatalf("without an answer: %v; want %v", err, context.Canceled)
		}
		busy.Wait()
	}
	testkit.RequireNoError(t, next.sendMessage(kindReady, Ready{Version: Version}))
	if _, err := s.WaitReady(t.Context()); err != nil {
		t.Errorf("an answer: %v", err)
	}
}

// TestWaitAndReportExit checks that each kind of exit is reported to the first process, and that the
// child is not reaped.
func TestWaitAndReportExit(t *testing.T) {
	read, write, err := os.Pipe()
	testkit.RequireNoError(t, err)
	defer read.Close()
	defer write.Close()
	ownStatusPipe.Store(&statusPipe{write: write})
	defer ownStatusPipe.Store(nil)
	for _, c := range []struct{ script, how string }{{"exit 0", "exit status 0"}, {"exit 3", "exit status 3"}, {"kill -9 $$", "signal: killed"}} {
		cmd := exec.Command("sh", "-c", c.script)
		testkit.RequireNoError(t, cmd.Start())
		waitAndReportExitToFirst(cmd.Process.Pid)
		buffer := make([]byte, 100)
		n, err := read.Read(buffer)
		if want := fmt.Sprintln(cmd.Process.Pid, c.how); err != nil || string(buffer[:n]) != want {
			t.Errorf("%s: reported %q, %v; want %q", c.script, buffer[:n], err, want)
		}
		if err := cmd.Wait(); err == nil && c.how != exitedZero || err != nil && err.Error() != c.how {
			t.Errorf("%s: it was reaped with %v; want %s", c.script, err, c.how)
		}
	}
}
