package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/tools/internal/jobload"
)

// runOffer runs "peers offer", checks that its sums are consistent, and returns its result.
func runOffer(t *testing.T, args ...string) *jobload.Result {
	t.Helper()
	var out, errOut bytes.Buffer
	args = append([]string{"offer", "--iterations", "1000"}, args...)
	if code := run(t.Context(), args, &out, &errOut); code != 0 {
		t.Fatalf("%q: exit code %d: %s", args, code, errOut.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last, err := jobload.ParseOutputLine([]byte(lines[len(lines)-1]))
	if err != nil || last.Result == nil {
		t.Fatalf("%q: last line %.100q, %v, want a result", args, lines[len(lines)-1], err)
	}
	r := last.Result
	if r.Offered != r.Accepted+r.Rejected || r.Accepted != r.Finished+r.Expired+r.Shed+r.Unfinished || r.Good > r.Finished {
		t.Errorf("%q: the sums are wrong: %+v", args, r)
	}
	return r
}

// TestOfferAll submits as many jobs as fit.
func TestOfferAll(t *testing.T) {
	for name := range pools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runOffer(t, "--pool", name, "--work", "mixed", "--rate", "500", "--duration", "200ms", "--workers", "1000", "--deadline", "1m")
			if r.Offered != 100 || r.Finished != 100 || r.Good != 100 || r.Unfinished != 0 {
				t.Errorf("%d finished of %d, %d good: %+v; want all 100", r.Finished, r.Offered, r.Good, r)
			}
			if r.Pool != name || r.PeakWorkers < 1 || r.P50 <= 0 || r.Max < r.P999 || r.P999 < r.P99 || r.P99 < r.P50 {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestOfferTooMany submits more jobs than there are workers, queue entries and permits. Each job waits for
// 20 ms.
func TestOfferTooMany(t *testing.T) {
	for name := range pools {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := runOffer(t, "--pool", name, "--work", "published", "--rate", "10000", "--duration", "100ms",
					"--deadline", "30ms", "--workers", "10", "--queue", "5")
				if name == "conc" { // waits instead of rejecting
					if r.Rejected != 0 || r.Late < 900 || r.PeakWorkers != 10 {
						t.Errorf("got %+v; want most late, and 10 workers", r)
					}
					return
				}
				if r.Offered != 1000 || r.Rejected < 900 || r.Finished < 1 || r.Finished > 100 || r.Unfinished != 0 || r.PeakWorkers < 1 || r.PeakWorkers > 10 {
					t.Errorf("got %+v; want room for 1 to 10 at a time, and most rejected", r)
				}
				if name == "failsafe" && r.Expired == 0 {
					t.Error("no job expired that waited for a permit")
				}
				time.Sleep(time.Hour) // abandoned goroutines end
			})
		})
	}
}

func TestOfferEnded(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, context.Canceled)
	defer cancel()
	var out bytes.Buffer
	code := run(ctx, []string{"offer", "--pool", "ants", "--rate", "100", "--duration", "1h", "--iterations", "1"}, &out, io.Discard)
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n")) // progress lines may precede the result
	l, err := jobload.ParseOutputLine(lines[len(lines)-1])
	if code != 0 || err != nil || l.Result == nil || !strings.Contains(l.Result.Overran, "canceled") {
		t.Errorf("exit code %d, %s, %v; want 0 and a result that says so", code, &out, err)
	}
}
