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
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// ends are those of one socket pair: the old process's and the new one's.
func ends(t *testing.T) (old, next control) {
	t.Helper()
	pair, err := sock.RightsPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(pair[:]) })
	return control{pair[0]}, control{pair[1]}
}

// TestVersions has either side refuse the other that speaks another version.
func TestVersions(t *testing.T) {
	old, next := ends(t)
	if err := old.send(hello, Hello{Version: 99}); err != nil {
		t.Fatal(err)
	}
	p := &Predecessor{control: next}
	if err := p.greet(); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("the new process says %v; want that it does not speak version 99", err)
	}
	s := &Successor{control: old, patience: 10 * time.Second, exited: make(chan struct{})}
	if _, err := s.AwaitReady(context.Background()); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("the old process hears %v; want why the new one can't", err)
	}
	old, next = ends(t)
	if err := next.send(ready, Ready{Version: 98}); err != nil {
		t.Fatal(err)
	}
	s = &Successor{control: old, patience: 10 * time.Second, exited: make(chan struct{})}
	if _, err := s.AwaitReady(context.Background()); err == nil || !strings.Contains(err.Error(), "version 98") {
		t.Errorf("the old process says %v; want that it does not speak version 98", err)
	}
}

// TestParts sends more descriptors than a message takes, up to the bound and beyond it.
func TestParts(t *testing.T) {
	for _, n := range []int{0, sock.MaxRights, sock.MaxRights + 1, maxDescriptors, maxDescriptors + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			testkit.ReserveDescriptors(t, n+10)
			old, next := ends(t)
			sent := make(chan error, 1)
			go func() { sent <- old.send(channels, n, slices.Repeat([]*os.File{old.file}, n)...) }()
			said := 0
			files, err := next.expect(context.Background(), channels, &said, 10*time.Second)
			switch {
			case n > maxDescriptors && err == nil:
				t.Errorf("%d descriptors are taken; want at most %d", n, maxDescriptors)
			case n <= maxDescriptors && (err != nil || said != n || len(files) != n):
				t.Errorf("%d descriptors have come, said to be %d, %v; want %d", len(files), said, err, n)
			}
			closeAll(files)
			next.file.Close()
			<-sent // which fails where the other side has closed
		})
	}
}

// TestWords has a wrong word, an aborted upgrade and an end told apart.
func TestWords(t *testing.T) {
	old, next := ends(t)
	for _, c := range []struct{ word, says string }{{"nonsense", `got "nonsense"; expected "channels"`}, {abort, errAborted.Error()}} {
		if err := old.send(c.word, struct{}{}); err != nil {
			t.Fatal(err)
		}
		if _, err := next.expect(context.Background(), channels, new(int), 10*time.Second); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", c.word, err, c.says)
		}
	}
	old.file.Close()
	if _, err := next.expect(context.Background(), channels, new(int), 10*time.Second); err == nil || !strings.Contains(err.Error(), io.EOF.Error()) {
		t.Errorf("at the end: %v; want EOF", err)
	}
}

// TestChannels has each loop meet each of the other side's, or one where there are as many, or
// too many, when both deal their ends out in turn.
func TestChannels(t *testing.T) {
	for _, c := range []struct{ from, to, pairs int }{{1, 1, 1}, {4, 4, 4}, {2, 4, 8}, {4, 2, 8}, {2, 3, 6}, {1, 4, 4}, {64, 65, 65}} {
		old, next := ends(t)
		s := &Successor{control: old, patience: Timeout, exited: make(chan struct{})}
		theirs := make(chan []*os.File, 1)
		go func() {
			files, _ := next.expect(context.Background(), channels, new(Channels), 10*time.Second)
			_ = next.send(taking, struct{}{})
			theirs <- files
		}()
		ours, err := s.Channels(t.Context(), c.from, c.to, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		pairs := make(map[[2]int]bool)
		files := <-theirs
		for i, f := range ours {
			if _, err := f.Write([]byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		for k, f := range files {
			var p [1]byte
			if _, err := f.Read(p[:]); err != nil {
				t.Fatal(err)
			}
			pairs[[2]int{int(p[0]) % c.from, k % c.to}] = true
		}
		closeAll(ours)
		closeAll(files)
		if len(pairs) != c.pairs || len(files) != c.pairs {
			t.Errorf("%d to %d: %d channels join %d pairs, want %d", c.from, c.to, len(files), len(pairs), c.pairs)
		}
	}
}

// TestAnswerEnds has no answer be waited for when ctx has ended, whenever that is, and the next one
// waited for all the same.
func TestAnswerEnds(t *testing.T) {
	old, next := ends(t)
	s := &Successor{control: old, patience: 2 * testkit.Timeout, exited: make(chan struct{})}
	for i := range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		var busy sync.WaitGroup
		if i%2 == 0 {
			cancel()
		} else {
			busy.Go(cancel)
		}
		ended := make(chan error, 1)
		go func() { ended <- s.answer(ctx, ready, new(Ready)) }()
		if err := testkit.Receive(t, ended, "an answer is not waited for any more"); !errors.Is(err, context.Canceled) {
			t.Fatalf("without an answer: %v; want %v", err, context.Canceled)
		}
		busy.Wait()
	}
	if err := next.send(ready, Ready{Version: Version}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AwaitReady(t.Context()); err != nil {
		t.Errorf("an answer: %v", err)
	}
}

// TestHowItEnded waits until it is known how a process has ended whose end of the control is closed,
// and not for one that goes on.
func TestHowItEnded(t *testing.T) {
	old, next := ends(t)
	s := &Successor{control: old, patience: 2 * testkit.Timeout, exited: make(chan struct{})}
	if err := next.send("nonsense", struct{}{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AwaitReady(t.Context()); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%v; want that it says nonsense", err)
	}
	next.file.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := s.AwaitReady(t.Context())
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Errorf("%v before the process has ended", err)
	case <-time.After(300 * time.Millisecond): // for what must not happen
	}
	s.state = errors.New("exit status 3")
	close(s.exited)
	if err := testkit.Receive(t, ended, "it is known how it ended"); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v; want the exit status", err)
	}
}

// TestReportEnd has a process that took the place of this one end, in each way. It is reported to the first
// process, and left to be reaped.
func TestReportEnd(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	own.Store(&line{write: write})
	defer own.Store(nil)
	for _, c := range []struct{ script, how string }{{"exit 0", "exit status 0"}, {"exit 3", "exit status 3"}, {"kill -9 $$", "signal: killed"}} {
		cmd := exec.Command("sh", "-c", c.script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		reportEnd(cmd.Process.Pid)
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
