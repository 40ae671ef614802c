package lab

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSplitCPUs(t *testing.T) {
	own := func(cpu int) int { return cpu }
	for name, c := range map[string]struct {
		cpus         []int
		core         func(int) int
		server, load []int
	}{
		"one":               {[]int{3}, own, nil, nil},
		"two":               {[]int{0, 1}, own, []int{0}, []int{1}},
		"three":             {[]int{1, 2, 5}, own, []int{1}, []int{2, 5}},
		"siblings apart":    {[]int{0, 1, 2, 3}, func(c int) int { return c % 2 }, []int{0, 2}, []int{1, 3}},
		"siblings together": {[]int{0, 1, 2, 3, 4, 5}, func(c int) int { return c / 2 }, []int{0, 1}, []int{2, 3, 4, 5}},
		"one core":          {[]int{0, 1, 2, 3}, func(int) int { return 0 }, []int{0, 1}, []int{2, 3}},
	} {
		p := splitCPUs(c.cpus, c.core)
		if !slices.Equal(p.Server, c.server) || !slices.Equal(p.Load, c.load) || p.Pinned() != (c.server != nil) {
			t.Errorf("%s: got %v, want server %v, load %v", name, p, c.server, c.load)
		}
	}
}

func TestTail(t *testing.T) {
	var last tail
	if last.String() != "" {
		t.Errorf("got %q, want nothing", last.String())
	}
	for i := range 2000 {
		fmt.Fprintf(&last, "line %d\n", i)
	}
	if got := last.String(); len(got) > tailSize || !strings.HasSuffix(got, "line 1998\nline 1999") {
		t.Errorf("got %d bytes: ...%q", len(got), got[max(0, len(got)-30):])
	}
	fmt.Fprint(&last, strings.Repeat("x", 3*tailSize)+"end")
	if got := last.String(); len(got) != tailSize || !strings.HasSuffix(got, "xend") {
		t.Errorf("got %d bytes: ...%q", len(got), got[max(0, len(got)-30):])
	}
}

// output hands on what a process writes, and says when it has written.
type output struct {
	io.Writer
	wrote  chan struct{}
	closed chan struct{}
}

func (o output) Write(b []byte) (int, error) {
	o.wrote <- struct{}{}
	return len(b), nil
}

func (o output) Close() error { close(o.closed); return nil }

// TestProcessStubborn ends a process that does not mind SIGTERM.
func TestProcessStubborn(t *testing.T) {
	self := children(t).Self
	l := newLauncher()
	defer l.close()
	l.grace = 50 * time.Millisecond
	out := output{wrote: make(chan struct{}, 1), closed: make(chan struct{})}
	p, err := l.start([]string{self, "stubborn"}, nil, out)
	if err != nil {
		t.Fatal(err)
	}
	<-out.wrote // it ignores the signal from now on
	p.end()
	<-out.closed
	if runtime.GOOS == "linux" && p.failure("it").Error() != "it ended: signal: killed" {
		t.Errorf("got %v, want killed", p.failure("it"))
	}
	p.end() // does nothing
}

// TestNeverReady waits for a server that says something, and never listens.
func TestNeverReady(t *testing.T) {
	self := children(t).Self
	l := newLauncher()
	defer l.close()
	l.grace = 0
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.start([]string{self, "stubborn"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.end()
	for p.said() == "" { // until the test's time is over
		time.Sleep(poll)
	}
	s := &server{process: p, addr: addr, bound: 100 * time.Millisecond}
	_, err = s.awaitReady(t.Context(), Echo, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "the server was not ready within 100ms: dial tcp "+addr) || !strings.HasSuffix(err.Error(), ": stubborn") {
		t.Errorf("got %v, want the bound, why it is not ready, and its last words", err)
	}
}

func TestReadEvents(t *testing.T) {
	result, err := readEvents(strings.NewReader(`{"phase":"connected","snapshot":{"open":3}}`+"\n"+
		`{"phase":"done","result":{"answered":7}}`+"\n"), nil)
	if err != nil || result == nil || result.Answered != 7 {
		t.Errorf("got %+v, %v, want 7 answered", result, err)
	}
	for name, in := range map[string]string{
		"no JSON":  "hello\n",
		"too long": strings.Repeat(" ", maxEvent+1) + "{}\n",
	} {
		if _, err := readEvents(strings.NewReader(in), nil); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
