package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/tools/internal/offer"
)

// offered runs "peers offer" and returns its result, in which all sums are right.
func offered(t *testing.T, args ...string) *offer.Result {
	t.Helper()
	var out, errOut bytes.Buffer
	args = append([]string{"offer", "--iterations", "1000"}, args...)
	if code := run(t.Context(), args, &out, &errOut); code != 0 {
		t.Fatalf("%q: exit code %d: %s", args, code, errOut.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last, err := offer.ParseLine([]byte(lines[len(lines)-1]))
	if err != nil || last.Result == nil {
		t.Fatalf("%q: last line %.100q, %v, want a result", args, lines[len(lines)-1], err)
	}
	r := last.Result
	if r.Offered != r.Accepted+r.Rejected || r.Accepted != r.Finished+r.Expired+r.Shed+r.Unfinished || r.Good > r.Finished {
		t.Errorf("%q: the sums are wrong: %+v", args, r)
	}
	return r
}

// TestOfferAll has room for all the jobs.
func TestOfferAll(t *testing.T) {
	for name := range pools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := offered(t, "--pool", name, "--work", "mixed", "--rate", "500", "--duration", "200ms", "--workers", "1000", "--deadline", "1m")
			if r.Offered != 100 || r.Finished != 100 || r.Good != 100 || r.Unfinished != 0 {
				t.Errorf("%d finished of %d, %d good: %+v; want all 100", r.Finished, r.Offered, r.Good, r)
			}
			if r.Pool != name || r.PeakWorkers < 1 || r.P50 <= 0 || r.Max < r.P999 || r.P999 < r.P99 || r.P99 < r.P50 {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestOfferTooMany offers more jobs than there is room for: workers, places in a queue, and
// permits. Each job waits for 20 ms.
func TestOfferTooMany(t *testing.T) {
	for name := range pools {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := offered(t, "--pool", name, "--work", "published", "--rate", "10000", "--duration", "100ms",
					"--deadline", "30ms", "--workers", "10", "--queue", "5")
				if r.Offered != 1000 || r.Rejected < 900 || r.Finished < 1 || r.Finished > 100 || r.Unfinished != 0 || r.PeakWorkers < 1 || r.PeakWorkers > 10 {
					t.Errorf("got %+v; want room for 1 to 10 at a time, and most rejected", r)
				}
				if name == "failsafe" && r.Expired == 0 {
					t.Error("no job expired that waited for a permit")
				}
				time.Sleep(time.Hour) // those that were left to themselves end
			})
		})
	}
}

// TestOfferEnded has it end early.
func TestOfferEnded(t *testing.T) {
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"offer", "--pool", "ants", "--rate", "100", "--duration", "1h", "--iterations", "1"}, in, io.Discard)
		in.Close()
	}()
	time.AfterFunc(50*time.Millisecond, cancel)
	text, _ := io.ReadAll(out)
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n")) // of progress before, if it took that long
	l, err := offer.ParseLine(lines[len(lines)-1])
	if c := <-code; c != 0 || err != nil || l.Result == nil || !strings.Contains(l.Result.Overran, "canceled") {
		t.Errorf("exit code %d, %s, %v; want 0 and a result that says so", c, text, err)
	}
}

func TestOfferWrongUse(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, `--pool is ""; expected one of ants, failsafe, pond`},
		{[]string{"--pool", "ours"}, 2, "expected one of ants, failsafe, pond"},
		{[]string{"--pool", "ants", "--work", "none"}, 2, "expected one of cpu, mixed, published"},
		{[]string{"--pool", "ants", "--rate", "x"}, 2, "rate"},
		{[]string{"--pool", "ants", "extra"}, 2, `"extra"`},
		{[]string{"--help"}, 0, "-pool POOL"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), append([]string{"offer"}, c.args...), &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: exit code %d, %q; want %d and %q", c.args, code, out.String(), c.code, c.says)
		}
	}
}
