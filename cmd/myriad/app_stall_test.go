package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/stall"
)

var epochLine = regexp.MustCompile(`myriad: stall: epoch (\d+)ns\n`)

// epochOf is when the server says that its stalls began.
func epochOf(t *testing.T, s *server) time.Time {
	t.Helper()
	var found []string
	await.TrueOr(t, func() bool {
		found = epochLine.FindStringSubmatch(s.stderr.String())
		return found != nil
	}, func() string { return fmt.Sprintf("stderr is %q, want a line with the epoch", s.stderr) })
	ns, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, ns)
}

// No line is answered before it can be: one after the other, none in a stall.
func TestStall(t *testing.T) {
	const n = 60
	plan := stall.Plan{Capacity: 500, Stall: 50 * time.Millisecond, Every: 100 * time.Millisecond}
	for _, model := range append(myriad.Models(), "") {
		t.Run("model "+model, func(t *testing.T) {
			s := startServer(t, "serve", "--app", "stall", "--stall", plan.Stall.String(), "--stall-every", plan.Every.String(),
				"--stall-capacity", fmt.Sprint(plan.Capacity), "--model", model, "--loops", "1")
			epoch := epochOf(t, s)
			if age := time.Since(epoch); age < 0 || age > patience {
				t.Fatalf("the epoch is %v ago", age)
			}
			c := dial(t, s)
			begin := time.Since(epoch)
			go io.WriteString(c, strings.Repeat("one line\n", n))
			arrivals, ends := make([]time.Duration, n), make([]time.Duration, n)
			in := bufio.NewReader(c)
			for i := range n {
				arrivals[i] = begin
				if got, err := in.ReadString('\n'); err != nil || got != "one line\n" {
					t.Fatalf("line %d is answered with %q, %v", i, got, err)
				}
				ends[i] = time.Since(epoch)
			}
			for i, took := range plan.Truth(arrivals) {
				if ends[i] < begin+took {
					t.Errorf("line %d is answered at %v after the epoch, want not before %v", i, ends[i], begin+took)
				}
			}
		})
	}
}

// A line is answered when it has been served, not with those behind it, which would
// take longer than the test is patient.
func TestStallEach(t *testing.T) {
	for _, model := range myriad.Models() {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, "serve", "--app", "stall", "--stall", "0s", "--stall-capacity", "1", "--model", model)
			got := make([]byte, len("first\n"))
			c := dialAndSend(t, s, strings.Repeat("first\n", 2*int(patience.Seconds())))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "first\n" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// Lines of many connections are served one after the other.
func TestStallLoad(t *testing.T) {
	for _, model := range myriad.Models() {
		s := startServer(t, "serve", "--app", "stall", "--stall", "0s", "--stall-capacity", "1000", "--loops", "1", "--model", model)
		begin := time.Now()
		got := invoke(t, "load", "-c", "10", "--pipeline", "3", "--messages", "20", s.addr)
		if took := time.Since(begin); got.code != 0 || took < 200*time.Millisecond {
			t.Errorf("%s: 200 lines took %v, want at least 200ms; exit code %d, stderr %q", model, took, got.code, got.stderr)
		}
	}
}

// A connection whose line finds no room to wait is closed.
func TestStallFull(t *testing.T) {
	s := startServer(t, "serve", "--app", "stall", "--stall", "0s", "--stall-capacity", "0.02")
	c := dial(t, s)
	go io.WriteString(c, strings.Repeat("\n", stall.MaxLines+1000))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v; want the end of the connection", n, err)
	}
}

// Without a capacity it is as the application lines.
func TestStallNot(t *testing.T) {
	s := startServer(t, "serve", "--app", "stall", "--stall", "0s")
	got := invoke(t, "load", "-c", "10", "--pipeline", "16", "--messages", "100", s.addr)
	if got.code != 0 || !strings.Contains(got.stdout, "1,000") {
		t.Errorf("exit code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestWrongUseOfStall(t *testing.T) {
	for _, c := range []struct {
		flags, says string
	}{
		{"--stall -1s", "--stall and --stall-every are stalls of -1s; expected 0s to"},
		{"--stall 2s", "stalls of 2s every 1s; expected more"},
		{"--stall-every 2h", "at most 1h"},
		{"--stall-capacity -3", "--stall-capacity is a capacity of -3 lines"},
		{"--stall-capacity NaN", "NaN"},
		{"--processes 2", "--processes is 2 with --app stall"},
		{"--app echo --stall 1s", "expected it with --app stall"},
		{"--app wait --stall-every 1s", "expected it with --app stall"},
		{"--app pow --stall-capacity 1", "expected it with --app stall"},
	} {
		args := append([]string{"serve", "--app", "stall"}, strings.Fields(c.flags)...)
		if got := invoke(t, args...); got.code != 2 || !strings.Contains(got.stderr, c.says) || strings.Contains(got.stderr, "epoch") {
			t.Errorf("%s: exit code %d, stderr %q; want 2 and %q", c.flags, got.code, got.stderr, c.says)
		}
	}
}
