package lab

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestAwaitGroup waits for a group until its process has ended, but not for long.
func TestAwaitGroup(t *testing.T) {
	self := children(t).Self
	l := newLauncher()
	defer l.close()
	p, err := l.start([]string{self, "stubborn"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.end()
	const bound = 30 * time.Millisecond
	if err := awaitGroup(p.pid(), bound); err == nil || !strings.Contains(err.Error(), "are left 30ms after they were killed") {
		t.Errorf("a process that lives: %v, want an error", err)
	}
	killGroup(p.pid())
	if err := awaitGroup(p.pid(), groupBound); err != nil {
		t.Errorf("a process that was killed: %v", err)
	}
}

// TestSweepTells tells once of processes that were left.
func TestSweepTells(t *testing.T) {
	l := newLauncher()
	defer l.close()
	left := errors.New("some are left")
	l.left = left
	if err := l.sweep(); !errors.Is(err, left) {
		t.Errorf("got %v, want what was left", err)
	}
	if err := l.sweep(); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestStreamHeld has a program end whose output another process holds open.
func TestStreamHeld(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no sh: ", err)
	}
	l := newLauncher()
	defer l.close()
	l.words = 50 * time.Millisecond
	p, err := l.stream(t.Context(), []string{shell, "-c", "sleep 1000 & echo words"}, nil, func(_ *process, out io.Reader) error {
		said, err := io.ReadAll(out)
		if string(said) != "words\n" {
			t.Errorf("got %q, want what it said", said)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = "the load generator ended: 50ms later its output had not come to its end"
	if got := p.failure("the load generator").Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
