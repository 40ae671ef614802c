package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
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

// TestOfferTooMany has jobs wait until there is room for no more of them: no side
// has more than its bounds, and each says why it turns jobs away.
func TestOfferTooMany(t *testing.T) {
	t.Run("ants", func(t *testing.T) {
		t.Parallel()
		tooMany(t, "ants", "full", 10, 10) // workers
	})
	t.Run("pond", func(t *testing.T) {
		t.Parallel()
		tooMany(t, "pond", "full", 15, 15) // workers, and places in the queue
	})
	// A tenth of the workers, and two to three times that. It counts a job that is to wait
	// when that waits, and not when it is taken: on a busy machine it takes many before.
	// Here the next job comes when all others wait.
	t.Run("failsafe", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tooMany(t, "failsafe", "limit", 1+3, 1+3)
			time.Sleep(time.Hour) // those that were left to themselves end
		})
	})
}

func tooMany(t *testing.T, name, cause string, least, most uint64) {
	t.Helper()
	r := offered(t, "--pool", name, "--work", "published", "--bytes", "0", "--wait", "20s", "--rate", "1000",
		"--duration", "200ms", "--deadline", "1h", "--drain", "2s", "--workers", "10", "--queue", "5")
	if r.Offered != 200 || r.Finished+r.Expired > 0 || r.Unfinished < least || r.Unfinished > most || r.Causes[cause] != r.Rejected {
		t.Errorf("got %+v; want room for %d to %d of 200", r, least, most)
	}
	if workers := r.PeakWorkers; workers < 1 || workers > 10 {
		t.Errorf("%d workers, want 1 to 10", workers)
	}
}

// TestOfferExpired has jobs wait for a permit until they are too late.
func TestOfferExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := offered(t, "--pool", "failsafe", "--work", "published", "--bytes", "0", "--wait", "1s", "--rate", "1000",
			"--duration", "10ms", "--deadline", "500ms", "--workers", "10")
		if r.Finished != 1 || r.Good != 0 || r.Expired < 1 || r.Unfinished != 0 {
			t.Errorf("got %+v; want one that is too late, and some expired", r)
		}
	})
}

// TestOfferEnded has it end early.
func TestOfferEnded(t *testing.T) {
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"offer", "--pool", "ants", "--rate", "100", "--duration", "1h", "--bytes", "0", "--iterations", "1"}, in, io.Discard)
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
		{[]string{"--pool", "ants", "--work", "none"}, 2, "expected one of published, cpu, mixed"},
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
